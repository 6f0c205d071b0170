"""A game answers every key with a sentence, and a 2×2 takes seven of them."""

from __future__ import annotations

import pytest

from labkit.explore.puzzle.game import KEYS, Game
from labkit.explore.puzzle.hints import ASSISTANCE
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.picture import BAR_COLUMNS, alt_text, board_panel, shown_ops, static_form, table
from labkit.schedule import Op


def played(number: int, keys: str, **settings: object) -> tuple[Game, list[str]]:
    game = Game(number)
    for name, value in settings.items():
        setattr(game, name, value)
    return game, [game.press(key) for key in keys]


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "keys", "said"),
    [
        (1, "1f", "No: 1F0 needs the activation of 0F0, which is not placed yet."),
        (1, "ff", "No: every forward of rank 0 is placed."),
        (1, "w", "No: a backward pass is whole here: place it with b."),
        (
            8,
            "b",
            "No: a backward pass is split here: place the gradient of the input (i), later that of the weights (w).",
        ),
        (1, "9", "There is no rank 9: the last one is 1."),
        (1, "u", "No: there is nothing to undo."),
        (1, "r", "No: there is nothing to redo."),
        (1, "x", "No: rank 0 has no op to remove."),
        (1, "s", "No: micro-batch 0 is not there whole, so it is no stamp: 0F0 is missing."),
        (1, "]", "No: choose an op first, by a click on it or by Enter."),
        (1, "f1f0x", "No: 1F0 needs 0F0: remove 1F0 first, undo, or turn on free edit."),
    ],
)
def test_a_key_that_can_do_nothing_says_why(number, keys, said):
    _, answers = played(number, keys)
    assert answers[-1] == said


def test_memory_is_refused_by_name_of_what_would_make_room():
    _, answers = played(3, "ffff")
    assert answers[-1].startswith("No: rank 0 has room for 3 activations: it keeps those of 0F0, 0F1 and 0F2 until 0B0")


# --- played ---------------------------------------------------------------------------------------


def test_a_two_by_two_takes_seven_keys():
    game, answers = played(2, "f1fb0bs")
    assert game.board.finished
    assert "Finished in 9: that is par." in answers[-1]


def test_undo_redo_and_remove_answer_and_do_so():
    game, answers = played(2, "f1fuxr")
    assert answers[-3:] == ["Undone.", "No: rank 1 has no op to remove.", "Done again."]
    assert Op("F", 1, 0) in game.board.placed
    game.pick(Op("F", 1, 0))
    assert game.press("x") == "1F0 is removed."


def test_free_edit_places_moves_and_lists_what_is_wrong():
    game, answers = played(1, "1f", free=True)
    assert answers[-1] == (
        "1F0 on rank 1 from 0 to 1. Wrong: 1F0 needs the activation of 0F0, which is not placed yet."
    )
    assert "it cannot start at 0" in game.press("0") + game.press("f")
    game.pick(Op("F", 1, 0))
    assert game.press("]") == "1F0 from 1 on."


def test_a_board_over_par_is_told_par_and_one_at_par_its_name_from_level_3_on():
    game = Game(2)
    for op, start_s in [
        ("0F0", 0),
        ("1F0", 1),
        ("1B0", 2),
        ("0B0", 4),
        ("0F1", 6),
        ("1F1", 7),
        ("1B1", 8),
        ("0B1", 10),
    ]:
        said = game.place(Op.parse(op), start_s)
    assert "Finished in 12: par is 9. Undo, and try another order; a hint says how far to go back." in said
    _, answers = played(3, "f1f2fb1b0bsss")
    assert "Finished in 18: that is par." in answers[-1] and answers[-1].endswith("This order has a name: 1F1B.")
    _, answers = played(2, "f1fb0bs")
    assert "name" not in answers[-1]


def test_two_stages_on_a_rank_the_micro_batch_that_came_first_goes_first():
    game, _ = played(11, "f1f0fff")
    assert [str(bar.op) for bar in game.board.rows[0].bars] == ["0F0", "0F1", "2F0", "0F2"]


def test_an_op_goes_after_the_last_one_of_its_rank_until_it_is_pulled_into_a_gap():
    game, answers = played(2, "f1fb0bf")
    assert answers[-1] == "0F1 on rank 0 from 6 to 7."
    assert game.press("g") == "0F1 from 1 on."
    assert game.press("g") == "No: 0F1 is as early as it may be."


