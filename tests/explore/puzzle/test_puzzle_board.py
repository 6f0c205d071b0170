"""A board refuses what cannot be, says why, and gives its schedule back."""

import pytest

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.rules import Refusal, Rules
from labkit.schedule import Op, gpipe, one_f_one_b
from labkit.simulate import TimedSchedule

ONE_EACH = Rules(TimedSchedule(gpipe(2, 2)), caps=[1, 1])


def built(rules: Rules, ops: str) -> Board:
    board = Board(rules)
    for op in map(Op.parse, ops.split()):
        board = board.place(op)
    return board


def refused(move, *arguments: object) -> str:
    with pytest.raises(Refusal) as caught:
        move(*arguments)
    return str(caught.value)


NO_ROOM = "rank 0 has room for 1 activation: it keeps that of 0F0 until 0B0 has ended"


@pytest.mark.parametrize(
    ("ops", "move", "sentence"),
    [
        ("", "1F0", "1F0 needs the activation of 0F0, which is not placed yet"),
        ("0F0 1F0", "0B0", "0B0 needs the gradient of 1B0, which is not placed yet"),
        ("0F0", "1B0", "1B0 needs 1F0, the forward of its own stage, which is not placed yet"),
        ("0F0", "0F0", "0F0 is there already"),
        ("0F0", "0F1", f"{NO_ROOM}, and 0B0 is not placed yet. 0F1 has to wait"),
        ("", "2F0", "there is no 2F0 in this level"),
    ],
)
def test_an_op_that_cannot_be_placed_is_refused_by_name(ops, move, sentence):
    assert refused(built(ONE_EACH, ops).place, Op.parse(move)) == sentence


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 4), one_f_one_b(2, 3)])
def test_a_board_of_a_schedule_gives_it_back(schedule):
    timed = TimedSchedule(schedule, forward=[1.0 + s for s in range(schedule.n_stages)], hop=0.5)
    ops = [op for ops in schedule.ops for op in ops]
    started = dict(zip(ops, timed.simulate()["start_s"], strict=True))
    board = built(Rules(timed), " ".join(map(str, sorted(ops, key=lambda op: started[op]))))
    assert board.finished and board.to_schedule() == schedule
