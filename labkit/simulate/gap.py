"""Find where the time went that a pipeline took longer than it should: by cause and by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.schedule.dependencies import earliest_times
from labkit.simulate.measures import measured_like
from labkit.simulate.replay import Replay, attribute_delays, replay_events, schedule_from_events

CAUSES = ("op_time_s", "imbalance_s", "communication_s", "overhead_s", "core_s")
_ROUNDING = 1e-12  # of the makespan


def explain_gap(ideal: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return why ``measured`` took longer than ``ideal``: cells that add up to the difference.

    The difference is that of their makespans.

    The pipeline of ``ideal`` becomes that of ``measured`` in steps, and each cell is by how much
    one step changes the makespan. The steps go cause by cause, and within a cause stage by stage:

    ===============  ===============================================================================
    op_time_s        the stage's ops take as many times as long as ops of their kind do in all
                     stages: forwards, backwards …
    imbalance_s      the stage's ops take as long as is typical of them: its forwards as long as
                     their median, its backwards …
    communication_s  what the stage's ops get from other ranks takes as long to arrive as it did
    overhead_s       between two ops of the stage's rank passes as much time as it did
    core_s           the stage's ops take as long as they did: beyond their median, they waited for
                     a core (or a clock)
    ===============  ===============================================================================

    Medians are taken on both sides, so noise that leaves them alone is in core_s. The common factor
    of a kind of op is the median of the stages' factors, of an even number the lower middle one. So
    where one of two stages has slowed down, that is an imbalance, and where all have by the same
    factor, it is not.

    **The order matters.** A second that is lost twice, because a slow stage hides a slow hop, is
    counted once, with the cause that comes first; and what makes a stage faster, or fills time that
    was idle anyway, is negative or zero. How communication and overhead are told apart:
    :func:`labkit.simulate.replay.attribute_delays`.

    Both are event tables of the same ops, one step each, with the same order on every rank. Only
    ops count, so the makespan is from the first op to the last; two ranks' clocks agree to some µs,
    and a delay can come out below 0 by as much.

    Columns: stage, op_time_s, imbalance_s, communication_s, overhead_s, core_s, and total_s, their
    sum; a row per stage. It prints as measured where ``measured`` does, and carries its ``.attrs``.
    Raises ValueError naming the op where the two differ.
    """
    schedule = schedule_from_events(ideal, "ideal")
    predicted = replay_events(schedule, ideal, "ideal", "ideal")
    happened = replay_events(schedule, measured, "measured", "ideal")
    cells = _differences(predicted, happened)
    table = pd.DataFrame({"stage": np.arange(len(cells))} | dict(zip(CAUSES, cells.T, strict=True)))
    table["total_s"] = cells.sum(axis=1)
    return measured_like(measured, table)


def _differences(ideal: Replay, happened: Replay) -> np.ndarray:
    """Return by how much each step changes the makespan on the way to ``happened``.

    It is an array of stages × causes.
    """
    stage = np.array([op.stage for op in ideal.dependencies.ops])
    now, losses = split_losses(ideal, happened)
    cells = np.zeros((stage.max() + 1, len(losses)))
    makespan = _makespan(ideal, **now)
    for column, (what, seconds) in enumerate(losses.values()):
        for number in range(len(cells)):
            now[what] = now[what] + np.where(stage == number, seconds, 0.0)
            changed = _makespan(ideal, **now)
            cells[number, column], makespan = changed - makespan, changed
    cells[abs(cells) < _ROUNDING * makespan] = 0.0
    return cells


class Loss(NamedTuple):
    """The seconds that a cause adds to each op: to its ``duration_s``, for example."""

    what: str
    seconds: np.ndarray


def split_losses(ideal: Replay, happened: Replay) -> tuple[dict[str, np.ndarray], dict[str, Loss]]:
    """Return the times of ``ideal``, and by CAUSES what ``happened`` has lost beyond them.

    The times are duration_s, transfer_s and overhead_s, of each op. With some of the losses alone a
    duration may come out below 0; then it is 0.
    """
    was, became = attribute_delays(ideal), attribute_delays(happened)
    factor = _common_factor(ideal, happened)
    longer = factor * ideal.duration_s
    typical = factor * (ideal.duration_s - _typical(ideal)) + _typical(happened)
    losses = (
        Loss("duration_s", longer - ideal.duration_s),
        Loss("duration_s", typical - longer),
        Loss("transfer_s", became.transfer_s - was.transfer_s),
        Loss("overhead_s", became.overhead_s - was.overhead_s),
        Loss("duration_s", happened.duration_s - typical),
    )
    times = {"duration_s": ideal.duration_s, "transfer_s": was.transfer_s, "overhead_s": was.overhead_s}
    return times, dict(zip(CAUSES, losses, strict=True))


def without_delays(happened: Replay) -> Replay:
    """Return a run in which nothing is late, and each op takes as long as is typical of its stage.

    It stands in for an ideal that was not given. Beside it op time and imbalance are 0: a run alone
    does not say how long its ops should have taken.
    """
    times = earliest_times(happened.dependencies, _typical(happened).tolist())
    return replace(happened, start_s=np.array(times.start_s), end_s=np.array(times.end_s))


def _common_factor(ideal: Replay, happened: Replay) -> np.ndarray:
    """Return for each op how many times as long ops of its kind took in ``happened``, by stage."""
    was = _typical(ideal)
    ops = pd.DataFrame([(op.stage, op.kind) for op in ideal.dependencies.ops], columns=["stage", "kind"])
    ops["factor"] = np.divide(_typical(happened), was, out=np.ones_like(was), where=was > 0)
    of_stages = ops[was > 0].drop_duplicates(["stage", "kind"]).groupby("kind")["factor"]
    return ops["kind"].map(of_stages.quantile(0.5, interpolation="lower")).fillna(1.0).to_numpy()


def _typical(run: Replay) -> np.ndarray:
    """Return for each op the median seconds of those of its stage and kind."""
    kinds = pd.Series([(op.stage, op.kind) for op in run.dependencies.ops])
    return pd.Series(run.duration_s).groupby(kinds).transform("median").to_numpy()


def _makespan(run: Replay, duration_s: np.ndarray, transfer_s: np.ndarray, overhead_s: np.ndarray) -> float:
    """Return the makespan of ``run`` with other times, each op starting as soon as it can."""
    across_ranks = replace(run.dependencies, input_op=run.dependencies.remote_input)
    at_least_0 = np.maximum(duration_s, 0.0).tolist()
    return max(earliest_times(across_ranks, at_least_0, transfer_s.tolist(), overhead_s.tolist()).end_s)
