"""Do the steps of a schedule in a rank, with stages that sleep or that multiply matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from labkit.launch import device
from labkit.parallel.emulated import EmulatedStage
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Schedule
from labkit.trace import barrier

WIDTH, ROWS = 256, 128  # of the matrices, and of a micro-batch


def emulated_steps(schedule: Schedule, seconds: Sequence[tuple[float, float, float]]) -> int:
    """Do a warm-up step and one more with stages that sleep; return the rank's bytes, as below.

    ``seconds`` has for each stage how long forward, input gradient and weight gradient take.
    """
    stages = {number: EmulatedStage(*seconds[number]) for number in _own_stages(schedule)}
    return _two_steps(schedule, stages, torch.zeros(schedule.n_micro, 1))


def real_steps(schedule: Schedule, n_layers: Sequence[int]) -> int:
    """Do a warm-up step and one more with stages of so many layers each.

    Return the bytes that the rank has for itself, beside what it shares with other processes.
    """
    stages = {number: _stage(n_layers[number]).to(device()) for number in _own_stages(schedule)}
    return _two_steps(schedule, stages, torch.ones(schedule.n_micro * ROWS, WIDTH))


def _own_stages(schedule: Schedule) -> list[int]:
    return sorted({op.stage for op in schedule.ops[dist.get_rank()]})


def _stage(n_layers: int) -> nn.Module:
    """Return products of matrices that neither grow nor shrink what goes through them.

    Each layer is one product forward, and two, the input's and the weight's, backward.
    """
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(n_layers)]
    for layer in layers:
        nn.init.eye_(layer.weight)
    return nn.Sequential(*layers)


def _two_steps(schedule: Schedule, stages: Mapping[int, nn.Module], x: torch.Tensor) -> int:
    pipeline = ScheduledPipeline([stages[number] for number in sorted(stages)], schedule, mse_loss)
    for _ in range(2):
        barrier()
        pipeline.step(x, torch.zeros_like(x))
    return int(psutil.Process().memory_full_info().uss)