def test_an_op_is_not_pulled_to_where_its_rank_has_no_room():
    game, answers = played(3, "f1f2fb1b0ffbf")  # 0F0, 0F1 and 0F2 until 0B0 has ended, and rank 0 idles from 3 to 7
    assert answers[-1] == "0F3 on rank 0 from 9 to 10."
    assert game.press("g") == "No: 0F3 is as early as it may be."


def test_a_hint_moves_the_outline_of_its_op_and_asked_again_places_it():
    game, _ = played(2, "f1fb0b")
    assert dict(game.offers())[Op("F", 0, 1)] == 6.0
    assert "Place 0F1 next, on rank 0 at 1, in the gap before 0B0" in game.press("h")
    assert dict(game.offers())[Op("F", 0, 1)] == 1.0
    assert game.press("h") == "0F1 on rank 0 from 1 to 2."


# --- assistance -----------------------------------------------------------------------------------


def test_assistance_shows_nothing_the_ready_set_the_next_op_the_whole_way():
    for assistance, n_offers in enumerate([0, 1, 1, 4]):
        game, answers = played(1, "", assistance=assistance)
        assert len(game.offers()) == n_offers
    game, answers = played(1, "f", assistance=1)
    assert "Place" not in answers[-1]
    game, answers = played(1, "f", assistance=2)
    assert answers[-1] == "0F0 on rank 0 from 0 to 1. Place 1F0 next, on rank 1 at 1: rank 1 would be idle otherwise."
    assert len(ASSISTANCE) == 4


@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_the_whole_way_is_shown_one_move_a_key(number):
    game = Game(number)
    game.assistance = 3
    answers = [game.press("h") for _ in game.board.rules.ops]
    assert game.board.finished and "that is par" in answers[-1]


def test_a_hint_on_demand_moves_nothing():
    game, answers = played(1, "h")
    assert answers[-1].startswith("Place 0F0 next, on rank 0 at 0") and not game.board.placed


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_the_panel_has_a_bar_for_what_is_placed_and_a_ghost_for_what_is_offered(number):
    game = Game(number)
    for _ in range(4):
        panel = board_panel(game)
        assert [*panel.bars.columns] == [*BAR_COLUMNS, "ghost"]
        assert panel.bars["label"].tolist() == [str(op) for op in shown_ops(game)]
        assert panel.bars["ghost"].sum() == len(game.offers())
        assert len(panel.bars) == len(game.board.placed) + len(game.offers())
        assert all(panel.explain(i).startswith(str(op)) for i, op in enumerate(shown_ops(game)))
        game.place(game.offers()[-1].op)


def test_no_two_bars_of_a_panel_cover_each_other():
    game, _ = played(2, "f1fb")
    bars = board_panel(game).bars.to_dict("records")
    for i, one in enumerate(bars):
        for other in bars[:i]:
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            beside = (
                one["top"] + one["height"] <= other["top"] + 1e-9 or other["top"] + other["height"] <= one["top"] + 1e-9
            )
            assert apart or beside


def test_a_strip_is_full_where_the_rank_may_keep_no_more_and_alarms_above_that():
    game, _ = played(3, "fff")
    assert board_panel(game).strips["share"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    game, _ = played(3, "ffff", free=True)
    assert board_panel(game).strips["over"].tolist() == [0, 0, 0, 1]


def test_an_empty_board_without_help_can_be_shown_too():
    game, _ = played(3, "", assistance=0)
    assert board_panel(game).bars.empty and "0 of 24 ops" in alt_text(game)
    assert static_form(game).table["ops"].tolist() == ["", "", ""]


def test_words_picture_and_table_say_what_is_placed():
    game, _ = played(3, "f1f")
    assert alt_text(game).startswith("Level 3, Little room: 2 of 24 ops are placed, up to 2. Rank 0: 0F0 from 0 to 1.")
    assert table(game.board)["ops"].tolist() == ["0F0", "1F0", ""]
    assert board_panel(game).narrate(1.0) == "At 1: rank 0 idles, rank 1 begins 1F0, rank 2 idles."


def test_every_key_that_is_listed_does_something():
    for keys, _ in KEYS:
        for key in keys.split() if keys != "Enter, click" else ():  # which the Timeline itself knows
            assert "means nothing" not in Game(1).press(key)
