"""The widget keeps what the page tells and what a cell does, and gives the schedule."""

import pytest

from labkit.explore.puzzle.widget import SchedulePuzzle
from labkit.schedule import Schedule, one_f_one_b


def told(puzzle: SchedulePuzzle, level: int, ops: str) -> None:
    """The page tells which level it shows, and its moves."""
    puzzle.timeline._receive(None, {"control": "moves", "text": [level, ops.split()]}, None)


def built(number: int, ops: str) -> SchedulePuzzle:
    puzzle = SchedulePuzzle(number)
    for op in ops.split():
        puzzle.place(op)
    return puzzle


def placed(puzzle: SchedulePuzzle) -> dict[int, str]:
    return puzzle.timeline.scene["puzzle"]["placed"]


def test_the_schedule_of_an_unfinished_board_is_an_error_that_says_what_is_missing():
    puzzle = built(2, "0F0")
    with pytest.raises(ValueError, match="7 of 8 ops are not placed yet, 0F1 for one"):
        _ = puzzle.schedule
    assert puzzle.csv == "0F0\n\n" and not puzzle.board.finished


def test_a_finished_two_by_two_gives_its_schedule_and_its_csv():
    puzzle = built(2, "0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1")
    assert puzzle.schedule == one_f_one_b(2, 2) and puzzle.schedule.name == "yours"
    assert Schedule.from_csv(puzzle.csv) == puzzle.schedule


def test_what_is_placed_in_the_page_is_there_in_a_cell():
    puzzle = SchedulePuzzle(2)
    told(puzzle, 2, "0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1")
    assert puzzle.board.finished and puzzle.schedule == one_f_one_b(2, 2)
    told(puzzle, 2, "0F0")
    assert puzzle.csv == "0F0\n\n" and placed(puzzle) == {2: "0F0"}


def test_an_op_that_a_cell_may_not_place_is_refused_with_the_reason_and_one_that_it_may_shows():
    puzzle = built(1, "1F0")
    assert puzzle.timeline.narration == "No: 1F0 needs the activation of 0F0, which is not placed yet."
    puzzle.place("0F0")
    assert puzzle.timeline.narration == "" and placed(puzzle) == {1: "0F0"}  # the page says how it went
    told(puzzle, 1, "0F0 1B0")
    assert "1B0 needs 1F0" in puzzle.timeline.narration and placed(puzzle) == {1: "0F0"}


def test_each_level_keeps_its_board():
    puzzle = built(7, "0F0")
    told(puzzle, 8, "")
    assert puzzle.level == 8 and not puzzle.board.moves
    told(puzzle, 7, "0F0")
    assert puzzle.csv == "0F0\n\n" and placed(puzzle) == {7: "0F0", 8: ""}


def test_a_lecturer_sets_the_level_and_hears_of_it():
    puzzle, heard = SchedulePuzzle(2), []
    puzzle.observe(lambda change: heard.append(change["new"]), "level")
    told(puzzle, 3, "")
    with pytest.raises(ValueError, match="expected a whole number from 1 to 12"):
        puzzle.level = 13
    assert heard == [3] and puzzle.level == 3


def test_in_a_stored_notebook_an_empty_board_is_shown_finished_and_a_live_one_never(monkeypatch):
    puzzle = SchedulePuzzle(2)
    assert puzzle.static_form().table["ops"].tolist() == ["", ""]
    monkeypatch.setenv("LABKIT_STATIC", "1")
    form = puzzle.static_form()
    assert form.scene()["puzzle"]["placed"] == {2: "0F0 0F1 1F0 1F1 1B0 0B0 1B1 0B1"}
    assert form.table["ends"].tolist() == ["9", "7"] and form.table["keeps at most"].tolist() == [2, 2]
    assert "8 of 8 ops are placed, up to 9. Rank 0: 0F0 from 0 to 1, " in form.alt
    assert not puzzle.board.moves
    puzzle.place("0F0")
    assert puzzle.static_form().table["ops"].tolist() == ["0F0", ""]
