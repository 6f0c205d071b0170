"""In the ranks: training steps of the same stages in several ways, in turns, a span each.

bench_pipe.py launches these functions, and makes its tables of the spans that come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from bench_dp import keep_freed_memory
from torch import nn
from torch.distributed import pipelining

from labkit import models
from labkit.parallel.emulated import EmulatedStage
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Schedule, gpipe, one_f_one_b
from labkit.trace import barrier, span

WIDTH, ROWS, TOKENS, BLOCKS = 256, 16, 64, 4
N_STAGES = 2
OURS: dict[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b}
THEIRS: dict[str, Any] = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
ALONE = ["rank 0 alone", "rank 1 alone"]
WARM_UP = 3

Step = Callable[[], object]
mse = nn.functional.mse_loss


def take_turns(ways: dict[str, Step], stages: list[nn.Module], count: int) -> None:
    """Do ``count`` steps in each of the ways, in turns, after some to warm up.

    Each step is a span: its name is the way, its lane host, its step the number of the round.
    """
    for number in range(-WARM_UP, count):
        for way in sorted(ways, reverse=bool(number % 2)):
            for stage in stages:
                stage.zero_grad()
            barrier()
            with span(way, "host", step=number):
                ways[way]()


# --- two ranks of GPT-2 blocks: labkit's ScheduledPipeline, torch's pipelining, and none ----------


def compared_with_torch(kind: str, n_micro: int, count: int, alone: bool) -> None:
    """Do steps of ``kind`` with labkit and with torch; ``alone``: each rank by itself."""
    keep_freed_memory()
    stages, (x, target), rank = build(), batch(), dist.get_rank()
    ways = {
        "labkit": with_labkit(stages[rank], kind, n_micro, x, target),
        "torch": with_torch(stages[rank], kind, n_micro, x, target),
    }
    check_equal_gradients(ways, stages[rank])
    if alone:
        ways |= {way: lambda: None for way in ALONE}  # while the other rank computes
        ways[ALONE[rank]] = one_after_the_other(nn.Sequential(*stages), n_micro, x, target)
    take_turns(ways, stages, count)


def build() -> list[nn.Module]:
    """Return GPT-2 blocks, shared out over the stages; equal on all ranks."""
    blocks = models.gpt2("mini", n_embd=WIDTH, n_layer=BLOCKS, n_head=4, vocab_size=100).transformer.h
    each = BLOCKS // N_STAGES
    return [nn.Sequential(*blocks[each * number : each * (number + 1)]) for number in range(N_STAGES)]


def batch() -> tuple[torch.Tensor, ...]:
    """Return hidden states, and the last stage's target."""
    return torch.randn(2, ROWS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)).unbind()


def with_labkit(stage: nn.Module, kind: str, n_micro: int, x: torch.Tensor, target: torch.Tensor) -> Step:
    pipeline = ScheduledPipeline([stage], OURS[kind](N_STAGES, n_micro), mse)
    return lambda: pipeline.step(x, target)


def with_torch(stage: nn.Module, kind: str, n_micro: int, x: torch.Tensor, target: torch.Tensor) -> Step:
    """Compute the same gradients with torch, quickly: the loss is divided, no outputs are kept."""
    place = pipelining.PipelineStage(stage, dist.get_rank(), N_STAGES, torch.device("cpu"))
    part_of_mean = lambda output, wanted: mse(output, wanted) / n_micro  # noqa: E731
    pipeline = THEIRS[kind](place, n_micro, loss_fn=part_of_mean, scale_grads=False)
    if place.is_first:
        return lambda: pipeline.step(x, return_outputs=False)
    return lambda: pipeline.step(target=target, losses=[], return_outputs=False)


def one_after_the_other(model: nn.Module, n_micro: int, x: torch.Tensor, target: torch.Tensor) -> Step:
    def step() -> None:
        for part, wanted in zip(x.chunk(n_micro), target.chunk(n_micro), strict=True):
            (mse(model(part), wanted) / n_micro).backward()

    return step


def check_equal_gradients(ways: dict[str, Step], stage: nn.Module) -> None:
    """Raise an error unless what is compared does the same."""
    found = []
    for step in ways.values():
        stage.zero_grad()
        step()
        found.append([parameter.grad for parameter in stage.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-7)


# --- many ranks of stages that sleep: schedules compared ------------------------------------------


def emulated(
    schedules: dict[str, Schedule], times: tuple[float, float, float], shape: tuple[int, int], count: int
) -> None:
    """Do steps of each of the schedules, with stages that take ``times`` (F, I, W)."""
    stage = EmulatedStage(*times)
    x, target = torch.zeros(shape), torch.zeros(shape)

    def with_labkit(schedule: Schedule) -> Step:
        pipeline = ScheduledPipeline([stage], schedule, mse)
        return lambda: pipeline.step(x, target)

    take_turns({name: with_labkit(schedule) for name, schedule in schedules.items()}, [stage], count)
