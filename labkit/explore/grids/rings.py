"""Simulate an all-reduce step by step: around a ring, through a parameter server, naively.

Three algorithms, each as a list of what is sent in which step. From such a list follows what every
rank holds after each step, and how many bytes have gone where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from labkit.base.checks import check_number, is_whole
from labkit.cost import Link

MAX_RANKS = 16
Row = tuple[int, int, int, int, int]  # step, source, target, chunk, and a bit for each rank whose part is in it


def ring(n: int) -> list[Row]:
    """Return what is sent around a ring: each chunk travels by itself until all have its sum.

    It sets out at the rank of its own number, always goes to the next one, and takes up a part
    wherever it comes for the first time (Patarasu and Yuan 2009).
    """
    return [
        (step, (chunk + step) % n, (chunk + step + 1) % n, chunk, parts)
        for chunk in range(n)
        for step in range(2 * n - 2)
        for parts in [sum(1 << (chunk + hop) % n for hop in range(n)[: step + 1])]
    ]


def naive_ring(n: int) -> list[Row]:
    """Return what is sent if every rank's whole tensor goes once around, and all add up all."""
    return [
        (step, (owner + step) % n, (owner + step + 1) % n, chunk, 1 << owner)
        for owner in range(n)
        for step in range(n - 1)
        for chunk in range(n)
    ]


def parameter_server(n: int) -> list[Row]:
    """Return what is sent through rank 0: whole tensors to it, one after the other, and sums back.

    Its link takes one at a time.
    """
    total = (1 << n) - 1
    to_server = [(rank - 1, rank, 0, chunk, 1 << rank) for rank in range(1, n) for chunk in range(n)]
    back = [(n - 2 + rank, 0, rank, chunk, total) for rank in range(1, n) for chunk in range(n)]
    return to_server + back


class AllReduceAlgorithm(NamedTuple):
    """How ranks add up a tensor: what they send, and what happens in each half of the steps.

    Where messages are ``side_by_side``, those of a half do not wait for each other, but for a port.
    """

    sends: Callable[[int], list[Row]]
    first_half: str
    second_half: str
    side_by_side: bool = False


_PASSED_ON = "all add up every tensor that comes by, and pass it on"
ALGORITHMS = {
    "ring": AllReduceAlgorithm(
        ring, "reduce-scatter, each rank adds the chunk it gets to its own", "all-gather, whole sums go round"
    ),
    "parameter server": AllReduceAlgorithm(
        parameter_server, "rank 0 adds up what it gets", "rank 0 sends the sum back", side_by_side=True
    ),
    "naive ring": AllReduceAlgorithm(naive_ring, _PASSED_ON, _PASSED_ON),
}


class RingTrace(NamedTuple):
    """What happened to a tensor that ``n`` ranks added up, step by step.

    ``states[step, rank, chunk]`` has a bit for each rank whose part has been added; of a recorded
    ring it may be words for anything but a sum of different ranks' parts. ``messages`` are the
    chunks that went in (step, source, target). ``bytes_sent[step, rank]`` is what a rank has sent
    before ``step``, in tensors; ``bytes_received`` likewise.
    """

    name: str
    n: int
    states: np.ndarray
    messages: dict[tuple[int, int, int], list[int]]
    bytes_sent: np.ndarray
    bytes_received: np.ndarray

    @property
    def n_steps(self) -> int:
        return len(self.states) - 1

    @property
    def n_whole_sums(self) -> int:
        """How many of the n × n cells have the sum of all ranks in the end."""
        return int((self.states[-1] == (1 << self.n) - 1).sum())

    @property
    def busiest(self) -> float:
        """How many tensors the busiest rank sends."""
        return self.bytes_sent[-1].max()

    def seconds(self, n_bytes: float, link: Link) -> float:
        """Return how long it takes: latencies in a row, and the bytes of each step's busiest rank.

        A latency for each step, or for each half of them if their messages are side by side.
        """
        moved = np.diff([self.bytes_sent, self.bytes_received], axis=1).max(axis=(0, 2)) * n_bytes
        algorithm = ALGORITHMS.get(self.name)
        latencies = 2 if algorithm and algorithm.side_by_side else self.n_steps
        return latencies * link.latency_s + float(moved.sum()) / link.bytes_per_s


@cache
def simulate_ring(name: str, n: int) -> RingTrace:
    """Return what happens when ``n`` ranks add up a tensor by the algorithm of that name."""
    rows = ALGORITHMS[name].sends(n)
    step, source, target, chunk, parts = np.array(rows).T
    states = np.zeros((step.max() + 2, n, n), dtype=np.int64)
    states[0] = 1 << np.arange(n)[:, None]
    np.bitwise_or.at(states, (step + 1, target, chunk), parts)
    states = np.bitwise_or.accumulate(states, axis=0)
    out, into = (moved_before(step, rank, 1 / n, states.shape[:2]) for rank in (source, target))
    return RingTrace(name, n, states, messages_of(rows), out, into)


def check_ranks(n: int, max_ranks: int = MAX_RANKS) -> None:
    """Raise TypeError or ValueError unless ``n`` ranks can be shown."""
    check_number(
        "world_size", n, lambda n: is_whole(n) and 2 <= n <= max_ranks, f"a whole number of ranks, 2 to {max_ranks}"
    )


def messages_of(rows: Sequence[Sequence[int]]) -> dict[tuple[int, int, int], list[int]]:
    """Return the chunks in each (step, source, target) of rows that begin with these four."""
    messages = defaultdict(list)
    for step, source, target, chunk, *_ in rows:
        messages[step, source, target].append(chunk)
    return dict(messages)


def moved_before(step: Sequence, rank: Sequence, tensors: float | Sequence, shape: tuple[int, ...]) -> np.ndarray:
    """Return how many tensors each rank has moved before each step, an array of ``shape``."""
    moved = np.zeros(shape)
    np.add.at(moved, (np.asarray(step) + 1, np.asarray(rank)), tensors)
    return np.cumsum(moved, axis=0)


def min_tensors(n: int) -> float:
    """Return how many tensors the busiest of ``n`` ranks sends at least: 2 (N − 1) / N."""
    return 2 * (n - 1) / n
