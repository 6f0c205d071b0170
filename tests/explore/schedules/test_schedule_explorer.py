"""The schedule explorer without a browser: its state, what it sends, what its run button does."""

from unittest import mock

import pandas as pd
import pytest
from page_in_node import NODE, in_node

from labkit.explore import schedule_explorer
from labkit.explore.schedules import widget as schedules
from labkit.explore.schedules.measure import ScheduleRun
from labkit.explore.schedules.orders import library_orders, orders_of, pipeline_message, schedule_form, schedule_library
from labkit.explore.schedules.state import SCHEDULES, Choice, StateError, parse
from labkit.explore.schedules.tables import gap_as_html
from labkit.explore.schedules.values import n_micro_of, timed_schedule
from labkit.schedule import Schedule
from labkit.simulate import explain_gap, makespan
from labkit.simulate.gap import CAUSES
from labkit.todo import TodoError


@pytest.fixture
def explorer():
    return schedule_explorer()


def orders(explorer):
    return explorer.timeline.scene["pipeline"]["orders"]


def move(explorer, text):
    explorer.timeline._receive(explorer.timeline, {"control": "state", "text": text}, [])


def test_it_begins_with_1f1b_and_a_state_from_a_cell_or_from_the_page_is_shown_at_once(explorer):
    assert [*orders(explorer)] == ["1F1B"] and explorer.state == "1f1b n=4 m=8 F=1 B=2"
    changes, version = [], explorer.timeline.scene["version"]
    explorer.observe(lambda change: changes.append(change["new"]), "state")
    explorer.state = "1f1b  M=16 vs zb-h1"
    assert explorer.state == "1f1b n=4 m=16 F=1 B=2 vs zb-h1" and [*orders(explorer)] == ["1F1B", "ZB-H1"]
    assert Schedule.from_csv(orders(explorer)["1F1B"]).n_micro == 16
    move(explorer, "gpipe n=2 m=3")
    assert changes == ["1f1b n=4 m=16 F=1 B=2 vs zb-h1", "gpipe n=2 m=3 F=1 B=2"]
    assert explorer.timeline.scene["version"] == version + 2


def test_a_text_of_the_page_that_does_not_parse_is_said_and_changes_nothing_and_in_a_cell_it_raises(explorer):
    move(explorer, "1f1b n=4 k=8")
    assert explorer.timeline.narration.startswith("StateError: 'k=8': expected one of n=")
    assert explorer.state == "1f1b n=4 m=8 F=1 B=2"
    assert explorer.timeline.form["fault"] == {"name": "state", "text": explorer.timeline.narration}
    with pytest.raises(StateError, match="a schedule"):
        explorer.state = "1g1b"
    move(explorer, "1f1b m=1")
    assert Schedule.from_csv(orders(explorer)["1F1B"]).n_micro == 1 and explorer.timeline.narration == ""
    assert not explorer.timeline.form["fault"]


CONTROLS = """
import { controlsOf, forRanks, moved, ordersOf } from "BROWSER/schedule_controls.js";
import { stateOf } from "BROWSER/schedule_state.js";
return given.map(({ pipeline, moves = [], spec, library }) => {
  let now = pipeline;
  for (const [name, value] of moves) now = moved(now, name, value);
  const shown = spec && controlsOf(now, spec).filter(({ hidden }) => !hidden).map(({ name }) => name);
  return { state: stateOf(now), shown, orders: library && ordersOf(now, library) };
});
"""
needs_node = pytest.mark.skipif(NODE is None, reason="no node on this machine")


def pipeline(text):
    state = parse(text)
    return pipeline_message(state, (timed_schedule(state, choice).schedule for choice in state.choices))


