"""The schedule explorer without a browser: what its controls, its text and its run button do to
picture, table and status line."""

from unittest import mock

import numpy as np
import pytest
from to_do import task

from labkit.explore import schedule_explorer
from labkit.explore.schedules import widget as schedules
from labkit.explore.schedules.measure import ScheduleRun
from labkit.simulate import explain_gap, makespan
from labkit.todo import TodoError


def titles(explorer):
    return [panel["title"] for panel in explorer.timeline.scene["panels"]]


def ends(explorer):
    """When the ops of each panel end."""
    return [float(column(panel, "end_s").max()) for panel in explorer.timeline.scene["panels"]]


def column(panel, name):
    kind, content = panel["tables"][-1][name]
    return np.frombuffer(content, dtype="<" + kind)


@pytest.fixture
def explorer():
    return schedule_explorer()


# --- controls and text ----------------------------------------------------------------------------


def test_it_begins_with_1f1b_and_a_slider_changes_picture_table_text_and_what_is_said_at_once(explorer):
    assert (titles(explorer), ends(explorer)) == (["1F1B"], [33])
    version = explorer.timeline.scene["version"]
    explorer.controls.sliders["m"].value = 16
    assert ends(explorer) == [57] and "57" in explorer.table.value
    assert explorer.text.value == "1f1b n=4 m=16 F=1 B=2"
    assert explorer.timeline.said == "1F1B: makespan 57."
    assert explorer.timeline.scene["version"] == version + 1


def test_two_schedules_lie_on_one_axis(explorer):
    explorer.controls.other.value = "zb-h1"
    assert (titles(explorer), ends(explorer)) == (["1F1B", "ZB-H1"], [33, 27])
    assert explorer.timeline.said == "1F1B: makespan 33; ZB-H1: makespan 27."


def test_one_schedule_with_two_numbers_of_chunks_is_two_and_with_itself_it_is_one(explorer):
    explorer.text.value = "interleaved v=2 vs interleaved v=4"
    assert titles(explorer) == ["interleaved 1F1B, 2 chunks", "interleaved 1F1B, 4 chunks"]
    explorer.controls.other_chunks.value = 2
    assert titles(explorer) == ["interleaved 1F1B, 2 chunks"]


def test_a_text_moves_every_control_and_draws_once(explorer):
    text, version = "interleaved v=3 n=2 m=6 F=1 I=2 W=0.5 hop=0.25 vs gpipe cap=3", explorer.timeline.scene["version"]
    explorer.text.value = text
    for shown in (explorer, schedule_explorer(text)):
        menus = (shown.controls.schedule, shown.controls.chunks, shown.controls.other)
        assert [menu.value for menu in menus] == ["interleaved", 3, "gpipe"]
        numbers = {key: slider.value for key, slider in shown.controls.sliders.items()}
        assert numbers == {"n": 2, "m": 6, "F": 1, "I": 2, "W": 0.5, "hop": 0.25, "cap": 3}
        assert shown.state == shown.controls.read(shown.state)
    assert explorer.timeline.scene["version"] == version + 1


def test_a_text_that_does_not_parse_is_said_and_changes_nothing(explorer):
    explorer.text.value = "1f1b n=4 k=8"
    assert explorer.timeline.said.startswith("StateError: character 10, 'k=8': expected one of n=")
    assert ends(explorer) == [33]
    explorer.controls.sliders["m"].value = 1  # and it lives on
    assert ends(explorer) == [12]
    assert explorer.text.value == "1f1b n=4 m=1 F=1 B=2"


def test_a_slider_keeps_values_beyond_its_ends_and_leaves_no_rounding_in_the_text(explorer):
    explorer.text.value = "1f1b F=12.5 B=0.05 hop=7"
    assert [explorer.controls.sliders[key].value for key in ("F", "I", "hop")] == [12.5, 0.025, 7]
    explorer.controls.sliders["F"].value = 0.1 + 0.2
    assert explorer.text.value == "1f1b n=4 m=8 F=0.3 B=0.05 hop=7"


