"""Make the schedules that a state of the schedule explorer says, with the times of their stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit.explore.schedules.state import FIELDS, SCHEDULES, Choice, State
from labkit.schedule.papers import divides_into_rounds
from labkit.simulate import TimedSchedule


def timed_schedule(state: State, choice: Choice) -> TimedSchedule:
    """Return ``choice`` as a schedule, and the times of its stages.

    The model is cut into as many stages of equal size as the schedule has: with v chunks a rank,
    the times of rank r's part of ``state`` are shared out to the stages v·r to v·r + v − 1,
    wherever the schedule puts these. So whatever is slow stays in its place in the model.
    """
    n, m, v = state.n_ranks, n_micro_of(state), choice.chunks
    _, make = SCHEDULES[choice.name]
    if choice.name == "interleaved":
        schedule = replace(make(n, m, v), name=f"interleaved 1F1B, {v} chunk{'s' * (v > 1)}")
    else:
        schedule = make(n, m)
    v = schedule.n_stages // n
    of_ranks = (np.broadcast_to(times, n) for times in state.times.values())
    forward, input_grad, weight_grad = (np.repeat(times / v, v).tolist() for times in of_ranks)
    backward = [i + w for i, w in zip(input_grad, weight_grad, strict=True)]
    return TimedSchedule(schedule, forward, backward, input_grad, weight_grad, state.hop)


def n_micro_of(state: State) -> int:
    """Return the number of micro-batches that is shown.

    It is the state's, or the nearest that interleaved 1F1B takes, for both schedules alike.
    """
    if not any(choice.name == "interleaved" for choice in state.choices):
        return state.n_micro
    fits = (m for m in range(1, int(FIELDS["m"].high) + 1) if divides_into_rounds(state.n_ranks, m))
    return min(fits, key=lambda m: (abs(m - state.n_micro), -m))
