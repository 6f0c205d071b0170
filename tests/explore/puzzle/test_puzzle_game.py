"""A game answers every key with a sentence, and a 2×2 takes seven of them."""

from __future__ import annotations

import random

import pytest

from labkit.explore.puzzle.board import Board
from labkit.explore.puzzle.completion import candidates
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.hints import ASSISTANCE, way
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.picture import BAR_COLUMNS, alt_text, board_panel, shown, static_form, table
from labkit.explore.puzzle.widget import MOST_OFFERS
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
        (1, "s", "No: no micro-batch is there whole yet: place all ops of one first."),
        (1, "]", "No: rank 0 has no op to move."),
        (1, "f[", "No: 0F0 is the first op of rank 0 already."),
        (1, "g", "g means nothing here."),
        (1, "f1f0x", "No: 1F0 needs 0F0: remove 1F0 first, or undo."),
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
    assert answers[-3:] == [
        "Undone: 1F0 is off the board.",
        "No: rank 1 has no op to remove.",
        "Done again: 1F0 is on the board.",
    ]
    assert Op("F", 1, 0) in game.board.placed
    game.pick(Op("F", 1, 0))
    assert game.press("x") == "1F0 is removed."
    assert game.press("u") == "Undone: 1F0 is on the board."


def test_undo_says_what_became_of_a_stamp_and_of_an_order():
    _, answers = played(2, "f1fb0bsu")
    assert answers[-1] == "Undone: 4 ops are off the board, 0F1 to 0B1."
    _, answers = played(2, "f1fb0bf[u")
    assert answers[-1] == "Undone: 0F1 is at 6."


def test_a_board_over_par_is_told_par_and_one_at_par_its_name_from_level_3_on():
    _, answers = played(2, "f1fb0bf1fb0b")
    said = answers[-1]
    assert "Finished in 12: par is 9. Undo, and try another order; a hint says how far to go back." in said
    _, answers = played(3, "f1f2fb1b0bsss")
    assert answers[-1].startswith("✓ Finished in 18: that is par. Bubble (idle share of the ranks' time): 33 %.")
    assert "This order has a name: 1F1B, one forward and one backward in turns" in answers[-1]
    _, answers = played(2, "f1fb0bs")
    assert "name" not in answers[-1]


def test_two_stages_on_a_rank_the_micro_batch_that_came_first_goes_first():
    game, _ = played(11, "f1f0fff")
    assert [str(op) for op in game.board.orders[0]] == ["0F0", "0F1", "2F0", "0F2"]


def test_an_op_goes_after_the_last_one_of_its_rank_until_it_goes_before_it():
    game, answers = played(2, "f1fb0bf")
    assert answers[-1] == "0F1 on rank 0 from 6 to 7."
    assert game.press("[") == "0F1 now runs before 0B0, from 1 on; every op is as early as this order lets it be."
    assert game.chosen == Op("F", 0, 1) and game.press("]").startswith("0F1 now runs after 0B0, from 6 on")


def test_an_op_does_not_go_before_what_makes_room_for_it():
    game, answers = played(3, "f1f2fb1b0ffbf[")  # 0F0, 0F1 and 0F2 until 0B0 has ended
    assert answers[-1].startswith("No: 0F3 cannot go before 0B0: rank 0 has room for 3 activations")
    assert game.board.bars[Op("F", 0, 3)].start_s == 9.0


def test_a_whole_micro_batch_is_said_to_delay_nothing():
    _, answers = played(4, "f1f2f3fb2b1b0bs")
    assert answers[-1] == "Micro-batch 1 is placed whole, as early as it delays nothing."


def test_what_is_par_too_is_named_and_compared_with_the_other_order():
    _, answers = played(4, "f1f2f3fb2b1b0bsss")
    assert "that is par" in answers[-1] and "rank by rank: 4, 3, 2, 1." in answers[-1] and "1F1B" in answers[-1]
    assert answers[-1].endswith("Now clear the board, put all forwards first, and compare what the ranks keep.")
    _, answers = played(4, "ffff1ffff2ffff3ffffbbbb2bbbb1bbbb0bbbb")
    assert "rank by rank: 4, 4, 4, 4." in answers[-1] and "GPipe, every forward, then every backward." in answers[-1]


def test_where_ranks_own_times_count_no_gap_is_told_apart_from_the_bubble():
    game = Game(10)
    game.assistance = 3
    said = [game.press("h") for _ in game.board.rules.ops][-1]
    assert "✓ Finished in at most 15 on a rank: that is par. No rank is idle between its first op and its last" in said
    assert "with the time before and after, the bubble is 12 %" in said
    assert table(game)["idle between its ops"].tolist() == ["0", "0", "0"]


