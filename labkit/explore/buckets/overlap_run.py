"""Run buckets on real ranks: the same model an eighth as wide, on a link as slow in proportion.

Its parameters are the whole model's, by number and order, with about 1/64 of the bytes, and its
backward pass takes some other time. So the capacity of a bucket shrinks with the bytes, and the
link is such that a bucket takes the same share of backward: the picture keeps its proportions.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.base import formats, machine
from labkit.cost import Link
from labkit.explore.buckets.gradients import NARROWER, Gradients, predicted_gradients
from labkit.explore.buckets.reducer import Reduction, Span, predict
from labkit.todo import TodoError, missing

ROUNDS, WARM_UP = 6, 2


@dataclass(frozen=True)
class OverlapRun:
    """A measured pass over the predicted one, of the same small model with the same buckets.

    ``scale_s`` is how many seconds of it stand for one second of the whole model.
    """

    predicted: Reduction
    measured: Reduction
    link: Link
    world_size: int
    scale_s: float
    note: str

    def table(self) -> pd.DataFrame:
        """Return predicted and measured ms of backward, communication and what is exposed."""
        rows = {}
        for source, one in (("predicted", self.predicted), ("measured", self.measured)):
            times = [one.backward_s, one.communication_s, one.exposed_s, one.end_s]
            rows[f"{source}, ms"] = [1000 * time for time in times]
        index = ["backward", "communication", "exposed communication", "until all gradients are means"]
        table = formats.MeasuredTable(rows, index=index)
        table.attrs["emulated"] = formats.fact(self.note)
        return table

    def sentence(self) -> str:
        """Return by how much the run missed the prediction, and which part of it did."""
        ideal, own = self.predicted, self.measured
        late = _apart(own.end_s - ideal.end_s, "later", "earlier")
        backward = _apart(own.backward_s - ideal.backward_s, "longer", "less")
        exposed = _apart(own.exposed_s - ideal.exposed_s, "more", "less")
        return (
            f"Measured on {self.world_size} ranks: all gradients are means {late} than predicted. Backward took {backward}, "
            f"and {exposed} of communication was exposed."
        )


def _apart(seconds: float, more: str, less: str) -> str:
    return f"{1000 * abs(seconds):.3g} ms {more if seconds >= 0 else less}"


def run_overlap(
    model: str,
    cap_mb: float,
    first_cap_mb: float | None,
    world_size: int,
    link: Link,
    backward_s: float,
    timeout_s: float = 60.0,
) -> OverlapRun:
    """Train the small ``model`` with the reader's own BucketedDataParallel; return a typical pass.

    Arguments are those of the whole model. Where it has more ranks than this machine has cores, as
    many ranks run as there are cores, at least two, on a link that makes up for the others. Half of
    the steps run without synchronisation, in turns; the prediction is made from these.

    Raises TodoError while dp.6 or dp.7 is to do, before any rank starts; ValueError for one rank,
    which sends nothing; and what launch raises.
    """
    for task in ("dp.6", "dp.7"):
        if (todo := missing(task)) is not None:
            raise TodoError(task, todo.partition(": ")[2])
    if world_size < 2:
        raise ValueError("one rank sends nothing, so there is nothing to run: take two or more")
    small, whole = predicted_gradients(model, narrow=True), predicted_gradients(model)
    n_ranks = min(world_size, max(2, machine.cores()))
    shrink = small.n_bytes / whole.n_bytes
    scale_s = statistics.median(_alone_s(model, n_ranks, timeout_s)) / backward_s
    own_link = stand_in(link, world_size, n_ranks, shrink, scale_s)
    caps_mb = (shrink * (first_cap_mb or cap_mb), shrink * cap_mb)
    events, buckets, refused = _measure(model, caps_mb, n_ranks, own_link, timeout_s)
    alone, together = (_steps(events, len(small.names), way) for way in (0, 1))
    unsynchronised = _gradients(
        small, [statistics.median(times) for times in zip(*(s.ready_s for s in alone), strict=True)]
    )
    typical = sorted(together, key=lambda step: step.end_s)[(len(together) - 1) // 2]
    note = _note(whole, n_ranks, world_size, link, own_link, refused)
    gradients = _gradients(small, typical.ready_s)
    measured = Reduction(gradients, buckets, typical.all_reduces, typical.end_s, measured=True, note=note)
    predicted = predict(unsynchronised, buckets, n_ranks, own_link)
    return OverlapRun(predicted, measured, own_link, n_ranks, scale_s, note)


def stand_in(link: Link, world_size: int, n_ranks: int, shrink: float, scale_s: float) -> Link:
    """Return the link on which ``n_ranks`` take as long as ``world_size`` ranks do on ``link``.

    As long in proportion: for ``shrink`` times the bytes, ``scale_s`` times the seconds. A ring
    takes 2(N−1) latencies and sends 2(N−1)/N of the bytes.
    """
    steps = (world_size - 1) / (n_ranks - 1)
    sent = steps * n_ranks / world_size
    return Link(scale_s * steps * link.latency_s, link.bytes_per_s * shrink / (scale_s * sent))


# --- what was measured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """One step of rank 0, from the start of its backward pass."""

    ready_s: list[float]
    all_reduces: list[Span]
    end_s: float


@functools.cache
def _alone_s(model: str, n_ranks: int, timeout_s: float) -> list[float]:
    """Measure how long backward takes on ranks that do not synchronise."""
    from labkit.explore.buckets import overlap_rank
    from labkit.launch import launch

    run = launch(
        overlap_rank.train, model, None, ROUNDS, world_size=n_ranks, backend="gloo", threads=1, timeout_s=timeout_s
    )
    events = run.events
    spans = events[(events["name"] == "backward") & (events["step"] >= WARM_UP).fillna(False)]
    return (spans["end_s"] - spans["start_s"]).tolist()


def _measure(
    model: str, caps_mb: tuple[float, float], n_ranks: int, link: Link, timeout_s: float
) -> tuple[pd.DataFrame, list[list[int]], str]:
    """Return events and buckets of a run on the link, or on gloo as it is where that is slower."""
    from labkit.explore.buckets import overlap_rank
    from labkit.launch import launch

    options: dict[str, Any] = {"world_size": n_ranks, "threads": 1, "timeout_s": timeout_s}
    refused = ""
    try:
        run = launch(overlap_rank.train, model, caps_mb, ROUNDS, link=link, **options)
    except ValueError as error:
        if "faster than the transport" not in str(error):
            raise
        refused = "faster than gloo is here, so nothing was emulated"
        run = launch(overlap_rank.train, model, caps_mb, ROUNDS, backend="gloo", **options)
    return run.events, run.values[0], refused


def _steps(events: pd.DataFrame, n_parameters: int, way: int) -> list[_Step]:
    """Return rank 0's steps of one of the two ways, but for those that warm up."""
    own = events[events["rank"] == 0]
    sent = own[own["name"] == "all_reduce"].sort_values("bucket", kind="stable")
    found = []
    for step in range(2 * WARM_UP + way, 2 * ROUNDS, 2):
        spans = own[(own["step"] == step).fillna(False).to_numpy(dtype=bool)]
        backward, wait = (spans[spans["name"] == name].iloc[0] for name in ("backward", "wait"))
        start, end = backward["start_s"], wait["end_s"]
        ready = spans[spans["name"] == "ready"].set_index("bucket")["start_s"] - start
        over = backward["end_s"] - start  # a parameter that was not used is done when backward is
        within = sent[sent["start_s"].between(start, end)]
        times = zip(within["start_s"] - start, within["end_s"] - start, strict=True)
        found.append(_Step([float(ready.get(i, over)) for i in range(n_parameters)], _one_by_one(times), end - start))
    return found


def _one_by_one(times: zip[tuple[float, float]]) -> list[Span]:
    """Return when each bucket was on its way: it is handed over while the ones before travel."""
    spans, free_s = [], 0.0
    for start_s, end_s in times:
        spans.append(Span(max(start_s, min(free_s, end_s)), end_s))
        free_s = max(free_s, end_s)
    return spans


def _gradients(small: Gradients, ready_s: list[float]) -> Gradients:
    return Gradients(small.model, small.names, small.sizes_bytes, ready_s, "measured by hooks")


def _note(whole: Gradients, n_ranks: int, world_size: int, link: Link, own_link: Link, refused: str) -> str:
    ranks = f"{n_ranks} ranks" if n_ranks == world_size else f"{n_ranks} ranks in place of {world_size}"
    emulated = refused or f"emulated, as slow in proportion as {link} is for the whole model"
    return (
        f"{whole.model} with all widths ÷ {NARROWER}, buckets and link in proportion, on {ranks} "
        f"({machine.cores()} cores here); link: {own_link}, {emulated}"
    )
