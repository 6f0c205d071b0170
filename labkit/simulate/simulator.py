"""Simulate a schedule: the time that each op takes gives an event table, as a run does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.base.checks import check_number
from labkit.schedule import EVENT_NAMES, Schedule, find_dependencies
from labkit.schedule.dependencies import earliest_times
from labkit.trace import event_table

StageTimes = float | Sequence[float] | np.ndarray | pd.Series  # seconds: one number for all stages, or one for each

UNITS = "time (units)"  # a picture's word for times that are not seconds

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
    """Return when each op of ``schedule`` runs: an event table, rank by rank in their order.

    Times are seconds, or where a forward pass takes 1 its units, and pictures say so: ``forward``
    of F, ``backward`` of B, ``input_grad`` of I, ``weight_grad`` of W; each a number, or one number
    per stage (a list, a tuple, an array, a Series). ``hop`` is the delay before an activation or
    gradient that was sent to another rank can be used there; sending it costs the sender nothing.
    An op starts as soon as its rank is free and what it needs has arrived; ranks keep to the order
    of their lists.

    Raises TypeError for anything but a number and a schedule, ValueError for a time that is 0,
    negative or not finite, a negative hop, or a list that is not one time per stage, ScheduleError
    for a schedule that cannot run.
    """
    check_number("hop", hop, lambda value: 0 <= value < math.inf, _HOP)
    given = dict(zip(EVENT_NAMES, (forward, backward, input_grad, weight_grad), strict=True))
    dependencies = find_dependencies(schedule)
    ops = dependencies.ops
    kinds, stages = [op.kind for op in ops], [op.stage for op in ops]
    seconds = {kind: _per_stage(EVENT_NAMES[kind], value, 1 + max(stages)) for kind, value in given.items()}
    duration_s = [seconds[kind][stage] for kind, stage in zip(kinds, stages, strict=True)]
    transfer_s = [0.0 if there is None else float(hop) for there in dependencies.remote_input]
    start_s, end_s = earliest_times(dependencies, duration_s, transfer_s)
    labels = {"rank": dependencies.rank, "stage": stages, "micro_batch": [op.micro_batch for op in ops]}
    columns: dict[str, Any] = {name: np.array(values, dtype="int64") for name, values in labels.items()}
    columns |= {"lane": "compute", "name": [EVENT_NAMES[kind] for kind in kinds]}
    events = event_table(columns | {"start_s": np.array(start_s), "end_s": np.array(end_s)})
    if set(seconds["F"]) == {1.0}:
        events.attrs["time"] = UNITS
    return events


class TimedSchedule(NamedTuple):
    """A schedule and the times of its ops: the arguments of :func:`simulate`."""

    schedule: Schedule
    forward: StageTimes = 1.0
    backward: StageTimes = 2.0
    input_grad: StageTimes = 1.0
    weight_grad: StageTimes = 1.0
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


def _per_stage(name: str, value: Any, n_stages: int) -> list[float]:
    """Return the seconds of each stage.

    Raises TypeError and ValueError for anything but a number, or one for each stage.
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # of an array, a Series, a tensor
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        check_number(name, value, lambda time: 0 < time < math.inf, _TIME)
        return [float(value)] * n_stages
    for stage, time in enumerate(value):
        check_number(f"{name}[{stage}]", time, lambda time: 0 < time < math.inf, _TIME)
    if len(value) != n_stages:
        raise ValueError(
            f"{name} has {len(value)} times, expected one for each of the {n_stages} stages, or a single number"
        )
    return [float(time) for time in value]