def test_idle_times_of_the_table_are_those_of_the_bubble():
    game, _ = played(3, "f1f2fb1b0bsss")
    idle = [float(of_rank) for of_rank in table(game)["idle"]]
    assert sum(idle) / (3 * game.board.makespan_s) == game.board.bubble
    assert table(played(2, "f1f")[0])["idle"].tolist() == ["1", "1"]


def test_a_board_at_par_says_so_in_its_title_also_after_a_wrong_key():
    game, _ = played(2, "f1fb0bs")
    assert game.press("q").endswith("means nothing here.") and game.at_par
    assert board_panel(game).facts == "✓ par reached: 9 · bubble 33 %"
    game.press("u")
    assert not game.at_par and "reached" not in board_panel(game).facts


def test_a_hint_asked_again_is_done():
    _, answers = played(2, "f1fhh")
    assert answers[-2].startswith("Place 0F1 next, on rank 0 at 1")
    assert answers[-1] == "0F1 on rank 0 from 1 to 2."


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
def test_the_whole_way_is_shown_one_move_a_key_and_each_says_that_move_alone(number):
    game = Game(number)
    game.assistance = 3
    answers = [game.press("h") for _ in game.board.rules.ops]
    assert game.board.finished and "that is par" in answers[-1]
    assert all(" on rank " in answer and "Place" not in answer for answer in answers[:-1])


def test_where_the_whole_way_is_shown_it_is_said_that_a_move_has_lost_par():
    _, answers = played(2, "f1fb0bff", assistance=3)
    assert [("par is 9: undo" in answer) for answer in answers[-2:]] == [True, False]
    assert answers[-1].startswith("No: every forward of rank 0")


@pytest.mark.parametrize("number", [*range(1, len(LEVELS)), pytest.param(len(LEVELS), marks=pytest.mark.slow)])
@pytest.mark.parametrize("assistance", range(4))
def test_buttons_offer_legal_ops_of_every_rank_that_has_one(number, assistance):
    game, draw = Game(number), random.Random(number)
    game.assistance = assistance
    while ready := candidates(game.board):
        offered = game.placeable()
        assert len(offered) <= MOST_OFFERS and len(set(offered)) == len(offered)
        assert all(isinstance(game.board.place(op), Board) for op in offered)
        ranks = {game.board.rules.rank_of(op) for op in offered}
        if assistance in (1, 2):
            assert ranks == {game.board.rules.rank_of(op) for op in ready}
        elif assistance == 3 and way(game.board, game.level):
            assert ranks
        game.place(draw.choice(ready))


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
        assert panel.bars["label"].tolist() == [str(op) for op in shown(game)]
        assert panel.bars["ghost"].sum() == len(game.offers())
        assert len(panel.bars) == len(game.board.placed) + len(game.offers())
        assert all(panel.explain(i).startswith(str(op)) for i, op in enumerate(shown(game)))
        game.place(list(game.offers())[-1])


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


def test_a_strip_is_full_where_the_rank_may_keep_no_more():
    game, _ = played(3, "fff")
    assert board_panel(game).strips["share"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])


def test_an_empty_board_without_help_can_be_shown_too():
    game, _ = played(3, "", assistance=0)
    assert board_panel(game).bars.empty and "0 of 24 ops" in alt_text(game)
    assert static_form(game).table["ops"].tolist() == ["", "", ""]


def test_words_picture_and_table_say_what_is_placed():
    game, _ = played(3, "f1f")
    assert alt_text(game).startswith("Level 3, Little room: 2 of 24 ops are placed, up to 2. Rank 0: 0F0 from 0 to 1.")
    assert table(game)["ops"].tolist() == ["0F0", "1F0", ""]
    assert board_panel(game).narrate(1.0) == "At 1: rank 0 idles, rank 1 begins 1F0, rank 2 idles."


@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_every_key_that_is_listed_means_something_in_this_level_and_is_listed_once(number):
    keys = " ".join(keys for keys, _ in Game(number).key_list()).split()
    assert len(set(keys)) == len(keys)
    for key in set(keys) - {"n"}:  # which the widget knows
        said = Game(number).press(key)
        assert "means nothing" not in said and "There is no rank" not in said and "split here" not in said
    assert ("n" in keys) == (number < len(LEVELS)) and ("s" in keys) == (number > 1)
    assert ("b" in keys) != ("w" in keys)


def test_two_ops_offered_at_the_same_time_are_high_enough_for_their_names():
    game, _ = played(2, "f1f0")
    game.place(Op("B", 1, 0))
    bars = board_panel(game).bars
    assert bars["height"].min() * 26 * 0.62 >= 7  # px of a row, and of its letters, in layout.js and painter.js
