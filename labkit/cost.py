"""What communication should cost: links, collectives, DDP's buckets on one channel, and the link behind measured times.

Everything stands on one model of a link, the α–β model: a message takes a fixed time α, its latency, and then its bytes
at the bandwidth β. N is the world size and B the bytes of the whole tensor:

    message      α + B / β
    all_reduce   2 (N − 1) α + 2 (N − 1) / N · B / β          around a ring

Papers often write β for the inverse, the seconds a byte takes; here it is bytes per second, as on a data sheet.
Nothing is measured or sent here, and no torch is loaded: a rank, a notebook and a test compute the same numbers.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.trace import event_table

if TYPE_CHECKING:  # a rank that asks what a message costs makes no tables, so it need not wait for this import
    import pandas as pd

_SECONDS = "a finite number of seconds, 0 or more: write 50 µs as 50e-6"
_BANDWIDTH = "bytes per second, more than 0, or math.inf for no limit: write 1 Gb/s as 1e9 / 8"
_BYTES = "a finite number of bytes, 0 or more, such as tensor.nbytes"
_WHOLE_BYTES = "a whole number of bytes, 0 or more, such as tensor.nbytes"
_WORLD_SIZE = "a whole number of ranks, 1 or more, such as dist.get_world_size()"
_CHUNKS = "a whole number of chunks, 1 or more"
_TIME = "a finite number of seconds, more than 0: leave out what was not measured"


def check_number(name: str, value: object, holds: Callable[..., bool], expected: str) -> None:
    """TypeError unless ``value`` is a real number (a bool is not), ValueError unless ``holds(value)``."""
    message = f"{name} is {value!r}, expected {expected}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not holds(value):
        raise ValueError(message)


def _not_negative(value: float) -> bool:
    return 0 <= value < math.inf  # false for NaN, as every comparison with it


def _whole_and_not_negative(value: float) -> bool:
    return _not_negative(value) and value == int(value)


def _at_least_one(value: float) -> bool:
    return value >= 1 and isinstance(value, numbers.Integral)


# --- links -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A link as the α–β model has it: ``latency_s`` seconds a message, then ``bytes_per_s`` in each direction at once.

    ``bytes_per_s`` may be math.inf: no limit. ``name`` is what it is called where it is shown.

    Raises TypeError for what is no number, ValueError for a negative or infinite latency, a bandwidth that is not
    positive, and NaN. Hockney 1994, "The communication challenge for MPP", Parallel Computing 20 (3).
    """

    latency_s: float
    bytes_per_s: float
    name: str = ""

    def __post_init__(self) -> None:
        check_number("latency_s", self.latency_s, _not_negative, _SECONDS)
        check_number("bytes_per_s", self.bytes_per_s, lambda value: value > 0, _BANDWIDTH)
        if not isinstance(self.name, str):
            raise TypeError(f'name is {self.name!r}, expected text, such as "ETHERNET_1G", or nothing')

    def message_s(self, n_bytes: float) -> float:
        """Seconds until a message of ``n_bytes`` has arrived: latency + bytes / bandwidth."""
        check_number("n_bytes", n_bytes, _not_negative, _BYTES)
        return self.latency_s + n_bytes / self.bytes_per_s

    @property
    def is_free(self) -> bool:
        """Whether every message takes no time at all: nothing is left to emulate."""
        return self.latency_s == 0 and self.bytes_per_s == math.inf

    def __str__(self) -> str:
        bandwidth = "no limit" if self.bytes_per_s == math.inf else _scaled(self.bytes_per_s, _BYTE_RATES)
        facts = f"{bandwidth}, {_scaled(self.latency_s, _DURATIONS)}"
        return f"{self.name} ({facts})" if self.name else facts


_BYTE_RATES = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))
_DURATIONS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    """``value`` in the largest unit that it reaches, or else in the smallest: 0.00005 s is 50 µs."""
    unit, size = next(((unit, size) for unit, size in units if value >= size), units[-1])
    return f"{value / size:.4g} {unit}"


