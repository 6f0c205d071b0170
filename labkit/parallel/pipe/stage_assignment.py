"""Given code under ScheduledPipeline: assign a rank and stages, and check that all ranks agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from labkit.parallel.pipe.agreement import check_together
from labkit.parallel.pipe.row_mean import check_loss_function
from labkit.schedule import Schedule, validate


def assign_stages(
    stages: Sequence[nn.Module], schedule: Schedule, loss_fn: object, process_group: Any = None
) -> tuple[int, dict[int, nn.Module]]:
    """Return this process's rank in ``schedule``, and its modules by their stages' numbers.

    The rank is that in ``process_group``, or among all ranks; without torch.distributed it is 0.
    All ranks call this together, and it returns on all of them or raises on all of them: one that
    went on alone would never end.

    Raises:

    - TypeError for anything but a Schedule and modules, and, on the rank of the last stage, what
      :func:`labkit.parallel.pipe.row_mean.check_loss_function` raises.
    - ScheduleError for a schedule that cannot run.
    - ValueError for a schedule of another number of ranks or stages than there are, and where
      another rank has raised or has another schedule.
    """
    _check_group(process_group)
    rank, n_ranks = 0, 1
    if dist.is_initialized():
        rank, n_ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
    modules: dict[int, nn.Module] = {}

    def check() -> str:
        _check_schedule(schedule, n_ranks, "in this process_group" if process_group is not None else "here")
        modules.update(_local_stages(stages, schedule, rank))
        if schedule.n_stages - 1 in modules:
            check_loss_function(loss_fn, schedule.n_micro)
        return hashlib.sha256(schedule.to_csv().encode()).hexdigest()

    fingerprints = check_together(check, process_group)
    if others := [rank for rank, fingerprint in enumerate(fingerprints) if fingerprint != fingerprints[0]]:
        raise ValueError(
            f"rank {', '.join(map(str, others))} has another schedule than rank 0: give all ranks the same one, "
            "which has the ops of all of them"
        )
    return rank, modules


def _check_schedule(schedule: Schedule, n_ranks: int, where: str) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule is a {type(schedule).__name__}, expected a Schedule, such as one_f_one_b(n_stages=2, n_micro=4)"
        )
    validate(schedule)
    if n_ranks != schedule.n_ranks:
        raise ValueError(
            f"the schedule {schedule.name} is for {schedule.n_ranks} ranks, and there are {n_ranks} {where}: make it for "
            f"{n_ranks}, or launch with world_size={schedule.n_ranks}, or give the process_group of the ranks it is for"
        )


def _local_stages(stages: Sequence[nn.Module], schedule: Schedule, rank: int) -> dict[int, nn.Module]:
    """Return ``stages``, the modules of this rank, by the numbers of their stages."""
    alone = isinstance(stages, nn.Module) and not isinstance(stages, nn.ModuleList)
    modules: list[Any] = [stages] if alone or not isinstance(stages, Iterable) else list(stages)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"stages has a {type(module).__name__} in it, expected a list with an nn.Module for each stage of this rank"
            )
    numbers = sorted({op.stage for op in schedule.ops[rank]})
    if len(modules) != len(numbers):
        raise ValueError(
            f"rank {rank} was given {len(modules)} stages, expected {len(numbers)}: of the {schedule.n_stages} stages of the "
            f"schedule {schedule.name}, it has {', '.join(map(str, numbers))}. Give it the modules of these, in this order"
        )
    return dict(zip(numbers, modules, strict=True))


def _check_group(process_group: Any) -> None:
    """Raise TypeError for anything but a process group, ValueError where this process is not in it.

    This is checked at once, without the others, which do not need a rank outside their group.
    """
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the process_group that it was given: give each rank the group of its pipeline, "
            "and make no ScheduledPipeline on a rank that is in none"
        )
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(
            f"process_group is a {type(process_group).__name__}, expected what torch.distributed.new_group gives, or None for "
            "all ranks"
        )
