"""Run a schedule on real ranks, and lay what was measured beside what should have happened."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.base import machine
from labkit.schedule import Schedule, gpipe
from labkit.simulate import explain_gap, makespan, simulate
from labkit.todo import TodoError, missing

Times = float | Sequence[float]

OP_S = 0.010  # a forward pass of a stage is to take about so long: messages take tenths of a ms
STEP_S = 1.0  # and a step no longer than this; there are two of them
_LINK_BYTES_PER_S = 10e6  # less than gloo moves on any machine, and much for stages that sleep: they send 4 bytes
_FREE_SHARE = 0.5  # of the memory that is free, ranks may take so much
_PROBE_LAYERS = 20


class Work(NamedTuple):
    """A schedule and the times of its ops: the arguments of :func:`labkit.simulate.simulate`."""

    schedule: Schedule
    forward: Times = 1.0
    backward: Times = 2.0
    input_grad: Times = 1.0
    weight_grad: Times = 1.0
    hop: float = 0.0

    def simulate(self) -> pd.DataFrame:
        return simulate(*self)

    def per_stage(self, name: str) -> list[float]:
        """Return a time of every stage, such as ``"forward"``."""
        return np.broadcast_to(np.asarray(getattr(self, name), dtype=float), self.schedule.n_stages).tolist()

    def scaled(self, factor: float) -> Work:
        """Return the same work with every time ``factor`` times as long."""
        names = ("forward", "backward", "input_grad", "weight_grad")
        times: dict[str, Any] = {name: [factor * time for time in self.per_stage(name)] for name in names}
        return self._replace(**times, hop=factor * self.hop)


@dataclass(frozen=True)
class Measured:
    """A run of ``schedule`` beside its ideal: two event tables in seconds, both from 0 on.

    ``gap`` says where the difference went (:func:`labkit.simulate.explain_gap`). ``unit_s`` is how
    many seconds stood for a unit of the reader's time. ``note`` says what was emulated, and that
    fewer ranks ran, if so.
    """

    schedule: Schedule
    ideal: pd.DataFrame
    measured: pd.DataFrame
    gap: pd.DataFrame
    unit_s: float
    note: str


def run_schedule(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times = 2.0,
    input_grad: Times = 1.0,
    weight_grad: Times = 1.0,
    hop: float = 0.0,
    *,
    fewer: Callable[[int], Work] | None = None,
    unit_s: float | None = None,
    emulated: bool | None = None,
    timeout_s: float = 30.0,
) -> Measured:
    """Run ``schedule`` on real ranks: a warm-up step, and one that is measured.

    Times are as for simulate, in any unit; ``unit_s`` seconds stand for one of it, by default so
    many that a forward pass takes about OP_S, and a step at most STEP_S. Each rank works through
    its ops with the reader's own ScheduledPipeline. Stages multiply matrices where every rank has
    a core, and the times are those of a matrix product: the input's and the weight's gradient take
    as long as the forward pass. Otherwise they sleep, also where there is a hop, which is the
    latency of an emulated link: it wants small messages. ``emulated`` says which, if given.

    Where the memory that is free does not carry so many ranks, ``fewer(n)`` says what n ranks are
    to do instead; without it that is a MemoryError.

    Raises TodoError while task pipe.5 is to do, before any rank starts; what simulate and launch
    raise; and ValueError where what ran is not the schedule.
    """
    work = Work(schedule, forward, backward, input_grad, weight_grad, hop)
    work.simulate()  # raises for what cannot run
    if (todo := missing("pipe.5")) is not None:
        raise TodoError("pipe.5", todo.partition(": ")[2])
    probe = _probe(schedule.n_ranks, timeout_s)
    work, fewer_ranks = _carried(work, fewer, probe.bytes)
    unit_s = seconds_per_unit(work) if unit_s is None else unit_s
    work = work.scaled(unit_s)
    if emulated is None:
        emulated = work.hop > 0 or work.schedule.n_ranks > machine.cores() or not _are_products(work)
    measured = _measure(work, None if emulated else probe.layer_s, schedule.n_ranks, timeout_s)
    ideal = work.simulate()
    note = " ".join(filter(None, [fewer_ranks, _note(work, unit_s, emulated)]))
    return Measured(work.schedule, ideal, measured, explain_gap(ideal, measured), unit_s, note)


def seconds_per_unit(*works: Work) -> float:
    """Return how many seconds are to stand for a unit of time: runs stay short, and exact."""
    forward = statistics.fmean(time for work in works for time in work.per_stage("forward"))
    return min(OP_S / forward, *(STEP_S / makespan(work.simulate()) for work in works))


# --- on the ranks ---------------------------------------------------------------------------------


def _measure(work: Work, layer_s: float | None, n_probed: int, timeout_s: float) -> pd.DataFrame:
    """Run ``work``, whose times are seconds; return the ops of the second step, from 0 on.

    ``layer_s`` is how long a layer takes forward, where ``n_probed`` ranks would be, and None for
    stages that sleep.
    """
    from labkit.cost import Link
    from labkit.explore.schedules import pipeline_rank
    from labkit.launch import launch

    link = Link(work.hop, _LINK_BYTES_PER_S) if work.hop else None
    options: dict[str, Any] = {"world_size": work.schedule.n_ranks, "threads": 1, "timeout_s": timeout_s, "link": link}
    if layer_s is None:
        run = launch(pipeline_rank.emulated_steps, work.schedule, _seconds(work), **options, backend="gloo")
    else:
        layers = [max(1, round(time / layer_s)) for time in work.per_stage("forward")]
        run = launch(pipeline_rank.real_steps, work.schedule, layers, **options, compared_with=n_probed)
    ops = _ops_of_step(run.events, 1)
    start = ops["start_s"].min()
    return ops.assign(start_s=ops["start_s"] - start, end_s=ops["end_s"] - start)


def _seconds(work: Work) -> list[tuple[float, float, float]]:
    """Return for each stage how long forward, input gradient and weight gradient take.

    A backward pass that is whole (B) is both gradients, half of it each.
    """
    split = {op.stage for ops in work.schedule.ops for op in ops if op.kind == "I"}
    times = zip(*map(work.per_stage, ("forward", "backward", "input_grad", "weight_grad")), strict=True)
    return [(f, i, w) if stage in split else (f, b / 2, b / 2) for stage, (f, b, i, w) in enumerate(times)]


def _ops_of_step(events: pd.DataFrame, step: int) -> pd.DataFrame:
    chosen = (events["lane"] == "compute") & (events["step"] == step)
    ops = events[chosen.fillna(False).to_numpy(dtype=bool)].reset_index(drop=True)
    ops.attrs = dict(events.attrs)
    return ops


class _Probe(NamedTuple):
    """What one rank was measured to need: memory of its own, and the time of a layer, forward."""

    bytes: int
    layer_s: float


def _probe(n_ranks: int, timeout_s: float) -> _Probe:
    """Measure on one rank, where ``n_ranks`` would be."""
    from labkit.explore.schedules import pipeline_rank
    from labkit.launch import launch

    options: dict[str, Any] = {"world_size": 1, "compared_with": n_ranks, "threads": 1, "timeout_s": timeout_s}
    run = launch(pipeline_rank.real_steps, gpipe(1, 4), [_PROBE_LAYERS], **options)
    ops = _ops_of_step(run.events, 1)
    forwards = ops[ops["name"] == "forward"]
    return _Probe(run.values[0], float((forwards["end_s"] - forwards["start_s"]).median()) / _PROBE_LAYERS)


# --- what can be run, and what is to be said about it ---------------------------------------------


def _carried(work: Work, fewer: Callable[[int], Work] | None, rank_bytes: int) -> tuple[Work, str]:
    """Return the work that the memory carries, and a sentence if it is that of fewer ranks."""
    free = machine.free_memory()
    wanted, carried = work.schedule.n_ranks, max(1, int(_FREE_SHARE * free / rank_bytes))
    if wanted <= carried:
        return work, ""
    why = f"a rank takes {rank_bytes / 2**20:.0f} MiB and {free / 2**20:.0f} MiB are free"
    if fewer is None:
        raise MemoryError(
            f"{wanted} ranks are more than this machine carries: {why}. Close other programs, or take fewer"
        )
    return fewer(carried), f"Only {carried} of {wanted} ranks ran: {why}."


def _are_products(work: Work) -> bool:
    """Return whether each stage takes the times of a matrix product: I = W = F, and B = 2F."""
    forward = np.array(work.per_stage("forward"))
    kinds = {op.kind for ops in work.schedule.ops for op in ops}
    expected = {"B": [("backward", 2)], "I": [("input_grad", 1)], "W": [("weight_grad", 1)]}
    pairs = [pair for kind in kinds - {"F"} for pair in expected[kind]]
    return all(np.allclose(work.per_stage(name), factor * forward) for name, factor in pairs)


def _note(work: Work, unit_s: float, emulated: bool) -> str:
    n, cores = work.schedule.n_ranks, machine.cores()
    ranks = "1 rank" if n == 1 else f"{n} ranks"
    how = "that slept instead of computing" if emulated else "that multiplied matrices"
    hop = f", a hop {1000 * work.hop:.3g} ms of emulated latency" if work.hop else ""
    split = any(op.kind == "W" for op in work.schedule.ops[0])
    on_stage_0 = " Stage 0 has nobody to send a gradient to, so all of its backward pass is in W." if split else ""
    return f"Ran on {ranks} {how} ({cores} cores here); a unit of time was {1000 * unit_s:.3g} ms{hop}.{on_stage_0}"
