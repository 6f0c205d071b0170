"""The widget does with buttons, clicks and keys what the game does, and lives on after errors."""

from __future__ import annotations

import html
from types import SimpleNamespace

import pytest

from labkit.draw.picture import show
from labkit.explore import schedule_puzzle
from labkit.explore.puzzle.levels import LEVELS
from labkit.explore.puzzle.widget import SchedulePuzzle
from labkit.schedule import Op, Schedule, one_f_one_b
from labkit.simulate import explain_gap, simulate


def sent(puzzle: SchedulePuzzle, **message: object) -> None:
    """Let the browser send a message, as after a click or a key."""
    timeline = puzzle.timeline
    where = {"version": timeline.scene["version"], "panel": 0, "view": "test", "number": timeline._heard["test"]}
    timeline._receive(None, where | message, None)


def offered(puzzle: SchedulePuzzle) -> list[str]:
    return [button.description for button in puzzle.offers.children if button.layout.display != "none"]


def pressed(number: int, keys: str, **options: object) -> SchedulePuzzle:
    puzzle = SchedulePuzzle(number, **options)
    for key in keys:
        sent(puzzle, key=key)
    return puzzle


# --- wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "error"), [(0, ValueError), (13, ValueError), ("two", TypeError), (1.0, TypeError)])
def test_a_level_that_does_not_exist_is_an_error(level, error):
    with pytest.raises(error, match=r"level is .*, expected a whole number from 1 to 12"):
        schedule_puzzle(level)


def test_the_schedule_of_an_unfinished_board_is_an_error_that_says_what_is_missing():
    puzzle = pressed(2, "f")
    with pytest.raises(ValueError, match="level 2 is not finished: 7 of 8 ops are not placed yet, 1F0 for one"):
        _ = puzzle.schedule
    assert puzzle.csv == "0F0\n\n"
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert "not finished" in puzzle.timeline.said


def test_a_run_that_fails_is_said_and_the_puzzle_lives_on():
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("rank 1 has died\nand more")

    puzzle = pressed(1, "f1fb0b", run=fails)
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert puzzle.timeline.said == "RuntimeError: rank 1 has died"
    sent(puzzle, key="u")
    assert puzzle.timeline.said == "Undone: 0B0 is off the board."


def test_a_refusal_is_said_and_nothing_moves():
    puzzle = pressed(1, "b")
    assert puzzle.timeline.said.startswith("No: 0B0 needs the gradient of 1B0") and not puzzle.board.placed


# --- played ---------------------------------------------------------------------------------------


def test_a_two_by_two_by_keys_gives_its_schedule_and_its_csv():
    puzzle = pressed(2, "f1fb0bs")
    assert puzzle.schedule == one_f_one_b(2, 2) and puzzle.schedule.name == "yours"  # not named yet
    assert Schedule.from_csv(puzzle.csv) == puzzle.schedule


def test_a_two_by_two_by_clicks_on_outlined_ops():
    puzzle = SchedulePuzzle(2)
    while not puzzle.board.finished:
        sent(puzzle, pick=len(puzzle.board.placed))  # offered ops come after the placed ones
    assert "that is par" in puzzle.timeline.said


def test_a_two_by_two_by_buttons():
    puzzle = SchedulePuzzle(2)
    while not puzzle.board.finished:
        puzzle.offers.children[0].click()
    assert puzzle.schedule.n_micro == 2 and not puzzle.runs.start.disabled


def test_buttons_and_keys_do_the_same():
    puzzle, by_key = SchedulePuzzle(2), pressed(2, "f1fb0bsurux")
    puzzle.kinds["F"].click()
    puzzle.rank.value = 1
    puzzle.kinds["F"].click()
    puzzle.kinds["B"].click()
    puzzle.rank.value = 0
    for button in (puzzle.kinds["B"], puzzle.whole, puzzle.undo, puzzle.redo, puzzle.undo, puzzle.remove):
        button.click()
    assert puzzle.csv == by_key.csv and puzzle.timeline.said == by_key.timeline.said
    puzzle.clear.click()
    assert not puzzle.board.placed


def test_a_click_on_a_placed_op_chooses_it_and_its_rank():
    puzzle = pressed(1, "f1f0")
    sent(puzzle, pick=1)
    assert puzzle.rank.value == 1
    assert puzzle.timeline.said == "1F0 is chosen: x removes it, [ and ] move it in its rank's order."
    puzzle.remove.click()
    assert list(puzzle.board.placed) == [Op("F", 0, 0)]


def test_assistance_changes_what_is_offered():
    puzzle = SchedulePuzzle(1)
    puzzle.assistance.value = 0
    assert offered(puzzle) == []
    puzzle.assistance.value = 3
    assert offered(puzzle) == ["0F0 at 0"]  # the other outlines of the way cannot be placed yet


