"""Hold a schedule that is built by hand, for each rank its ops in order, and make moves.

A board never changes: a move gives a new one, or raises a Refusal. Nothing here knows of a screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from labkit.explore.puzzle.rules import Refusal, Rules, missing_input, no_room
from labkit.schedule import Op, Schedule, ScheduleError, find_dependencies
from labkit.schedule.dependencies import earliest_times
from labkit.simulate import bubble_fraction


class Bar(NamedTuple):
    """When an op starts and ends, in seconds."""

    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Board:
    """What is placed so far under ``rules``: ``orders`` has for each rank its ops in order.

        board = Board(rules).place(Op("F", 0, 0))
        board.place(Op("B", 1, 0))            # Refusal: 1B0 needs 1F0, which is not placed yet

    A rank runs one op after the other, each as early as that order lets it be. A move returns the
    board after it, or raises a :class:`Refusal`.
    """

    rules: Rules
    orders: tuple[tuple[Op, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.orders:
            object.__setattr__(self, "orders", ((),) * self.rules.n_ranks)

    @cached_property
    def placed(self) -> frozenset[Op]:
        return frozenset(op for order in self.orders for op in order)

    @property
    def finished(self) -> bool:
        return len(self.placed) == len(self.rules.ops)

    def to_schedule(self, name: str = "") -> Schedule:
        return Schedule([list(order) for order in self.orders], name)

    # --- moves ------------------------------------------------------------------------------------

    def place(self, op: Op) -> Board:
        """Place ``op`` after the last one of its rank."""
        if op not in self.rules.inputs:
            raise Refusal(f"there is no {op} in this level")
        if op in self.placed:
            start_s, end_s = self.bars[op]
            raise Refusal(f"{op} is there already, from {start_s:g} to {end_s:g}")
        if (needed := self.rules.inputs[op]) and needed not in self.placed:
            raise Refusal(missing_input(op, needed))
        after = self._reorder(op, (*self._order_of(op), op))
        if why := after._no_room(op):
            raise Refusal(why)
        return after

    def remove(self, op: Op) -> Board:
        """Take ``op`` off the board, which other ops that are placed must not need."""
        if taker := next((then for then in self.rules.outputs[op] if then in self.placed), None):
            raise Refusal(f"{taker} needs {op}: remove {taker} first, or undo")
        after = self._reorder(op, (other for other in self._order_of(op) if other != op))
        if crowded := after._crowded(op):
            raise Refusal(f"{crowded[0]} has room only because {op} frees it: remove {crowded[0]} first")
        return after

    def swap(self, op: Op, direction: int) -> Board:
        """Exchange ``op`` with the one before it on its rank (-1) or the one after it (1)."""
        order = list(self._order_of(op))
        at = order.index(op)
        if not 0 <= at + direction < len(order):
            which, rank = "first" if direction < 0 else "last", self.rules.rank_of(op)
            raise Refusal(f"{op} is the {which} op of rank {rank} already")
        other = order[at + direction]
        order[at], order[at + direction] = other, op
        after = self._reorder(op, order)
        if why := after._why_not(op):
            raise Refusal(f"{op} cannot go {'before' if direction < 0 else 'after'} {other}: {why}")
        return after

    def place_micro_batch(self) -> Board:
        """Place the next micro-batch whole, as early as it delays nothing that is there.

        Its forwards are as late as they delay nothing either, as their activations are kept. It
        takes a micro-batch that is there whole to begin with.
        """
        ops, n_micro = self.rules.ops, self.rules.n_micro
        counts = Counter(op.micro_batch for op in self.placed)
        if len(ops) // n_micro not in counts.values():
            raise Refusal("no micro-batch is there whole yet: place all ops of one first")
        if len(counts) == n_micro:
            raise Refusal("every micro-batch has ops on the board: there is none left to place whole")
        new = min(set(range(n_micro)) - set(counts))
        board, new_ops = self, [op for op in ops if op.micro_batch == new]
        for op in new_ops:
            board = board.place(op)._without_delay(op)[0]
        for op in reversed([op for op in new_ops if op.kind == "F"]):
            board = board._without_delay(op)[-1]
        return board

    def _without_delay(self, op: Op) -> list[Board]:
        """Return the board with ``op`` at each place on its rank where it delays no other op."""
        others, bars = [other for other in self._order_of(op) if other != op], self.bars
        places = range(len(others) + 1)
        boards = [self._reorder(op, [*others[:at], op, *others[at:]]) for at in places]
        there = self.placed - {op}
        return [
            board
            for board in boards
            if not board._why_not(op) and all(board.bars[other].start_s <= bars[other].start_s for other in there)
        ]

    def _order_of(self, op: Op) -> tuple[Op, ...]:
        return self.orders[self.rules.rank_of(op)]

    def _reorder(self, op: Op, order: Iterable[Op]) -> Board:
        """Return the board with another order on the rank of ``op``."""
        rank = self.rules.rank_of(op)
        return Board(self.rules, (*self.orders[:rank], tuple(order), *self.orders[rank + 1 :]))

    # --- what may be ------------------------------------------------------------------------------

    def _why_not(self, moved: Op) -> str:
        """Return why the board cannot run after a move of an op, "" if it can."""
        try:
            _ = self.bars
        except ScheduleError as error:
            return f"{error.op} cannot run then ({error.reason})"
        return self._no_room(moved)

    def _no_room(self, moved: Op) -> str:
        crowded = self._crowded(moved)
        return no_room(*crowded, self.rules, self.placed) if crowded else ""

    def _crowded(self, moved: Op) -> tuple[Op, list[Op]] | None:
        """Return the first forward on the rank of an op that has no room, with those kept then."""
        rank, before = self.rules.rank_of(moved), list[Op]()
        for op, kept in self.kept(rank).items():
            if len(kept) > self.rules.cap(rank):
                return op, before
            before = kept
        return None

    def is_full(self, rank: int) -> bool:
        """Return whether ``rank`` keeps all the activations that it may."""
        return len([[], *self.kept(rank).values()][-1]) == self.rules.cap(rank)

    def kept(self, rank: int) -> dict[Op, list[Op]]:
        """Return by op that changes it the forwards whose activations ``rank`` keeps from then on.

        That is from the start of a forward on, and from the end of what frees one.
        """
        kept: list[Op] = []
        changes = {}
        for op in self.orders[rank]:
            if op.kind in ("F", self.rules.freeing_kind):
                rest = [forward for forward in kept if self.rules.freed_by(forward) != op]
                changes[op] = kept = [*kept, op] if op.kind == "F" else rest
        return changes

    # --- when -------------------------------------------------------------------------------------

    @cached_property
    def bars(self) -> dict[Op, Bar]:
        """By op its times: also of those not placed, as if each came next on its rank.

        So that is when an op that may be placed would run; no other one can be earlier.
        """
        rules, placed = self.rules, self.placed
        rest = ([op for op in ops if op not in placed] for ops in rules.ops_of_rank)
        whole = [[*order, *ops] for order, ops in zip(self.orders, rest, strict=True)]
        known = find_dependencies(Schedule(whole))
        last: list[int | None] = [None] * rules.n_ranks  # of what is placed
        previous_op: list[int | None] = []
        for number, (op, rank) in enumerate(zip(known.ops, known.rank, strict=True)):
            previous_op.append(last[rank])
            if op in placed:
                last[rank] = number
        times = earliest_times(
            replace(known, previous_op=previous_op),
            [rules.duration_s[op] for op in known.ops],
            [rules.delay_s[op] for op in known.ops],
        )
        return dict(zip(known.ops, map(Bar, *times), strict=True))

    def end_s(self, rank: int) -> float:
        """Return when the last op that is placed on ``rank`` ends."""
        return max((self.bars[op].end_s for op in self.orders[rank]), default=0.0)

    def span_s(self, rank: int) -> float:
        """Return how long ``rank`` takes from the start of its first op to the end of its last."""
        starts = (self.bars[op].start_s for op in self.orders[rank])
        return self.end_s(rank) - min(starts, default=0.0)

    def idle_s(self, rank: int, until_s: float) -> float:
        """Return how much of ``until_s`` seconds the ops of ``rank`` leave."""
        return until_s - sum(self.rules.duration_s[op] for op in self.orders[rank])

    def peak(self, rank: int) -> int:
        """Return the most activations that ``rank`` keeps."""
        return max(map(len, self.kept(rank).values()), default=0)

    @property
    def makespan_s(self) -> float:
        """When the last op that is placed ends."""
        return max(map(self.end_s, range(self.rules.n_ranks)))

    @cached_property
    def bubble(self) -> float:
        """The idle share of the ranks' time on a finished board."""
        return bubble_fraction(self.rules.timed._replace(schedule=self.to_schedule()).simulate())
