"""A worker thread's queue, as a Pipe that really ran filled and emptied it."""

from __future__ import annotations

import pytest
import torch
from to_do import task
from torch import nn

from labkit.draw.panel import BAR_COLUMNS
from labkit.explore.worker_queue import PLACES, queue_panel, queue_table, queue_timeline, record_queue
from labkit.parallel.placement import WithDevice
from labkit.pipe import Pipe
from labkit.trace import event_table, record

pytestmark = task("pipe.1", "pipe.2", "pipe.3")


@pytest.fixture(scope="module")
def events():
    layers = [WithDevice(nn.Linear(8, 8), "cpu:0"), WithDevice(nn.Linear(8, 8), "cpu:1")]
    with Pipe(nn.Sequential(*layers), split_size=2) as pipe:
        return record_queue(pipe, torch.ones(6, 8))


def test_each_micro_batch_goes_once_through_each_stage_in_the_order_of_the_clocks(events):
    table = queue_table(events)
    pairs = list(zip(table["clock"], table["micro_batch"], table["stage"], strict=True))
    assert sorted(pairs) == [(i + j, i, j) for i, j in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]]
    assert table["clock"].is_monotonic_increasing
    assert (table[["queued, ms", "computing, ms", "result waits, ms"]] >= 0).all(axis=None)


def test_a_task_is_computed_after_it_was_queued_and_before_its_result_waits(events):
    panel = queue_panel(events)
    assert tuple(panel.bars.columns) == BAR_COLUMNS
    for i in range(0, len(panel.bars), 3):
        one = panel.bars.iloc[i : i + 3]
        assert one["name"].tolist() == list(PLACES)
        assert one["right"].tolist()[:2] == one["left"].tolist()[1:]
    forward = events[events["name"] == "forward"]
    assert len(forward) == len(panel.bars) / 3


def test_no_result_is_fetched_before_all_tasks_of_its_clock_are_done(events):
    bars = queue_panel(events).bars
    results = bars[bars["name"] == "result waits"].assign(clock=queue_table(events)["clock"].to_numpy())
    for _, clock in results.groupby("clock"):
        assert clock["right"].min() >= clock["left"].max()


def test_every_moment_and_every_bar_is_told(events):
    panel = queue_panel(events)
    said = [panel.narrate(x) for x in panel.moments]
    assert said[0].startswith("Task in: micro-batch 0 is put into the queue of stage 0, in clock 0.")
    assert said[-1].startswith("Result out: the caller fetches micro-batch 2 from stage 1.")
    assert panel.narrate(-1) == "Nothing has been put into a queue yet."
    assert all("Micro-batch" in panel.explain(i) for i in range(len(panel.bars)))
    assert len(panel.clocks) == 4
    assert list(panel.needs[:6]) == [-1, 0, 1, -1, 3, 4]


def test_a_recording_that_did_not_ask_has_no_queues_and_is_refused_by_name():
    layers = [WithDevice(nn.Linear(8, 8), "cpu:0"), WithDevice(nn.Linear(8, 8), "cpu:1")]
    with Pipe(nn.Sequential(*layers), split_size=2) as pipe, record() as recording:
        pipe(torch.ones(6, 8))
    assert set(recording.events["name"]) == {"forward"}
    for make in (queue_table, queue_panel):
        with pytest.raises(ValueError, match=r"^no task of a queue was recorded"):
            make(recording.events)
        with pytest.raises(ValueError, match=r"^no task of a queue was recorded"):
            make(event_table([]))


def test_a_recorded_queue_is_a_timeline_with_a_picture_and_a_table_in_print(events):
    timeline = queue_timeline(events)
    form = timeline.static_form()
    assert timeline.scene["alt"] == form.alt
    assert form.alt.startswith("The queues of 2 worker threads: 3 micro-batches, each put into a queue, computed")
    tasks = queue_table(events)
    for stage, waited_ms in form.table.iterrows():
        own = tasks[tasks["stage"] == stage]
        assert waited_ms.tolist() == pytest.approx([own[name].sum() for name in form.table])
    assert len(form.table) == 2
