"""Build boards for the tests of the puzzle, and finish small ones in every way there is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import product

import pandas as pd
import pytest

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.rules import Refusal, Rules
from labkit.explore.schedules.measure import TimedSchedule
from labkit.schedule import Op, Schedule, ScheduleError, gpipe, zero_bubble_h1

TWO_BY_TWO = Rules(TimedSchedule(gpipe(2, 2)))
ONE_EACH = Rules(TimedSchedule(gpipe(2, 2)), caps=[1, 1])
TWO_SPLIT = Rules(TimedSchedule(zero_bubble_h1(2, 2)))


def built(rules: Rules, ops: str) -> Board:
    """Return the board on which these ops are placed, one after the other: ``"0F0 1F0"``."""
    board = Board(rules)
    for op in map(Op.parse, ops.split()):
        board = board.place(op)
    return board


def refused(move: Callable[..., Board], *arguments: object) -> str:
    """Return why a move is refused."""
    with pytest.raises(Refusal) as caught:
        move(*arguments)
    return str(caught.value)


def every_schedule(rules: Rules) -> Iterator[tuple[Schedule, pd.DataFrame]]:
    """Yield every schedule that ``rules`` allow and that can run, with its event table."""
    for orders in product(*(list(_orders(rules, rank)) for rank in range(rules.n_ranks))):
        schedule = Schedule([list(order) for order in orders])
        with contextlib.suppress(ScheduleError):  # a deadlock
            yield schedule, rules.timed._replace(schedule=schedule).simulate()


def _orders(rules: Rules, rank: int) -> Iterator[tuple[Op, ...]]:
    """Yield the orders of a rank's ops, each after what it needs there, that its cap allows and in
    which no micro-batch overtakes another one."""
    ops = [op for op in rules.ops if rules.rank_of(op) == rank]
    for order in _merged([[op for op in ops if op.kind == kind] for kind in rules.kinds]):
        at = {op: position for position, op in enumerate(order)}
        kept = peak = 0
        for op in order:
            kept += (op.kind == "F") - (op.kind == rules.freeing_kind)
            peak = max(peak, kept + (op.kind == rules.freeing_kind))
        legal = all(at[Op("F", op.stage, op.micro_batch)] <= at[op] for op in ops)
        legal &= all(at[Op("I", op.stage, op.micro_batch)] < at[op] for op in ops if op.kind == "W")
        if legal and peak <= rules.cap(rank):
            yield order


def _merged(queues: list[list[Op]]) -> Iterator[tuple[Op, ...]]:
    if not any(queues):
        yield ()
    for i, queue in enumerate(queues):
        # no kind gets ahead of the one before it, as an op needs that one of its micro-batch
        if queue and (i == 0 or len(queues[i - 1]) < len(queue)):
            rest = [*queues[:i], queue[1:], *queues[i + 1 :]]
            yield from ((queue[0], *order) for order in _merged(rest))
