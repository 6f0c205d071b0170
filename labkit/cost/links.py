"""Model a link: how long a message takes on it, and a collective of several ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from labkit.base.checks import check_bytes, check_number, check_seconds, check_world_size, is_whole
from labkit.base.units import DURATIONS, unit_for

_BANDWIDTH = "bytes per second, more than 0, or math.inf for no limit: write 1 Gb/s as 1e9 / 8"


@dataclass(frozen=True)
class Link:
    """A link of the α–β model: ``latency_s`` a message, then ``bytes_per_s``, both ways at once.

    ``bytes_per_s`` may be math.inf: no limit. ``name`` is what it is shown as.

    Raises TypeError for anything but a number, ValueError for a negative or infinite latency, a
    bandwidth that is not positive, and NaN. Hockney 1994, "The communication challenge for MPP",
    Parallel Computing 20 (3).
    """

    latency_s: float
    bytes_per_s: float
    name: str = ""

    def __post_init__(self) -> None:
        check_seconds("latency_s", self.latency_s)
        check_number("bytes_per_s", self.bytes_per_s, lambda value: value > 0, _BANDWIDTH)
        if not isinstance(self.name, str):
            raise TypeError(f'name is {self.name!r}, expected text, such as "ETHERNET_1G", or nothing')

    def message_s(self, n_bytes: float) -> float:
        """Return the seconds that a message of ``n_bytes`` takes: latency + bytes / bandwidth."""
        check_bytes("n_bytes", n_bytes)
        return self.latency_s + n_bytes / self.bytes_per_s

    @property
    def is_free(self) -> bool:
        """Tell whether every message takes no time at all, so nothing is left to emulate."""
        return self.latency_s == 0 and self.bytes_per_s == math.inf

    def __str__(self) -> str:
        bandwidth = "no limit" if self.bytes_per_s == math.inf else _scaled(self.bytes_per_s, _BYTE_RATES)
        facts = f"{bandwidth}, {_scaled(self.latency_s, DURATIONS)}"
        return f"{self.name} ({facts})" if self.name else facts


_BYTE_RATES = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}


def _scaled(value: float, units: Mapping[str, float]) -> str:
    unit = unit_for(value, units)
    return f"{value / units[unit]:.4g} {unit}"


# Bandwidths are line rates, one direction. TCP in frames of 1500 bytes leaves 1460 of 1538, 95 %,
# to the data. Latencies are one way and typical; machines differ more in them than in bandwidths.

# Aspen Systems' glossary ("low latency") reports 40 to 300 µs for Gigabit Ethernet.
ETHERNET_1G = Link(latency_s=50e-6, bytes_per_s=1e9 / 8, name="ETHERNET_1G")
# Application to application over TCP: 20 µs in Hurwitz & Feng 2003, Hot Interconnects 11; 10 µs at
# best in Larsen et al. 2009, "Architectural breakdown of end-to-end latency in a TCP/IP network".
ETHERNET_10G = Link(latency_s=20e-6, bytes_per_s=10e9 / 8, name="ETHERNET_10G")
# One step of a ring, as NCCL's cost model has it (src/graph/tuning.cc, hwLat, its low-latency
# protocol): 2.7 µs over a network, 0.6 µs over NVLink. Its protocols for large messages take up to
# 14 and 3.4 µs a step.
INFINIBAND_HDR = Link(latency_s=2.7e-6, bytes_per_s=200e9 / 8, name="INFINIBAND_HDR")
# 18 links of 25 GB/s a direction: the 900 GB/s that Nvidia states for an H100 or H200 count both
# directions.
NVLINK4 = Link(latency_s=0.6e-6, bytes_per_s=450e9, name="NVLINK4")


# --- collectives ----------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What a collective costs: latencies in a row, and how many tensors pass a port."""

    latencies: int
    tensors: float


COLLECTIVES: dict[str, Callable[[int], Cost]] = {  # of the world size N
    "all_reduce": lambda n: Cost(2 * (n - 1), 2 * (n - 1) / n),
    "reduce_scatter": lambda n: Cost(n - 1, (n - 1) / n),
    "all_gather": lambda n: Cost(n - 1, (n - 1) / n),
    "broadcast": lambda n: Cost(n - 1, 1),
    "reduce": lambda n: Cost(n - 1, 1),
    "gather": lambda n: Cost(n - 1, (n - 1) / n),
    "scatter": lambda n: Cost(n - 1, (n - 1) / n),
    "all_to_all": lambda n: Cost(n - 1, (n - 1) / n),
    "barrier": lambda n: Cost(2 * (n - 1), 0),
}


