"""labkit.cost: a collective costs what its messages cost one by one; a fit finds what was there."""

import math

import numpy as np
import pandas as pd
import pytest

from labkit.cost import (
    Link,
    collective_s,
    fit_link,
    measure_rising,
    parameter_server_s,
    ring_all_reduce_s,
    ring_broadcast_s,
)

COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("gather", "scatter", "all_to_all", "barrier"),
)

LINK = Link(latency_s=0.003, bytes_per_s=7e4)


COMPUTED = [
    *(lambda n, ranks, *link, name=name: collective_s(name, n, ranks, Link(*link)) for name in COLLECTIVES),
    lambda n, ranks, *link: ring_broadcast_s(n, ranks, 1, *link),
    *(ring_all_reduce_s, parameter_server_s),
]


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"latency_s": -1e-6}, ValueError, "latency_s is -1e-06, expected .*: write 50 µs"),
        ({"bytes_per_s": 0}, ValueError, "bytes_per_s is 0, expected .*, or math.inf for no limit"),
        ({"n_bytes": -1}, ValueError, "n_bytes is -1, expected .*, such as tensor.nbytes"),
        ({"world_size": 0}, ValueError, "world_size is 0, expected .*, 1 or more"),
    ],
)
def test_links_bytes_and_worlds_that_cannot_be_are_refused(changed, error, message):
    given = {"n_bytes": 100, "world_size": 2, "latency_s": 0, "bytes_per_s": 1e9} | changed
    for compute in COMPUTED:
        with pytest.raises(error, match=message):
            compute(*given.values())


SMALL, TIMES = [1, 2, 3], [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "compute, error, message",
    [
        (lambda: Link(0, 1e9, name=10), TypeError, "name is 10, expected text"),
        (lambda: collective_s("allreduce", 1, 2, LINK), ValueError, "expected one of all_reduce, reduce_scatter"),
        (lambda: ring_broadcast_s(1, 2, 0, 0, 1e9), ValueError, "n_chunks is 0, expected a whole"),
        (lambda: fit_link([], []), ValueError, "0 points, expected at least 3: latency"),
        (lambda: fit_link([8, 8, 8], TIMES), ValueError, "all 3 points are of one size, 8 bytes"),
        (lambda: fit_link(SMALL, TIMES[:2]), ValueError, "3 sizes and 2 times, expected one time"),
        (lambda: fit_link(SMALL, [1, 0, 3]), ValueError, r"times_s\[1\] is 0, expected .*, more"),
        (lambda: fit_link([1, -2, 3], TIMES), ValueError, r"sizes_bytes\[1\] is -2, expected"),
        (lambda: fit_link(SMALL, TIMES[::-1]), ValueError, "the times do not grow with the size"),
        (lambda: fit_link(SMALL, [0.1] * 3), ValueError, "1 to 3 bytes .* make no difference"),
    ],
)
def test_what_tells_no_link_and_no_cost_is_refused(compute, error, message):
    with pytest.raises(error, match=message):
        compute()


Message = tuple[int, int, float]  # source, destination, bytes


def seconds_until_all_have_arrived(rounds: list[list[Message]], link: Link, latency_holds_port: bool = True) -> float:
    """Send message by message, and return the seconds until all have arrived.

    Each waits for its sender's port, its receiver's port, and what its sender received in earlier
    rounds. A port is held for the bytes, and for the latency too unless that is spent on the way.
    """
    out_free: dict[int, float] = {}
    in_free: dict[int, float] = {}
    arrived: dict[int, float] = {}
    for messages in rounds:
        known = dict(arrived)
        for source, destination, n_bytes in messages:
            on_the_way = 0 if latency_holds_port else link.latency_s
            held = n_bytes / link.bytes_per_s + (link.latency_s if latency_holds_port else 0)
            port_free = max(out_free.get(source, 0), in_free.get(destination, 0) - on_the_way)
            start = max(port_free, known.get(source, 0))
            out_free[source] = start + held
            in_free[destination] = arrived[destination] = start + on_the_way + held
    return max(arrived.values(), default=0.0)


def ring_rounds(n: int, n_rounds: int, n_bytes: float) -> list[list[Message]]:
    """Have each rank send its right neighbour what it received in the round before."""
    return [[(rank, (rank + 1) % n, n_bytes / n) for rank in range(n)] for _ in range(n_rounds)]


def rounds_of(name: str, n: int, n_bytes: float) -> list[list[Message]]:
    part = n_bytes / n
    return {
        "all_reduce": lambda: ring_rounds(n, 2 * (n - 1), n_bytes),
        "reduce_scatter": lambda: ring_rounds(n, n - 1, n_bytes),
        "all_gather": lambda: ring_rounds(n, n - 1, n_bytes),
        "gather": lambda: [[(rank, 0, part) for rank in range(1, n)]],
        "scatter": lambda: [[(0, rank, part) for rank in range(1, n)]],
        "all_to_all": lambda: [[(rank, (rank + k) % n, part) for rank in range(n)] for k in range(1, n)],
        "barrier": lambda: ring_rounds(n, 2 * (n - 1), 0),
    }[name]()


