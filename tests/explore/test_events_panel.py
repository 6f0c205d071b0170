"""A panel of an event table: bars that know what they need, who waits, and why they are late."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from labkit.draw.layout import time_axis
from labkit.explore.events_panel import events_panel
from labkit.schedule import Op, find_dependencies, gpipe, interleaved, one_f_one_b, zero_bubble_h1
from labkit.simulate import critical_path, explain_idle, simulate
from labkit.trace import event_table

SECONDS = time_axis(10.0)


def panel_of(schedule, **times):
    events = simulate(schedule, **times)
    return events, events_panel(events, schedule, time=SECONDS)


def bar_of(panel, events, op):
    """The number of the bar that is ``op``: found by where it is drawn."""
    kinds = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
    op = Op.parse(op)
    row = events[(events.name == kinds[op.kind]) & (events.stage == op.stage) & (events.micro_batch == op.micro_batch)]
    start, rank = float(row.start_s.iloc[0]), int(row["rank"].iloc[0])
    tops = sorted(panel.bars["top"].unique())
    (bar,) = panel.bars.index[(panel.bars["left"] == start) & (panel.bars["top"] == tops[rank])]
    return int(bar)


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(4, 8), interleaved(2, 4, 2), zero_bubble_h1(3, 5)])
def test_each_bar_needs_the_one_whose_output_it_takes(schedule):
    events, panel = panel_of(schedule)
    dependencies = find_dependencies(schedule)
    number = {str(op): bar_of(panel, events, str(op)) for op in dependencies.ops}
    for op, needed in zip(dependencies.ops, dependencies.input_op, strict=True):
        expected = -1 if needed is None else number[str(dependencies.ops[needed])]
        assert panel.needs[number[str(op)]] == expected


def test_an_op_says_what_it_is_what_it_needs_who_waits_and_why_it_is_late():
    schedule = one_f_one_b(4, 8)
    events, panel = panel_of(schedule)
    text = panel.explain(bar_of(panel, events, "0B0"))
    assert text.splitlines()[0] == "0B0: backward pass of micro-batch 0, stage 0"
    assert "Rank 0, 10 s to 12 s: takes 2 s." in text
    assert "the gradient of 1B0 on rank 1, which ended at 10 s" in text
    assert "Nothing waits for it." in text
    assert "Rank 0 was idle for 6 s before it" in text
    assert str(explain_idle(schedule, events, rank=0, time=7.0)) in text


def test_an_op_that_is_not_late_says_so():
    schedule = one_f_one_b(2, 4)
    events, panel = panel_of(schedule)
    assert "It began as soon as rank 0 was free." in panel.explain(bar_of(panel, events, "0F1"))
    assert "1F0 on rank 1 waits for it." in panel.explain(bar_of(panel, events, "0F0"))
    assert "needs nothing but the batch" in panel.explain(bar_of(panel, events, "0F0"))


def test_an_idle_gap_says_what_its_rank_waits_for_and_what_runs_there_meanwhile():
    schedule = one_f_one_b(3, 4)
    events, panel = panel_of(schedule, hop=0.5)
    assert panel.explain_more["idle"](bar_of(panel, events, "0B0")) == (
        "Rank 0 is idle for 6 s, from 3 s to 9 s\nTo begin 0B0 it waits for the gradient of 1B0: "
        "2F0 on rank 2 until 4 s, then 2B0 on rank 2 until 6 s, then 1B0 on rank 1 until 8.5 s. Hops take 1 s of that."
    )
    after = len(panel.bars) + bar_of(panel, events, "2B3")
    assert panel.explain_more["idle"](after).endswith("2B3, ended at 17 s. The step ends at 22 s, with 0B3 on rank 0.")


@pytest.mark.parametrize("schedule", [gpipe(9, 2), one_f_one_b(4, 8), interleaved(2, 4, 2), zero_bubble_h1(3, 5)])
def test_gaps_are_where_a_rank_is_idle_and_it_waits_for_what_explain_idle_names(schedule):
    events, panel = panel_of(schedule, forward=1.3, hop=0.2)
    for rank, ops in enumerate(schedule.ops):
        free = 0.0
        for op in ops:
            bar = bar_of(panel, events, str(op))
            start, end = panel.bars.loc[bar, ["left", "right"]]
            text = panel.explain_more["idle"](bar)
            assert bool(text) == (start > free + 1e-6)
            if text:
                waits_for = explain_idle(schedule, events, rank, (free + start) / 2).waits_for
                assert f"To begin {op} it waits for" in text and f" {waits_for}" in text
            free = end


def test_the_critical_bars_are_those_of_critical_path():
    schedule = one_f_one_b(4, 8)
    events, panel = panel_of(schedule, forward=[1.0, 2.0, 1.0, 1.0])
    path = critical_path(schedule, events)
    expected = sorted(zip(path["start_s"], path["end_s"], strict=True))
    bars = panel.bars.iloc[panel.critical]
    assert sorted(zip(bars["left"], bars["right"], strict=True)) == expected


def test_a_time_is_narrated_with_what_begins_what_goes_on_and_who_is_idle():
    _, panel = panel_of(one_f_one_b(3, 4))
    assert panel.narrate(0.0) == (
        "0 s: 0F0 on rank 0 begins; rank 1 idle, waiting for 0F0; rank 2 idle, waiting for 1F0."
    )
    assert "2B0 on rank 2 goes on" in panel.narrate(4.0)
    assert "ranks 1 and 2 idle: done" in panel.narrate(17.0)


def test_clocks_are_as_long_as_the_shortest_kind_of_op():
    _, panel = panel_of(gpipe(2, 2), forward=1.5, backward=3.0)
    assert np.allclose(np.diff(panel.clocks), 1.5)
    assert panel.clocks[-1] == 13.5


def test_what_was_measured_says_how_far_it_is_from_the_prediction():
    schedule = gpipe(2, 2)
    ideal = simulate(schedule)
    measured = ideal.assign(start_s=100 + 1.1 * ideal.start_s, end_s=100 + 1.1 * ideal.end_s)
    panel = events_panel(measured, ideal=ideal, time=SECONDS)
    assert panel.bars["left"].min() == 0  # both begin at 0
    last = int(panel.bars["right"].argmax())
    assert "measured" in panel.explain(last).splitlines()[0]
    assert "It began 0.7 s later than predicted and took 0.2 s longer." in panel.explain(last)
    assert [mark.text for mark in panel.marks] == ["predicted ends", "measured ends"]


def test_a_table_that_is_no_pipeline_is_shown_with_what_it_says_of_itself():
    rows = [(rank, "comm", "all_reduce", None, None, None, 2, 26214400, 0.5, 0.9) for rank in range(2)]
    panel = events_panel(event_table(rows), time=SECONDS)
    assert panel.needs.tolist() == [-1, -1] and not len(panel.critical)
    assert panel.explain(1) == "all reduce, bucket 2, 25 MiB\nRank 1, lane comm, 0.5 s to 0.9 s: takes 0.4 s."
    assert panel.narrate(0.5) == "0.5 s: all reduce 2 on rank 0 and all reduce 2 on rank 1 begin."


def test_a_gap_in_a_table_that_is_no_pipeline_says_what_runs_meanwhile_or_that_it_does_not_know():
    spans = [("compute", "backward", 0.0, 1.0), ("compute", "optimizer", 1.5, 2.0), ("comm", "all_reduce", 0.5, 1.4)]
    rows = [(rank, lane, name, 0, None, None, None, None, *times) for rank in (0, 1) for lane, name, *times in spans]
    panel = events_panel(event_table(rows[:-1]), time=SECONDS)  # rank 1 has recorded no all_reduce
    found = [panel.explain_more["idle"](bar) for bar in panel.bars.index[panel.bars["name"] == "optimizer"]]
    assert found == [
        "Rank 0, lane compute, is idle for 0.5 s, from 1 s to 1.5 s\nMeanwhile it has all reduce in lane comm.",
        "Rank 1, lane compute, is idle for 0.5 s, from 1 s to 1.5 s\n"
        "The table does not say why: nothing else is recorded there meanwhile.",
    ]


def test_memory_is_drawn_under_each_rank_and_marked_where_it_is_over_the_cap():
    schedule = gpipe(2, 4)
    panel = events_panel(simulate(schedule), schedule, time=SECONDS, memory=True, cap=2)
    assert [label.text for label in panel.peaks] == ["4", "4"]
    over = panel.strips[panel.strips["over"] == 1]
    assert over["share"].min() == 0.75 and panel.strips[panel.strips["over"] == 0]["share"].max() == 0.5
    said = [panel.explain_more["kept"](piece) for piece in range(len(panel.strips))]
    assert said[1] == (
        "Rank 0 keeps the activations of 2 micro-batches for 1 s, from 1 s to 2 s\n"
        "Kept for 0F0 and 0F1: their backward passes have not ended."
    )
    assert [("The cap is 2." in text) for text in said] == panel.strips["over"].astype(bool).tolist()
    assert sum("most that it keeps" in text for text in said) == 2


def test_an_op_has_one_number_in_all_panels_and_both_halves_of_its_backward_pass_have_that_of_the_whole():
    one, other = (panel_of(schedule)[1].bars for schedule in (one_f_one_b(3, 4), zero_bubble_h1(3, 4)))
    assert sorted(other["same"].unique()) == sorted(one["same"]) and (one["same"] >= 0).all()
    assert sorted(other["same"].value_counts().unique()) == [1, 2]
    both = pd.concat([one, other]).groupby("same")
    assert (both["top"].nunique() == 1).all() and (both["label"].nunique() == 1).all()


# --- bad input ------------------------------------------------------------------------------------


def test_a_table_of_another_schedule_is_refused_by_name():
    with pytest.raises(ValueError, match="events has 0B0 before 0F3 on rank 0, and the schedule has 0F3 first"):
        events_panel(simulate(one_f_one_b(2, 4)), gpipe(2, 4), time=SECONDS)


def test_a_table_that_lacks_a_rank_is_refused_where_a_schedule_is_given_and_drawn_where_none_is():
    events = simulate(one_f_one_b(3, 4))
    without = events[events["rank"] != 1]
    with pytest.raises(ValueError, match="lacks 1F0"):
        events_panel(without, one_f_one_b(3, 4), time=SECONDS)
    panel = events_panel(without, time=SECONDS)
    assert [label.text for label in panel.rows] == ["rank 0", "rank 2"]
    assert (panel.needs == -1).all()


@pytest.mark.parametrize("broken", ["no rows", "nan"])
def test_a_table_without_rows_or_times_is_refused(broken):
    events = simulate(gpipe(2, 2))
    events = events[:0] if broken == "no rows" else events.assign(end_s=np.nan)
    with pytest.raises(ValueError, match=r"is empty|from 0 to nan"):
        events_panel(pd.DataFrame(events), time=SECONDS)
