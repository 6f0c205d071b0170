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
    assert "Rank 0, 10 s to 12 s: 2 s." in text
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
    assert panel.explain(1) == "all reduce, bucket 2, 25 MiB\nRank 1, lane comm, 0.5 s to 0.9 s: 0.4 s."
    assert panel.narrate(0.5) == "0.5 s: all reduce 2 on rank 0 and all reduce 2 on rank 1 begin."


def test_memory_is_drawn_under_each_rank_and_marked_where_it_is_over_the_cap():
    schedule = gpipe(2, 4)
    panel = events_panel(simulate(schedule), schedule, time=SECONDS, memory=True, cap=2)
    assert [label.text for label in panel.peaks] == ["4", "4"]
    over = panel.strips[panel.strips["over"] == 1]
    assert over["share"].min() == 0.75 and panel.strips[panel.strips["over"] == 0]["share"].max() == 0.5


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
