"""Given code under ScheduledPipeline: which rank of the schedule this process is, which stages it has, and whether all agree."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from labkit.schedule import Schedule, validate


def rank_of(schedule: Schedule, process_group: Any = None) -> int:
    """This process's rank in ``schedule``: that in ``process_group``, or among all; 0 without any, for a schedule of one rank.

    Raises TypeError for what is no Schedule, ScheduleError for one that cannot run, ValueError for one of another number of
    ranks than the group has, and for a process that is not in it.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"schedule is a {type(schedule).__name__}, expected a Schedule, such as one_f_one_b(n_stages=2, n_micro=4)"
        )
    validate(schedule)
    if not dist.is_initialized():
        rank, n_ranks = 0, 1
    else:
        rank, n_ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the process group that it was given: give each rank the group of its pipeline"
        )
    if n_ranks != schedule.n_ranks:
        raise ValueError(
            f"the schedule {schedule.name} is for {schedule.n_ranks} ranks, and there are {n_ranks}: make it for {n_ranks}, or "
            f"launch with world_size={schedule.n_ranks}"
        )
    return rank


def hosted(stages: Sequence[nn.Module], schedule: Schedule, rank: int) -> dict[int, nn.Module]:
    """``stages``, the modules of this rank, by the numbers that their stages have in ``schedule``.

    Raises TypeError for what is no module, and ValueError for more or fewer than the schedule has on this rank.
    """
    modules = [stages] if isinstance(stages, nn.Module) and not isinstance(stages, nn.ModuleList) else list(stages)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"stages has a {type(module).__name__} in it, expected an nn.Module for each stage of this rank"
            )
    numbers = sorted({op.stage for op in schedule.ops[rank]})
    if len(modules) != len(numbers):
        raise ValueError(
            f"rank {rank} was given {len(modules)} stages, expected {len(numbers)}: the schedule {schedule.name} has stages "
            f"{', '.join(map(str, numbers))} of {schedule.n_stages} on this rank. Give it their modules, in this order"
        )
    return dict(zip(numbers, modules, strict=True))


def check_agreement(schedule: Schedule, process_group: Any = None) -> None:
    """Raise ValueError, on all ranks, unless all ranks have the same schedule: they would wait for each other for ever."""
    if schedule.n_ranks == 1:
        return
    own = hashlib.sha256(schedule.to_csv().encode()).hexdigest()
    everyone = [""] * schedule.n_ranks
    dist.all_gather_object(everyone, own, group=process_group)
    if others := [rank for rank, one in enumerate(everyone) if one != everyone[0]]:
        raise ValueError(
            f"rank {', '.join(map(str, others))} has another schedule than rank 0: give all ranks the same one, "
            "which has the ops of all of them"
        )
