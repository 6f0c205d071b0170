"""Train a small GPT-2 with several ways to agree on gradients, in turns: what notebook 04 measures.

A way takes a model, and returns the model to train and a function to call after backward:

    in_turns(step, {"no sync": no_sync, "DDP": lambda model: (DDP(model), lambda: None)})
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from labkit import dp, simulate
from labkit.base.formats import MeasuredTable
from labkit.base.measurement_html import as_html
from labkit.launch import Run, device, launch
from labkit.models import gpt2
from labkit.stats import Interval, numbered, one_step, turns
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span, traffic

NO_SYNC = "no sync"
PARTS = "forward", "backward", "wait", "optimizer"  # of a step, its spans
BY_CONSTRUCTION = "a message takes what the formula says, by construction"
BATCH = 8, 64  # sequences, and tokens of each
_VOCABULARY = 512

SyncMethod = Callable[[torch.nn.Module], tuple[Any, Callable[[], object]]]
Step = Callable[[Any, torch.Tensor, torch.optim.Optimizer, Callable[[], object]], None]


def small_gpt2() -> Any:
    """Return the model that notebook 04 trains: 4 layers, 3.5 MB of parameters."""
    return gpt2("mini", n_layer=4, n_embd=128, vocab_size=_VOCABULARY, n_positions=BATCH[1])


# --- ways to agree --------------------------------------------------------------------------------


def no_sync(model: torch.nn.Module) -> tuple[torch.nn.Module, Callable[[], object]]:
    """Let each rank go its own way. Each gradient leaves a span "ready", its number as bucket."""

    def mark(i: int, _: torch.Tensor) -> None:
        with span("ready", bucket=i):
            pass

    for i, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(partial(mark, i))
    return model, lambda: None


def after_backward(average: Callable[..., object], *arguments: Any) -> SyncMethod:
    """Return the way that calls ``average(model, *arguments)`` after the backward pass."""
    return lambda model: (model, partial(average, model, *arguments))


def average_buckets(model: torch.nn.Module, buckets: Sequence[Sequence[int]]) -> None:
    """Average the gradients after the backward pass, each bucket with one all_reduce."""
    parameters: Any = list(model.parameters())
    for k, bucket in enumerate(buckets):
        gradients = [parameters[i].grad for i in bucket]
        buffer = torch.cat([gradient.flatten() for gradient in gradients])
        with span("all_reduce", lane="comm", bucket=k, bytes=buffer.nbytes):
            dist.all_reduce(buffer)
        buffer /= dist.get_world_size()
        for gradient, mean in zip(gradients, buffer.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def overlapped(**options: Any) -> SyncMethod:
    """Return the way of the reader's own BucketedDataParallel (dp.7)."""

    def wrap(model: torch.nn.Module) -> tuple[torch.nn.Module, Callable[[], object]]:
        wrapped = dp.BucketedDataParallel(model, **options)
        return wrapped, wrapped.finish_gradient_synchronization

    return wrap


def torch_ddp(**options: Any) -> SyncMethod:
    """Return the way of torch's DDP, whose backward() itself waits."""
    return lambda model: (torch.nn.parallel.DistributedDataParallel(model, **options), lambda: None)


# --- a run, and what is read off its events -------------------------------------------------------


def in_turns(step: Step, ways: Mapping[Any, SyncMethod], rounds: int = 10, **options: Any) -> InTurns:
    """Train a model each way on two ranks, a step in turn, ``rounds`` times; the first warms up.

    So a slow moment of the machine hits all ways alike. ``step`` has spans named as PARTS.
    ``options`` are those of :func:`labkit.launch.launch`.
    """
    return InTurns(launch(_take_turns, step, [*ways.values()], rounds, threads=1, **options), [*ways])


def _take_turns(step: Step, ways: Sequence[SyncMethod], rounds: int) -> None:
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(_VOCABULARY, BATCH).to(device())
    trained = []
    for way in ways:
        model, sync = way(small_gpt2().to(device()))
        trained.append((model, torch.optim.AdamW(model.parameters(), lr=1e-3), sync))
    for number, (model, optimizer, sync) in enumerate(trained * rounds):
        barrier()
        with span("step", lane="host", step=number):
            step(model, tokens, optimizer, sync)


class Traffic(NamedTuple):
    """The bytes that a rank sends in a step, and the last step's loss."""

    bytes: float
    loss: float


