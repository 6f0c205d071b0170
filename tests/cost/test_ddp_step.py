"""labkit.cost, the host's part: what a call costs is found again, holds backward up, and makes
small buckets dear; a step adds up from its parts."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.cost import ddp_step, ddp_timeline, fit_host_s, ring_all_reduce_s

# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calls, times_s, predicted_s, error, message",
    [
        ([], [], [], ValueError, "no measurement has a call in it"),
        ([0, 0], [1.0, 1.0], [1.0, 1.0], ValueError, "no measurement has a call in it"),
        ([1, 2], [1.0], [1.0, 1.0], ValueError, "2 numbers of calls, 1 times and 2 predictions"),
        ([1], [1.0], [], ValueError, "1 numbers of calls, 1 times and 0 predictions"),
        ([-1], [1.0], [1.0], ValueError, "calls[0] is -1, expected a number of calls, 0 or more"),
        ([1], [0.0], [1.0], ValueError, "times_s[0] is 0.0"),
        ([1], [math.nan], [1.0], ValueError, "times_s[0] is nan"),
        ([1], [1.0], [-1.0], ValueError, "predicted_s[0] is -1.0"),
        (["7"], [1.0], [1.0], TypeError, "calls[0] is '7'"),
    ],
)
def test_measurements_without_a_cost_of_a_call_are_refused(calls, times_s, predicted_s, error, message):
    with pytest.raises(error, match=re.escape(message)):
        fit_host_s(calls, times_s, predicted_s)


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"host_s": -1.0}, ValueError, "host_s is -1.0"),
        ({"host_s": math.inf}, ValueError, "host_s is inf"),
        ({"host_s": "1"}, TypeError, "host_s is '1'"),
        ({"forward_s": -1.0}, ValueError, "forward_s is -1.0"),
        ({"optimizer_s": math.nan}, ValueError, "optimizer_s is nan"),
        ({"ready_s": [1.0]}, ValueError, "ready_s has 1 times and sizes_bytes 2 sizes"),
        ({"buckets": [[0]]}, ValueError, "parameters [1] are in no bucket"),
        ({"ready_s": [], "sizes_bytes": [], "buckets": []}, ValueError, "ready_s is empty"),
    ],
)
def test_a_step_that_cannot_be_is_refused(changed, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ddp_step(**TWO_BUCKETS | changed)


# --- the cost of a call ---------------------------------------------------------------------------


@given(st.floats(0, 1e-2), st.lists(st.integers(1, 99), min_size=1, max_size=6), st.floats(1e-6, 1))
def test_a_fit_finds_the_cost_of_a_call_that_was_there(host_s, calls, link_s):
    predicted_s = [n * link_s for n in calls]
    times_s = [n * (link_s + host_s) for n in calls]
    assert fit_host_s(calls, times_s, predicted_s) == pytest.approx(host_s, rel=1e-6, abs=1e-12)


def test_the_fit_has_the_least_squared_error_of_all_lines_through_the_origin():
    calls, beyond_s = [1, 7, 52], [0.001, 0.0005, 0.02]
    fitted = fit_host_s(calls, [1 + extra for extra in beyond_s], [1.0] * 3)

    def error(host_s):
        return sum((extra - n * host_s) ** 2 for n, extra in zip(calls, beyond_s, strict=True))

    assert error(fitted) < min(error(0.99 * fitted), error(1.01 * fitted))


def test_a_call_never_costs_less_than_nothing():
    assert fit_host_s([1, 2], [1.0, 1.0], [2.0, 2.0]) == 0.0


# --- it holds backward up -------------------------------------------------------------------------


@st.composite
def gradients_in_buckets(draw):
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
    ready = [float(draw(st.integers(0, 20))) for _ in sizes]
    order = draw(st.permutations(range(len(sizes))))
    cuts = sorted({0, len(order), *draw(st.lists(st.integers(0, len(order)), max_size=4))})
    return ready, sizes, [order[a:b] for a, b in pairwise(cuts)]


def watched_on_the_thread(ready, buckets, host_s):
    """When each bucket goes out: a thread makes gradients, and calls as soon as it can."""
    delay_s, went_out, done, at = 0, [], set(), sorted(range(len(ready)), key=lambda i: ready[i])
    for i in at:
        done.add(i)
        if any(ready[other] == ready[i] and other not in done for other in at):
            continue  # all that is ready at once is ready before the call
        while len(went_out) < len(buckets) and set(buckets[len(went_out)]) <= done:
            delay_s += host_s
            went_out.append(ready[i] + delay_s)
    return went_out


@given(gradients_in_buckets(), st.integers(0, 5))
@settings(deadline=None)
def test_buckets_go_out_when_one_sees_them_leave_who_follows_the_thread(drawn, host_s):
    ready, sizes, buckets = drawn
    events = ddp_timeline(ready, sizes, buckets, 2, 0.0, math.inf, host_s=float(host_s))
    assert events["start_s"].tolist() == watched_on_the_thread(ready, buckets, host_s)


@given(gradients_in_buckets(), st.floats(0, 3), st.integers(1, 9))
@settings(deadline=None)
def test_calls_that_cost_nothing_change_nothing_and_one_rank_calls_nobody(drawn, host_s, world_size):
    ready, sizes, buckets = drawn
    plain = ddp_timeline(ready, sizes, buckets, world_size, 1.0, 2.0)
    assert ddp_timeline(ready, sizes, buckets, world_size, 1.0, 2.0, host_s=0.0).equals(plain)
    alone = ddp_timeline(ready, sizes, buckets, 1, 1.0, 2.0)
    assert ddp_timeline(ready, sizes, buckets, 1, 1.0, 2.0, host_s=host_s).equals(alone)


# --- how large should a bucket be? ----------------------------------------------------------------


def step_s(n_buckets, host_s):
    """Seconds of a step of 64 equal gradients, made evenly, in so many equal buckets."""
    ready_s = [float(i + 1) for i in range(64)]
    each = 64 // n_buckets
    buckets = [list(range(first, first + each)) for first in range(0, 64, each)]
    return ddp_step(10.0, ready_s, 1.0, [1] * 64, buckets, 2, 0.0, 2.0, host_s)["end_s"].max()


def test_without_a_cost_of_calls_smaller_buckets_are_never_worse_and_with_it_there_is_a_best_size():
    numbers = [1, 2, 4, 8, 16, 32, 64]
    free = [step_s(n, 0.0) for n in numbers]
    assert free == sorted(free, reverse=True)
    dear = [step_s(n, 0.5) for n in numbers]
    best = dear.index(min(dear))
    assert 0 < best < len(numbers) - 1 and dear[0] > dear[best] < dear[-1]


# --- a whole step ---------------------------------------------------------------------------------

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


def times_of(events):
    return {
        (row.name, None if row.bucket is None else row.bucket): (row.start_s, row.end_s)
        for row in events.astype(object).where(events.notna(), None).itertuples(index=False)
    }


def test_a_step_with_overlap_is_the_one_drawn_by_hand():
    assert times_of(ddp_step(**TWO_BUCKETS, host_s=0.25)) == {
        ("forward", None): (0.0, 1.0),
        ("backward", None): (1.0, 3.5),  # two seconds, and two calls
        ("hand over", 0): (2.0, 2.25),
        ("hand over", 1): (3.25, 3.5),
        ("all_reduce", 0): (2.25, 4.25),
        ("all_reduce", 1): (4.25, 5.25),
        ("wait", None): (3.5, 5.25),
        ("optimizer", None): (5.25, 5.75),
    }


def test_a_step_without_overlap_is_the_one_drawn_by_hand():
    assert times_of(ddp_step(**TWO_BUCKETS, host_s=0.25, overlap=False)) == {
        ("forward", None): (0.0, 1.0),
        ("backward", None): (1.0, 3.0),
        ("hand over", 0): (3.0, 3.25),
        ("all_reduce", 0): (3.25, 5.25),
        ("hand over", 1): (5.25, 5.5),
        ("all_reduce", 1): (5.5, 6.5),
        ("wait", None): (3.0, 6.5),
        ("optimizer", None): (6.5, 7.0),
    }


@given(gradients_in_buckets(), st.integers(1, 9), st.floats(0, 3), st.booleans())
@settings(deadline=None)
def test_a_step_takes_at_least_the_longer_of_backward_and_communication_and_at_most_all_of_it(
    drawn, world_size, host_s, overlap
):
    ready, sizes, buckets = drawn
    events = ddp_step(1.0, ready, 0.5, sizes, buckets, world_size, 0.5, 2.0, host_s, overlap)
    sent_s = sum(ring_all_reduce_s(sum(sizes[i] for i in bucket), world_size, 0.5, 2.0) for bucket in buckets)
    calls_s = len(buckets) * host_s if world_size > 1 else 0.0
    whole = 1.5 + max(ready) + calls_s + sent_s
    assert events["end_s"].max() <= whole + 1e-9
    if not overlap:
        assert events["end_s"].max() == pytest.approx(whole)
    assert events["end_s"].max() >= 1.5 + max(max(ready), sent_s) - 1e-9
    assert (events["step"] == 0).all() and (events["rank"] == 0).all()
