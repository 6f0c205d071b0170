"""The widget does with buttons, clicks and keys what the game does, and lives on after errors."""

from __future__ import annotations

import html
from types import SimpleNamespace

import pytest

from labkit.explore import schedule_puzzle
from labkit.explore.puzzle import widget
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.widget import SchedulePuzzle
from labkit.schedule import Op, Schedule, one_f_one_b
from labkit.simulate import explain_gap, simulate


def sent(puzzle: SchedulePuzzle, **message: object) -> None:
    """Let the browser send a message, as after a click or a key."""
    timeline = puzzle.timeline
    number = timeline._heard["test"]
    where = {"version": timeline.scene["version"], "panel": 0, "view": "test", "number": number}
    timeline._receive(None, where | message, None)


def pressed(number: int, keys: str) -> SchedulePuzzle:
    puzzle = SchedulePuzzle(number)
    for key in keys:
        sent(puzzle, key=key)
    return puzzle


def test_the_schedule_of_an_unfinished_board_is_an_error_that_says_what_is_missing():
    puzzle = pressed(2, "f")
    with pytest.raises(ValueError, match="7 of 8 ops are not placed yet, 1F0 for one"):
        _ = puzzle.schedule
    assert puzzle.csv == "0F0\n\n" and puzzle.runs.start.disabled


# --- played ---------------------------------------------------------------------------------------


def test_a_two_by_two_by_keys_gives_its_schedule_and_its_csv():
    puzzle = pressed(2, "f1fb0bs")
    assert puzzle.schedule == one_f_one_b(2, 2) and puzzle.schedule.name == "yours"  # not named yet
    assert Schedule.from_csv(puzzle.csv) == puzzle.schedule and not puzzle.runs.start.disabled


def test_a_two_by_two_by_clicks_on_outlined_ops():
    puzzle = SchedulePuzzle(2)
    while not puzzle.board.finished:
        sent(puzzle, pick=len(puzzle.board.placed))  # offered ops come after the placed ones
    assert "that is par" in puzzle.timeline.said


def test_buttons_and_keys_do_the_same():
    puzzle, by_key = SchedulePuzzle(2), pressed(2, "f1fb0bsurux")
    puzzle.kinds["F"].click()
    puzzle.rank.value = 1
    puzzle.kinds["F"].click()
    puzzle.kinds["B"].click()
    puzzle.rank.value = 0
    puzzle.kinds["B"].click()
    for key in "surux":
        puzzle.buttons[key].click()
    assert puzzle.csv == by_key.csv and puzzle.timeline.said == by_key.timeline.said
    puzzle.clear.click()
    assert not puzzle.board.placed


def test_a_click_on_a_placed_op_chooses_it_and_its_rank():
    puzzle = pressed(1, "f1f0")
    sent(puzzle, pick=1)
    assert puzzle.rank.value == 1
    assert puzzle.timeline.said == "1F0 is chosen: x removes it, [ and ] move it in its rank's order."
    puzzle.buttons["x"].click()
    assert puzzle.board.placed == {Op("F", 0, 0)}


def test_what_a_level_teaches_is_told_at_par_and_not_before():
    puzzle = pressed(1, "f1fb0")
    assert puzzle.game.level.teaches not in html.unescape(puzzle.text.value + puzzle.done.value)
    puzzle.press("b")
    assert puzzle.game.level.teaches in html.unescape(puzzle.done.value)
    puzzle.press("u")
    assert puzzle.done.value == ""


# --- from level to level --------------------------------------------------------------------------


def test_each_level_keeps_its_board_and_shows_the_keys_and_kinds_that_it_has():
    puzzle = pressed(7, "f1n")
    assert puzzle.game.number == 8 and not puzzle.board.placed and puzzle.rank.value == 0
    assert [button.layout.display for button in puzzle.kinds.values()] == ["", "none", "", ""]
    assert {"f i w", "0 1", "n"} <= set(dict(puzzle.timeline.own_keys))
    puzzle.previous.click()
    assert puzzle.csv == "0F0\n\n" and puzzle.rank.value == 1
    assert pressed(12, "n").timeline.said == "n means nothing here."


def test_the_whole_way_is_not_shown_in_a_level_that_is_new():
    puzzle = schedule_puzzle(1)
    puzzle.assistance.value = 3
    puzzle.next.click()
    assert puzzle.assistance.value == 1
    puzzle.previous.click()
    assert puzzle.assistance.value == 3


def test_limits_are_told_and_par_is_explained_once():
    for number in range(1, len(LEVELS) + 1):
        text = SchedulePuzzle(number).text.value
        assert ("Room for activations" in text) == (LEVELS[number - 1].rules.caps is not None)
        assert ("the least that any order needs" in text) == (number == 1)


# --- on real ranks --------------------------------------------------------------------------------


def test_a_finished_board_runs_with_the_times_of_its_level_and_a_run_that_fails_is_said(monkeypatch):
    runs = []

    def run(*timed: object) -> SimpleNamespace:
        runs.append(timed)
        if len(runs) > 1:
            raise RuntimeError("rank 1 has died\nand more")
        schedule = timed[0]
        events = simulate(schedule)
        gap = explain_gap(events, events)
        return SimpleNamespace(schedule=schedule, ideal=events, measured=events, gap=gap, note="Ran.")

    monkeypatch.setattr(widget, "run_schedule", run)
    puzzle = pressed(1, "f1fb0b")
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert runs == [(puzzle.schedule, 1.0, 2.0, 1.0, 1.0, 0.0)]
    assert puzzle.timeline.said == "Ran. The run lies under what was predicted, below."
    measured, gap = puzzle.run_shown.children
    assert len(measured._panels[0].bars) == 8 and "measured − predicted is 0.0 ms" in gap.value
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert puzzle.timeline.said == "RuntimeError: rank 1 has died" and not puzzle.run_shown.children
