"""What the page says of event tables, in node: the same in a notebook and in a file."""

import itertools
import re

import pytest
from page_in_node import NODE, in_node

from labkit.draw.layout import time_axis
from labkit.draw.palette import words_of
from labkit.explore import Timeline
from labkit.explore.event_tables import EventTables
from labkit.explore.scene_message import scene_of, styles_message
from labkit.schedule import EVENT_NAMES, forward_only, gpipe, interleaved, one_f_one_b, zero_bubble_h1
from labkit.simulate import by_stage, simulate
from labkit.trace import event_table

pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")

WORDS = """
import { spotsOf } from "BROWSER/bars.js";
import { explain, narrate } from "BROWSER/explain.js";
import { readScene } from "BROWSER/scene.js";
const scene = readScene(given.sent);
const spots = scene.panels.flatMap((panel) => spotsOf(panel).what.map((spot) => [spot.kind, explain(panel, spot, scene.axis)]));
return [...spots, ...given.at.map((x) => ["time", narrate(scene.panels, x, scene.axis)])];
"""


def words(events, schedule=None, ideal=None, at=(), unit="s", **options):
    """All that is said of a table, by kind: of bars, of gaps, of strips, and at some times."""
    axis = time_axis(10.0, "" if unit == "s" else unit)
    sent = scene_of([EventTables.of(events, schedule, ideal)], time=axis, alt="", **options)
    found = in_node(WORDS, {"sent": sent, "at": at})
    return {kind: [text for of, text in found if of == kind] for kind in ("bar", "idle", "kept", "time")}


def said_of(texts, begins):
    (text,) = [text for text in texts if text.startswith(begins)]
    return text.split("\n")


def test_an_op_says_what_it_is_what_it_needs_what_waits_for_it_and_why_it_is_late():
    bars = words(simulate(one_f_one_b(4, 8)))["bar"]
    assert said_of(bars, "0B0") == [
        "0B0: backward pass of micro-batch 0, stage 0",
        "Rank 0, 10 s to 12 s: takes 2 s.",
        "It needs the gradient of 1B0 on rank 1, which ended at 10 s.",
        "Nothing waits for it.",
        "Rank 0 was idle for 6 s before it. To begin 0B0 it waits for the gradient of 1B0: 3B0 on rank 3 until 6 s, "
        "then 2B0 on rank 2 until 8 s, then 1B0 on rank 1 until 10 s.",
    ]
    _, _, needs, waits, late = said_of(bars, "0F1")
    assert (needs, waits) == ("It needs nothing but the batch.", "1F1 on rank 1 waits for it.")
    assert late == "It began as soon as rank 0 was free."


def test_a_gap_says_what_its_rank_waits_for_what_runs_there_and_what_hops_take():
    gaps = words(simulate(one_f_one_b(3, 4), hop=0.5))["idle"]
    assert said_of(gaps, "Rank 0 is idle for 6 s, from 3 s to 9 s")[1:] == [
        "To begin 0B0 it waits for the gradient of 1B0: 2F0 on rank 2 until 4 s, then 2B0 on rank 2 until 6 s, "
        "then 1B0 on rank 1 until 8.5 s. Hops take 1 s of that."
    ]
    (why,) = said_of(gaps, "Rank 2 is idle for 5 s, from 17")[1:]
    assert why.endswith("its last op, 2B3, ended at 17 s. The step ends at 22 s, with 0B3 on rank 0.")


def test_a_step_says_what_begins_what_goes_on_and_which_ranks_are_idle():
    first, later, end = words(simulate(one_f_one_b(3, 4)), at=[0, 4, 17])["time"]
    assert first == "0 s: 0F0 on rank 0 begins; rank 1 idle, waiting for 0F0; rank 2 idle, waiting for 1F0."
    assert "2B0 on rank 2 goes on" in later
    assert "ranks 1 and 2 idle: done" in end


def test_what_is_not_an_op_says_where_it_ran_and_its_size_and_a_gap_what_runs_meanwhile():
    rows = [(rank, "compute", "backward", None, None, None, None, None, 0.0, 1.0) for rank in (0, 1)]
    rows += [(rank, "compute", "optimizer", None, None, None, None, None, 3.0, 4.0) for rank in (0, 1)]
    rows += [(0, "comm", "all_reduce", None, None, None, 2, 2**21, 0.5, 3.0)]  # rank 1 has recorded none
    found = words(event_table(rows), at=[0.5])
    assert said_of(found["bar"], "all reduce") == [
        "all reduce, bucket 2, 2 MiB",
        "Rank 0, lane comm, 0.5 s to 3 s: takes 2.5 s.",
    ]
    assert "all reduce 2 on rank 0 begins" in found["time"][0]
    assert said_of(found["idle"], "Rank 0, lane compute,")[1] == "Meanwhile it has all reduce 2 in lane comm."
    assert (
        said_of(found["idle"], "Rank 1, lane compute,")[1]
        == "The table does not say why: nothing else is recorded there meanwhile."
    )


