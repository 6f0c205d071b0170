"""A game answers every key with a sentence and shows what may come next."""

import pytest

from labkit.explore.puzzle.game import Game
from labkit.schedule import Op


def played(number: int, keys: str) -> tuple[Game, list[str]]:
    game = Game(number)
    return game, [game.press(key) for key in keys]


@pytest.mark.parametrize(
    ("number", "keys", "said"),
    [
        (1, "1f", "No: 1F0 needs the activation of 0F0, which is not placed yet."),
        (1, "ff", "No: every forward of rank 0 is placed."),
        (1, "w", "No: a backward pass is whole here: place it with b."),
        (1, "9", "There is no rank 9: the last one is 1."),
        (1, "u", "No: there is nothing to undo."),
        (1, "]", "No: rank 0 has no op to move."),
        (1, "g", "g means nothing here."),
        (1, "hh", "0F0 on rank 0 from 0 to 1."),
        (2, "f1", "Rank 1: 1F0 at 1 may be placed."),
        (2, "f1fu", "Undone: 1 of 8 ops are placed."),
        (2, "f1fb0bcu", "Undone: 4 of 8 ops are placed."),
    ],
)
def test_a_key_is_answered(number, keys, said):
    _, answers = played(number, keys)
    assert answers[-1] == said


def test_a_hint_says_what_the_schedule_that_sets_par_runs_next_and_asked_again_places_it():
    game, answers = played(2, "f1f0fh")
    assert answers[-1].startswith("Place 1F1 next, on rank 1 at 2, as the schedule that sets par does.")
    assert Op("F", 1, 1) not in game.board.placed
    assert game.press("h") == "1F1 on rank 1 from 2 to 3."
    game.press("h")  # of another board, so it says again what to do
    assert len(game.board.placed) == 4


def test_a_finished_board_is_told_its_result():
    _, answers = played(2, "f1fb0bf1fb0b")
    assert "0B1 on rank 0 from 10 to 12. Finished in 12: par is 9. Drag an op" in answers[-1]
    _, answers = played(4, "ff1f0f1f2f0f1f2f3fb2b3fb1b2fb3f0b1f3b1b2fb3f0b3b1b2b0b1b0b")
    assert "that is par. Bubble (idle fraction of the ranks' time): 43 %." in answers[-1]
    assert answers[-1].endswith("rank by rank: 4, 3, 2, 1.")


@pytest.mark.parametrize(
    ("dragged", "time_s", "said"),
    [
        ("0F1", 0.4, "0F1 now runs before 0F0, from 0 on; every op"),
        ("0F1", 99.0, "0F1 now runs after 0B0, from 6 on; every op"),  # over two
        ("0B0", 0.4, "No: 0B0 cannot go before 0F0: 0B0 cannot run then (it needs 0F0"),
        ("0F1", 1.6, "0F1 is chosen"),
        ("1F1", 0.4, "1F1 on rank 1 from 4 to 5."),  # only offered: it goes after the last one
    ],
)
def test_a_bar_that_is_dragged_goes_to_its_place_in_the_order_or_is_refused(dragged, time_s, said):
    game, _ = played(2, "ff1fb0b")
    before = game.board
    answer = game.drop(Op.parse(dragged), time_s)
    assert answer.startswith(said)
    assert (game.board is before) == answer.startswith(("No", "0F1 is chosen"))