def chain_rounds(n: int, n_chunks: int, n_bytes: float) -> list[list[Message]]:
    """Chunk after chunk goes down the chain; a rank passes a chunk on once it has it."""
    return [[(rank, rank + 1, n_bytes / n_chunks)] for _ in range(n_chunks) for rank in range(n - 1)]


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name not in ("broadcast", "reduce")])
def test_a_collective_costs_what_its_messages_cost_sent_one_by_one(name, world_size):
    expected = seconds_until_all_have_arrived(rounds_of(name, world_size, 1e4), LINK)
    assert collective_s(name, 1e4, world_size, LINK) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_a_broadcast_costs_what_many_chunks_cost_one_behind_the_other(name, world_size):
    n_chunks = 2000
    expected = seconds_until_all_have_arrived(chain_rounds(world_size, n_chunks, 1e4), LINK, latency_holds_port=False)
    got = collective_s(name, 1e4, world_size, LINK)
    assert got <= expected * (1 + 1e-12)
    assert got == pytest.approx(expected, rel=world_size / n_chunks)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_parameter_server_costs_what_all_gradients_cost_through_its_port_and_back(world_size):
    n_bytes = 1e4
    there = [(rank, 0, n_bytes) for rank in range(1, world_size)]
    back = [(0, rank, n_bytes) for rank in range(1, world_size)]
    expected = seconds_until_all_have_arrived([there, back], LINK, latency_holds_port=False)
    got = parameter_server_s(n_bytes, world_size, LINK.latency_s, LINK.bytes_per_s)
    assert got == pytest.approx(expected, rel=1e-12)


def test_the_ring_of_eight_ranks_takes_5_185_ms_for_160_megabytes_and_its_latencies_add_up():
    assert ring_all_reduce_s(160e6, 8, 0, 54e9) * 1e3 == pytest.approx(5.185, abs=5e-4)
    assert ring_all_reduce_s(1e12, 5, 0.25, math.inf) == 2.0


SIZES = np.logspace(3, 8, 8)


def noisy_times(seed: int, noise: float, latency_s: float = 50e-6, bytes_per_s: float = 125e6) -> np.ndarray:
    """Times of SIZES as single messages, each off by its own part of itself."""
    return (latency_s + SIZES / bytes_per_s) * (1 + noise * np.random.default_rng(seed).standard_normal(len(SIZES)))


ETHERNET = Link(50e-6, 125e6)
FITTED = [  # what was timed, on how many ranks, and whether through rank 0
    (ETHERNET.message_s, None, False),
    *((lambda size, n=n: collective_s("all_reduce", size, n, ETHERNET), n, False) for n in (2, 4)),
    (lambda size: parameter_server_s(size, 4, 50e-6, 125e6), 4, True),
]


@pytest.mark.parametrize(("time_s", "world_size", "through_rank_0"), FITTED)
def test_a_fit_gives_the_link_between_two_ranks_and_predicts_what_it_was_fitted_to(time_s, world_size, through_rank_0):
    seconds = [time_s(size) for size in SIZES]
    fit = fit_link(SIZES, seconds, world_size, through_rank_0=through_rank_0)
    assert (fit.latency_s, fit.bytes_per_s) == pytest.approx((50e-6, 125e6), rel=1e-9)
    assert [fit.predict_s(size) for size in SIZES] == pytest.approx(seconds)
    assert str(fit.link) == "fitted (125 MB/s, 50 µs)"


@pytest.mark.parametrize("seed", range(2))
def test_the_fit_and_its_errors_are_those_of_numpys_weighted_polyfit(seed):
    times = noisy_times(seed, noise=0.05)
    (slope, intercept), covariance = np.polyfit(SIZES, times, 1, w=1 / times, cov=True)
    slope_error, intercept_error = np.sqrt(np.diag(covariance))
    fit = fit_link(SIZES, times)
    assert (fit.latency_s, fit.latency_error_s) == pytest.approx((intercept, intercept_error), rel=1e-6)
    assert fit.bytes_per_s == pytest.approx(1 / slope, rel=1e-6)
    assert fit.bytes_per_s_error / fit.bytes_per_s == pytest.approx(slope_error / slope, rel=1e-6)


def seconds_of(host_s: float, bytes_per_s: float, measured_sizes: list[list[int]]):
    """Measure all_reduces of two ranks, queued one after the other: the host or the link is the
    limit."""

    def measure(sizes):
        measured_sizes.append(list(sizes))
        return pd.DataFrame({size: [max(host_s, 4e-6 + size / bytes_per_s)] * 3 for size in sizes})

    return measure


TRIED = [2**10, 2**14, 2**16, 2**18, 2**20]


def test_where_the_host_is_the_limit_sizes_grow_until_they_tell_the_bandwidth():
    with pytest.raises(ValueError, match="the times do not grow with the size"):  # as measured at first
        fit_link(TRIED, seconds_of(30e-6, 200e9, [])(TRIED).median().tolist(), world_size=2)
    seconds = measure_rising(seconds_of(30e-6, 200e9, measured_sizes := []), TRIED)
    assert measured_sizes == [TRIED, [*TRIED, 2**22], [*TRIED, 2**22, 2**24]]
    fit = fit_link([*seconds], seconds.median().tolist(), world_size=2)
    assert 200e9 / 2.5 < fit.bytes_per_s < 2.5 * 200e9  # what the bytes add to the host's time alone, so too much
