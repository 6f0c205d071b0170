"""Predict what a collective costs on a link: around a ring, along a chain, or at one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from labkit.base.checks import check_bytes, check_number, check_world_size, is_whole
from labkit.cost.links import Link


class Cost(NamedTuple):
    """What a collective costs: so many latencies in a row, so often the tensor at a port."""

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

    It sends and receives at once. ``n_bytes`` is B, the whole tensor's bytes: where each rank holds
    a part of b bytes, B = N · b.

    ==============  ===========================  ==================================================
    all_reduce      2 (N−1) α + 2 (N−1)/N · B/β  around a ring: a reduce_scatter, then an all_gather
    reduce_scatter  (N−1) α + (N−1)/N · B/β      around a ring, a part a step
    all_gather      (N−1) α + (N−1)/N · B/β      around a ring, a part a step
    broadcast       (N−1) α + B/β                along a chain, in many chunks, one after the other
    reduce          (N−1) α + B/β                along a chain towards the root, likewise
    gather          (N−1) (α + b/β)              N−1 parts through the root's port
    scatter         (N−1) (α + b/β)              N−1 parts through the root's port
    all_to_all      (N−1) α + (N−1)/N · B/β      B: what one rank holds for all; its own part stays
    barrier         2 (N−1) α                    an all_reduce of nothing: ``n_bytes`` is left out
    ==============  ===========================  ==================================================

    A world of one rank sends nothing: 0. Adding the numbers up is taken to cost nothing.

    Raises ValueError for an unknown name, negative bytes and a world size below 1, TypeError for
    what is no number or no Link. The model and the rings: Thakur, Rabenseifner & Gropp 2005,
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

    That is 2 (N−1) (latency + bytes / bandwidth).

    All gradients come in through that rank's port, one after the other, and the mean goes out to
    each of the others likewise. That is a gather of N whole tensors and a scatter of N. Errors are
    those of :func:`collective_s`.
    """
    link = Link(latency_s, bytes_per_s)
    check_bytes("n_bytes", n_bytes)
    check_world_size(world_size)
    return 2 * (world_size - 1) * link.message_s(n_bytes)


def ring_broadcast_s(n_bytes: float, world_size: int, n_chunks: int, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds to broadcast ``n_bytes`` from rank to rank in equal chunks.

    That is (N − 2 + chunks) (latency + chunk / bandwidth).

    The first chunk takes N−1 hops, and each chunk after it arrives one message later. More chunks
    keep more ranks busy but each pays a latency, so there is a best number: √((N−2) · bytes /
    (latency · bandwidth)). In :func:`collective_s` the chunks are as many as one likes, because
    only the first pays.

    Raises ValueError also for fewer chunks than 1. The rest is as in :func:`collective_s`.
    """
    link = Link(latency_s, bytes_per_s)
    check_bytes("n_bytes", n_bytes)
    check_world_size(world_size)
    check_number("n_chunks", n_chunks, lambda n: is_whole(n) and n >= 1, "a whole number of chunks, 1 or more")
    if world_size == 1:
        return 0.0
    return (world_size - 2 + n_chunks) * link.message_s(n_bytes / n_chunks)
