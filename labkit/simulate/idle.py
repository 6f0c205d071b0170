"""Why a pipeline takes as long as it does: its critical path, and what an idle rank waits for.

Both read an event table beside the schedule that it is of, and hold for what was simulated and for what was measured.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.base.checks import check_number
from labkit.base.formats import MeasuredTable, measured
from labkit.schedule import Op, Schedule
from labkit.simulate.replay import Played, held_up, played, remote_sources


def critical_path(schedule: Schedule, events: pd.DataFrame) -> pd.DataFrame:
    """The ops that set the makespan, as rows of ``events`` in order of time.

    To finish earlier, one of these has to get shorter. The path goes from the op that ends last back to the first, each
    time to the one that the op waited for: the op before on its rank or its source, whichever became available later. In a
    simulated table nothing lies between them but the hops, so the makespan is their durations plus those hops. In a measured
    one there are delays too, and which of the two an op waited for is read off as in :func:`labkit.simulate.replay.held_up`.

    Raises ValueError where ``events`` is not one step of ``schedule``, ScheduleError for a schedule that cannot run.
    """
    run = played(schedule, events)
    waited_for = held_up(run).waited_for
    path = [int(run.end.argmax())]
    while (op := int(waited_for[path[-1]])) >= 0:
        path.append(op)
    return events.iloc[run.row[path[::-1]]]


# --- why a rank is idle ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Idle:
    """What a rank does or waits for at one time. Printed, it is its ``sentence``.

    ``op`` is the op that the rank runs or runs next, ``waits_for`` the one on another rank whose output is not there yet.
    Codes are those of :func:`explain_idle`.
    """

    code: str
    sentence: str
    op: Op | None = None
    waits_for: Op | None = None

    def __str__(self) -> str:
        return self.sentence


def explain_idle(schedule: Schedule, events: pd.DataFrame, rank: int, time: float) -> Idle:
    """Why ``rank`` is idle at ``time``, in seconds on the clock of ``events``: a code, and a sentence to read.

    ==========  ============================================================================================
    activation  the forward pass that comes next waits for the one of the stage before, which has not ended
    gradient    the backward pass that comes next waits for the one of the stage after, which has not ended
    hop         what comes next waits for an activation or gradient that is under way
    overhead    what comes next has all it needs, and has not begun (in measured tables only)
    done        nothing comes next
    busy        the rank is not idle
    ==========  ============================================================================================

    Of an op that is late the sentence also says why: what its rank is busy with, or waits for in turn. An op that begins
    late after its input has left the other rank waited for a hop or for overhead: see :func:`labkit.simulate.replay.held_up`.

    Raises ValueError for a rank that is not there, a time outside the run and ``events`` that are not one step of
    ``schedule``, TypeError for what is no number, ScheduleError for a schedule that cannot run.
    """
    run = played(schedule, events)
    is_whole = isinstance(rank, int | np.integer) and not isinstance(rank, bool)
    if not is_whole or not 0 <= rank < schedule.n_ranks:
        raise ValueError(f"rank is {rank!r}, expected one of the {schedule.n_ranks} ranks of the schedule, from 0 on")
    first, last = run.origin_s, run.origin_s + float(run.end.max())
    check_number("time", time, lambda time: first <= time <= last, f"a time in the run, from {first!r} to {last!r} s")
    seconds = (lambda time: measured(time, "s")) if isinstance(events, MeasuredTable) else (lambda time: f"{time:g} s")
    moment = _Moment(run, held_up(run).waited_for, remote_sources(run.waits), time - run.origin_s, seconds)
    return moment.idle(int(rank))


class _State(NamedTuple):
    """What a rank does: a code of :func:`explain_idle`, the number of its op, and of the op that it waits for, or -1."""

    code: str
    op: int
    waits_for: int = -1


@dataclass(frozen=True)
class _Moment:
    """A pipeline at one ``time``, in seconds since its first op began; ``written`` is how a time is written."""

    run: Played
    waited_for: np.ndarray
    source: np.ndarray
    time: float
    written: Callable[[float], str]

    def state(self, rank: int) -> _State:
        """What ``rank`` does now."""
        first, last = bisect_left(self.run.waits.rank, rank), bisect_right(self.run.waits.rank, rank) - 1
        comes_next = first + int(self.run.start[first : last + 1].searchsorted(self.time, side="right"))
        if comes_next > first and self.run.end[comes_next - 1] > self.time:
            return _State("busy", comes_next - 1)
        if comes_next > last:
            return _State("done", last)
        source = int(self.source[comes_next])
        if source >= 0 and self.run.end[source] > self.time:
            return _State("activation" if self._op(source).kind == "F" else "gradient", comes_next, source)
        if source >= 0 and self.waited_for[comes_next] == source:
            return _State("hop", comes_next, source)
        return _State("overhead", comes_next)

    def idle(self, rank: int) -> Idle:
        """The state of ``rank`` as it is handed out."""
        code, op, source = state = self.state(rank)
        if code == "busy":
            sentence = f"rank {rank} is not idle: it is busy with {self._op(op)} until {self._clock(self.run.end[op])}"
        elif code == "done":
            ended = self._clock(self.run.end[op])
            sentence = f"rank {rank} has nothing left to do: its last op, {self._op(op)}, ended at {ended}"
        elif source < 0:
            sentence = f"rank {rank} has all that {self._op(op)} needs, and begins it only at {self._begins(op)}"
        else:
            under_way = code == "hop"
            late = f"under way until {self._begins(op)}" if under_way else f"late because {self._why(state)}"
            sentence = f"rank {rank} waits for {self._op(source)}, {self._output(source)}; it is {late}"
        return Idle(code, sentence, None if code == "done" else self._op(op), None if source < 0 else self._op(source))

    def _why(self, state: _State) -> str:
        """Why the op that is waited for has not ended: the ranks that wait in turn, down to one that does not wait."""
        chain = []
        while state.code in ("activation", "gradient"):
            late = state.waits_for
            rank = self.run.waits.rank[late]
            state = self.state(rank)
            if state.code in ("activation", "gradient"):
                chain.append(f"rank {rank} waits for {self._op(state.waits_for)}")
        if len(chain) > 3:
            chain[1:-1] = [f"{len(chain) - 2} more ranks wait likewise"]
        if state.code == "busy":
            name = "it" if state.op == late and not chain else str(self._op(state.op))
            root = f"rank {rank} is busy with {name} until {self._clock(self.run.end[state.op])}"
        elif state.code == "hop":
            root = f"{self._output(state.waits_for)} is under way to rank {rank} until {self._begins(state.op)}"
        else:
            root = f"rank {rank} begins {self._op(state.op)} only at {self._begins(state.op)}"
        return f"{', '.join(chain)} and {root}" if chain else root

    def _output(self, source: int) -> str:
        op = self._op(source)
        what = "activation" if op.kind == "F" else "gradient"
        return f"the {what} of micro-batch {op.micro_batch} from rank {self.run.waits.rank[source]}"

    def _op(self, number: int) -> Op:
        return self.run.waits.ops[number]

    def _begins(self, number: int) -> str:
        return self._clock(self.run.start[number])

    def _clock(self, time: float) -> str:
        return self.written(float(time) + self.run.origin_s)
