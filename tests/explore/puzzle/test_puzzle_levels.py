"""Every level has a par that is attained within its rules and that nothing beats."""

import pytest

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import EVENT_NAMES, Op

NUMBERS = range(1, len(LEVELS) + 1)


def test_par_of_every_level():
    assert [this.par_s for this in LEVELS] == [6, 9, 18, 21, 27, 27, 17, 10, 17, 15, 27, 18]


@pytest.mark.parametrize("number", NUMBERS)
def test_no_board_beats_par_as_a_rank_is_busy_between_the_first_op_that_reaches_it_and_the_last_that_leaves_it(number):
    this, rules = level(number), level(number).rules
    busy_s = [sum(_duration_s(rules, op) for op in ops) for ops in rules.timed.schedule.ops]
    if this.goal == "span":
        assert max(busy_s) == this.par_s
    else:
        around_s = [min(map(head, ops)) + min(map(tail, ops)) for head, tail, ops in _around(rules)]
        assert max(map(sum, zip(busy_s, around_s, strict=True))) == this.par_s


def _duration_s(rules: Rules, op: Op) -> float:
    return rules.timed.per_stage(EVENT_NAMES[op.kind])[op.stage]


def _around(rules: Rules):
    """Return for each rank the least time before an op, that after it, and its ops."""

    def hop(needed: Op, op: Op) -> float:
        return rules.timed.hop if rules.rank_of(needed) != rules.rank_of(op) else 0.0

    def head(op: Op) -> float:
        needed = rules.inputs[op]
        return hop(needed, op) + head(needed) + _duration_s(rules, needed) if needed else 0.0

    def tail(op: Op) -> float:
        followers = (then for then, needed in rules.inputs.items() if needed == op)
        return max((hop(op, then) + _duration_s(rules, then) + tail(then) for then in followers), default=0.0)

    return [(head, tail, ops) for ops in rules.timed.schedule.ops]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_solution_of_a_level_can_be_placed_op_by_op(number):
    board = Board(level(number).rules)
    for op in level(number).solution.moves:
        board = board.place(op)
    assert board.finished and board.to_schedule() == level(number).rules.timed.schedule
