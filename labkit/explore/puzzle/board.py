"""Hold a schedule that is built by hand, for each rank its ops in order, and make moves.

A board never changes: a move gives a new one, or raises a Refusal. Nothing here knows of a screen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from labkit.explore.puzzle.rules import Refusal, Rules, missing_input, no_room
from labkit.schedule import Op, Schedule, find_dependencies
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
        if why := self._no_room(op):
            raise Refusal(why)
        rank = self.rules.rank_of(op)
        return Board(self.rules, (*self.orders[:rank], (*self.orders[rank], op), *self.orders[rank + 1 :]))

    # --- what may be ------------------------------------------------------------------------------

    def ready(self) -> list[Op]:
        """Return the ops that may be placed now.

        As micro-batches are alike, of each stage and kind it is the one whose input arrives first.
        """
        first: dict[tuple[int, str], tuple[float, Op]] = {}
        for op, needed in self.rules.inputs.items():
            if op in self.placed or (needed and needed not in self.placed):
                continue
            arrival_s = self.bars[needed].end_s if needed else 0.0
            group = (op.stage, op.kind)
            if group not in first or arrival_s < first[group][0]:
                first[group] = (arrival_s, op)
        return [op for _, op in first.values() if not self._no_room(op)]

    def _no_room(self, op: Op) -> str:
        """Return why an op's rank has no room for it, as its next one; "" if it has."""
        rank = self.rules.rank_of(op)
        forwards = (each for each in self.orders[rank] if each.kind == "F")
        kept = [forward for forward in forwards if self.rules.freed_by(forward) not in self.placed]
        return no_room(op, kept, self.rules) if op.kind == "F" and len(kept) == self.rules.cap(rank) else ""

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

    def waited_for(self, op: Op) -> Op | None:
        """Return the op that a placed one waited for: the one before it, or its remote input."""
        order, needed = self.orders[self.rules.rank_of(op)], self.rules.inputs[op]
        before = order[order.index(op) - 1] if op in order[1:] else None
        is_late = before is None or self.bars[op].start_s > self.bars[before].end_s
        is_remote = needed is not None and self.rules.rank_of(needed) != self.rules.rank_of(op)
        return needed if is_late and is_remote else before

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
        """Return the most activations that ``rank`` keeps, each from its F to what frees it."""
        changes = ((op.kind == "F") - (op.kind == self.rules.freeing_kind) for op in self.orders[rank])
        return max(accumulate(changes), default=0)

    @property
    def makespan_s(self) -> float:
        """When the last op that is placed ends."""
        return max(map(self.end_s, range(self.rules.n_ranks)))

    @cached_property
    def bubble(self) -> float:
        """The idle share of the ranks' time on a finished board."""
        return bubble_fraction(self.rules.timed._replace(schedule=self.to_schedule()).simulate())
