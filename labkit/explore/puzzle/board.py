"""Hold a schedule that is built by hand: what is placed, what may be, and what a move makes of it.

A board never changes: a move gives a new one, or a Refusal that says why not. Nothing here knows of
a screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from labkit.explore.puzzle import refusals
from labkit.explore.puzzle.refusals import Refusal
from labkit.explore.puzzle.rows import Bar, Row
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import EVENT_NAMES, Op, Schedule
from labkit.simulate import bubble_fraction, makespan
from labkit.trace import event_table


class Ready(NamedTuple):
    """An op that may be placed now, and its earliest start."""

    op: Op
    start_s: float


class Score(NamedTuple):
    """A finished board: its makespan, the longest time of a rank from its first op to its last, how
    long ranks are idle in all between those, idle ÷ (ranks × makespan), and by rank the most
    activations that it keeps."""

    makespan_s: float
    span_s: float
    idle_within_s: float
    bubble: float
    peaks: list[int]


@dataclass(frozen=True, eq=False)
class Board:
    """What is placed so far under ``rules``: ``placed`` by op, ``rows`` by rank.

        board = Board(rules).place("0F0").place("1F0")
        board.place("1B1")            # a Refusal: 1B1 needs 1F1, which is not placed yet

    A move takes an op as such or as text ("1F0"). It returns the board after it or a
    :class:`Refusal`. With ``free=True`` an op may be placed or removed whatever else needs it;
    :meth:`violations` then lists what is wrong, and the board is not finished before nothing is.

    Raises ValueError for text that is no op, TypeError for what is neither.
    """

    rules: Rules
    placed: dict[Op, Bar] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows:
            object.__setattr__(self, "rows", tuple(Row(cap=self.rules.cap(r)) for r in range(self.rules.n_ranks)))

    # --- moves ------------------------------------------------------------------------------------

    def place(self, op: Op | str, start_s: float | None = None, *, free: bool = False) -> Board | Refusal:
        """Place ``op`` at ``start_s``; without one as early as it may be, in a gap if it fits."""
        op = as_op(op)
        if op not in self.rules.inputs:
            return refusals.unknown(op, self.rules)
        if op in self.placed:
            return refusals.placed(op, self.placed[op])
        if start_s is None:
            earliest = self.earliest(op)
            if isinstance(earliest, Refusal):
                if not free:
                    return earliest
                earliest = self._first_gap(op)
            start_s = earliest
        elif not 0 <= start_s < math.inf:
            return refusals.bad_time(op, start_s)
        elif not free and (refusal := self.refuse(op, start_s)):
            return refusal
        return self.with_op(op, float(start_s))

    def remove(self, op: Op | str, *, free: bool = False) -> Board | Refusal:
        """Take ``op`` off the board, which other ops that are placed must not need."""
        op = as_op(op)
        if op not in self.placed:
            return refusals.absent(op)
        if not free and (taker := next((then for then in self.rules.outputs[op] if then in self.placed), None)):
            return refusals.needed(op, taker)
        board = self._without(op)
        if not free and (crowded := next(board._crowded(self.rules.rank_of(op)), None)):
            return refusals.frees(op, crowded)
        return board

    def swap(self, op: Op | str, direction: int, *, free: bool = False) -> Board | Refusal:
        """Exchange ``op`` with the one before it on its rank (-1) or the one after it (1).

        Then every op on the board is as early as its rank's order lets it be.
        """
        op = as_op(op)
        if op not in self.placed:
            return refusals.absent(op)
        rank = self.rules.rank_of(op)
        orders = [[bar.op for bar in row.bars] for row in self.rows]
        at = orders[rank].index(op)
        if not 0 <= at + direction < len(orders[rank]):
            return refusals.at_the_end(op, rank, direction)
        other = orders[rank][at + direction]
        orders[rank][at], orders[rank][at + direction] = other, op
        board = self._timed(orders)
        if not free and not self.violations() and (wrong := board.violations()):
            return refusals.not_in_order(op, other, direction, wrong[0])
        return board

    def stamp(self, micro_batch: int | None = None) -> Board | Refusal:
        """Place the pattern of ``micro_batch`` for the next one, at the least shift that is legal.

        The pattern is all its ops with their times; without a number it is that of the last
        micro-batch that is there whole. The next one is the first with no op on the board.
        """
        rules = self.rules
        count = [sum(op in self.placed for op in rules.ops if op.micro_batch == i) for i in range(rules.n_micro)]
        whole = len(rules.ops) // rules.n_micro
        if micro_batch is None:
            micro_batch = self.last_whole() or 0
        if not 0 <= micro_batch < rules.n_micro or count[micro_batch] < whole:
            missing = next((op for op in rules.ops if op.micro_batch == micro_batch and op not in self.placed), None)
            why = f"{missing} is missing" if missing else f"the last one is {rules.n_micro - 1}"
            return Refusal(
                "pattern", f"micro-batch {micro_batch} is not there whole, so it is no stamp: {why}", missing
            )
        if 0 not in count:
            return Refusal("pattern", "every micro-batch has ops on the board: there is none left to stamp")
        return self._stamped(micro_batch, count.index(0))

    def last_whole(self) -> int | None:
        """Return the last micro-batch of which all ops are on the board, None without one."""
        missing = {op.micro_batch for op in self.rules.ops if op not in self.placed}
        return max(set(range(self.rules.n_micro)) - missing, default=None)

    def clear(self) -> Board:
        return Board(self.rules)

    # --- what may be placed -----------------------------------------------------------------------

    def earliest(self, op: Op) -> float | Refusal:
        """Return the earliest legal start of an op that is not placed, or why it has none."""
        arrival_s = self._arrival(op)
        if isinstance(arrival_s, Refusal):
            return arrival_s
        row = self.rows[self.rules.rank_of(op)]
        if op.kind == "F":
            room_s = row.room_from(self._freed_s(op))
            if room_s == math.inf:
                return self._no_room(op, row.counts[-1][0])
            arrival_s = max(arrival_s, room_s)
        return row.gap(arrival_s, self.rules.duration(op))

    def ready(self) -> list[Ready]:
        """Return the ops that may be placed now, by their earliest start."""
        open_ops = [op for op in self.rules.ops if op not in self.placed]
        starts = ((op, self.earliest(op)) for op in open_ops)
        ready = [Ready(op, start_s) for op, start_s in starts if not isinstance(start_s, Refusal)]
        return sorted(ready, key=lambda ready: (ready.start_s, self.rules.rank_of(ready.op)))

    def refuse(self, op: Op, start_s: float) -> Refusal | None:
        """Return why ``op`` cannot start at ``start_s``, None if it can."""
        arrival_s = self._arrival(op)
        if isinstance(arrival_s, Refusal):
            return arrival_s
        needed, rank = self.rules.inputs[op], self.rules.rank_of(op)
        if needed is not None and start_s < arrival_s:
            return refusals.late_input(op, self.placed[needed], start_s, self.rules.delay(op))
        if other := self.rows[rank].busy(start_s, start_s + self.rules.duration(op)):
            return refusals.busy(op, rank, other)
        full_s = self.rows[rank].full_from(start_s, self._freed_s(op)) if op.kind == "F" else None
        return None if full_s is None else self._no_room(op, full_s)

    # --- what is there ----------------------------------------------------------------------------

    def violations(self) -> list[Refusal]:
        """Return all that is wrong with what is placed; moves without ``free`` leave nothing."""
        wrong = []
        for op, bar in self.placed.items():
            arrival_s, needed = self._arrival(op), self.rules.inputs[op]
            if isinstance(arrival_s, Refusal):
                wrong.append(arrival_s)
            elif needed is not None and bar.start_s < arrival_s:
                wrong.append(refusals.late_input(op, self.placed[needed], bar.start_s, self.rules.delay(op)))
        for rank, row in enumerate(self.rows):
            wrong += [refusals.busy(bar.op, rank, other) for other, bar in row.overlaps()]
            wrong += [self._without(op)._no_room(op, self.placed[op].start_s) for op in self._crowded(rank)]
        return wrong

    @property
    def finished(self) -> bool:
        return len(self.placed) == len(self.rules.ops) and not self.violations()

    def end_of_rank(self, op: Op) -> float:
        """Return when the last op that is placed on the rank of ``op`` ends."""
        return self.rows[self.rules.rank_of(op)].end_s

    @property
    def end_s(self) -> float:
        """When the last op that is placed ends."""
        return max(row.end_s for row in self.rows)

    @cached_property
    def score(self) -> Score:
        """The measures of a finished board. Raises ValueError for any other."""
        if not self.finished:
            raise ValueError(f"the board is not finished: {self.what_is_missing()}")
        events, spans = self.events(), [row.span_s for row in self.rows]
        idle_within_s = sum(spans) - sum(row.busy_s for row in self.rows)
        peaks = [row.peak for row in self.rows]
        return Score(makespan(events), max(spans), idle_within_s, bubble_fraction(events), peaks)

    def what_is_missing(self) -> str:
        """Say what is wrong, or how much is not placed yet."""
        if wrong := self.violations():
            return wrong[0].sentence
        missing = [op for op in self.rules.ops if op not in self.placed]
        return f"{len(missing)} of {len(self.rules.ops)} ops are not placed yet, {missing[0]} for one"

    # --- what it gives others ---------------------------------------------------------------------

    def to_schedule(self, name: str = "") -> Schedule:
        """Return the schedule of what is placed: on each rank the ops in order of their start."""
        return Schedule([[bar.op for bar in row.bars] for row in self.rows], name)

    def events(self) -> pd.DataFrame:
        """Return the event table of what is placed, rank by rank."""
        bars = [(rank, bar) for rank, row in enumerate(self.rows) for bar in row.bars]
        return event_table(
            {
                "rank": [rank for rank, _ in bars],
                "lane": ["compute"] * len(bars),
                "name": [EVENT_NAMES[bar.op.kind] for _, bar in bars],
                "stage": [bar.op.stage for _, bar in bars],
                "micro_batch": [bar.op.micro_batch for _, bar in bars],
                "start_s": [bar.start_s for _, bar in bars],
                "end_s": [bar.end_s for _, bar in bars],
            }
        )

    def to_csv(self) -> str:
        """Return what is placed as torch's CSV of a schedule: a row per rank, no times."""
        return self.to_schedule().to_csv()

    # --- how that is worked out -------------------------------------------------------------------

    def with_op(self, op: Op, start_s: float) -> Board:
        bar = Bar(start_s, start_s + self.rules.duration(op), op)
        row = self.rows[self.rules.rank_of(op)].with_bar(bar)
        return self._with_row(row, self.rules.rank_of(op), {**self.placed, op: bar})

    def _without(self, op: Op) -> Board:
        placed = {other: bar for other, bar in self.placed.items() if other != op}
        row = self.rows[self.rules.rank_of(op)].without(op)
        return self._with_row(row, self.rules.rank_of(op), placed)

    def _with_row(self, row: Row, rank: int, placed: dict[Op, Bar]) -> Board:
        return Board(self.rules, placed, (*self.rows[:rank], row, *self.rows[rank + 1 :]))

    def _timed(self, orders: list[list[Op]]) -> Board:
        """Return the ops of the board in these ``orders`` of its ranks, each as early as it may be.

        Where ops wait for each other in a circle, one goes without its input: that is a violation.
        """
        board, left = Board(self.rules), [list(order) for order in orders]

        def waits(op: Op) -> int:
            """Return 0 for no, 1 for an op of its own rank, 2 for one of another rank."""
            needed = self.rules.inputs[op]
            if needed is None or needed in board.placed or needed not in self.placed:
                return 0
            return 1 if self.rules.rank_of(needed) == self.rules.rank_of(op) else 2

        while any(left):
            op = min((order[0] for order in left if order), key=waits)
            left[self.rules.rank_of(op)].pop(0)
            arrival_s = board._arrival(op)
            board = board.with_op(op, max(board.end_of_rank(op), 0.0 if isinstance(arrival_s, Refusal) else arrival_s))
        return Board(self.rules, {op: board.placed[op] for op in self.placed}, board.rows)

    def _arrival(self, op: Op) -> float | Refusal:
        """Return when the input of ``op`` is there, or why that is not known."""
        needed = self.rules.inputs[op]
        if needed is None:
            return 0.0
        if (bar := self.placed.get(needed)) is None:
            return refusals.missing_input(op, needed)
        return bar.end_s + self.rules.delay(op)

    def _freed_s(self, op: Op) -> float:
        """Return when the activation of the forward ``op`` is freed, inf while nothing frees it."""
        freeing = self.placed.get(self.rules.freed_by(op))
        return freeing.end_s if freeing else math.inf

    def _first_gap(self, op: Op) -> float:
        """Return a start in free edit: in a gap, after its input if that is placed."""
        arrival_s = self._arrival(op)
        at_s = 0.0 if isinstance(arrival_s, Refusal) else arrival_s
        return self.rows[self.rules.rank_of(op)].gap(at_s, self.rules.duration(op))

    def _no_room(self, op: Op, full_s: float) -> Refusal:
        """Refuse the forward ``op`` for what its rank keeps at ``full_s``."""
        rank = self.rules.rank_of(op)
        kept = self.rows[rank].kept_at(full_s)
        return refusals.no_room(op, rank, self.rows[rank], kept, [self.rules.freed_by(bar.op) for bar in kept])

    def _crowded(self, rank: int) -> Iterator[Op]:
        """Yield the forwards for which the rank has no room."""
        row = self.rows[rank]
        for bar in row.kept:
            if len(row.kept_at(bar.start_s)) > row.cap:
                yield bar.op

    def _stamped(self, pattern: int, micro_batch: int) -> Board | Refusal:
        """Place the pattern for ``micro_batch`` at the first of all shifts at which it may fit."""
        bars = [self.placed[op] for op in self.rules.ops if op.micro_batch == pattern]
        first_s = min(bar.start_s for bar in bars)
        shifts = {0.0 - first_s} | {
            edge - bar.start_s
            for bar in bars
            for row in [self.rows[self.rules.rank_of(bar.op)]]
            for edge in [other.end_s for other in row.bars]
            if edge - bar.start_s >= -first_s
        }
        for shift in sorted(shifts):
            if board := self._shifted(bars, micro_batch, shift):
                return board
        op = Op("F", 0, micro_batch)
        return Refusal("memory", f"micro-batch {micro_batch} does not fit whole at any time: place its ops by hand", op)

    def _shifted(self, bars: list[Bar], micro_batch: int, shift_s: float) -> Board | None:
        """Return the board with the pattern placed so much later, None where that is illegal."""
        board = self
        for bar in bars:
            op = Op(bar.op.kind, bar.op.stage, micro_batch)
            if board.rows[board.rules.rank_of(op)].busy(bar.start_s + shift_s, bar.end_s + shift_s):
                return None
            board = board.with_op(op, bar.start_s + shift_s)
        return None if any(next(board._crowded(rank), None) for rank in range(board.rules.n_ranks)) else board


def as_op(op: Op | str) -> Op:
    """Return the op, also of its text. Raises ValueError and TypeError for anything else."""
    if isinstance(op, str):
        return Op.parse(op)
    if not isinstance(op, Op):
        raise TypeError(f"op is {op!r}, expected an Op or its text, such as '1F0'")
    return op
