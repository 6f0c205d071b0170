"""What if, in node: the page replays a run without some causes, to the numbers of explain_gap."""

import itertools
from random import Random

import numpy as np
import pandas as pd
import pytest
from page_in_node import NODE, in_node
from pipelines import at_stage, play, table_of

from labkit.draw.layout import time_axis
from labkit.explore.event_tables import EventTables
from labkit.explore.scene_message import scene_of
from labkit.schedule import Op, gpipe, interleaved, one_f_one_b, zero_bubble_h1
from labkit.simulate import explain_gap, makespan, simulate
from labkit.simulate.gap import CAUSES
from labkit.trace import event_table

pytestmark = pytest.mark.skipif(NODE is None, reason="no node on this machine")

LABELS = ["op time", "imbalance", "communication", "overhead", "waiting for cores"]  # as CAUSES
IN_TURN = [LABELS[k:] for k in range(len(LABELS) + 1)]  # all off, then one more on, in the order of explain_gap
WITHOUT = """
import { readScene } from "BROWSER/scene.js";
import { withoutCauses } from "BROWSER/what_if.js";
return given.map(({ sent, offs }) => {
  const scene = readScene(sent);
  const [{ what_if: whatIf }] = scene.panels;
  const replays = offs.map((off) => {
    const { panels: [panel], narration, extent } = withoutCauses(scene, new Set(off));
    const run = panel.analyses.at(-1);
    const spans = run ? Array.from(run.table.start_s, (start, i) => [run.nameOf(i), start, run.table.end_s[i]]) : [];
    return { makespan: run?.makespan, spans, narration, extent, title: panel.tables.at(-1).title };
  });
  return { switches: whatIf && whatIf.switches.map(({ label }) => label), note: whatIf && whatIf.note, replays };
});
"""


def replays(*cases):
    """What the page makes of (events, ideal, offs): its switches, note, and a replay for each."""
    given = []
    for events, ideal, offs in cases:
        tables = [EventTables.of(events, None, ideal)]
        given.append({"sent": scene_of(tables, time=time_axis(10.0), alt=""), "offs": offs})
    return in_node(WITHOUT, given)


def disturbed(schedule, random):
    """A run in which each stage is slow by a factor of its own, and each op late by chance."""
    factor = [random.uniform(1.0, 1.5) for _ in range(schedule.n_stages)]

    def some(max_s):
        return lambda op: random.choice([0.0, random.uniform(0.0, max_s)])

    def seconds(op):
        return at_stage(TIMES, op) * factor[op.stage] + some(0.5)(op)

    return table_of(schedule, play(schedule, seconds, some(0.5), some(0.3)), origin=5.0)


TIMES = {"forward": 1.0, "backward": 2.0, "input_grad": 1.0, "weight_grad": 1.0}
SCHEDULES = [gpipe(3, 4), one_f_one_b(4, 8), interleaved(2, 4, 2), zero_bubble_h1(4, 6)]


def test_switched_on_one_after_the_other_the_causes_cost_in_the_page_what_they_cost_in_explain_gap():
    random = Random(63)
    runs = [(simulate(each, hop=0.25), disturbed(each, random)) for each in SCHEDULES]
    for (ideal, measured), found in zip(
        runs, replays(*((measured, ideal, IN_TURN) for ideal, measured in runs)), strict=True
    ):
        assert found["switches"] == LABELS and found["note"] == ""
        spans = [each["makespan"] for each in found["replays"]]
        gap = explain_gap(ideal, measured)
        assert spans[0] == pytest.approx(makespan(ideal)) and spans[-1] == pytest.approx(makespan(measured))
        assert np.diff(spans) == pytest.approx(gap[list(CAUSES)].sum().to_numpy(), abs=1e-9)
        assert max(abs(np.diff(spans))) > 0.1  # the run has lost something
        assert [each["title"] for each in found["replays"]] == ["what if"] * 5 + ["measured"]


