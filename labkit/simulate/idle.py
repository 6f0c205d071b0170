"""Explain why a pipeline takes as long as it does: its critical path, what idle ranks wait for.

Both take an event table and its schedule, and work for simulated tables and for measured ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import pandas as pd

from labkit.base.checks import check_number, is_whole
from labkit.base.formats import MeasuredTable, measured
from labkit.base.texts import listed
from labkit.schedule import Op, Schedule
from labkit.simulate.replay import ROUNDING, Replay, attribute_delays, replay_events


def critical_path(schedule: Schedule, events: pd.DataFrame) -> pd.DataFrame:
    """Return the ops that set the makespan, as rows of ``events`` in order of time.

    To finish earlier, one of these has to get shorter. The path goes from the op that ends last
    back to the first, each time to the one that the op waited for: the op before on its rank or the
    one whose output it takes, whichever became available later. In a simulated table nothing lies
    between them but the hops, so the makespan is their durations plus those hops. In a measured one
    there are delays too, and which of the two an op waited for is read off as in
    :func:`labkit.simulate.replay.attribute_delays`.

    Raises ValueError where ``events`` is not one step of ``schedule``, ScheduleError for a schedule
    that cannot run.
    """
    run = replay_events(schedule, events)
    return events.iloc[run.row[critical_ops(run, attribute_delays(run).waited_for)]]


def critical_ops(run: Replay, waited_for: list[int | None]) -> list[int]:
    """Return the numbers of the ops of :func:`critical_path`, in order of time."""
    path = [int(run.end_s.argmax())]
    while (op := waited_for[path[-1]]) is not None:
        path.append(op)
    return path[::-1]


# --- why a rank is idle ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Idle:
    """What a rank does or waits for at one time. Printed, it is its ``sentence``.

    ``op`` is the op that the rank runs or runs next, ``waits_for`` the one on another rank whose
    output is not there yet. Codes are those of :func:`explain_idle`.
    """

    code: str
    sentence: str
    op: Op | None = None
    waits_for: Op | None = None

    def __str__(self) -> str:
        return self.sentence


def explain_idle(schedule: Schedule, events: pd.DataFrame, rank: int, time: float) -> Idle:
    """Return why ``rank`` is idle at ``time``, on the clock of ``events``: a code and a sentence.

    ==========  ===================================================================================
    activation  the next op, a forward pass, waits for that of the stage before, which has not ended
    gradient    the next op, a backward pass, waits for that of the stage after, which has not ended
    hop         the next op waits for an activation or gradient that is under way
    overhead    the next op has all it needs, and has not begun (in measured tables only)
    done        there is no next op
    busy        the rank is not idle
    ==========  ===================================================================================

    If an op is late, the sentence also says why: what its rank is busy with, or waits for in turn.
    An op that begins late after its input has left the other rank waited for a hop or for overhead:
    see :func:`labkit.simulate.replay.attribute_delays`.

    Raises ValueError for a rank that is not there, a time outside the run and ``events`` that are
    not one step of ``schedule``, TypeError for anything but a number, ScheduleError for a schedule
    that cannot run.
    """
    as_text = (lambda time: measured(time, "s")) if isinstance(events, MeasuredTable) else (lambda time: f"{time:g} s")
    return IdleReasons.of(replay_events(schedule, events), as_text).at(rank, time)


class _RankActivity(NamedTuple):
    """What a rank does: a code of :func:`explain_idle`, its op, and the one it waits for."""

    code: str
    op: int
    waits_for: int | None = None


@dataclass(frozen=True)
class IdleReasons:
    """The reasons for idle times of one run, for a caller that asks about many, such as a picture.

    ``as_text`` writes a time, in seconds on the clock of the event table; ``row`` is what its
    sentences call a rank, such as "stage" where a rank is a thread that has one.
    """

    replay: Replay
    waited_for: list[int | None]
    as_text: Callable[[float], str]
    row: str = "rank"

    @classmethod
    def of(cls, replay: Replay, as_text: Callable[[float], str], row: str = "rank") -> Self:
        return cls(replay, attribute_delays(replay).waited_for, as_text, row)

    def at(self, rank: int, time: float) -> Idle:
        """Return why ``rank`` is idle at ``time``: see :func:`explain_idle`."""
        replay, n_ranks = self.replay, 1 + self.replay.dependencies.rank[-1]
        if not is_whole(rank) or not 0 <= rank < n_ranks:
            raise ValueError(f"rank is {rank!r}, expected one of the {n_ranks} ranks of the schedule, counted from 0")
        first, last = replay.origin_s, replay.origin_s + replay.makespan_s
        expected = f"a time in the run, from {first!r} to {last!r} s"
        near = ROUNDING * replay.makespan_s
        check_number("time", time, lambda time: first - near <= time <= last + near, expected)
        return self._explain(int(rank), time - replay.origin_s)

    def _state(self, rank: int, time: float) -> _RankActivity:
        """Return what ``rank`` does at ``time``, in seconds since the run's first op began."""
        replay, ranks = self.replay, self.replay.dependencies.rank
        first, last = bisect_left(ranks, rank), bisect_right(ranks, rank) - 1
        time += ROUNDING * replay.makespan_s  # what begins or ends at this time has begun, or ended
        comes_next = first + int(replay.start_s[first : last + 1].searchsorted(time, side="right"))
        if comes_next > first and replay.end_s[comes_next - 1] > time:
            return _RankActivity("busy", comes_next - 1)
        if comes_next > last:
            return _RankActivity("done", last)
        needed = replay.dependencies.remote_input[comes_next]
        if needed is not None and replay.end_s[needed] > time:
            return _RankActivity("activation" if self._op(needed).kind == "F" else "gradient", comes_next, needed)
        if needed is not None and self.waited_for[comes_next] == needed:
            return _RankActivity("hop", comes_next, needed)
        return _RankActivity("overhead", comes_next)

    def _explain(self, rank: int, time: float) -> Idle:
        """Return the state of ``rank`` with a sentence to read."""
        code, op, waits_for = self._state(rank, time)
        if code == "busy":
            sentence = f"{self.row} {rank} is not idle: it is busy with {self._op(op)} until {self._ends(op)}"
        elif code == "done":
            sentence = (
                f"{self.row} {rank} has nothing left to do: its last op, {self._op(op)}, ended at {self._ends(op)}"
            )
        elif waits_for is None:
            sentence = f"{self.row} {rank} has all that {self._op(op)} needs, and begins it only at {self._begins(op)}"
        else:
            why = (
                f"under way until {self._begins(op)}" if code == "hop" else f"late because {self._why(waits_for, time)}"
            )
            sentence = f"{self.row} {rank} waits for {self._op(waits_for)}, {self._output(waits_for)}; it is {why}"
        return Idle(
            code,
            sentence,
            op=None if code == "done" else self._op(op),
            waits_for=None if waits_for is None else self._op(waits_for),
        )

    def _why(self, late: int, time: float) -> str:
        """Return why op ``late`` has not ended at ``time``: ranks that wait in turn, and why."""
        chain = []
        rank = self.replay.dependencies.rank[late]
        code, op, waits_for = self._state(rank, time)
        while waits_for is not None and code != "hop":
            chain.append(f"{self.row} {rank} waits for {self._op(waits_for)}")
            rank = self.replay.dependencies.rank[waits_for]
            code, op, waits_for = self._state(rank, time)
        if waits_for is not None:
            root = f"{self._output(waits_for)} is under way to {self.row} {rank} until {self._begins(op)}"
        elif code == "busy":
            name = "it" if op == late else str(self._op(op))
            root = f"{self.row} {rank} is busy with {name} until {self._ends(op)}"
        else:
            root = f"{self.row} {rank} begins {self._op(op)} only at {self._begins(op)}"
        if len(chain) > 3:
            chain[1:-1] = [f"{len(chain) - 2} more {self.row}s wait likewise"]
        return listed([*chain, root])

    def _output(self, number: int) -> str:
        op = self._op(number)
        what = "activation" if op.kind == "F" else "gradient"
        return f"the {what} of micro-batch {op.micro_batch} from {self.row} {self.replay.dependencies.rank[number]}"

    def _op(self, number: int) -> Op:
        return self.replay.dependencies.ops[number]

    def _begins(self, number: int) -> str:
        return self._clock(self.replay.start_s[number])

    def _ends(self, number: int) -> str:
        return self._clock(self.replay.end_s[number])

    def _clock(self, time: float) -> str:
        return self.as_text(float(time) + self.replay.origin_s)