def test_times_of_each_rank_stay_until_their_slider_moves_and_follow_the_number_of_ranks(explorer):
    explorer.text.value = "1f1b n=4 F=1,1,1,2 I=1 W=3"
    explorer.controls.sliders["n"].value = 3
    assert explorer.text.value == "1f1b n=3 m=8 F=1,1,2 I=1 W=3"
    explorer.controls.sliders["W"].value = 2
    assert explorer.state.forward == (1, 1, 2) and explorer.state.weight_grad == (2,)
    explorer.controls.sliders["F"].value = 0.5
    assert explorer.state.forward == (0.5,)


def test_where_interleaving_cannot_share_out_the_micro_batches_the_nearest_number_is_shown_and_said(explorer):
    explorer.controls.schedule.value, explorer.controls.sliders["m"].value = "interleaved", 11
    assert explorer.timeline.said.startswith(
        "12 micro-batches: interleaved 1F1B on 4 ranks cannot share out 11 evenly; interleaved 1F1B, 2 chunks: makespan"
    )
    assert explorer.text.value == "interleaved v=2 n=4 m=11 F=1 B=2"
    explorer.controls.other.value = "1f1b"
    assert {1 + column(panel, "micro_batch").max() for panel in explorer.timeline.scene["panels"]} == {12}


def test_memory_over_the_cap_is_said_and_stands_in_the_table(explorer):
    explorer.controls.other.value, explorer.controls.capped.value = "gpipe", True
    assert explorer.timeline.said.endswith("GPipe keeps 8, over the cap of 4.")
    assert "4 on rank 0, within the cap of 4" in explorer.table.value
    assert "8 on rank 0, over the cap of 4" in explorer.table.value
    explorer.controls.capped.value = False
    assert explorer.state.cap is None and "the cap" not in explorer.table.value


def test_controls_that_do_not_count_are_hidden(explorer):
    def shown():
        controls = explorer.controls
        some = {"chunks": controls.chunks, "its chunks": controls.other_chunks}
        some |= {key: controls.sliders[key] for key in ("W", "cap")}
        return [name for name, control in some.items() if control.layout.display != "none"]

    assert shown() == ["W"]
    explorer.text.value = "interleaved vs zb-v cap=4"
    assert shown() == ["chunks", "W", "cap"]
    explorer.text.value = "forward vs interleaved"
    assert shown() == ["its chunks", "W"]
    explorer.controls.other.value = ""
    assert shown() == []


@pytest.mark.parametrize("name", schedules.PRESETS)
def test_a_preset_draws_once_and_copy_state_gives_the_call_that_shows_it_again(explorer, name, monkeypatch):
    sent, version = [], explorer.timeline.scene["version"]
    monkeypatch.setattr(explorer.timeline, "send", sent.append)
    explorer.presets[name].click()
    assert explorer.timeline.scene["version"] == version + 1 and len(titles(explorer)) == 2
    explorer.copy.click()
    again = eval(sent[0]["copy"], {"schedule_explorer": schedule_explorer})
    assert again.state == explorer.state and again.table.value == explorer.table.value


def test_one_bubble_stands_in_the_table_as_in_the_title_and_the_others_when_they_are_asked_for(explorer):
    explorer.text.value = "zb-h2"
    assert explorer.table.value.count("bubble") == 1 and "11.1 %" in explorer.table.value
    explorer.every_bubble.value = True
    assert explorer.table.value.count(">bubble") == 4 and "0.0 %" in explorer.table.value


# --- running it -----------------------------------------------------------------------------------


def fake_run(*timed):
    """Runs in which every op takes a tenth longer than it should; of two, now one is faster, now
    the other."""

    def run(each):
        ideal = each.scaled(0.01).simulate()
        measured = ideal.assign(start_s=1.1 * ideal["start_s"], end_s=1.1 * ideal["end_s"])
        measured.attrs["emulated"] = "emulated compute: stages sleep"
        later_s = range(-4, 5) if each is timed[0] else range(4, -5, -1)
        steps_s = [makespan(measured) + i / 1e4 for i in later_s]
        note = f"Ran on {each.schedule.n_ranks} ranks. It took 1.5 s."
        return ScheduleRun(each.schedule, ideal, measured, explain_gap(ideal, measured), 0.01, note, steps_s)

    return [run(each) for each in timed]