# Bandwidths are line rates, one direction. TCP in frames of 1500 bytes leaves 1460 of 1538, 95 %, to the data.
# Latencies are one way and typical; they vary more between machines than bandwidths do.

# Aspen Systems' glossary ("low latency") reports 40 to 300 µs for Gigabit Ethernet.
ETHERNET_1G = Link(latency_s=50e-6, bytes_per_s=1e9 / 8, name="ETHERNET_1G")
# Application to application over TCP: 20 µs in Hurwitz & Feng 2003, Hot Interconnects 11; 10 µs at best in Larsen et
# al. 2009, "Architectural breakdown of end-to-end latency in a TCP/IP network".
ETHERNET_10G = Link(latency_s=20e-6, bytes_per_s=10e9 / 8, name="ETHERNET_10G")
# One step of a ring, as NCCL's cost model has it (src/graph/tuning.cc, hwLat, its low-latency protocol): 2.7 µs over a
# network, 0.6 µs over NVLink. Its protocols for large messages take up to 14 and 3.4 µs a step.
INFINIBAND_HDR = Link(latency_s=2.7e-6, bytes_per_s=200e9 / 8, name="INFINIBAND_HDR")
# 18 links of 25 GB/s a direction: the 900 GB/s that Nvidia states for an H100 or H200 count both directions.
NVLINK4 = Link(latency_s=0.6e-6, bytes_per_s=450e9, name="NVLINK4")


# --- collectives -----------------------------------------------------------------------------------------------------

# For N ranks: how many latencies follow one another, and how often the whole tensor's bytes pass the busiest port.
_COLLECTIVES: dict[str, Callable[[int], tuple[int, float]]] = {
    "all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),
    "all_gather": lambda n: (n - 1, (n - 1) / n),
    "broadcast": lambda n: (n - 1, 1),
    "reduce": lambda n: (n - 1, 1),
    "gather": lambda n: (n - 1, (n - 1) / n),
    "scatter": lambda n: (n - 1, (n - 1) / n),
    "all_to_all": lambda n: (n - 1, (n - 1) / n),
    "barrier": lambda n: (2 * (n - 1), 0),
}


def collective_s(name: str, n_bytes: float, world_size: int, link: Link) -> float:
    """Seconds that a collective takes when every rank sends and receives over its own ``link``, both at once.

    ``n_bytes`` is B, the whole tensor's bytes: where each rank holds a part of b bytes, B = N · b.

    ==============  ================================  ==========================================================
    all_reduce      2 (N−1) α + 2 (N−1)/N · B/β       around a ring: a reduce_scatter, then an all_gather
    reduce_scatter  (N−1) α + (N−1)/N · B/β           around a ring, a part a step
    all_gather      (N−1) α + (N−1)/N · B/β           around a ring, a part a step
    broadcast       (N−1) α + B/β                     along a chain, in many chunks sent one behind the other
    reduce          (N−1) α + B/β                     along a chain towards the root, likewise
    gather          (N−1) (α + b/β)                   N−1 parts through the root's port
    scatter         (N−1) (α + b/β)                   N−1 parts through the root's port
    all_to_all      (N−1) α + (N−1)/N · B/β           B is what one rank holds for all; its own part stays
    barrier         2 (N−1) α                         an all_reduce of nothing; ``n_bytes`` does not count
    ==============  ================================  ==========================================================

    A world of one rank sends nothing: 0. Adding the numbers up is taken to cost nothing.

    Raises ValueError for an unknown name, negative bytes and a world size below 1, TypeError for what is no number or
    no Link. The model and the rings: Thakur, Rabenseifner & Gropp 2005, "Optimization of Collective Communication
    Operations in MPICH". The ring's all_reduce: Patarasu & Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations". The first five factors before B/β are those of nccl-tests too (PERFORMANCE.md).
    """
    if name not in _COLLECTIVES:
        raise ValueError(f"collective is {name!r}, expected one of {', '.join(_COLLECTIVES)}")
    if not isinstance(link, Link):
        raise TypeError(f"link is {link!r}, expected a Link, such as ETHERNET_1G or Link(50e-6, 125e6)")
    check_number("n_bytes", n_bytes, _not_negative, _BYTES)
    check_number("world_size", world_size, _at_least_one, _WORLD_SIZE)
    if world_size == 1:
        return 0.0
    latencies, passes = _COLLECTIVES[name](world_size)
    return latencies * link.latency_s + passes * n_bytes / link.bytes_per_s


