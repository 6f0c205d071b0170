"""A game answers every key with a sentence and shows what may come next."""

from __future__ import annotations

import pytest

from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.picture import alt_text, board_panel, shown, static_form, table
from labkit.schedule import Op

AT_PAR = {  # keys by level: no hint, but what one may know by then
    2: "ff1fbfb0bb",
    3: "ff1f0f1f2fb1b2fb0b1fb2f0f2b0b1fb2fb0b1b0b",
    4: "ff1f0f1f2f0f1f2f3fb2b3fb1b2fb3f0b1f3b1b2fb3f0b3b1b2b0b1b0b",
    8: "ff1fi0i1f0w1i0f1w0i1f0w1i0i1w0w1w",
}


def played(number: int, keys: str, assistance: int = 1) -> tuple[Game, list[str]]:
    game = Game(number)
    game.assistance = assistance
    return game, [game.press(key) for key in keys]


# --- what is answered -----------------------------------------------------------------------------


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
        (2, "f1fu", "Undone: 1F0 is off the board."),
        (2, "f1fur", "Done again: 1F0 is on the board."),
        (2, "f1fu0fr", "No: there is nothing to redo."),  # a move after undo is the last one
        (2, "f1fb0bcu", "Undone: 0F0 to 0B0 are on the board."),
        (2, "f1fb0bf[u", "Undone: 0F1 is at 6."),
    ],
)
def test_a_key_is_answered(number, keys, said):
    _, answers = played(number, keys)
    assert answers[-1] == said


def test_an_op_may_go_before_the_one_before_it_and_back():
    game, answers = played(2, "f1fb0bf[")
    early = "every op is as early as this order lets it be."
    assert answers[-1] == f"0F1 now runs before 0B0, from 1 on; {early}"
    assert game.press("]").startswith("0F1 now runs after 0B0, from 6 on")


def test_a_hint_on_demand_moves_nothing():
    game, answers = played(1, "h")
    assert answers[-1].startswith("Place 0F0 next, on rank 0 at 0") and not game.board.placed


def test_a_finished_board_is_told_its_result_and_its_name_from_level_3_on():
    _, answers = played(2, "f1fb0bf1fb0b")
    assert "0B1 on rank 0 from 10 to 12. Finished in 12: par is 9. Drag an op" in answers[-1]
    _, answers = played(2, AT_PAR[2])
    assert "Finished in 9: that is par, 0 hints." in answers[-1] and "name" not in answers[-1]
    _, answers = played(4, AT_PAR[4])
    assert "that is par, 0 hints. Bubble (idle share of the ranks' time): 43 %." in answers[-1]
    assert "rank by rank: 4, 3, 2, 1. This order has a name: 1F1B, one forward" in answers[-1]
    assert answers[-1].endswith("put all forwards first, and compare what the ranks keep.")


def test_where_ranks_own_times_count_no_gap_is_told_apart_from_the_bubble():
    game, answers = played(10, "h" * 45, assistance=2)
    assert "Finished in at most 15 on a rank: that is par, 45 hints. No rank is idle" in answers[-1]
    assert "with the time before and after, the bubble is 12 %" in answers[-1]
    assert table(game)["idle between its ops"].tolist() == ["0", "0", "0"]


def test_of_two_stages_on_a_rank_the_one_whose_input_came_first_goes_first():
    game, _ = played(11, "f1f0fff")
    assert " ".join(map(str, game.board.orders[0])) == "0F0 0F1 2F0 0F2"


@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_every_key_that_is_listed_means_something_in_this_level_and_is_listed_once(number):
    keys = " ".join(keys for keys, _ in Game(number).key_list()).split()
    assert len(set(keys)) == len(keys)
    for key in set(keys) - {"n"}:  # which the widget knows
        said = Game(number).press(key)
        assert not any(words in said for words in ("means nothing", "There is no rank", "here:"))


# --- a bar is dragged -----------------------------------------------------------------------------


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


