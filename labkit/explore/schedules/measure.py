"""Run a schedule on real ranks, and lay what was measured beside what should have happened."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.base import machine
from labkit.explore.rank_run import run_on_ranks
from labkit.schedule import Schedule
from labkit.simulate import explain_gap, makespan, simulate

Times = float | Sequence[float]

OP_S = 0.010  # a forward pass of a stage is to take about so long: messages take tenths of a ms
STEP_S = 1.0  # and a step no longer than this; there are two of them
_LINK_BYTES_PER_S = 10e6  # less than gloo moves on any machine, and much for stages that sleep: they send 4 bytes


class TimedSchedule(NamedTuple):
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

    def scaled(self, factor: float) -> TimedSchedule:
        """Return the same schedule with every time ``factor`` times as long."""
        names = ("forward", "backward", "input_grad", "weight_grad")
        times: dict[str, Any] = {name: [factor * time for time in self.per_stage(name)] for name in names}
        return self._replace(**times, hop=factor * self.hop)


@dataclass(frozen=True)
class ScheduleRun:
    """A run of ``schedule`` beside its ideal: two event tables in seconds, both from 0 on.

    ``gap`` says where the difference went (:func:`labkit.simulate.explain_gap`). ``unit_s`` is how
    many seconds stood for a unit of the reader's time. ``note`` says what was emulated.
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
    unit_s: float | None = None,
    emulated: bool | None = None,
) -> ScheduleRun:
    """Run ``schedule`` on real ranks: a warm-up step, and one that is measured.

    Times are as for simulate, in any unit; ``unit_s`` seconds stand for one of it, by default so
    many that a forward pass takes about OP_S, and a step at most STEP_S. Each rank timed through
    its ops with the reader's own ScheduledPipeline. Stages multiply matrices where every rank has
    a core, and the times are those of a matrix product: the input's and the weight's gradient take
    as long as the forward pass. Otherwise they sleep, also where there is a hop, which is the
    latency of an emulated link: it wants small messages. ``emulated`` says which, if given.

    Raises TodoError while task pipe.5 is to do, before any rank starts; what simulate and launch
    raise; and ValueError where what ran is not the schedule.
    """
    timed = TimedSchedule(schedule, forward, backward, input_grad, weight_grad, hop)
    timed.simulate()  # raises for what cannot run, in the reader's unit
    unit_s = seconds_per_unit(timed) if unit_s is None else unit_s
    timed = timed.scaled(unit_s)
    ideal = timed.simulate()
    if emulated is None:
        emulated = hop > 0 or schedule.n_ranks > machine.cores() or not _are_products(timed)
    measured = _measure(timed, emulated)
    return ScheduleRun(schedule, ideal, measured, explain_gap(ideal, measured), unit_s, _note(timed, unit_s, emulated))


def seconds_per_unit(*timed: TimedSchedule) -> float:
    """Return how many seconds are to stand for a unit of time: runs stay short, and exact."""
    forward = statistics.fmean(time for each in timed for time in each.per_stage("forward"))
    return min(OP_S / forward, *(STEP_S / makespan(each.simulate()) for each in timed))


def _measure(timed: TimedSchedule, emulated: bool) -> pd.DataFrame:
    """Run ``timed``, whose times are seconds; return the ops of the second step, from 0 on."""
    from labkit.cost import Link
    from labkit.explore.schedules import pipeline_rank

    options: dict[str, Any] = {"world_size": timed.schedule.n_ranks, "tasks": ["pipe.5"], "timeout_s": 30.0}
    if timed.hop:
        options["link"] = Link(timed.hop, _LINK_BYTES_PER_S)
    if emulated:
        run = run_on_ranks(pipeline_rank.emulated_steps, timed.schedule, _seconds(timed), **options, backend="gloo")
    else:
        run = run_on_ranks(pipeline_rank.real_steps, timed.schedule, timed.per_stage("forward"), **options)
    chosen = (run.events["lane"] == "compute") & (run.events["step"] == 1)
    ops = run.events[chosen.fillna(False).to_numpy(dtype=bool)].reset_index(drop=True)
    start = ops["start_s"].min()
    return ops.assign(start_s=ops["start_s"] - start, end_s=ops["end_s"] - start)


def _seconds(timed: TimedSchedule) -> list[tuple[float, float, float]]:
    """Return for each stage how long forward, input gradient and weight gradient take.

    A backward pass that is whole (B) is both gradients, half of it each.
    """
    split = {op.stage for ops in timed.schedule.ops for op in ops if op.kind == "I"}
    times = zip(*map(timed.per_stage, ("forward", "backward", "input_grad", "weight_grad")), strict=True)
    return [(f, i, w) if stage in split else (f, b / 2, b / 2) for stage, (f, b, i, w) in enumerate(times)]


def _are_products(timed: TimedSchedule) -> bool:
    """Return whether each stage takes the times of a matrix product: I = W = F, and B = 2F."""
    forward = np.array(timed.per_stage("forward"))
    kinds = {op.kind for ops in timed.schedule.ops for op in ops}
    expected = {"B": [("backward", 2)], "I": [("input_grad", 1)], "W": [("weight_grad", 1)]}
    pairs = [pair for kind in kinds - {"F"} for pair in expected[kind]]
    return all(np.allclose(timed.per_stage(name), factor * forward) for name, factor in pairs)


def _note(timed: TimedSchedule, unit_s: float, emulated: bool) -> str:
    n, cores = timed.schedule.n_ranks, machine.cores()
    ranks = "1 rank" if n == 1 else f"{n} ranks"
    how = "that slept instead of computing" if emulated else "that multiplied matrices"
    hop = f", a hop {1000 * timed.hop:.3g} ms of emulated latency" if timed.hop else ""
    split = any(op.kind == "W" for op in timed.schedule.ops[0])
    on_stage_0 = " Stage 0 has nobody to send a gradient to, so all of its backward pass is in W." if split else ""
    return f"Ran on {ranks} {how} ({cores} cores here); a unit of time was {1000 * unit_s:.3g} ms{hop}.{on_stage_0}"
