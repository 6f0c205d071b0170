"""Where the time went that a pipeline took longer than it should: cause by cause and stage by stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from labkit.base.formats import MeasuredTable
from labkit.schedule.dependencies import times_of
from labkit.simulate.replay import Played, held_up, played, remote_sources, schedule_of

CAUSES = ("imbalance_s", "communication_s", "overhead_s", "core_s")
_ROUNDING = 1e-12  # of the makespan


def explain_gap(ideal: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Why ``measured`` took longer than ``ideal``: a table whose cells add up to the difference of their makespans.

    The pipeline of ``ideal`` becomes that of ``measured`` in steps, and each cell is by how much one step changes the
    makespan. The steps go cause by cause, and within a cause stage by stage:

    ===============  =================================================================================================
    imbalance_s      the stage's ops take as long as when nothing disturbs them: as its fastest forward, its fastest …
    communication_s  what the stage's ops get from other ranks takes as long to arrive as it did
    overhead_s       between two ops of the stage's rank passes as much time as it did
    core_s           the stage's ops take as long as they did: beyond the fastest, they waited for a core (or a clock)
    ===============  =================================================================================================

    **The order matters.** A second that is lost twice, because a slow stage hides a slow hop, is counted once, with the
    cause that comes first; and what makes a stage faster, or fills time that was idle anyway, is negative or nothing. How
    communication and overhead are told apart: :func:`labkit.simulate.replay.held_up`.

    Both are event tables of the same ops, one step each, with the same order on every rank. Only ops count, so the makespan
    is from the first op to the last; two ranks' clocks agree to some µs, and a delay can come out below 0 by as much.

    Columns: stage, imbalance_s, communication_s, overhead_s, core_s, total_s (their sum); a row per stage. It prints as
    measured where ``measured`` does, and carries its ``.attrs``. Raises ValueError naming the op where the two differ.
    """
    schedule = schedule_of(ideal, "ideal")
    predicted = played(schedule, ideal, "ideal", "ideal")
    happened = played(schedule, measured, "measured", "ideal")
    cells = _differences(predicted, happened)
    table = pd.DataFrame({"stage": np.arange(len(cells))} | dict(zip(CAUSES, cells.T, strict=True)))
    table["total_s"] = cells.sum(axis=1)
    result = MeasuredTable(table) if isinstance(measured, MeasuredTable) else table
    result.attrs = dict(measured.attrs)
    return result


def _differences(ideal: Played, happened: Played) -> np.ndarray:
    """By how many seconds each step from ``ideal`` to ``happened`` changes the makespan: a row a stage, a column a cause."""
    stage = np.array([op.stage for op in ideal.waits.ops])
    was, became = held_up(ideal), held_up(happened)
    now = {"seconds": ideal.seconds, "communication": was.communication, "overhead": was.overhead}
    steps = (
        ("seconds", ideal.seconds + _undisturbed(happened) - _undisturbed(ideal)),
        ("communication", became.communication),
        ("overhead", became.overhead),
        ("seconds", happened.seconds),
    )
    cells = np.zeros((stage.max() + 1, len(steps)))
    makespan = _makespan(ideal, **now)
    for column, (what, goal) in enumerate(steps):
        for number in range(len(cells)):
            now[what] = np.where(stage == number, goal, now[what])
            changed = _makespan(ideal, **now)
            cells[number, column], makespan = changed - makespan, changed
    cells[abs(cells) < _ROUNDING * makespan] = 0.0
    return cells


def _undisturbed(run: Played) -> np.ndarray:
    """For each op how long the fastest of its stage and kind took, in seconds."""
    kinds = pd.Series([(op.stage, op.kind) for op in run.waits.ops])
    return pd.Series(run.seconds).groupby(kinds).transform("min").to_numpy()


def _makespan(run: Played, seconds: np.ndarray, communication: np.ndarray, overhead: np.ndarray) -> float:
    """Seconds that the ops of ``run`` take with other times, each as soon as its rank is free and its input has arrived."""
    waits = replace(run.waits, source=remote_sources(run.waits).tolist())
    return max(times_of(waits, seconds.tolist(), communication.tolist(), overhead.tolist())[1])
