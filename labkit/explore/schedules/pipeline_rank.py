"""Do the steps of a schedule in a rank, with stages that sleep or that multiply matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from labkit.launch import device
from labkit.parallel.emulated import EmulatedStage
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Schedule
from labkit.trace import barrier
from labkit.trace.gpu_time import synchronize

WIDTH, ROWS = 256, 128  # of the matrices, and of a micro-batch
TIMED_LAYERS, TIMES = 20, 5


def emulated_steps(schedule: Schedule, seconds: Sequence[tuple[float, float, float]]) -> None:
    """Do a warm-up step and one more with stages that sleep.

    ``seconds`` has for each stage how long forward, input gradient and weight gradient take.
    """
    _two_steps(schedule, lambda stage: EmulatedStage(*seconds[stage]), torch.zeros(schedule.n_micro, 1))


def real_steps(schedule: Schedule, forward_s: Sequence[float]) -> None:
    """Do a warm-up step and one more with stages that multiply matrices.

    Each has so many layers that its forward pass takes about as long as ``forward_s`` says.
    """
    layer_s = _layer_s()
    x = torch.ones(schedule.n_micro * ROWS, WIDTH)
    _two_steps(schedule, lambda stage: _layers(max(1, round(forward_s[stage] / layer_s))), x)


def _layer_s() -> float:
    """Return how long a layer takes forward while all ranks compute, the same in every rank."""
    layers, x = _layers(TIMED_LAYERS), torch.ones(ROWS, WIDTH, device=device())
    times_s = []
    for _ in range(TIMES):
        barrier()
        start = time.perf_counter()
        layers(x)
        synchronize()
        times_s.append(time.perf_counter() - start)
    total_s = torch.tensor(statistics.median(times_s), device=device())
    dist.all_reduce(total_s)
    return total_s.item() / (dist.get_world_size() * TIMED_LAYERS)


def _layers(n_layers: int) -> nn.Module:
    """Return products of matrices that neither grow nor shrink what goes through them.

    Each layer is one product forward, and two, the input's and the weight's, backward.
    """
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(n_layers)]
    for layer in layers:
        nn.init.eye_(layer.weight)
    return nn.Sequential(*layers).to(device())


def _two_steps(schedule: Schedule, make_stage: Callable[[int], nn.Module], x: torch.Tensor) -> None:
    own_stages = sorted({op.stage for op in schedule.ops[dist.get_rank()]})
    pipeline = ScheduledPipeline([make_stage(stage) for stage in own_stages], schedule, mse_loss)
    for _ in range(2):
        barrier()
        pipeline.step(x, torch.zeros_like(x))
