"""Do the steps of schedules in a rank, with stages that sleep or that multiply matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from labkit.base.texts import listed
from labkit.launch import device, progress
from labkit.parallel.emulated import EmulatedStage
from labkit.parallel.pipe.scheduled_stage import Stage
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Op, Schedule
from labkit.trace import barrier, set_step
from labkit.trace.gpu_time import synchronize

WIDTH, ROWS = 256, 128  # of the matrices, and of a micro-batch
TIMED_LAYERS, TIMES = 20, 5


def emulated_steps(schedules: Sequence[Schedule], seconds: Sequence[Sequence[Any]], rounds: int) -> None:
    """Do ``rounds`` steps of each schedule, in turns, with stages that sleep.

    ``seconds`` has for each stage of each schedule how long forward, input gradient and weight
    gradient take.
    """
    _take_turns(schedules, seconds, rounds, lambda times: EmulatedStage(*times), torch.zeros(1, 1))


def real_steps(schedules: Sequence[Schedule], forward_s: Sequence[Sequence[float]], rounds: int) -> None:
    """Do ``rounds`` steps of each schedule, in turns, with stages that multiply matrices.

    Each has enough layers for its forward pass to take about as long as ``forward_s`` says. How
    long the ops of a micro-batch really take there, alone, is measured before each round: in spans
    of step -1 for the first schedule, -2 for the second …
    """
    layer_s = _layer_s()
    x = torch.ones(ROWS, WIDTH)
    _take_turns(schedules, forward_s, rounds, lambda stage_s: _layers(max(1, round(stage_s / layer_s))), x, timed=True)


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


def _take_turns(
    schedules: Sequence[Schedule],
    times: Sequence[Sequence[Any]],
    rounds: int,
    make_stage: Callable[[Any], nn.Module],
    micro_batch: torch.Tensor,
    timed: bool = False,
) -> None:
    """Do step s of the schedule number s % n, of n: what slows the machine down slows all alike."""
    pipelines, stages = [], []
    for schedule, of_stage in zip(schedules, times, strict=True):
        modules = {i: make_stage(of_stage[i]) for i in sorted({op.stage for op in schedule.ops[dist.get_rank()]})}
        pipelines.append(ScheduledPipeline([*modules.values()], schedule, mse_loss))
        stages.append([Stage(module, i) for i, module in modules.items()])
    names = listed(schedule.name for schedule in schedules)
    for step in progress(range(rounds * len(pipelines)), desc=f"Steps of {names}"):
        if timed and step % len(pipelines) == 0:
            for number, (schedule, of_rank) in enumerate(zip(schedules, stages, strict=True)):
                set_step(-1 - number)
                _time_ops(schedule, of_rank, micro_batch)
        pipeline = pipelines[step % len(pipelines)]
        x = micro_batch.repeat(pipeline.schedule.n_micro, 1)
        set_step(step)
        barrier()
        pipeline.step(x, torch.zeros_like(x))


def _time_ops(schedule: Schedule, stages: Sequence[Stage], micro_batch: torch.Tensor) -> None:
    """Do the ops of one micro-batch in each of this rank's stages, while other ranks do so, too."""
    barrier()
    for stage in stages:
        x = micro_batch.to(stage.device).requires_grad_(stage.number > 0)
        if stage.number == schedule.n_stages - 1:
            stage.loss = lambda y, _: mse_loss(y, torch.zeros_like(y))
        y = stage.forward(0, x)
        dy = None if stage.loss else torch.ones_like(y)
        if Op("I", stage.number, 0) in schedule.ops[dist.get_rank()]:
            stage.input_grad(0, dy)
            stage.weight_grad(0)
        else:
            stage.backward(0, dy)