def test_with_any_causes_off_every_bar_is_where_a_run_without_them_has_it():
    """Each cause is put into a run by itself, so the run without some is played by hand."""
    schedule, late = one_f_one_b(4, 8), Op("F", 2, 3)

    def run(*on):
        factor = [2.0 if "op time" in on else 1.0] * 4
        factor[1] += 0.5 * ("imbalance" in on)
        return play(
            schedule,
            lambda op: at_stage(TIMES, op) * factor[op.stage] + 3.0 * (op == late and "waiting for cores" in on),
            lambda op: 0.25 * ("communication" in on),
            lambda op: 0.125 * ("overhead" in on),
        )

    offs = [list(each) for k in range(6) for each in itertools.combinations(LABELS, k)]
    measured, ideal = table_of(schedule, run(*LABELS)), table_of(schedule, run())
    (found,) = replays((measured, ideal, offs))
    for off, one in zip(offs, found["replays"], strict=True):
        expected = {str(op): times for op, times in run(*set(LABELS) - set(off)).items()}
        assert len(one["spans"]) == len(expected)
        for op, *times in one["spans"]:
            assert times == pytest.approx(expected[op], abs=1e-9), (off, op)
        assert one["extent"] == found["replays"][0]["extent"]  # so that one sees what is saved


def test_it_says_what_is_saved_and_when_nothing_is_left_to_save():
    schedule = one_f_one_b(2, 4)
    ideal = simulate(schedule, 1, 2)
    measured = table_of(schedule, play(schedule, lambda op: at_stage(TIMES, op), lambda op: 0.25))
    (found,) = replays((measured, ideal, [["communication"], ["overhead"], ["overhead", "op time"]]))
    sentences = [each["narration"] for each in found["replays"]]
    assert (
        sentences[0]
        == f"Without communication: makespan 15 s, {makespan(measured) - 15:g} s less than measured, as predicted."
    )
    assert sentences[1] == f"Without overhead: makespan {makespan(measured):g} s, as measured."
    assert sentences[2].startswith("Without op time and overhead: ")


def test_without_an_ideal_a_measured_run_has_the_switches_that_can_be_told_and_says_which_cannot():
    schedule = one_f_one_b(2, 4)
    times = play(schedule, lambda op: at_stage(TIMES, op), lambda op: 0.25, lambda op: 0.125)
    (found, simulated) = replays((table_of(schedule, times), None, [LABELS[2:]]), (simulate(schedule), None, []))
    assert found["switches"] == LABELS[2:]
    assert "Op time and imbalance show only against an ideal" in found["note"]
    assert found["replays"][0]["makespan"] == pytest.approx(makespan(simulate(schedule, 1, 2)))
    assert simulated["switches"] is None


def test_a_run_that_is_not_one_step_of_its_ideal_has_no_switches_and_says_why():
    ideal = simulate(one_f_one_b(2, 4), 1, 2)
    other = table_of(gpipe(2, 4), play(gpipe(2, 4), lambda op: at_stage(TIMES, op)))
    no_ops = event_table([(0, "compute", "backward", None, None, None, None, None, 0.0, 1.0)], measured=True)
    refused, silent = replays((other, ideal, [LABELS]), (no_ops, no_ops, []))
    assert refused["switches"] == [] and "measured has 0F" in refused["note"]
    assert refused["replays"][0]["title"] == "measured"
    assert silent["switches"] is None and silent["note"] is None


def test_spans_that_are_not_ops_are_left_out_of_a_replay():
    schedule = one_f_one_b(2, 2)
    ops = table_of(schedule, play(schedule, lambda op: at_stage(TIMES, op), lambda op: 0.5), origin=1.0)
    more = event_table([(0, "host", "optimizer", None, None, None, None, None, 0.0, 0.5)], measured=True)
    both = pd.concat([more, ops], ignore_index=True)
    ideal = simulate(schedule, 1, 2)
    (found,) = replays((both, ideal, [["communication"]]))
    (one,) = found["replays"]
    assert len(one["spans"]) == len(ops) and one["makespan"] == pytest.approx(makespan(ideal))
    assert min(start for _, start, _ in one["spans"]) == pytest.approx(1.0)