@needs_node
@pytest.mark.parametrize(
    ("before", "moves", "after"),
    [
        ("1f1b", [["m", 16], ["other", "zb-h1"], ["hop", 0.5]], "1f1b n=4 m=16 F=1 B=2 hop=0.5 vs zb-h1"),
        ("1f1b", [["schedule", "interleaved"], ["v", 3]], "interleaved v=3 n=4 m=8 F=1 B=2"),
        ("1f1b vs interleaved v=4", [["otherV", 3]], "1f1b n=4 m=8 F=1 B=2 vs interleaved v=3"),
        ("1f1b vs gpipe", [["other", ""], ["capped", True]], "1f1b n=4 m=8 F=1 B=2 cap=4"),
        ("1f1b cap=3", [["capped", False]], "1f1b n=4 m=8 F=1 B=2"),
        ("1f1b F=1,1,1,2 I=1 W=3", [["n", 3]], "1f1b n=3 m=8 F=1,1,2 I=1 W=3"),
        ("1f1b F=1,1,1,2 I=1 W=3", [["W", 2], ["n", 6]], "1f1b n=6 m=8 F=1,1,1,1,1,2 I=1 W=2"),
        ("1f1b F=1,1,1,2", [["F", 0.5]], "1f1b n=4 m=8 F=0.5 B=2,2,2,4"),
    ],
)
def test_a_control_that_is_moved_changes_its_part_of_the_state(before, moves, after):
    (found,) = in_node(CONTROLS, [{"pipeline": pipeline(before), "moves": moves}])
    assert found["state"] == after and str(parse(after)) == after


@needs_node
def test_a_file_has_the_orders_of_all_schedules_up_to_its_sizes_and_takes_the_nearest_number_of_micro_batches():
    library = schedule_library(parse(""))
    asked = [["interleaved", 3, 11, "gpipe"], ["zb-v", 8, 16, ""], ["forward", 1, 1, ""]]
    moves = [[["schedule", name], ["n", n], ["m", m], ["other", other]] for name, n, m, other in asked]
    given = [{"pipeline": pipeline(""), "moves": each, "library": library["orders"]} for each in moves]
    shared, largest, smallest = (found["orders"] for found in in_node(CONTROLS, given))
    assert {Schedule.from_csv(csv).n_micro for csv in shared.values()} == {12} and len(shared) == 2
    assert Schedule.from_csv(largest["ZB-V"]).ops == timed_schedule(parse("zb-v n=8 m=16"), Choice("zb-v")).schedule.ops
    assert Schedule.from_csv(smallest["forward only"]).n_ranks == 1
    assert "up to 8 ranks and 16 micro-batches" in library["schedules"]["limit"]


@needs_node
@pytest.mark.parametrize("state", ["1f1b n=4 m=17", "1f1b n=4 m=18", "gpipe n=9 m=20", "zb-h1 n=7 m=64"])
def test_in_a_file_beyond_the_library_every_schedule_can_be_chosen_at_its_own_size(state):
    library, own = schedule_library(parse(state)), parse(state)
    names = list(SCHEDULES)
    moves = [[["schedule", name], ["other", other]] for name in names for other in ("", "interleaved")]
    given = [{"pipeline": pipeline(state), "moves": each, "library": library["orders"]} for each in moves]
    for found in in_node(CONTROLS, given):
        choice = parse(found["state"])
        shown = {Schedule.from_csv(csv).n_micro for csv in found["orders"].values()}
        assert len(found["orders"]) == len(choice.choices) and shown == {n_micro_of(choice)}
    fields = library["schedules"]["fields"]
    assert (fields["n"]["min"], fields["n"]["max"], fields["m"]["max"]) == (own.n_ranks, own.n_ranks, own.n_micro)
    assert f"{own.n_ranks} ranks and {own.n_micro} micro-batches alone" in library["schedules"]["limit"]


def test_the_library_that_ships_is_what_the_schedules_are_now():
    assert library_orders() == orders_of(range(1, 9), range(1, 17)), "python -m labkit.explore.schedules.orders"


@needs_node
def test_a_notebook_has_the_orders_of_its_library_and_asks_for_larger_ones():
    moves = [[["m", 16]], [["n", 8], ["schedule", "interleaved"]], [["m", 17]], [["n", 9]]]
    given = [{"pipeline": pipeline(""), "moves": each, "library": library_orders()} for each in moves]
    assert [found["orders"] is None for found in in_node(CONTROLS, given)] == [False, False, True, True]


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
    explorer.state = "1f1b vs gpipe"
    press(explorer)
    verdict, notes = explorer.timeline.narration.split(" (median of 9 pairs and its 95 % interval). ")
    assert verdict == "1F1B, compared with GPipe: within noise, 1.0000 (0.9983 to 1.0017) times as fast"
    assert notes == "Ran on 4 ranks. It took 1.5 s."  # what holds for both runs once
    scene = explorer.timeline.scene
    assert [run.schedule.name for run in explorer.runs] == ["1F1B", "GPipe"]
    assert [[table["title"] for table in panel["tables"]] for panel in scene["panels"]] == [
        ["predicted", "measured"]
    ] * 2
    assert "363.0 (362.7 to 363.3) ms" in scene["numbers"]
    assert "1F1B: measured − predicted is 33.0 ms: op time 33.0, imbalance 0.0, communication 0.0" in scene["numbers"]
    assert scene["note"] == "emulated compute: stages sleep"
    move(explorer, "1f1b vs gpipe F=1.5")
    assert explorer.runs == [] and explorer.timeline.scene["panels"] == []
    press(explorer)
    move(explorer, explorer.state)  # away and back: the page shows no run, and so does what is saved
    assert explorer.runs == [] and explorer.timeline.scene["panels"] == []


