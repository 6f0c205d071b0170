"""Run a pipeline whose stages sleep instead of computing, on more ranks than cores: notebook 08."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd
import torch

from labkit.lab.cuts import RunPipeline, wait_for
from labkit.launch import workers
from labkit.simulate import bubble_fraction, makespan
from labkit.trace import barrier


def runs(run_pipeline: RunPipeline, world_size: int, n_micro: int, seconds: float = 0.01, times: int = 6) -> list[Any]:
    """Return the events of several runs in which each rank sleeps ``seconds`` a micro-batch.

    The messages are real: rows of 128 numbers, as notebook 08's pipeline receives them.
    """
    with workers(world_size=world_size, backend="gloo", threads=1) as ranks:
        return [ranks.run(_sleep_stages, run_pipeline, n_micro, seconds).events for _ in range(times)]


def _sleep_stages(run_pipeline: RunPipeline, n_micro: int, seconds: float) -> None:
    barrier()
    wait_for(run_pipeline(_Sleep(seconds), [torch.zeros(1, 1, 128)] * n_micro))


class _Sleep(torch.nn.Module):
    """A stage that hands on its input after a while."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x


def bubbles(of: Sequence[pd.DataFrame], n_micro: int) -> list[float]:
    """Return the bubble of each run, of its first micro-batches alone.

    Later micro-batches do not delay earlier ones, so a long run also shows what fewer would give.
    """
    return [bubble_fraction(events[events["micro_batch"] < n_micro]) for events in of]


def first_below(bubble: float, of: Mapping[int, float]) -> int | str:
    """Return the first number of micro-batches whose bubble is below that, or that none is."""
    return next((m for m in of if of[m] < bubble), f"none of {min(of)} to {max(of)}")


def sleep_and_clock_s(of: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Return how long an op sleeps and how long a clock takes, medians over runs of their means."""
    n_ranks, n_micro = (1 + int(of[0][column].max()) for column in ("rank", "micro_batch"))
    sleep_s = median(float((events["end_s"] - events["start_s"]).mean()) for events in of)
    return sleep_s, median(makespan(events) / (n_micro + n_ranks - 1) for events in of)