def collective_s(name: str, n_bytes: float, world_size: int, link: Link) -> float:
    """Return the seconds that a collective takes, each rank over its own ``link``.

    A rank sends and receives at once. ``n_bytes`` is B, the whole tensor's bytes: where each rank
    holds a part of b bytes, B = N · b.

    ==============  ===========================  ==================================================
    all_reduce      2 (N−1) α + 2 (N−1)/N · B/β  around a ring: a reduce_scatter, then an all_gather
    reduce_scatter  (N−1) α + (N−1)/N · B/β      around a ring, a part a step
    all_gather      (N−1) α + (N−1)/N · B/β      around a ring, a part a step
    broadcast       (N−1) α + B/β                along a chain, in many chunks, one after the other
    reduce          (N−1) α + B/β                along a chain towards the root, likewise
    gather          (N−1) (α + b/β)              N−1 parts through the root's port
    scatter         (N−1) (α + b/β)              N−1 parts through the root's port
    all_to_all      (N−1) α + (N−1)/N · B/β      B: what one rank holds for all; its own part stays
    barrier         2 (N−1) α                    an all_reduce of nothing: ``n_bytes`` is ignored
    ==============  ===========================  ==================================================

    A world of one rank sends nothing: 0. Adding the numbers up is taken to cost nothing.

    Raises ValueError for an unknown name, negative bytes and a world size below 1, TypeError for
    anything but a number and a Link. The model and the rings: Thakur, Rabenseifner & Gropp 2005,
    "Optimization of Collective Communication Operations in MPICH". The ring's all_reduce: Patarasu
    & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations". The first
    five factors before B/β are those of nccl-tests too (PERFORMANCE.md).
    """
    if name not in COLLECTIVES:
        raise ValueError(f"collective is {name!r}, expected one of {', '.join(COLLECTIVES)}")
    if not isinstance(link, Link):
        raise TypeError(f"link is {link!r}, expected a Link, such as ETHERNET_1G or Link(50e-6, 125e6)")
    check_bytes("n_bytes", n_bytes)
    check_world_size(world_size)
    if world_size == 1:
        return 0.0
    cost = COLLECTIVES[name](world_size)
    return cost.latencies * link.latency_s + cost.tensors * n_bytes / link.bytes_per_s


def ring_all_reduce_s(n_bytes: float, world_size: int, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds that a ring takes to all_reduce ``n_bytes``.

    That is 2 (N−1) · latency + 2 (N−1)/N · bytes / bandwidth.

    Each rank sends N−1 parts of bytes / N while they are added up, and N−1 while the sums go round.
    0 for one rank. Errors and sources are those of :func:`collective_s` and :class:`Link`.
    """
    return collective_s("all_reduce", n_bytes, world_size, Link(latency_s, bytes_per_s))


def parameter_server_s(n_bytes: float, world_size: int, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds to average ``n_bytes`` of gradients at one of the ranks.

    That is 2 latency + 2 (N−1) bytes / bandwidth.

    All gradients come in through that rank's port, and the mean goes out to the others in the same
    way: one after the other, but the ranks send at once, so their latencies overlap. A gather of
    :func:`collective_s` counts a latency for each message. 0 for one rank. Errors are those of
    :func:`collective_s`.
    """
    link = Link(latency_s, bytes_per_s)
    check_bytes("n_bytes", n_bytes)
    check_world_size(world_size)
    if world_size == 1:
        return 0.0
    return 2 * link.message_s((world_size - 1) * n_bytes)


def ring_broadcast_s(n_bytes: float, world_size: int, n_chunks: int, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds to broadcast ``n_bytes`` from rank to rank in equal chunks.

    That is (N − 2 + chunks) (latency + chunk / bandwidth).

    The first chunk takes N−1 hops, and each chunk after it arrives one message later. More chunks
    keep more ranks busy but each pays a latency, so there is a best number: √((N−2) · bytes /
    (latency · bandwidth)). In :func:`collective_s` there may be any number of
    chunks, because only the first pays.

    Raises ValueError also for fewer chunks than 1. The rest is as in :func:`collective_s`.
    """
    link = Link(latency_s, bytes_per_s)
    check_bytes("n_bytes", n_bytes)
    check_world_size(world_size)
    check_number("n_chunks", n_chunks, lambda n: is_whole(n) and n >= 1, "a whole number of chunks, 1 or more")
    if world_size == 1:
        return 0.0
    return (world_size - 2 + n_chunks) * link.message_s(n_bytes / n_chunks)