# --- hints are counted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "assistance", "hints"),
    [
        ("h" * 36, 1, 18),  # each told, then done
        ("h" * 18, 2, 18),
        ("hhu", 1, 1),
        ("hhuhh", 1, 1),  # the same one again
        ("hhc", 1, 0),  # the board is empty: this begins anew
        ("hhcu", 1, 1),  # but not after all
        ("ffuu", 2, 3),  # unasked after each move
        (AT_PAR[8], 1, 0),
    ],
)
def test_a_hint_counts_once_for_each_board_since_the_board_was_empty(keys, assistance, hints):
    game, answers = played(8, keys, assistance)
    assert game.hints == hints and (not game.at_par or f"par, {hints} hints" in answers[-1])


# --- how much is shown unasked --------------------------------------------------------------------


@pytest.mark.parametrize(("assistance", "n_offers"), [(0, 0), (1, 1), (2, 3)])
def test_assistance_shows_nothing_what_may_be_next_and_the_whole_way(assistance, n_offers):
    game, _ = played(1, "f", assistance)
    assert len(game.offers()) == n_offers


def test_an_op_of_the_whole_way_is_not_placed_before_those_that_are_there_before_it():
    game, _ = played(2, "", assistance=2)
    assert game.pick(Op("F", 0, 1)) == "No: on this way rank 0 runs 0F0 before 0F1."
    assert game.pick(Op("F", 0, 0)) == "0F0 on rank 0 from 0 to 1."


def test_where_the_whole_way_is_shown_it_is_said_that_a_move_has_lost_par():
    _, answers = played(2, "f1fb0bf", assistance=2)
    assert "From here 12 is the best there is; par is 9: undo 2 moves for par." in answers[-1]


# --- what is seen ---------------------------------------------------------------------------------


def test_the_panel_has_a_bar_for_what_is_placed_and_a_ghost_for_what_is_offered():
    game, _ = played(3, "f1f")
    panel = board_panel(game)
    assert panel.bars["label"].tolist() == ["0F0", "1F0", *map(str, game.offers())]
    assert panel.bars["ghost"].tolist() == [False, False] + [True] * len(game.offers())
    assert panel.needs[1] == 0
    assert panel.explain(0).startswith("0F0: the forward of stage 0 for micro-batch 0, on rank 0")


def test_no_two_bars_of_a_panel_cover_each_other_and_each_has_room_for_its_name():
    game, _ = played(2, "ff1f")  # 1F1 and 1B0 may both be next, at 2
    bars = board_panel(game).bars
    bars["right"], bars["bottom"] = bars["right"] - 1e-9, bars["top"] + bars["height"] - 1e-9
    for i, one in bars.iterrows():
        across = (bars["left"] < one["right"]) & (one["left"] < bars["right"])
        down = (bars["top"] < one["bottom"]) & (one["top"] < bars["bottom"])
        assert bars.index[across & down].tolist() == [i]
    assert bars["height"].min() * 26 * 0.62 >= 7  # px of a row and of letters, in painter.js


def test_a_strip_is_full_where_the_rank_may_keep_no_more():
    game, _ = played(3, "fff")
    assert board_panel(game).strips["share"].tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert board_panel(game).peaks[0].text == "3 of 3 kept"


def test_a_board_at_par_says_so_beside_its_title():
    game, _ = played(2, AT_PAR[2])
    assert board_panel(game).facts == "✓ par, 0 hints · bubble 33 %"
    game.press("u")
    assert board_panel(game).facts == "7 of 8 ops · par 9"


def test_idle_times_of_the_table_are_those_of_the_bubble():
    game, _ = played(3, AT_PAR[3])
    idle = [float(of_rank) for of_rank in table(game)["idle"]]
    assert sum(idle) / (3 * game.board.makespan_s) == game.board.bubble


def test_an_empty_board_without_help_can_be_shown_too():
    game, _ = played(3, "", assistance=0)
    assert board_panel(game).bars.empty and not shown(game) and "0 of 24 ops" in alt_text(game)
    assert static_form(game).table["ops"].tolist() == ["", "", ""]
