"""labkit.cost of a data-parallel step: buckets on one channel, what a call costs the host, and a
step, which adds up from its parts in each of three ways to agree."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.cost import Link, ddp_step, ddp_timeline, ring_all_reduce_s, way_terms
from labkit.trace import EVENT_COLUMNS

TWO_BUCKETS = {
    "forward_s": 1.0,
    "ready_s": [2.0, 1.0],
    "optimizer_s": 0.5,
    "sizes_bytes": [100, 200],
    "buckets": [[1], [0]],
    "world_size": 2,
    "latency_s": 0.0,
    "bytes_per_s": 100.0,
}


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"host_s": math.inf}, ValueError, "host_s is inf"),
        ({"world_size": 0}, ValueError, "world_size is 0"),
        ({"ready_s": [], "sizes_bytes": [], "buckets": []}, ValueError, "ready_s is empty"),
        ({"ready_s": [1.0]}, ValueError, "ready_s has 1 times and sizes_bytes 2 sizes"),
        ({"ready_s": [0.0, -1.0]}, ValueError, "ready_s[1] is -1.0, expected a finite number"),
        ({"sizes_bytes": [1, 2.5]}, ValueError, "sizes_bytes[1] is 2.5, expected a whole number"),
        ({"buckets": [[1], [0, 2]]}, ValueError, "bucket 1 is 2, expected an index of 2 parameters"),
        ({"buckets": [[1, 0], [1]]}, ValueError, "parameter 1 is in buckets 0 and 1, expected it once"),
        ({"buckets": [[1, 0, 1]]}, ValueError, "parameter 1 is twice in bucket 0, expected it once"),
        ({"buckets": [[0]]}, ValueError, "parameters [1] are in no bucket, expected each in one"),
        ({"buckets": [0, 1]}, TypeError, "bucket 0 is 0, expected a list of parameters"),
        ({"buckets": [[0, 1], []]}, ValueError, "bucket 1 is empty, expected at least one parameter"),
    ],
)
def test_a_step_of_times_or_buckets_that_cannot_be_is_refused(changed, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ddp_step(**TWO_BUCKETS | changed)


@st.composite
def gradients_in_buckets(draw):
    """Whole seconds and bytes, and every parameter in one of the buckets, in any order."""
    n = draw(st.integers(1, 10))
    ready = draw(st.lists(st.integers(0, 30), min_size=n, max_size=n))
    sizes = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    edges = [0, *cuts, n]
    return ready, sizes, [list(order[a:b]) for a, b in itertools.pairwise(edges)]


def watched_second_by_second(ready: list[int], sizes: list[int], buckets: list[list[int]]) -> list[tuple[int, int]]:
    """Return (start, end) of every bucket, found by looking at the channel once a second.

    Two ranks, 1 s of latency and 1 byte a second: an all_reduce lasts two latencies and a second
    for each byte.
    """
    times: list[tuple[int, int]] = []
    second, left, began = 0, 0, 0
    while len(times) < len(buckets):
        bucket = buckets[len(times)]
        if left == 0 and all(ready[i] <= second for i in bucket):
            began, left = second, 2 + sum(sizes[i] for i in bucket)
        second += 1
        if left:
            left -= 1
            if left == 0:
                times.append((began, second))
    return times


@given(gradients_in_buckets())
@settings(deadline=None, max_examples=40)
def test_the_timeline_is_what_one_sees_who_watches_the_channel_every_second(drawn):
    ready, sizes, buckets = drawn
    events = ddp_timeline(ready, sizes, buckets, world_size=2, latency_s=1.0, bytes_per_s=1.0)
    found = list(zip(events["start_s"], events["end_s"], strict=True))
    assert found == watched_second_by_second(ready, sizes, buckets)


def test_the_timeline_is_an_event_table_of_one_rank_and_one_lane():
    events = ddp_timeline([0.5, 0.25], [4_000_000, 1_000_000], [[1], [0]], 4, 50e-6, 125e6)
    assert tuple(events.columns) == EVENT_COLUMNS
    assert events[["rank", "lane", "name"]].drop_duplicates().values.tolist() == [[0, "comm", "all_reduce"]]
    assert events["bucket"].tolist() == [0, 1] and events["bytes"].tolist() == [1_000_000, 4_000_000]
    assert events["start_s"].tolist() == [0.25, 0.5]
    took_s = [ring_all_reduce_s(n_bytes, 4, 50e-6, 125e6) for n_bytes in events["bytes"]]
    assert (events["end_s"] - events["start_s"]).tolist() == pytest.approx(took_s)
    assert events[["step", "stage", "micro_batch"]].isna().all(axis=None)
    assert ddp_timeline([], [], [], 2, 50e-6, 125e6).equals(events[:0])
    sizes = np.array([2**30, 2**30, 2**30], dtype=np.int32)  # more together than they can hold
    assert ddp_timeline(np.zeros(3), sizes, [[0, 1, 2]], 2, 0.0, 1e9)["bytes"].tolist() == [3 * 2**30]
    held = ddp_timeline([1.0, 1.5, 4.0], [1, 1, 1], [[0], [1], [2]], 2, 0.0, math.inf, host_s=1.0)
    assert held["start_s"].tolist() == [2.0, 3.5, 7.0]  # each call holds back what comes after it
    alone = ddp_timeline([0.5, 0.25], [4, 1], [[1], [0]], 1, 1.0, 2.0, host_s=3.0)
    assert alone["end_s"].tolist() == alone["start_s"].tolist() == [0.25, 0.5]  # one rank calls nobody


def times_of(events):
    return {
        (row.name, None if row.bucket is None else row.bucket): (row.start_s, row.end_s)
        for row in events.astype(object).where(events.notna(), None).itertuples(index=False)
    }


DRAWN = {  # the same in both: forward from 0 to 1 s; two calls of 0.25 s
    True: {  # backward takes two seconds, and the calls
        ("backward", None): (1.0, 3.5),
        ("hand over", 0): (2.0, 2.25),
        ("hand over", 1): (3.25, 3.5),
        ("all_reduce", 0): (2.25, 4.25),
        ("all_reduce", 1): (4.25, 5.25),
        ("wait", None): (3.5, 5.25),
        ("optimizer", None): (5.25, 5.75),
    },
    False: {
        ("backward", None): (1.0, 3.0),
        ("hand over", 0): (3.0, 3.25),
        ("all_reduce", 0): (3.25, 5.25),
        ("hand over", 1): (5.25, 5.5),
        ("all_reduce", 1): (5.5, 6.5),
        ("wait", None): (3.0, 6.5),
        ("optimizer", None): (6.5, 7.0),
    },
}


@pytest.mark.parametrize("overlap", DRAWN)
def test_a_step_with_and_without_overlap_is_the_one_drawn_by_hand(overlap):
    found = times_of(ddp_step(**TWO_BUCKETS, host_s=0.25, overlap=overlap))
    assert found == {("forward", None): (0.0, 1.0)} | DRAWN[overlap]


SIZES, BUCKETS = [400, 200, 600, 800], [[3, 2], [1, 0]]
HOST = 0.005
COMPUTE = (1.0, 2.0, 0.5)
LINK = Link(latency_s=0.01, bytes_per_s=2000.0)


def terms(world_size=2, compute=COMPUTE, link=LINK, host=HOST):
    return way_terms(compute, SIZES, BUCKETS, world_size, link, host)


def test_through_rank_0_go_as_many_times_the_bytes_of_a_ring_as_there_are_ranks():
    for n in (2, 4, 16):
        found = terms(n).bytes
        assert found.gather_scatter == pytest.approx(n * found.all_reduce)
        assert found.all_reduce == found.ddp == pytest.approx(2 * (n - 1) / n * 2000 / 2000)


def test_only_ddp_hides_and_its_row_is_the_predicted_step():
    found = terms()
    assert found.hidden[:2].tolist() == [0, 0] and found.hidden.ddp < -0.1
    ready = [2.0, 1.6, 1.4, 0.8]  # evenly: after 800, 1400, 1600 and 2000 of 2000 bytes
    step = ddp_step(1.0, ready, 0.5, SIZES, BUCKETS, 2, LINK.latency_s, LINK.bytes_per_s, 0.005)
    assert found.iteration.ddp == pytest.approx(step.end_s.max())
    assert found.iteration.all_reduce == pytest.approx(3.5 + 0.08 + 1.0 + 0.02)
    assert found.host.tolist() == pytest.approx([8 * 0.005, 4 * 0.005, 2 * 0.005])
