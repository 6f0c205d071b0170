"""When it should happen: a schedule and the time each op takes become an event table, the same that a run gives.

    events = simulate(one_f_one_b(n_stages=4, n_micro=8), forward=1.0, backward=2.0)
    makespan(events) == 33.0 and bubble_fraction(events) == 3 / 11

A simulated unit of time is one second. What an event table says, simulated or measured, is also to be had from here:
its makespan, bubble and activations (:mod:`labkit.simulate.measures`), why a rank is idle and what the makespan consists of
(:mod:`labkit.simulate.idle`), and where the time went that a run took longer than it should (:mod:`labkit.simulate.gap`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.base.checks import check_number
from labkit.schedule import EVENT_NAMES, Schedule, flow
from labkit.schedule.dependencies import times_of
from labkit.trace import event_table

StageTimes = float | Sequence[float] | np.ndarray | pd.Series  # seconds: one number for all stages, or one for each

_TIME = "a finite number of seconds, more than 0, or one such number per stage"
_HOP = "a finite number of seconds, 0 or more"


def simulate(
    schedule: Schedule,
    forward: StageTimes = 1.0,
    backward: StageTimes = 2.0,
    input_grad: StageTimes = 1.0,
    weight_grad: StageTimes = 1.0,
    hop: float = 0.0,
) -> pd.DataFrame:
    """When each op of ``schedule`` runs: an event table with a row per op, rank by rank in the order of their lists.

    Times are seconds: ``forward`` of F, ``backward`` of B, ``input_grad`` of I, ``weight_grad`` of W; each a number, or
    one number per stage (a list, a tuple, an array, a Series). ``hop`` is the delay before an activation or gradient that
    was sent to another rank can be used there; sending it costs the sender nothing. An op starts as soon as its rank is
    free and what it needs has arrived; ranks keep to the order of their lists.

    Raises TypeError for what is no number or no schedule, ValueError for a time that is 0, negative or not finite, a
    negative hop, or a list that is not one time per stage, ScheduleError for a schedule that cannot run.
    """
    check_number("hop", hop, lambda value: 0 <= value < math.inf, _HOP)
    given = dict(zip(EVENT_NAMES, (forward, backward, input_grad, weight_grad), strict=True))
    times = {kind: _checked_times(EVENT_NAMES[kind], value) for kind, value in given.items()}
    waits = flow(schedule)
    kinds, stages = [op.kind for op in waits.ops], [op.stage for op in waits.ops]
    seconds = {kind: _per_stage(EVENT_NAMES[kind], value, 1 + max(stages)) for kind, value in times.items()}
    durations = [seconds[kind][stage] for kind, stage in zip(kinds, stages, strict=True)]
    rank, source = waits.rank, waits.source
    under_way = [float(hop) if there >= 0 and rank[there] != rank[i] else 0.0 for i, there in enumerate(source)]
    start, end = times_of(waits, durations, under_way, pause=[0.0] * len(durations))
    labels = {"rank": waits.rank, "stage": stages, "micro_batch": [op.micro_batch for op in waits.ops]}
    columns: dict[str, Any] = {name: np.array(values, dtype="int64") for name, values in labels.items()}
    columns |= {"lane": "compute", "name": [EVENT_NAMES[kind] for kind in kinds]}
    return event_table(columns | {"start_s": np.array(start), "end_s": np.array(end)})


def _checked_times(name: str, value: Any) -> float | list[float]:
    """A number of seconds, or a list of them. Raises TypeError and ValueError for anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value  # of an array, a Series, a tensor
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        check_number(name, value, lambda time: 0 < time < math.inf, _TIME)
        return float(value)
    for stage, time in enumerate(value):
        check_number(f"{name}[{stage}]", time, lambda time: 0 < time < math.inf, _TIME)
    return [float(time) for time in value]


def _per_stage(name: str, times: float | list[float], n_stages: int) -> list[float]:
    if isinstance(times, float):
        return [times] * n_stages
    if len(times) != n_stages:
        raise ValueError(
            f"{name} has {len(times)} times, expected one for each of the {n_stages} stages, or a single number"
        )
    return times