def traffic_of(model: torch.nn.Module, rows: int, steps: int = 3) -> Traffic:
    """Train on ``rows`` sequences a step, and count.

    The kernel counts the bytes, of steps after two that set up what the others use. Where the
    kernel does not count, the bytes are NaN.
    """
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(_VOCABULARY, (rows, BATCH[1])).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(steps: int) -> float:
        for _ in range(steps):
            loss = torch.nn.functional.cross_entropy(model(tokens).logits.mT, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    train(2)
    with traffic.observe() as seen:
        loss = train(steps)
    return Traffic(seen.sent_bytes / steps if traffic.available() else math.nan, loss)


class ComputeTimes(NamedTuple):
    """What a prediction starts from: forward, when a gradient is ready in backward, optimizer."""

    forward_s: float
    ready_s: list[float]
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step without sync."""
        return self.forward_s + max(self.ready_s) + self.optimizer_s

    def bytes_ready(self, sizes_bytes: Sequence[int]) -> dict[float, int]:
        """Return how many bytes of gradients are ready, by seconds from the start of backward."""
        order = np.argsort(self.ready_s)
        return dict(zip(np.take(self.ready_s, order), np.cumsum(np.take(sizes_bytes, order)).tolist(), strict=True))


class InTurns:
    """Steps of several ways that took turns: step number s belongs to way number s % len(ways).

    As the last line of a cell it shows its header and ``parts``. ``spans`` are the names of those
    parts, which a step's spans have.
    """

    def __init__(self, run: Run, ways: Sequence[Any], spans: Sequence[str] = PARTS):
        self.run, self.ways, self.spans = run, ways, spans

    @functools.cached_property
    def events(self) -> pd.DataFrame:
        """The run's events; the spans of a step's parts have its number."""
        return numbered(self.run.events, self.spans)

    @functools.cached_property
    def step_s(self) -> RepeatedTimes:
        """Seconds of each step, of the slower rank: a row per round, a column per way."""
        return turns(self.events, self.ways)

    def part_s(self, part: str) -> RepeatedTimes:
        """Return the seconds of one part of each step, of the slower rank."""
        return turns(self.events, self.ways, part)

    @property
    def parts(self) -> MeasuredTable:
        """Milliseconds of the parts of a step: medians, of the slower rank."""
        table = MeasuredTable({part: 1000 * self.part_s(part).median() for part in self.spans})
        if emulated := self.events.attrs.get("emulated"):
            table.attrs["emulated"] = f"{emulated}; {BY_CONSTRUCTION}"
        return table.rename(columns={"backward": "elapsed in backward"})

    @functools.cached_property
    def compute(self) -> ComputeTimes:
        """Medians of the way without sync, which sees no communication."""
        forward_s, optimizer_s = (float(self.part_s(part)[NO_SYNC].median()) for part in ("forward", "optimizer"))
        own = self.events[self.events["rank"] == 0]
        marks = own[own["name"] == "ready"]
        starts = own[(own["name"] == "backward") & own["step"].isin(self._numbers(NO_SYNC, first_round=0))]["start_s"]
        backward = np.searchsorted(starts, marks["start_s"], side="right") - 1
        seconds = marks["start_s"] - starts.to_numpy()[backward]
        ready_s = seconds[backward > 0].groupby(marks["bucket"]).median()  # without the first round
        return ComputeTimes(forward_s, ready_s.tolist(), optimizer_s)

    def median_step(self, way: Any) -> pd.DataFrame:
        """Return all ranks' spans of the step of about median length, in seconds from its start."""
        seconds = self.step_s[way]
        number = self._numbers(way)[int((seconds - seconds.median()).abs().to_numpy().argmin())]
        events = self.events[(self.events["step"] == number).fillna(False)]
        start_s = events["start_s"].min()
        return events.assign(start_s=events["start_s"] - start_s, end_s=events["end_s"] - start_s)

    def typical_step(self, way: Any) -> pd.DataFrame:
        """Return rank 0's backward, wait and all_reduces of the step with the median backward."""
        backward_s = self.part_s("backward")[way]
        number = self._numbers(way)[int((backward_s - backward_s.median()).abs().to_numpy().argmin())]
        return one_step(self.events, number, _SHOWN)

    def explain(self, way: Any, ideal: pd.DataFrame) -> dict[str, Interval]:
        """Return by how many seconds the parts of a step are longer than in the ``ideal`` one.

        See :func:`labkit.simulate.explain_step`: means over both ranks and all steps, from the
        least to the greatest step.
        """
        each = (simulate.explain_step(ideal, self.events, steps=[number]) for number in self._numbers(way))
        table = simulate.explain_turns(each).set_index("part")[["difference_s", "low", "high"]]
        return {part: Interval(*row) for part, *row in table.itertuples()}

    def _numbers(self, way: Any, first_round: int = 1) -> range:
        """Return the numbers of a way's steps, without those that warm up."""
        n_ways, place = len(self.ways), [*self.ways].index(way)
        last = int(self.events["step"].max())
        return range(first_round * n_ways + place, last + 1, n_ways)

    def __repr__(self) -> str:
        return f"{self.run.header}\n{self.parts!r}"

    def _repr_html_(self) -> str:
        return f"<p>{as_html(self.run.header)}</p>{self.parts._repr_html_()}"


_SHOWN = "backward", "wait", "all_reduce"


def shown_of(ideal: pd.DataFrame) -> pd.DataFrame:
    """Return of a predicted step what :meth:`InTurns.typical_step` has of a measured one."""
    return one_step(ideal, 0, _SHOWN)
