"""Every level has a par that is attained within its rules and that nothing beats."""

import pytest

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.levels import LEVELS, level
from labkit.explore.puzzle.rules import Rules
from labkit.schedule import Op

NUMBERS = range(1, len(LEVELS) + 1)


def test_par_of_every_level():
    assert [this.par_s for this in LEVELS] == [6, 9, 18, 21, 27, 27, 17, 10, 17, 15, 27, 18]


@pytest.mark.parametrize("number", NUMBERS)
def test_no_board_beats_par_as_a_rank_is_busy_between_the_first_op_that_reaches_it_and_the_last_that_leaves_it(number):
    this, rules = level(number), level(number).rules
    busy_s = [sum(rules.duration_s[op] for op in ops) for ops in rules.ops_of_rank]
    if this.goal == "span":
        assert max(busy_s) == this.par_s
    else:
        around_s = [min(map(head, ops)) + min(map(tail, ops)) for head, tail, ops in _around(rules)]
        assert max(map(sum, zip(busy_s, around_s, strict=True))) == this.par_s


def _around(rules: Rules):
    """Return for each rank the least time before an op, that after it, and its ops."""

    def head(op: Op) -> float:
        needed = rules.inputs[op]
        return rules.delay_s[op] + head(needed) + rules.duration_s[needed] if needed else 0.0

    def tail(op: Op) -> float:
        return max(
            (
                rules.delay_s[then] + rules.duration_s[then] + tail(then)
                for then, needed in rules.inputs.items()
                if needed == op
            ),
            default=0.0,
        )

    return [(head, tail, ops) for ops in rules.ops_of_rank]


@pytest.mark.parametrize("number", NUMBERS)
def test_placing_the_next_op_of_the_schedule_that_sets_par_from_the_start_ends_at_par(number):
    this, board = level(number), Board(level(number).rules)
    while op := this.next_op(board):
        assert this.departure(board) is None
        board = board.place(op)
    assert board.finished and this.result_s(board) == this.par_s


def test_a_board_that_departs_from_that_schedule_is_told_where():
    board = Board(level(2).rules)
    for op in map(Op.parse, ("0F0", "1F0", "1B0", "0B0")):
        board = board.place(op)
    assert level(2).departure(board) == (Op("B", 0, 0), Op("F", 0, 1))
