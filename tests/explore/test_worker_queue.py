"""Worker threads' queues, as a Pipe that really ran filled and emptied them."""

import pytest
import torch
from to_do import task
from torch import nn

from labkit.explore.worker_queue import PLACES, record_queue
from labkit.parallel.pipe.placement import WithDevice
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
