"""The widget does with buttons, clicks and keys what the game does, and lives on after errors."""

import html

import pytest

from labkit.explore.puzzle.widget import SchedulePuzzle
from labkit.schedule import Schedule, one_f_one_b


def sent(puzzle: SchedulePuzzle, **message: object) -> None:
    timeline = puzzle.timeline
    number = timeline._heard["test"]
    where = {"version": timeline.scene["version"], "view": "test", "number": number}
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
    assert puzzle.csv == "0F0\n\n"


def test_a_two_by_two_by_keys_gives_its_schedule_and_its_csv():
    puzzle = pressed(2, "ff1fbfb0bb")
    assert puzzle.schedule == one_f_one_b(2, 2) and puzzle.schedule.name == "yours"
    assert Schedule.from_csv(puzzle.csv) == puzzle.schedule


def test_a_two_by_two_by_clicks_on_outlined_ops():
    puzzle = SchedulePuzzle(2)
    while not puzzle.board.finished:
        sent(puzzle, pick=len(puzzle.board.placed))  # offered ops come after the placed ones
    assert "that is par" in puzzle.timeline.narration


def controls(puzzle: SchedulePuzzle) -> dict[str, dict]:
    return {control["name"]: control for control in puzzle.timeline.form["controls"]}


def test_what_a_level_teaches_is_told_at_par_and_not_before():
    puzzle = pressed(1, "f1fb0")
    told = html.unescape(str(puzzle.timeline.scene) + str(puzzle.timeline.form))
    assert puzzle.game.level.teaches not in told and "drag it to change the order" in told
    puzzle.press("b")
    assert puzzle.game.level.teaches in html.unescape(puzzle.timeline.scene["numbers"])


def test_each_level_keeps_its_board_and_has_its_own_keys_and_buttons():
    puzzle = pressed(7, "f1n")
    assert puzzle.level == 8 and not puzzle.board.placed
    assert {*"fiwuchn"} < set(controls(puzzle)) and "b" not in controls(puzzle)
    assert {"f i w", "0 1", "n"} <= set(dict(puzzle.timeline.own_keys))
    sent(puzzle, control="level", text=controls(puzzle)["level"]["options"][6])
    assert puzzle.csv == "0F0\n\n" and controls(puzzle)["rank"]["value"] == "1"
    assert pressed(12, "n").timeline.narration == "n means nothing here."


def test_a_lecturer_sets_the_level_and_hears_of_it():
    puzzle, heard = SchedulePuzzle(2), []
    puzzle.observe(lambda change: heard.append(change["new"]), "level")
    puzzle.press("n")
    with pytest.raises(ValueError, match="expected a whole number from 1 to 12"):
        puzzle.level = 13
    assert heard == [3] and puzzle.level == 3


def test_in_a_stored_notebook_an_empty_board_is_shown_finished_and_a_live_one_never(monkeypatch):
    puzzle = SchedulePuzzle(2)
    assert puzzle.static_form().table["ops"].tolist() == ["", ""]
    monkeypatch.setenv("LABKIT_STATIC", "1")
    assert [len(ops.split()) for ops in puzzle.static_form().table["ops"]] == [4, 4]
    assert not puzzle.board.placed
    puzzle.press("f")
    assert puzzle.static_form().table["ops"].tolist() == ["0F0", ""]