def test_the_whole_way_is_not_shown_in_a_level_that_is_new():
    puzzle = SchedulePuzzle(1)
    puzzle.assistance.value = 3
    puzzle.next.click()
    assert puzzle.assistance.value == 1 and offered(puzzle) == ["0F0 at 0"]
    puzzle.previous.click()
    assert puzzle.assistance.value == 3


@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_what_a_level_teaches_is_told_at_par_and_not_before(number):
    puzzle = SchedulePuzzle(number)
    assert puzzle.game.level.teaches not in html.unescape(puzzle.text.value + puzzle.done.value)
    puzzle.assistance.value = 3
    while not puzzle.board.finished:
        puzzle.press("h")
    assert puzzle.timeline.said.startswith("✓ Finished in ") and puzzle.game.level.teaches in html.unescape(
        puzzle.done.value
    )
    puzzle.press("q")  # a key that means nothing
    assert "✓ Par reached" in puzzle.done.value
    puzzle.press("u")
    assert puzzle.done.value == ""


def test_n_goes_to_the_next_level_and_each_level_lists_its_own_keys():
    puzzle = pressed(7, "n")
    assert puzzle.game.number == 8
    keys = dict(puzzle.timeline.own_keys)
    assert "f i w" in keys and "0 1" in keys and "n" in keys
    assert dict(SchedulePuzzle(12).timeline.own_keys).keys() & {"n"} == set()
    last = pressed(12, "n")
    assert last.game.number == 12 and last.timeline.said == "n means nothing here."


def test_limits_are_told_and_par_is_explained_once():
    for number in range(1, len(LEVELS) + 1):
        puzzle = SchedulePuzzle(number)
        assert ("Room for activations" in puzzle.text.value) == (puzzle.board.rules.caps is not None)
        assert ("the least that any order needs" in puzzle.text.value) == (number == 1)


def test_each_level_keeps_its_board_and_shows_the_kinds_that_it_has():
    puzzle = pressed(7, "f1")
    puzzle.next.click()
    assert puzzle.game.number == 8 and not puzzle.board.placed and puzzle.rank.value == 0
    assert [button.layout.display for button in puzzle.kinds.values()] == ["", "none", "", ""]
    puzzle.previous.click()
    assert puzzle.csv == "0F0\n\n" and puzzle.rank.value == 1


def test_texts_are_escaped_and_name_no_schedule_before_level_4():
    for number in (1, 2, 3):
        assert "1F1B" not in SchedulePuzzle(number).text.value and "GPipe" not in SchedulePuzzle(number).text.value


def test_a_finished_board_runs_with_the_times_of_its_level_and_shows_the_run_over_the_ideal():
    asked = {}

    def run(schedule: Schedule, **times: object) -> SimpleNamespace:
        asked.update(times, schedule=schedule)
        events = simulate(schedule)
        gap = explain_gap(events, events)
        return SimpleNamespace(schedule=schedule, ideal=events, measured=events, gap=gap, note="Ran on 2 ranks.")

    puzzle = pressed(1, "f1fb0b", run=run)
    puzzle.runs.begin()
    puzzle.runs.wait()
    assert asked == {"schedule": puzzle.schedule, "forward": [1.0, 1.0], "backward": [2.0, 2.0], "hop": 0.0}
    assert puzzle.timeline.said == "Ran on 2 ranks. The run lies under what was predicted, below."
    measured, gap = puzzle.run_shown.children
    assert len(measured._panels[0].bars) == 8
    assert "This run: measured − predicted is 0.0 ms" in gap.value and "by stage" in gap.value


def test_when_a_later_run_fails_what_stays_is_called_the_run_before():
    def run(schedule: Schedule, **_: object) -> SimpleNamespace:
        if len(ran) == 1:
            raise RuntimeError("rank 1 has died")
        ran.append(schedule)
        events = simulate(schedule)
        return SimpleNamespace(
            schedule=schedule, ideal=events, measured=events, gap=explain_gap(events, events), note=""
        )

    ran: list[Schedule] = []
    puzzle = pressed(1, "f1fb0b", run=run)
    for _ in range(3):
        puzzle.runs.begin()
        puzzle.runs.wait()
    assert puzzle.timeline.said == "RuntimeError: rank 1 has died"
    before, measured, _ = puzzle.run_shown.children
    assert "run before" in before.value and measured is puzzle.measured


def test_the_csv_can_be_shown_and_hidden():
    puzzle = pressed(1, "f")
    puzzle.csv_button.click()
    assert puzzle.csv_text.layout.display == "" and puzzle.csv_text.value == puzzle.csv
    puzzle.csv_button.click()
    assert puzzle.csv_text.layout.display == "none"


def test_kept_outputs_have_picture_and_table_and_no_widget(monkeypatch):
    monkeypatch.setenv("LABKIT_STATIC", "1")
    form = pressed(3, "f1f").static_form()
    assert form.alt.startswith("Level 3, Little room: 2 of 24 ops are placed")
    assert form.table["ops"].tolist() == ["0F0", "1F0", ""]
    assert show(form.figure, alt=form.alt).png.startswith(b"\x89PNG")
