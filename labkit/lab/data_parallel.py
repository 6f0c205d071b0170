"""Train GPT-2 on one device and on two, in turns: what notebook 03 measures.

A way is how many devices train, how many sentences each takes a step, and what follows backward:

    in_turns(step, {"1 × 64": (1, 64, lab.skip), "2 × 64": (2, 64, dp.average_gradients)}, corpus)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from labkit.cost import ddp_step
from labkit.lab.overlap import InTurns
from labkit.launch import Run, device, launch
from labkit.models import gpt2
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span
from labkit.train.trainer import Batch
from labkit.train.translation import Corpus, collate

PARTS = "forward", "backward", "all_reduce", "optimizer"  # of a step, its spans

Sync = Callable[[torch.nn.Module], object]
Way = tuple[int, int, Sync]
Step = Callable[[torch.nn.Module, Batch, float, torch.optim.Optimizer, Callable[[], object]], None]


def skip(model: torch.nn.Module) -> None:
    """Leave gradients as they are: what follows backward on one device."""


def small_gpt2(corpus: Corpus) -> Any:
    """Return the model that notebook 03 trains."""
    return gpt2("nano", vocab_size=corpus.vocab_size, n_positions=128)


def predicted_step(alone_s: Mapping[str, float], average_s: float) -> pd.DataFrame:
    """Predict a step of two devices: all that one does alone, and an averaging after backward.

    ``alone_s`` is by part, as :meth:`ScalingTurns.median_s` has it. Columns are those of an event
    table.
    """
    forward_s, backward_s, optimizer_s = alone_s["forward"], alone_s["backward"], alone_s["optimizer"]
    link = average_s / 2, math.inf  # two messages of no bytes' time: together average_s
    return ddp_step(forward_s, [backward_s], optimizer_s, [1], [[0]], 2, *link, overlap=False)


def in_turns(step: Step, ways: Mapping[str, Way], corpus: Corpus, rounds: int = 11) -> ScalingTurns:
    """Train a model each way, a step in turn, ``rounds`` times; the first round warms up.

    ``step`` has spans named as PARTS. Two ranks: of a way with one device, the other rank sleeps.
    All ways of a round take the same sentences, so those with fewer take the first of them.
    """
    run = launch(_take_turns, step, [*ways.values()], corpus, rounds, threads=1)
    return ScalingTurns(run, ways)


def _take_turns(step: Step, ways: Sequence[Way], corpus: Corpus, rounds: int) -> None:
    rank, asleep, trained = dist.get_rank(), dist.new_group(backend="gloo"), []
    for way in ways:
        model = small_gpt2(corpus).to(device())
        trained.append((way, model, torch.optim.AdamW(model.parameters(), lr=1e-3)))
    most = max(devices * rows for devices, rows, _ in ways)
    for number, (way, model, optimizer) in enumerate(trained * rounds):
        devices, rows, sync = way
        first = number // len(ways) * most % (len(corpus.train) - most + 1)
        examples = corpus.train[first : first + devices * rows]
        targets = sum(len(each.target) for each in examples) / devices
        barrier(asleep)
        if rank < devices:
            batch = collate(examples[rank * rows : (rank + 1) * rows]).to(device())
            with span("step", lane="host", step=number):
                step(model, batch, targets, optimizer, partial(sync, model))


class ScalingTurns(InTurns):
    """Steps of several ways, of which each trains as many sentences as its way says."""

    def __init__(self, run: Run, ways: Mapping[str, Way]):
        super().__init__(run, [*ways], PARTS)
        self._sentences = {name: devices * rows for name, (devices, rows, _) in ways.items()}

    @functools.cached_property
    def sentence_s(self) -> RepeatedTimes:
        """Seconds per sentence: those of a step, divided by its sentences on all devices."""
        return RepeatedTimes(self.step_s / pd.Series(self._sentences))

    @functools.cached_property
    def compute_s(self) -> RepeatedTimes:
        """Seconds of forward and backward together, of the slower rank."""
        return RepeatedTimes(self.part_s("forward") + self.part_s("backward"))

    def median_s(self, way: str) -> dict[str, float]:
        """Return the seconds of a step's parts, medians, of a way with one device."""
        return {part: float(self.part_s(part)[way].median()) for part in PARTS if part != "all_reduce"}