def test_where_stages_are_threads_nothing_is_called_a_rank():
    threads = by_stage(simulate(gpipe(2, 3), forward=1.1).assign(rank=0))
    timeline = Timeline(threads, ideal=simulate(gpipe(2, 3)))
    form = timeline.static_form()
    sentences = [
        timeline.scene["alt"],
        form.table.to_string(),
        *(label.get_text() for label in form.draw().get_yticklabels()),
    ]
    sentences += itertools.chain(*words(threads, ideal=simulate(gpipe(2, 3)), at=[0, 1.5]).values())
    assert (
        not re.search("rank", "".join(sentences), re.IGNORECASE)
        and "stage 0, stage 0" not in "".join(sentences).lower()
    )
    assert re.search("rank", "".join(words(simulate(gpipe(2, 3)))["idle"]))


STEPS = """
import { narrate } from "BROWSER/explain.js";
import { readPipeline } from "BROWSER/schedules.js";
return given.map((pipeline) => {
  const scene = readPipeline({}, pipeline);
  return Array.from(scene.stops, (x) => narrate(scene.panels, x, scene.axis).replace(/^[^:]*: /, ""));
});
"""


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 8), zero_bubble_h1(4, 8), interleaved(3, 6, 2)])
def test_a_step_of_tenths_or_thirds_says_what_it_says_of_whole_units(schedule):
    """Sums of 0.1 miss each other by a rounding error, sums of 1 do not."""

    def pipeline(unit, forward):
        halves = {"F": [forward * unit], "I": [2 * unit], "W": [2 * unit]}
        axis = {"label": "", "unit": "", "per_second": 1.0}
        chosen = {"orders": {"": schedule.to_csv()}, "n": len(schedule.ops), "m": 8, "times": halves, "hop": unit}
        return chosen | {"cap": None, "axis": axis, "shades": [styles_message(EVENT_NAMES.values(), 2)] * 2}

    for forward in (2, 14):
        whole, *parts = in_node(STEPS, [pipeline(unit, forward) for unit in (1, 0.1, 1 / 3, 0.7)])
        assert len(set(whole)) == len(whole) and parts == [whole] * 3


def test_a_name_that_begins_with_a_gradient_is_spelled_as_it_is():
    rows = [(0, "compute", name, None, None, None, None, None, at, at + 1.0) for at, name in enumerate(NAMES)]
    found = words(event_table(rows))["bar"]
    assert [text.split("\n")[0] for text in found] == [*NAMES.values()]
    assert [words_of(name) for name in NAMES] == [*NAMES.values()]


NAMES = {"average_gradients": "average gradients", "input_grad": "input gradient", "all_grads": "all grads"}


def test_names_that_look_like_kinds_of_columns_are_names():
    rows = [(0, "compute", name, None, None, None, None, None, at, at + 1.0) for at, name in enumerate(["f4", "f8"])]
    assert [text.split("\n")[0] for text in words(event_table(rows))["bar"]] == ["f4", "f8"]


def test_a_difference_that_is_rounding_is_none():
    events = simulate(one_f_one_b(2, 2), forward=0.7)
    late = events.assign(start_s=events["start_s"] + 1000.1, end_s=events["end_s"] + 1000.1)
    bars = [text for text in words(late, ideal=events)["bar"] if "measured" in text.split("\n")[0]]
    assert {text.split("\n")[-1] for text in bars} == {"It began as predicted and took as long."}
    assert "later than predicted" in words(simulate(one_f_one_b(2, 2), hop=0.5), ideal=events)["bar"][-1]


def test_of_a_schedule_without_backward_passes_what_is_kept_is_not_said_to_wait_for_them():
    kept = words(simulate(forward_only(2, 4)), memory=True)["kept"]
    assert said_of(kept, "Rank 0 keeps the activations of 1 micro-batch")[1] == (
        "Kept for 0F0: the schedule has no backward pass that would free it."
    )
    assert "backward pass has not ended" in "".join(words(simulate(one_f_one_b(2, 4)), memory=True)["kept"])


def test_a_table_that_starts_late_is_shown_from_its_first_span_as_in_print():
    events = simulate(one_f_one_b(4, 8))
    late = Timeline(events.assign(start_s=events["start_s"] + 1000, end_s=events["end_s"] + 1000))
    (extent, first) = in_node(SCENE, {"sent": late.scene})
    assert extent == [0, 33] and first.startswith("Rank 0, 0 to 1:")
    assert late.scene["axis"]["label"] == late.static_form().draw().get_xlabel() == "time (units), from 1000 on"
    assert (
        Timeline(events.assign(start_s=events["start_s"] + 10, end_s=events["end_s"] + 10)).scene["axis"]
        == (Timeline(events).scene["axis"])
    )


SCENE = """
import { explain } from "BROWSER/explain.js";
import { readScene } from "BROWSER/scene.js";
const scene = readScene(given.sent);
return [scene.extent, explain(scene.panels[0], { kind: "bar", bar: 0 }, scene.axis).split("\\n")[1]];
"""
