"""Run buckets on real ranks: the same model an eighth as wide, on a link as slow in proportion.

Its parameters are the whole model's, by number and order, with about 1/64 of the bytes, and its
backward pass takes some other time. So the capacity of a bucket shrinks with the bytes, and the
link is such that a bucket takes the same share of backward: the picture keeps its proportions.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from labkit.base import formats, machine
from labkit.cost import Link
from labkit.explore.buckets.gradients import Gradients, predicted_gradients
from labkit.explore.buckets.reducer import Buckets, Reduction, Span, predict
from labkit.explore.rank_run import run_on_ranks

if TYPE_CHECKING:
    from labkit.launch import Run

ROUNDS, WARM_UP = 6, 2
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class OverlapRun:
    """A measured pass and the predicted one, of the same narrow model with the same buckets."""

    predicted: Reduction
    measured: Reduction
    world_size: int
    note: str

    def table(self) -> pd.DataFrame:
        """Return predicted and measured ms of backward, communication and what is exposed."""
        rows = {}
        for source, one in (("predicted", self.predicted), ("measured", self.measured)):
            times = [one.backward_s, one.communication_s, one.exposed_s, one.end_s]
            rows[f"{source}, ms"] = [1000 * time for time in times]
        index = ["backward", "communication", "exposed communication", "until all gradients are averaged"]
        table = formats.MeasuredTable(rows, index=index)
        table.attrs["emulated"] = formats.fact(self.note)
        return table

    def sentence(self) -> str:
        """Return by how much the run missed the prediction, and which part of it did."""
        ideal, own = self.predicted, self.measured
        late = _difference(own.end_s - ideal.end_s, "later", "earlier")
        backward = _difference(own.backward_s - ideal.backward_s, "longer", "less")
        exposed = _difference(own.exposed_s - ideal.exposed_s, "more", "less")
        return (
            f"Measured on {self.world_size} ranks: all gradients are averaged {late} than predicted. Backward took {backward}, "
            f"and {exposed} of communication was exposed."
        )


def _difference(seconds: float, more: str, less: str) -> str:
    return f"{1000 * abs(seconds):.3g} ms {more if seconds >= 0 else less}"


def run_overlap(
    model: str, cap_mb: float, first_cap_mb: float | None, world_size: int, link: Link, backward_s: float
) -> OverlapRun:
    """Train the narrow ``model`` with the reader's own BucketedDataParallel; return a typical pass.

    Arguments are those of the whole model. Where it has more ranks than this machine has cores, as
    many ranks run as there are cores, at least two, on a link that makes up for the others. Half of
    the steps run without synchronisation, in turns; the prediction is made from these.

    Raises TodoError while dp.6 or dp.7 is to do, before any rank starts; ValueError for one rank,
    which sends nothing; and what launch raises.
    """
    from labkit.explore.buckets.overlap_rank import NARROWER
    from labkit.launch import LinkTooFast

    if world_size < 2:
        raise ValueError("one rank sends nothing, so there is nothing to run: take two or more")
    whole, n_ranks = predicted_gradients(model), min(world_size, max(2, machine.cores()))
    sizes_bytes, alone_s = _alone(model, n_ranks)
    narrow = replace(whole, model=f"{whole.model}, widths ÷ {NARROWER}", sizes_bytes=sizes_bytes)
    shrink, scale_s = narrow.n_bytes / whole.n_bytes, alone_s / backward_s
    own_link = stand_in(link, world_size, n_ranks, shrink, scale_s)
    caps_mb = (shrink * (first_cap_mb or cap_mb), shrink * cap_mb)
    try:
        run = _train(model, caps_mb, n_ranks, link=own_link)
        emulated = f"emulated, as slow in proportion as {link} is for the whole model"
    except LinkTooFast:
        run, emulated = _train(model, caps_mb, n_ranks), "faster than gloo is here, so nothing was emulated"
    buckets: Buckets = run.values[0].buckets
    alone, together = (_passes(run.events, narrow, buckets, way) for way in (0, 1))
    of_each = zip(*(one.gradients.ready_s for one in alone), strict=True)
    unsynchronised = replace(alone[0].gradients, ready_s=[statistics.median(times) for times in of_each])
    measured = sorted(together, key=lambda one: one.end_s)[(len(together) - 1) // 2]
    ranks = f"{n_ranks} ranks" if n_ranks == world_size else f"{n_ranks} ranks in place of {world_size}"
    note = (
        f"{whole.model} with all widths ÷ {NARROWER}, buckets and link in proportion, on {ranks} "
        f"({machine.cores()} cores here); link: {own_link}, {emulated}"
    )
    return OverlapRun(predict(unsynchronised, buckets, n_ranks, own_link), measured, n_ranks, note)


def stand_in(link: Link, world_size: int, n_ranks: int, shrink: float, scale_s: float) -> Link:
    """Return the link on which ``n_ranks`` take as long as ``world_size`` ranks do on ``link``.

    As long in proportion: for ``shrink`` times the bytes, ``scale_s`` times the seconds. A ring
    takes 2(N−1) latencies and sends 2(N−1)/N of the bytes.
    """
    steps = (world_size - 1) / (n_ranks - 1)
    sent = steps * n_ranks / world_size
    return Link(scale_s * steps * link.latency_s, link.bytes_per_s * shrink / (scale_s * sent))


# --- on the ranks ---------------------------------------------------------------------------------


def _train(model: str, caps_mb: tuple[float, float] | None, n_ranks: int, link: Link | None = None) -> Run:
    from labkit.explore.buckets import overlap_rank

    options: dict[str, Any] = {"link": link} if link else {"backend": "gloo"}
    options |= {"world_size": n_ranks, "tasks": ["dp.6", "dp.7"], "timeout_s": TIMEOUT_S}
    return run_on_ranks(overlap_rank.train, model, caps_mb, ROUNDS, **options)


@functools.cache
def _alone(model: str, n_ranks: int) -> tuple[list[int], float]:
    """Return the narrow model's bytes, and how long backward takes on ranks that do not
    synchronise."""
    run = _train(model, None, n_ranks)
    events = run.events
    spans = events[(events["name"] == "backward") & (events["step"] >= WARM_UP).fillna(False)]
    return run.values[0].sizes_bytes, float((spans["end_s"] - spans["start_s"]).median())


# --- what was measured ----------------------------------------------------------------------------


def _passes(events: pd.DataFrame, narrow: Gradients, buckets: Buckets, way: int) -> list[Reduction]:
    """Return rank 0's steps of one of the two ways, but for those that warm up."""
    own = events[events["rank"] == 0].sort_values("bucket", kind="stable")
    computed, waited, readied, sent = (own[own["name"] == name] for name in ("backward", "wait", "ready", "all_reduce"))
    passes = []
    for step in range(2 * WARM_UP + way, 2 * ROUNDS, 2):
        backward, wait = (spans[spans["step"] == step].iloc[0] for spans in (computed, waited))
        start, end = backward["start_s"], wait["end_s"]
        marks, within = (spans[spans["start_s"].between(start, end)] for spans in (readied, sent))
        ready = marks.set_index("bucket")["start_s"] - start
        over = backward["end_s"] - start  # a parameter that was not used is done when backward is
        ready_s = [float(ready.get(i, over)) for i in range(len(narrow.names))]
        times = zip(within["start_s"] - start, within["end_s"] - start, strict=True)
        gradients = replace(narrow, ready_s=ready_s, source="measured by hooks")
        passes.append(Reduction(gradients, buckets, _one_by_one(times), end - start, measured=True))
    return passes


def _one_by_one(times: Iterable[tuple[float, float]]) -> list[Span]:
    """Return when each bucket was on its way: it is handed over while the ones before travel."""
    spans, free_s = [], 0.0
    for start_s, end_s in times:
        spans.append(Span(max(start_s, min(free_s, end_s)), end_s))
        free_s = max(free_s, end_s)
    return spans
