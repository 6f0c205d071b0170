"""The widget does with buttons, clicks and keys what the game does, and lives on after errors."""

from __future__ import annotations

import html
from types import SimpleNamespace

import pytest

from labkit.explore import schedule_puzzle
from labkit.explore.puzzle import results, widget
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.results import Result, best_results
from labkit.explore.puzzle.widget import SchedulePuzzle
from labkit.explore.schedules.measure import TimedSchedule
from labkit.schedule import Schedule, one_f_one_b
from labkit.simulate import explain_gap, simulate


@pytest.fixture(autouse=True)
def answers(tmp_path, monkeypatch):
    """The file of best results, which is not there yet."""
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path))
    return tmp_path / results.FILE


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
    assert puzzle.csv == "0F0\n\n" and puzzle.runs.layout.visibility == "hidden"


# --- played ---------------------------------------------------------------------------------------


def test_a_two_by_two_by_keys_gives_its_schedule_and_its_csv():
    puzzle = pressed(2, "ff1fbfb0bb")
    assert puzzle.schedule == one_f_one_b(2, 2) and puzzle.schedule.name == "yours"  # not named yet
    assert Schedule.from_csv(puzzle.csv) == puzzle.schedule and puzzle.runs.layout.visibility == "visible"


def test_a_two_by_two_by_clicks_on_outlined_ops():
    puzzle = SchedulePuzzle(2)
    while not puzzle.board.finished:
        sent(puzzle, pick=len(puzzle.board.placed))  # offered ops come after the placed ones
    assert "that is par" in puzzle.timeline.said


def test_buttons_and_keys_do_the_same():
    puzzle, by_key = SchedulePuzzle(2), pressed(2, "f1fb0burh")
    puzzle.kinds["F"].click()
    puzzle.rank.value = 1
    puzzle.kinds["F"].click()
    puzzle.kinds["B"].click()
    puzzle.rank.value = 0
    puzzle.kinds["B"].click()
    for key in "urh":
        puzzle.buttons[key].click()
    assert puzzle.csv == by_key.csv and puzzle.timeline.said == by_key.timeline.said
    puzzle.buttons["c"].click()
    assert not puzzle.board.placed


def test_a_click_on_a_placed_op_chooses_it_and_its_rank():
    puzzle = pressed(1, "f1f0")
    sent(puzzle, pick=1)
    assert puzzle.rank.value == 1
    assert puzzle.timeline.said.startswith("1F0 is chosen: drag it, or press [ or ]")


def test_a_bar_that_is_dropped_elsewhere_moves_and_one_that_cannot_go_there_says_why():
    puzzle = pressed(2, "ff")
    sent(puzzle, drop=1, x=0.4)
    assert puzzle.csv == "0F1,0F0\n\n" and puzzle.timeline.said.startswith("0F1 now runs before 0F0")
    puzzle = pressed(2, "f1fb0b")
    sent(puzzle, drop=3, x=0.1)
    assert puzzle.csv == "0F0,0B0\n1F0,1B0\n" and "0B0 cannot go before 0F0" in puzzle.timeline.said


def test_what_a_level_teaches_is_told_at_par_and_not_before():
    puzzle = pressed(1, "f1fb0")
    how_to_move = puzzle.lesson.value
    assert puzzle.game.level.teaches not in html.unescape(puzzle.text.value + puzzle.lesson.value)
    puzzle.press("b")
    assert puzzle.game.level.teaches in html.unescape(puzzle.lesson.value)
    puzzle.press("u")
    assert puzzle.lesson.value == how_to_move


# --- from level to level --------------------------------------------------------------------------


def test_each_level_keeps_its_board_and_shows_the_keys_and_kinds_that_it_has():
    puzzle = pressed(7, "f1n")
    assert puzzle.game.number == 8 and not puzzle.board.placed and puzzle.rank.value == 0
    assert [button.layout.display for button in puzzle.kinds.values()] == ["", "none", "", ""]
    assert {"f i w", "0 1", "n"} <= set(dict(puzzle.timeline.own_keys))
    puzzle.choice.value = 7
    assert puzzle.csv == "0F0\n\n" and puzzle.rank.value == 1
    assert pressed(12, "n").timeline.said == "n means nothing here."


def test_the_whole_way_is_not_shown_in_a_level_that_is_new():
    puzzle = schedule_puzzle(1)
    puzzle.assistance.value = 2
    puzzle.next.click()
    assert puzzle.assistance.value == 1
    puzzle.choice.value = 1
    assert puzzle.assistance.value == 2


def test_limits_are_told_and_par_is_explained_once():
    for number in range(1, len(LEVELS) + 1):
        text = SchedulePuzzle(number).text.value
        assert ("Room for activations" in text) == (LEVELS[number - 1].rules.caps is not None)
        assert ("the least that any order needs" in text) == (number == 1)


@pytest.mark.parametrize(("number", "shown"), [(1, 2), (2, 4), (3, 5)])
def test_a_level_shows_only_the_controls_that_it_needs(number, shown):
    puzzle = SchedulePuzzle(number)
    controls = [*puzzle.buttons.values(), puzzle.assistance]
    assert sum(control.layout.display != "none" for control in controls) == shown


def test_the_best_result_of_a_level_is_kept_and_stands_in_the_choice_of_every_puzzle(answers):
    other = pressed(2, "f1fb0b")
    by_hints = pressed(1, "h" * 8)
    assert by_hints.choice.label == "1 of 12: There and back · best: par, 4 hints"
    for key in "f1fb0b":  # another notebook has kept a result meanwhile
        other.press(key)
    assert other.choice.label == "2 of 12: Two at once · best: 12, 0 hints"
    assert "1 of 12: There and back · best: par, 4 hints" in dict(other.choice.options)
    pressed(1, "f1fb0b")
    pressed(1, "h" * 8)  # not as good
    answers.write_text(answers.read_text() + '\n{"level": 1, "resu')  # cut off
    pressed(2, "ff1fbfb0bb")
    assert best_results() == {1: Result(6.0, 0), 2: Result(9.0, 0)}
    answers.write_bytes(b"\xff[1]\n3")
    assert best_results() == {} and answers.read_bytes() == b"\xff[1]\n3"


def test_a_stored_notebook_keeps_no_result(answers, monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    pressed(1, "f1fb0b")
    assert not answers.exists()


# --- on real ranks --------------------------------------------------------------------------------


def test_a_finished_board_runs_with_the_times_of_its_level_and_a_run_that_fails_is_said(monkeypatch):
    runs = []

    def run(timed: TimedSchedule) -> list[SimpleNamespace]:
        runs.append(timed)
        if len(runs) > 1:
            raise RuntimeError("rank 1 has died\nand more")
        schedule = timed.schedule
        events = simulate(schedule)
        gap = explain_gap(events, events)
        return [SimpleNamespace(schedule=schedule, ideal=events, measured=events, gap=gap, note="Ran.")]

    monkeypatch.setattr(widget, "run_schedules", run)
    puzzle = pressed(1, "f1fb0b")
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert runs == [(puzzle.schedule, 1.0, 2.0, 1.0, 1.0, 0.0)]
    assert puzzle.timeline.said.startswith("Ran. The run lies under what was predicted")
    assert len(puzzle.timeline._panels[0].bars) == 8 and "measured − predicted is 0.0 ms" in puzzle.table.value
    sent(puzzle, pick=0)  # a bar of the run, which is no op of the board
    assert len(puzzle.timeline._panels[0].bars) == 8
    puzzle.press("0")
    assert len(puzzle.timeline._panels[0].bars) == 4
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert puzzle.timeline.said == "RuntimeError: rank 1 has died"
