"""The widget does with buttons, clicks and keys what the game does, and lives on after errors."""

import html

import pytest

from labkit.explore.puzzle.widget import SchedulePuzzle
from labkit.schedule import Schedule, one_f_one_b


def sent(puzzle: SchedulePuzzle, **message: object) -> None:
    puzzle.timeline._receive(None, {"version": puzzle.timeline.scene["version"]} | message, None)


def built(number: int, ops: str) -> SchedulePuzzle:
    puzzle = SchedulePuzzle(number)
    for op in ops.split():
        puzzle.place(op)
    return puzzle


def test_the_schedule_of_an_unfinished_board_is_an_error_that_says_what_is_missing():
    puzzle = built(2, "0F0")
    with pytest.raises(ValueError, match="7 of 8 ops are not placed yet, 1F0 for one"):
        _ = puzzle.schedule
    assert puzzle.csv == "0F0\n\n"


def test_a_finished_two_by_two_gives_its_schedule_and_its_csv():
    puzzle = built(2, "0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1")
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
    puzzle = built(1, "0F0 1F0 1B0")
    assert puzzle.game.level.teaches not in html.unescape(str(puzzle.timeline.scene) + str(puzzle.timeline.form))
    puzzle.place("0B0")
    assert puzzle.game.level.teaches in html.unescape(puzzle.timeline.scene["numbers"])


def test_each_level_keeps_its_board_and_the_last_has_no_next_one():
    puzzle = built(7, "0F0")
    sent(puzzle, control="next", text=None)
    assert puzzle.level == 8 and not puzzle.board.placed
    sent(puzzle, control="level", text=controls(puzzle)["level"]["options"][6])
    assert puzzle.csv == "0F0\n\n"
    sent(puzzle, control="undo", text=None)
    assert puzzle.csv == "\n\n" and "next" in controls(puzzle) and "next" not in controls(SchedulePuzzle(12))


def test_a_lecturer_sets_the_level_and_hears_of_it():
    puzzle, heard = SchedulePuzzle(2), []
    puzzle.observe(lambda change: heard.append(change["new"]), "level")
    sent(puzzle, control="next", text=None)
    with pytest.raises(ValueError, match="expected a whole number from 1 to 12"):
        puzzle.level = 13
    assert heard == [3] and puzzle.level == 3


def test_in_a_stored_notebook_an_empty_board_is_shown_finished_and_a_live_one_never(monkeypatch):
    puzzle = SchedulePuzzle(2)
    assert puzzle.static_form().table["ops"].tolist() == ["", ""]
    monkeypatch.setenv("LABKIT_STATIC", "1")
    assert [len(ops.split()) for ops in puzzle.static_form().table["ops"]] == [4, 4]
    assert not puzzle.board.placed
    puzzle.place("0F0")
    assert puzzle.static_form().table["ops"].tolist() == ["0F0", ""]
