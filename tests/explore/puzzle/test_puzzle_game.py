"""A game answers every key with a sentence and shows what may come next."""

from __future__ import annotations

import pytest
from page_in_node import NODE, in_node

from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.picture import axis, board_panel
from labkit.explore.scene_message import scene_of
from labkit.schedule import Op

AT_PAR = {  # keys by level: no hint, but what one may know by then
    2: "ff1fbfb0bb",
    3: "ff1f0f1f2fb1b2fb0b1fb2f0f2b0b1fb2fb0b1b0b",
    4: "ff1f0f1f2f0f1f2f3fb2b3fb1b2fb3f0b1f3b1b2fb3f0b3b1b2b0b1b0b",
    8: "ff1fi0i1f0w1i0f1w0i1f0w1i0i1w0w1w",
}


def played(number: int, keys: str) -> tuple[Game, list[str]]:
    game = Game(number)
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


def test_hints_alone_finish_a_board_at_par_and_then_say_so():
    game, answers = played(8, "h" * 37)
    assert game.at_par and "✓ Finished in 10: that is par." in answers[-2]
    assert answers[-1] == "All is placed, and at par."


def test_a_finished_board_is_told_its_result():
    _, answers = played(2, "f1fb0bf1fb0b")
    assert "0B1 on rank 0 from 10 to 12. Finished in 12: par is 9. Drag an op" in answers[-1]
    _, answers = played(4, AT_PAR[4])
    assert "that is par. Bubble (idle fraction of the ranks' time): 43 %." in answers[-1]
    assert answers[-1].endswith("rank by rank: 4, 3, 2, 1.")


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


# --- what is seen ---------------------------------------------------------------------------------


PAGE = """
import { spotsOf } from "BROWSER/bars.js";
import { explain } from "BROWSER/explain.js";
import { readScene } from "BROWSER/scene.js";
const scene = readScene(given), [panel] = scene.panels, { bars, strips } = panel;
const boxes = bars.labels.map((_, i) => [bars.left[i], bars.right[i], bars.top[i], bars.top[i] + bars.height[i]]);
const said = spotsOf(panel).what.map((spot) => [spot.kind, explain(panel, spot, scene.axis)]);
const { title, facts, rows, peaks } = panel;
return { title, facts, said, boxes, rows, peaks, labels: bars.labels, ghost: [...bars.ghost], share: strips.share };
"""


def page_of(number: int, keys: str) -> dict:
    """What the page makes of a board."""
    game, _ = played(number, keys)
    return in_node(PAGE, scene_of([board_panel(game)], time=axis(), alt=""))


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_the_page_shows_what_is_placed_what_is_offered_and_why_a_rank_is_idle():
    page, (game, _) = page_of(3, "f1f"), played(3, "f1f")
    assert page["labels"] == ["0F0", "1F0", *map(str, game.offers())]
    assert page["ghost"] == [0, 0] + [1] * len(game.offers()) and len(page["rows"]) == 3
    bars = [text for kind, text in page["said"] if kind == "bar"]
    assert "It needs the activation of 0F0 on rank 0, which ended at 1." in bars[1]
    assert bars[2].endswith("It may be placed on rank 0, from 1 to 2: click it, or press Enter.")
    (gap,) = [text for kind, text in page["said"] if kind == "idle"]
    assert gap.startswith("Rank 1 is idle for 1, from 0 to 1\nTo begin 1F0 it waits for the activation of 0F0")
