"""Hold a schedule that is built by hand, and refuse moves that cannot be.

A board never changes: a move gives a new one, or raises a Refusal. Nothing here knows of a screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from labkit.explore.puzzle.rules import Refusal, Rules, missing_input, no_room
from labkit.schedule import Op, Schedule


@dataclass(frozen=True)
class Board:
    """What is placed so far under ``rules``: ``moves`` has the ops in the order of placing.

        board = Board(rules).place(Op("F", 0, 0))
        board.place(Op("B", 1, 0))            # Refusal: 1B0 needs 1F0, which is not placed yet

    A rank runs its ops in the order in which they were placed.
    """

    rules: Rules
    moves: tuple[Op, ...] = ()

    @cached_property
    def orders(self) -> list[list[Op]]:
        """For each rank its ops, in the order in which it runs them."""
        ranks = range(self.rules.n_ranks)
        return [[op for op in self.moves if self.rules.rank_of(op) == rank] for rank in ranks]

    @property
    def missing(self) -> list[Op]:
        """The ops that are not placed yet."""
        return [op for op in self.rules.inputs if op not in self.moves]

    @property
    def finished(self) -> bool:
        return not self.missing

    def to_schedule(self, name: str = "") -> Schedule:
        return Schedule(self.orders, name)

    def place(self, op: Op) -> Board:
        """Return the board with ``op`` after the last one of its rank. Raises Refusal."""
        if op not in self.rules.inputs:
            raise Refusal(f"there is no {op} in this level")
        if op in self.moves:
            raise Refusal(f"{op} is there already")
        if (needed := self.rules.inputs[op]) and needed not in self.moves:
            raise Refusal(missing_input(op, needed))
        rank = self.rules.rank_of(op)
        forwards = (each for each in self.orders[rank] if each.kind == "F")
        kept = [forward for forward in forwards if self.rules.freed_by(forward) not in self.moves]
        if op.kind == "F" and len(kept) == self.rules.cap(rank):
            raise Refusal(no_room(op, kept, self.rules))
        return Board(self.rules, (*self.moves, op))
