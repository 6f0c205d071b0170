"""Run schedules on real ranks, and compare what was measured with what should have happened."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from labkit.base import machine
from labkit.explore.rank_run import run_on_ranks
from labkit.schedule import EVENT_NAMES, Schedule
from labkit.simulate import TimedSchedule, explain_gap, makespan

OP_S = 0.010  # about how long a stage's forward pass should take: messages take tenths of a ms
STEP_S = 0.5  # and a step no longer than this
ROUNDS, WARM_UP = 10, 1  # an interval of nine steps leaves out the shortest and the longest
_LINK_BYTES_PER_S = 10e6  # less than gloo moves on any machine, and much for stages that sleep: they send 4 bytes


@dataclass(frozen=True)
class ScheduleRun:
    """A run of ``schedule`` and its ideal: two event tables in seconds, both from 0 on.

    ``ideal`` has the times that the stages were measured to take alone, or slept. ``measured`` is
    the step of median length, and ``steps_s`` has the lengths of all. ``gap`` says
    where the difference went (:func:`labkit.simulate.explain_gap`). ``unit_s`` is how many seconds
    stood for a unit of the reader's time. ``note`` says what was emulated.
    """

    schedule: Schedule
    ideal: pd.DataFrame
    measured: pd.DataFrame
    gap: pd.DataFrame
    unit_s: float
    note: str
    steps_s: list[float]


def run_schedules(
    *timed: TimedSchedule, unit_s: float | None = None, emulated: bool | None = None
) -> list[ScheduleRun]:
    """Run schedules on the same real ranks: their steps take turns, after a warm-up step of each.

    They have the same number of ranks and the same hop. Times are in any unit; ``unit_s`` seconds
    stand for one of it, by default such that a forward pass takes about OP_S, and a step at most
    STEP_S. Each rank goes through its ops with the reader's own ScheduledPipeline. Stages multiply
    matrices where every rank has a core, and all times are those of a matrix product: the input's
    and the weight's gradient take as long as the forward pass. Otherwise they sleep, also where
    there is a hop, which is the latency of an emulated link: it wants small messages. ``emulated``
    says which, if given.

    Raises TodoError while task pipe.5 is to do, before any rank starts; what simulate and launch
    raise; and ValueError where what ran is not the schedule.
    """
    for each in timed:
        each.simulate()  # raises for what cannot run, in the reader's unit
    unit_s = seconds_per_unit(*timed) if unit_s is None else unit_s
    scaled = [each.scaled(unit_s) for each in timed]
    if emulated is None:
        too_many = scaled[0].schedule.n_ranks > machine.cores()
        emulated = too_many or any(each.hop > 0 or not _are_products(each) for each in scaled)
    runs = []
    for each, steps in zip(*_measure(scaled, emulated), strict=True):
        ideal, measured = each.simulate(), sorted(steps, key=makespan)[len(steps) // 2]
        gap, steps_s = explain_gap(ideal, measured), [makespan(step) for step in steps]
        note = _note(each, unit_s, emulated)
        runs.append(ScheduleRun(each.schedule, ideal, measured, gap, unit_s, note, steps_s))
    return runs


def seconds_per_unit(*timed: TimedSchedule) -> float:
    """Return how many seconds are to stand for a unit of time: runs stay short, and exact."""
    forward = statistics.fmean(time for each in timed for time in each.per_stage("forward"))
    return min(OP_S / forward, *(STEP_S / makespan(each.simulate()) for each in timed))


def _measure(timed: Sequence[TimedSchedule], emulated: bool) -> tuple[list[TimedSchedule], list[list[pd.DataFrame]]]:
    """Run schedules whose times are seconds.

    Return each with the times of the stages as they were built, and for each the ops of its steps,
    from 0 on.
    """
    from labkit.cost import Link
    from labkit.explore.schedules import pipeline_rank

    schedules, n = [each.schedule for each in timed], len(timed)
    options: dict[str, Any] = {"world_size": schedules[0].n_ranks, "tasks": ["pipe.5"], "timeout_s": 90.0}
    if timed[0].hop:
        options["link"] = Link(timed[0].hop, _LINK_BYTES_PER_S)
    if emulated:
        seconds = [_seconds(each) for each in timed]
        run = run_on_ranks(pipeline_rank.emulated_steps, schedules, seconds, ROUNDS, **options, backend="gloo")
        built = [*timed]
    else:
        forward_s = [each.per_stage("forward") for each in timed]
        run = run_on_ranks(pipeline_rank.real_steps, schedules, forward_s, ROUNDS, **options)
        built = [_as_built(each, _ops_of(run.events, -1 - i)) for i, each in enumerate(timed)]
    return built, [[_ops_of(run.events, step) for step in range(n * WARM_UP + i, n * ROUNDS, n)] for i in range(n)]


def _as_built(timed: TimedSchedule, alone: pd.DataFrame) -> TimedSchedule:
    """Return the schedule with the median times of ``alone``, the ops of stages by themselves."""
    seconds = (alone["end_s"] - alone["start_s"]).groupby([alone["name"], alone["stage"]]).median().to_dict()
    times: dict[str, Any] = {
        name: [seconds.get((name, stage), given) for stage, given in enumerate(timed.per_stage(name))]
        for name in EVENT_NAMES.values()
    }
    return timed._replace(**times)


def _ops_of(events: pd.DataFrame, step: int) -> pd.DataFrame:
    """Return the ops of a step, from 0 on."""
    chosen = (events["lane"] == "compute") & (events["step"] == step)
    ops = events[chosen.fillna(False).to_numpy(dtype=bool)].reset_index(drop=True)
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
    alone = "" if emulated else " The prediction has the times that each stage took alone, between the steps."
    how = "that slept instead of computing" if emulated else "that multiplied matrices"
    hop = f", a hop {1000 * timed.hop:.3g} ms of emulated latency" if timed.hop else ""
    split = any(op.kind == "W" for op in timed.schedule.ops[0])
    on_stage_0 = " Stage 0 has nobody to send a gradient to, so all of its backward pass is in W." if split else ""
    shown = f"Of {ROUNDS - WARM_UP} steps the one of median length is shown."
    unit = f"a unit of time was {1000 * unit_s:.3g} ms{hop}"
    return f"Ran on {ranks} {how} ({cores} cores here); {unit}. {shown}{alone}{on_stage_0}"