def ring_all_reduce_s(n_bytes: float, world_size: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds that a ring takes to all_reduce ``n_bytes``: 2 (N−1) · latency + 2 (N−1)/N · bytes / bandwidth.

    Each rank sends N−1 parts of bytes / N while they are added up, and N−1 while the sums go round. 0 for one rank.
    Errors and sources are those of :func:`collective_s` and :class:`Link`.
    """
    return collective_s("all_reduce", n_bytes, world_size, Link(latency_s, bytes_per_s))


def parameter_server_s(n_bytes: float, world_size: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds to average ``n_bytes`` of gradients at one of the ranks: 2 (N−1) (latency + bytes / bandwidth).

    All gradients come in through that rank's port, one after the other, and the mean goes out to each of the others
    likewise. That is a gather of N whole tensors and a scatter of N. Errors are those of :func:`collective_s`.
    """
    link = Link(latency_s, bytes_per_s)
    check_number("n_bytes", n_bytes, _not_negative, _BYTES)
    check_number("world_size", world_size, _at_least_one, _WORLD_SIZE)
    return 2 * (world_size - 1) * link.message_s(n_bytes)


def ring_broadcast_s(n_bytes: float, world_size: int, n_chunks: int, latency_s: float, bytes_per_s: float) -> float:
    """Seconds to broadcast ``n_bytes`` from rank to rank in equal chunks: (N − 2 + chunks) (latency + chunk / bandwidth).

    The first chunk takes N−1 hops, and each chunk behind it arrives one message later. More chunks keep more ranks busy
    but each pays a latency, so there is a best number: √((N−2) · bytes / (latency · bandwidth)). In :func:`collective_s`
    the chunks are as many as one likes, because only the first pays.

    Raises ValueError also for fewer chunks than 1. The rest is as in :func:`collective_s`.
    """
    link = Link(latency_s, bytes_per_s)
    check_number("n_bytes", n_bytes, _not_negative, _BYTES)
    check_number("world_size", world_size, _at_least_one, _WORLD_SIZE)
    check_number("n_chunks", n_chunks, _at_least_one, _CHUNKS)
    if world_size == 1:
        return 0.0
    return (world_size - 2 + n_chunks) * link.message_s(n_bytes / n_chunks)


# --- DDP: buckets on one channel -------------------------------------------------------------------------------------


def ddp_timeline(
    ready_s: Sequence[float],
    sizes_bytes: Sequence[float],
    buckets: Sequence[Sequence[int]],
    world_size: int,
    latency_s: float,
    bytes_per_s: float,
) -> pd.DataFrame:
    """When each bucket's all_reduce should run: an event table with one row per bucket, in bucket order, of rank 0.

    ``ready_s[i]`` is when parameter i's gradient is ready and ``sizes_bytes[i]`` how large it is; ``buckets`` are lists
    of such indices, each parameter in exactly one. There is one communication channel and buckets go out in bucket
    order: bucket k starts once all its gradients are ready and bucket k−1 is done, and takes :func:`ring_all_reduce_s`.

    Raises ValueError for lists of different lengths, negative or NaN times and sizes, an empty bucket, and a parameter
    that is not there, in two buckets, or in none; TypeError for what is no number. After Li et al. 2020, "PyTorch
    Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13 (12).
    """
    ready, sizes, link = list(ready_s), list(sizes_bytes), Link(latency_s, bytes_per_s)
    check_number("world_size", world_size, _at_least_one, _WORLD_SIZE)
    _check_gradients(ready, sizes)
    _check_buckets(buckets, len(sizes))
    rows = []
    channel_free_s = 0.0
    for k, bucket in enumerate(buckets):
        n_bytes = sum(int(sizes[i]) for i in bucket)
        start_s = max(channel_free_s, *(ready[i] for i in bucket))
        channel_free_s = start_s + collective_s("all_reduce", n_bytes, world_size, link)
        rows.append((0, "comm", "all_reduce", None, None, None, k, n_bytes, start_s, channel_free_s))
    return event_table(rows)


def _check_gradients(ready_s: Sequence[float], sizes_bytes: Sequence[float]) -> None:
    if len(ready_s) != len(sizes_bytes):
        raise ValueError(
            f"ready_s has {len(ready_s)} times and sizes_bytes {len(sizes_bytes)} sizes, expected one of each for every "
            "parameter, by its index"
        )
    for i, (ready, size) in enumerate(zip(ready_s, sizes_bytes, strict=True)):
        check_number(f"ready_s[{i}]", ready, _not_negative, _SECONDS)
        check_number(f"sizes_bytes[{i}]", size, _whole_and_not_negative, _WHOLE_BYTES)


def _check_buckets(buckets: Sequence[Sequence[int]], n_parameters: int) -> None:
    """Every parameter must be in exactly one bucket, as ``assign_buckets`` gives them."""

    def is_index(i: float) -> bool:
        return isinstance(i, numbers.Integral) and 0 <= i < n_parameters

    expected = f"an index of {n_parameters} parameters, from 0 on"
    bucket_of: dict[int, int] = {}
    for k, bucket in enumerate(buckets):
        if not hasattr(bucket, "__len__"):
            raise TypeError(
                f"bucket {k} is {bucket!r}, expected a list of parameters, as assign_buckets gives it: [[2, 1], [0]]"
            )
        if len(bucket) == 0:
            raise ValueError(f"bucket {k} is empty, expected at least one parameter in it: leave it out")
        for i in bucket:
            check_number(f"a parameter of bucket {k}", i, is_index, expected)
            if i in bucket_of:
                where = f"in buckets {bucket_of[i]} and {k}" if bucket_of[i] != k else f"twice in bucket {k}"
                raise ValueError(f"parameter {i} is {where}, expected it once: its gradient is sent once")
            bucket_of[i] = k
    missing = [i for i in range(n_parameters) if i not in bucket_of]
    if missing:
        raise ValueError(
            f"parameters {missing} are in no bucket, expected each in one: ranks would never agree on them"
        )


# --- the link behind measured times ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LinkFit:
    """The link that measured times speak of, and how sure they are: one standard error of each of its two numbers.

    ``world_size`` is None where the times were of single messages, else that of the ring all_reduces. It prints as
    measurements do (see :mod:`labkit.show`).
    """

    latency_s: float
    bytes_per_s: float
    latency_error_s: float
    bytes_per_s_error: float
    world_size: int | None = None

    @property
    def link(self) -> Link:
        return Link(self.latency_s, self.bytes_per_s, "fitted")

    def predict_s(self, n_bytes: float) -> float:
        """Seconds for ``n_bytes``, of what the fit was made to: one message, or an all_reduce of ``world_size`` ranks."""
        if self.world_size is None:
            return self.link.message_s(n_bytes)
        return collective_s("all_reduce", n_bytes, self.world_size, self.link)

    def __str__(self) -> str:
        from labkit.show import measured  # here, because it loads pandas

        latency = f"{measured(self.latency_s * 1e6, 'µs')} ± {measured(self.latency_error_s * 1e6, 'µs')}"
        bandwidth = f"{measured(self.bytes_per_s / 1e6, 'MB/s')} ± {measured(self.bytes_per_s_error / 1e6, 'MB/s')}"
        return f"latency {latency}, bandwidth {bandwidth}"

    __repr__ = __str__


def fit_link(sizes_bytes: Sequence[float], times_s: Sequence[float], world_size: int | None = None) -> LinkFit:
    """The link under measured times: least squares for latency + bytes / bandwidth, with one standard error of each.

    ``times_s[i]`` is how long ``sizes_bytes[i]`` took: as one message, or with a ``world_size`` as a ring all_reduce
    among so many ranks; the latency and bandwidth are those of one link either way. Times of small and large messages
    are decades apart and err by a part of themselves, so what is made small is the sum of squared *relative* errors.
    The standard errors come from the scatter of the points about the line. A latency is never below 0: where the best
    line has a negative one, the fit is the best line with latency 0, and keeps the errors of the line without that bound.

    Raises ValueError for fewer than three points, points of one size, lists of different lengths, sizes that are
    negative, times that are not positive, a world of one rank, and times that do not grow with the size; TypeError for
    what is no number.
    """
    _check_points(sizes_bytes, times_s)
    latencies, passes = 1, 1.0
    if world_size is not None:
        expected = "a whole number of ranks, 2 or more (one rank sends nothing), or None for single messages"
        check_number("world_size", world_size, lambda n: _at_least_one(n) and n > 1, expected)
        latencies, passes = _COLLECTIVES["all_reduce"](world_size)
    moved = passes * np.asarray(sizes_bytes, dtype=float)
    (intercept, slope), (intercept_error, slope_error) = _relative_line(moved, np.asarray(times_s, dtype=float))
    return LinkFit(
        latency_s=intercept / latencies,
        bytes_per_s=1 / slope,
        latency_error_s=intercept_error / latencies,
        bytes_per_s_error=slope_error / slope**2,  # the slope is 1 / bandwidth
        world_size=world_size,
    )


def _check_points(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> None:
    if len(sizes_bytes) != len(times_s):
        raise ValueError(f"{len(sizes_bytes)} sizes and {len(times_s)} times, expected one time for each size")
    for i, (size, time) in enumerate(zip(sizes_bytes, times_s, strict=True)):
        check_number(f"sizes_bytes[{i}]", size, _not_negative, _BYTES)
        check_number(f"times_s[{i}]", time, lambda value: 0 < value < math.inf, _TIME)
    if len(sizes_bytes) < 3:
        raise ValueError(
            f"{len(sizes_bytes)} points, expected at least 3: latency and bandwidth are two unknowns, and it takes a "
            "third point to tell how uncertain they are; measure more sizes"
        )
    if len(set(sizes_bytes)) == 1:
        raise ValueError(
            f"all {len(sizes_bytes)} points are of one size, {min(sizes_bytes)} bytes, expected at least two sizes: latency "
            "and bandwidth are two unknowns, and one size cannot tell them apart; measure smaller and larger messages"
        )


def _relative_line(x: np.ndarray, t: np.ndarray) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intercept ≥ 0 and slope > 0 of the line through (x, t) with the least squared relative errors; their errors."""
    weight = t**-2.0
    x_mean, t_mean = np.average(x, weights=weight), np.average(t, weights=weight)
    spread = np.sum(weight * (x - x_mean) ** 2)
    slope = np.sum(weight * (x - x_mean) * (t - t_mean)) / spread
    intercept = t_mean - slope * x_mean
    if slope * np.ptp(x) <= 1e-9 * t.max():  # what is less is rounding
        raise ValueError(
            f"the times do not grow with the size, so they tell no bandwidth: {x.min():g} to {x.max():g} bytes over the "
            "link make no difference, expected times that rise; measure larger messages"
        )
    variance = np.sum(weight * (t - intercept - slope * x) ** 2) / (len(x) - 2)
    errors = math.sqrt(variance * (1 / weight.sum() + x_mean**2 / spread)), math.sqrt(variance / spread)
    if intercept < 0:
        intercept, slope = 0.0, np.sum(x / t) / np.sum((x / t) ** 2)
    return (float(intercept), float(slope)), errors
