"""Worker threads' queues, as a Pipe that really ran filled and emptied them."""

from __future__ import annotations

import pytest
import torch
from to_do import task
from torch import nn

from labkit.explore.worker_queue import PLACES, record_queue, waits_ms
from labkit.parallel.placement import WithDevice
from labkit.pipe import Pipe

pytestmark = task("pipe.1", "pipe.2", "pipe.3")
TASK = ["stage", "micro_batch"]


@pytest.fixture(scope="module")
def events():
    layers = [WithDevice(nn.Linear(8, 8), "cpu:0"), WithDevice(nn.Linear(8, 8), "cpu:1")]
    with Pipe(nn.Sequential(*layers), split_size=2) as pipe:
        return record_queue(pipe, torch.ones(6, 8))


def test_each_micro_batch_queues_is_computed_and_waits_once_in_each_stage(events):
    tasks = events.groupby(TASK)["name"].agg(list)
    assert [*tasks.index] == [(j, i) for j in range(2) for i in range(3)]
    assert all(names == list(PLACES) for names in tasks)
    assert (events["rank"] == events["stage"]).all()
    assert events["start_s"].min() == 0


def test_a_task_is_in_one_place_after_the_other(events):
    for _, task_events in events.groupby(TASK):
        _, forward, waits = task_events.itertuples()
        assert task_events["end_s"].iloc[0] <= forward.start_s <= forward.end_s <= waits.start_s <= waits.end_s


def test_no_result_is_fetched_before_all_tasks_of_its_clock_are_done(events):
    results = events[events["name"] == "result waits"]
    for _, clock in results.groupby(results["stage"] + results["micro_batch"]):
        assert clock["end_s"].min() >= clock["start_s"].max()


def test_waits_are_added_up_by_place(events):
    waits = waits_ms(events)
    assert [*waits] == [f"{place} of stage {j}" for place in ("in the queue", "as a result") for j in range(2)]
    queued = events[(events["name"] == "queued") & (events["stage"] == 1)]
    assert waits["in the queue of stage 1"] == pytest.approx(1000 * (queued["end_s"] - queued["start_s"]).sum())