def test_a_task_that_is_to_do_is_said_with_what_it_is_for(explorer, monkeypatch):
    monkeypatch.setattr(
        schedules, "run_schedules", mock.Mock(side_effect=TodoError("pipe.5", "labkit/pipe.py, line 9"))
    )
    press(explorer)
    assert "TODO pipe.5: labkit/pipe.py, line 9. Real ranks run" in explorer.runner.refusal.value
    assert explorer.runs == [] and not explorer.runner.start.disabled


def test_a_run_that_ends_after_a_control_has_moved_is_not_shown_for_what_it_is_not(explorer, monkeypatch):
    def moves(*arguments, **options):
        move(explorer, "1f1b m=3")
        return fake_run(*arguments, **options)

    monkeypatch.setattr(schedules, "run_schedules", moves)
    press(explorer)
    assert explorer.runs == [] and explorer.timeline.scene["panels"] == []
    assert explorer.timeline.narration.startswith("The controls have moved while it ran")


def test_in_print_there_are_schedules_with_metrics_and_after_a_run_the_overlay_with_the_gap(explorer, monkeypatch):
    monkeypatch.setattr(schedules, "run_schedules", fake_run)
    explorer.state = "1f1b vs zb-h1"
    form = explorer.static_form()
    assert form.alt == "Timeline of 4 ranks and 8 micro-batches: 1F1B ends at 33, ZB-H1 ends at 27."
    assert form.table.loc["makespan"].to_dict() == {"1F1B": "33", "ZB-H1": "27"}
    explorer.run()
    form = explorer.static_form()
    assert list(form.table) == ["op_time_ms", "imbalance_ms", "communication_ms", "overhead_ms", "core_ms", "total_ms"]
    assert form.table.index.names == ["schedule", "stage"]
    assert len(form.draw().axes) == 2


@needs_node
@pytest.mark.parametrize("state", ["1f1b F=1000 B=2000", "1f1b F=0.001 B=0.002", "zb-h1 n=3 m=5 F=0.7 cap=1000"])
def test_a_number_is_written_alike_in_the_page_and_in_print(state):
    explorer = schedule_explorer(state)
    (metrics,) = in_node(METRICS, [explorer.timeline.scene["pipeline"] | schedule_form()["look"]])
    form = explorer.static_form()
    (makespan_row,) = form.table.loc["makespan"]
    assert metrics["makespan"] == makespan_row and f" ends at {makespan_row}." in form.alt
    assert f"makespan {makespan_row} " in form.draw().get_title("right")
    assert form.table.loc["peak activations, in micro-batches"].item().endswith(metrics["cap"])


METRICS = """
import { short } from "BROWSER/explain.js";
import { readPipeline } from "BROWSER/schedules.js";
return given.map((pipeline) => {
  const { makespan } = readPipeline({}, pipeline).panels[0].analyses[0].metrics;
  return { makespan: short(makespan), cap: pipeline.cap ? `cap of ${short(pipeline.cap)}` : "" };
});
"""


def test_a_gap_that_rounds_to_nothing_has_no_sign():
    gap = pd.DataFrame({"stage": [0, 1], "total_s": [-2e-6, -1e-6]} | {cause: [-2e-6, -1e-6] for cause in CAUSES})
    assert "-0.0" not in gap_as_html("1F1B", gap)
    alone = schedule_explorer("1f1b n=1 m=6 F=0.1 B=0.1").static_form()  # whose ops add up to more than they take
    assert "-0.0" not in alone.table.to_string() + alone.draw().get_title("right")
