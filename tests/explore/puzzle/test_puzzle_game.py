"""A game answers every move with a sentence and shows what may come next."""

import pytest

from labkit.explore.puzzle.game import Game
from labkit.schedule import Op

FINISHED = "0F0 0F1 1F0 1F1 1B0 0B0 1B1 0B1"


def played(number: int, moves: str) -> tuple[Game, str]:
    """A level after these ops and buttons, and the last answer."""
    game, answer = Game(number), ""
    for move in moves.split():
        answer = getattr(game, move)() if hasattr(game, move) else game.place(Op.parse(move))
    return game, answer


@pytest.mark.parametrize(
    ("number", "moves", "said"),
    [
        (1, "1F0", "No: 1F0 needs the activation of 0F0, which is not placed yet."),
        (1, "0F0 0F0", "No: 0F0 is there already, from 0 to 1."),
        (1, "undo", "No: there is nothing to undo."),
        (1, "hint hint", "0F0 on rank 0 from 0 to 1."),
        (2, "0F0 1F0 0F1 undo", "Undone: 2 of 8 ops are placed."),
        (2, "0F0 1F0 0F1 1B0 clear undo", "Undone: 4 of 8 ops are placed."),
    ],
)
def test_a_move_is_answered(number, moves, said):
    assert played(number, moves)[1] == said


def test_a_hint_says_what_the_schedule_that_sets_par_runs_next_and_asked_again_places_it():
    game, answer = played(2, "0F0 1F0 0F1 hint")
    assert answer.startswith("Place 1F1 next, on rank 1 at 2, as the schedule that sets par does.")
    assert Op("F", 1, 1) not in game.board.placed
    assert game.hint() == "1F1 on rank 1 from 2 to 3."
    game.hint()  # of another board, so it says again what to do
    assert len(game.board.placed) == 4
    assert "Undo to come back" in played(2, "0F0 1F0 1B0 0B0 hint")[1]


def test_a_finished_board_is_told_its_result():
    _, answer = played(2, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1")
    assert "0B1 on rank 0 from 10 to 12. Finished in 12: par is 9. Undo, and" in answer
    _, answer = played(2, FINISHED)
    assert "that is par. Bubble (idle fraction of the ranks' time): 33 %." in answer
    assert answer.endswith("rank by rank: 2, 2.")
