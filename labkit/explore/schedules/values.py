"""Work out what the schedule explorer shows: from its state schedules and times, and metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from labkit.explore.schedules.measure import TimedSchedule
from labkit.explore.schedules.state import FIELDS, SCHEDULES, Choice, State
from labkit.schedule.papers import divides_into_rounds
from labkit.simulate.idle import critical_ops
from labkit.simulate.replay import Replay, attribute_delays, kept_activations

# --- from a state to schedules and their times ----------------------------------------------------


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
    fits = (m for m in range(1, int(FIELDS["m"].most) + 1) if divides_into_rounds(state.n_ranks, m))
    return min(fits, key=lambda m: (abs(m - state.n_micro), -m))


# --- what a run says ------------------------------------------------------------------------------


class Bubbles(NamedTuple):
    """Four things that papers call the bubble, of one run of a pipeline.

    - ``fraction``: idle time of all ranks ÷ (ranks × makespan), as in this lab and in GPipe (Huang
      et al. 2019);
    - ``of_ideal``: idle time ÷ the time that ranks compute, as in Megatron (Narayanan et al. 2021);
    - ``idle_s``: the idle time of a rank, on average: Megatron's bubble time;
    - ``inside``: the idle part between the first and the last op of the rank that takes longest, as
      in zero bubble (Qi et al. 2024), whose ranks begin and end one after the other.
    """

    fraction: float
    of_ideal: float
    idle_s: float
    inside: float


class Metrics(NamedTuple):
    """What the explorer says of a run.

    ``peak`` is the most activations that a rank keeps, counted in micro-batches of its whole part
    of the model, and ``peak_rank`` the first rank that keeps so many. The critical path is
    ``critical_ops`` ops long, which compute for ``critical_share`` of the makespan; the rest of it
    is hops, and delays in what was measured.
    """

    makespan_s: float
    bubbles: Bubbles
    peak: float
    peak_rank: int
    critical_ops: int
    critical_share: float


def metrics_of(run: Replay) -> Metrics:
    """Return the metrics of a run. Raises ValueError if all its ops take 0 s."""
    path = critical_ops(run, attribute_delays(run).waited_for)
    kept, n_stages = kept_activations(run), 1 + max(op.stage for op in run.dependencies.ops)
    first = int(kept.number.argmax())  # where one rank keeps the most
    return Metrics(
        makespan_s=run.makespan_s,
        bubbles=bubbles(run),
        peak=float(kept.number[first] * (1 + run.dependencies.rank[-1]) / n_stages),
        peak_rank=int(kept.rank[first]),
        critical_ops=len(path),
        critical_share=float(run.duration_s[path].sum()) / run.makespan_s,
    )


def bubbles(run: Replay) -> Bubbles:
    """Return the four bubbles of a run. Raises ValueError if all its ops take 0 s."""
    rank = np.array(run.dependencies.rank)
    busy_s = np.bincount(rank, run.duration_s)
    if not busy_s.any():
        raise ValueError("all ops take 0 s, so there is no time of which a part could be idle")
    first = np.searchsorted(rank, np.arange(len(busy_s)))  # op of each rank
    taken_s = np.maximum.reduceat(run.end_s, first) - np.minimum.reduceat(run.start_s, first)
    idle_s, longest = run.makespan_s - busy_s.mean(), taken_s.argmax()
    return Bubbles(
        fraction=float(idle_s / run.makespan_s),
        of_ideal=float(idle_s / busy_s.mean()),
        idle_s=float(idle_s),
        inside=float(1 - busy_s[longest] / taken_s[longest]),
    )
