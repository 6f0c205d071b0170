"""The Reducer as the explorer tells it: ddp_timeline's times, closed forms, and steps in order."""

from unittest import mock

import pytest
from to_do import task

from labkit.base.units import MIB
from labkit.cost import Link, ddp_timeline, ring_all_reduce_s
from labkit.explore.buckets import reducer
from labkit.explore.buckets.gradients import Gradients, predicted_gradients
from labkit.explore.buckets.reducer import make_buckets, predict
from labkit.todo import TodoError

LINK = Link(50e-6, 12.5e9)


def three_layers(ready_s=(3.0, 2.0, 1.0), sizes=(4 * MIB, 2 * MIB, 1 * MIB)) -> Gradients:
    return Gradients("three", ["a", "b", "c"], list(sizes), list(ready_s), "by hand")


@pytest.mark.parametrize("buckets", [[[2, 1, 0]], [[2], [1], [0]], [[2, 1], [0]], [[0], [2, 1]]])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_reduces_run_when_ddp_timeline_says(buckets, world_size):
    found, link = predict(three_layers(), buckets, world_size, Link(0.1, MIB)), Link(0.1, MIB)
    oracle = ddp_timeline(
        [3.0, 2.0, 1.0], [4 * MIB, 2 * MIB, MIB], buckets, world_size, link.latency_s, link.bytes_per_s
    )
    assert found.all_reduces == list(zip(oracle["start_s"], oracle["end_s"], strict=True))
    assert found.bucket_bytes == oracle["bytes"].tolist()


def test_with_one_bucket_all_communication_is_exposed():
    found = predict(three_layers(), [[2, 1, 0]], 8, LINK)
    whole_s = ring_all_reduce_s(7 * MIB, 8, LINK.latency_s, LINK.bytes_per_s)
    assert [found.exposed_s, found.communication_s, found.end_s - 3] == pytest.approx([whole_s] * 3)
    assert found.hidden_share == pytest.approx(0)


def test_of_a_bucket_it_is_said_what_happens_when_it_is_full_and_when_it_is_done():
    found = predict(three_layers(), [[2, 1], [0]], 2, Link(0.5, 2 * MIB))  # 2.5 s and 3 s on the link
    assert found.filled(0) == "Bucket 0 is full with 3.00 MiB: all_reduce 0 starts."
    assert found.filled(1).endswith("it waits, as the link is busy with bucket 0.")
    assert found.done(1).endswith("It is the last one: 4500 ms of communication were exposed after backward.")


def test_a_bucket_that_is_full_too_early_waits_for_its_turn():
    found = predict(three_layers(ready_s=(1.0, 2.0, 3.0)), [[2, 1], [0]], 2, LINK)
    assert found.filled(1) == (
        "Bucket 1 is full with 4.00 MiB: it waits for bucket 0, as every rank sends in the same order."
    )


def test_while_dp_6_is_to_be_written_there_is_one_bucket_and_a_note():
    with mock.patch("labkit.dp.assign_buckets", side_effect=TodoError("dp.6", "labkit/dp.py, line 9")):
        found = make_buckets([4, 4, 4])
    assert found == ([[2, 1, 0]], "TODO dp.6: labkit/dp.py, line 9: until then all gradients are in one bucket")


@task("dp.6")
def test_the_best_capacity_is_that_of_the_shortest_pass():
    gradients = predicted_gradients("gpt2")
    plans = {cap: make_buckets(gradients.sizes_bytes, cap_mb=cap)[0] for cap in (0.1, 1, 5, 25, 100, 500)}
    on_8, on_1 = ({cap: predict(gradients, plan, n, LINK) for cap, plan in plans.items()} for n in (8, 1))
    assert reducer.best_cap(on_8) == min(on_8, key=lambda cap: on_8[cap].end_s)
    assert reducer.best_cap(on_1) == 500  # all equal: the fewest messages