def press(explorer):
    explorer.runner.start.click()
    explorer.runner.wait()


def test_a_run_lies_under_what_should_happen_with_the_gap_and_goes_when_a_control_moves(explorer, monkeypatch):
    monkeypatch.setattr(schedules, "run_schedules", fake_run)
    explorer.controls.other.value = "gpipe"
    press(explorer)
    verdict, notes = explorer.timeline.said.split(" (median of 9 pairs and its 95 % interval). ")
    assert verdict == "1F1B, compared with GPipe: within noise, 1.0000 (0.9983 to 1.0017) times as fast"
    assert notes == "Ran on 4 ranks. It took 1.5 s."  # what holds for both runs once
    assert "363.0 (362.7 to 363.3) ms" in explorer.table.value
    assert [run.schedule.name for run in explorer.runs] == ["1F1B", "GPipe"]
    assert [len(panel["tables"]) for panel in explorer.timeline.scene["panels"]] == [2, 2]
    assert "330 ms" in explorer.table.value and "363 ms" in explorer.table.value
    assert "1F1B: measured − predicted is 33.0 ms: imbalance 33.0, communication 0.0" in explorer.table.value
    assert explorer.timeline.scene["note"] == "emulated compute: stages sleep"
    explorer.controls.sliders["m"].value = 9
    assert explorer.runs == [] and "predicted" not in explorer.table.value


def test_a_task_that_is_to_do_is_said_with_what_it_is_for(explorer, monkeypatch):
    monkeypatch.setattr(
        schedules, "run_schedules", mock.Mock(side_effect=TodoError("pipe.5", "labkit/pipe.py, line 9"))
    )
    press(explorer)
    assert explorer.timeline.said.startswith("TODO pipe.5: labkit/pipe.py, line 9. Real ranks run")
    assert explorer.runs == [] and not explorer.runner.start.disabled


def test_a_run_that_ends_after_a_control_has_moved_is_not_shown_for_what_it_is_not(explorer, monkeypatch):
    def moves(*arguments, **options):
        explorer.controls.sliders["m"].value = 3
        return fake_run(*arguments, **options)

    monkeypatch.setattr(schedules, "run_schedules", moves)
    press(explorer)
    assert explorer.runs == [] and len(column(explorer.timeline.scene["panels"][0], "stage")) == 24
    assert explorer.timeline.said.startswith("The controls have moved while it ran")


def test_a_run_stays_when_the_browser_says_what_a_slider_has_said_already(explorer, monkeypatch):
    """It does so as it draws the sliders, with values that differ in their last bits."""
    monkeypatch.setattr(schedules, "run_schedules", fake_run)
    explorer.run()
    explorer.controls.sliders["F"].value = 1.0000000000000002
    assert len(explorer.runs) == 1 and "predicted" in explorer.table.value


@task("pipe.5")
def test_the_button_runs_it_on_real_ranks(explorer):
    explorer.text.value = "1f1b n=2 m=2 vs zb-v"
    press(explorer)
    assert explorer.timeline.said.startswith("1F1B, compared with ZB-V: ")
    assert "Ran on 2 ranks that " in explorer.timeline.said
    for run in explorer.runs:
        assert run.schedule.n_ranks == 2 and run.gap["total_s"].notna().all()


# --- in print -------------------------------------------------------------------------------------


def test_in_print_there_are_schedules_with_metrics_and_after_a_run_the_overlay_with_the_gap(explorer, monkeypatch):
    monkeypatch.setattr(schedules, "run_schedules", fake_run)
    explorer.controls.other.value = "zb-h1"
    form = explorer.static_form()
    assert form.alt == "Timeline of 4 ranks and 8 micro-batches: 1F1B ends at 33, ZB-H1 ends at 27."
    assert form.table.loc["makespan"].to_dict() == {"1F1B": "33", "ZB-H1": "27"}
    explorer.run()
    form = explorer.static_form()
    assert list(form.table) == ["imbalance_ms", "communication_ms", "overhead_ms", "core_ms", "total_ms"]
    assert form.table.index.names == ["schedule", "stage"]
    assert len(form.figure.axes) == 2
