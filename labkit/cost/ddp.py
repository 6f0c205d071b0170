"""Predict when DDP's buckets run on the one channel that there is, and the step around them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from labkit.base.checks import check_number, check_seconds, check_whole_bytes, check_world_size, is_whole
from labkit.cost.collectives import collective_s
from labkit.cost.links import Link
from labkit.trace import event_table

if TYPE_CHECKING:
    import pandas as pd


def ddp_timeline(
    ready_s: Sequence[float],
    sizes_bytes: Sequence[float],
    buckets: Sequence[Sequence[int]],
    world_size: int,
    latency_s: float,
    bytes_per_s: float,
    host_s: float = 0.0,
) -> pd.DataFrame:
    """Return when each bucket's all_reduce should run: an event table, a row per bucket in order.

    ``ready_s[i]`` is when parameter i's gradient is ready and ``sizes_bytes[i]`` how large it is;
    ``buckets`` are lists of such indices, each parameter in exactly one. There is one communication
    channel and buckets go out in bucket order: bucket k starts once all its gradients are ready and
    bucket k−1 is done, and takes :func:`ring_all_reduce_s`. The rows are of rank 0.

    ``host_s`` is what a call costs the thread that computes: it is held up so long for every bucket
    that it hands over, so gradients after that are ready so much later, and the bucket itself goes
    out after its own call (see :func:`handed_over_s`). A world of one rank calls nobody.

    Raises ValueError for lists of different lengths, negative or NaN times and sizes, an empty
    bucket, and a parameter that is not there, in two buckets, or in none; TypeError for what is no
    number. After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
    Training", VLDB 13 (12).
    """
    ready, sizes, link = list(ready_s), list(sizes_bytes), Link(latency_s, bytes_per_s)
    check_world_size(world_size)
    _check_gradients(ready, sizes)
    check_buckets(buckets, len(sizes))
    check_seconds("host_s", host_s)
    bucket_bytes = [sum(int(sizes[i]) for i in bucket) for bucket in buckets]
    full_s = [max(ready[i] for i in bucket) for bucket in buckets]
    calls = handed_over_s(full_s, host_s if world_size > 1 else 0.0)
    times = all_reduce_times([end_s for _, end_s in calls], bucket_bytes, world_size, link)
    return event_table(
        (0, "comm", "all_reduce", None, None, None, k, n_bytes, start_s, end_s)
        for k, (n_bytes, (start_s, end_s)) in enumerate(zip(bucket_bytes, times, strict=True))
    )


def handed_over_s(full_s: Sequence[float], host_s: float) -> list[tuple[float, float]]:
    """Return start and end of each call that hands a bucket over, in bucket order.

    ``full_s`` is when buckets would be full if calls cost nothing. One thread computes and calls,
    so bucket k's call begins k calls later than its gradients and those of all buckets before it.
    """
    return [(full + k * host_s, full + (k + 1) * host_s) for k, full in enumerate(accumulate(full_s, max))]


def all_reduce_times(
    full_s: Sequence[float], bucket_bytes: Sequence[float], world_size: int, link: Link
) -> list[tuple[float, float]]:
    """Return start and end of each bucket's all_reduce, of buckets that are full at ``full_s``."""
    times, channel_free_s = [], 0.0
    for full, n_bytes in zip(full_s, bucket_bytes, strict=True):
        start_s = max(channel_free_s, full)
        channel_free_s = start_s + collective_s("all_reduce", n_bytes, world_size, link)
        times.append((start_s, channel_free_s))
    return times


def _check_gradients(ready_s: Sequence[float], sizes_bytes: Sequence[float]) -> None:
    if len(ready_s) != len(sizes_bytes):
        raise ValueError(
            f"ready_s has {len(ready_s)} times and sizes_bytes {len(sizes_bytes)} sizes, expected one of each for every "
            "parameter, by its index"
        )
    for i, (ready, size) in enumerate(zip(ready_s, sizes_bytes, strict=True)):
        check_seconds(f"ready_s[{i}]", ready)
        check_whole_bytes(f"sizes_bytes[{i}]", size)


def check_buckets(buckets: Sequence[Sequence[int]], n_parameters: int) -> None:
    """Raise unless every parameter is in exactly one bucket, as ``assign_buckets`` gives them."""
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
            check_number(f"a parameter of bucket {k}", i, lambda i: is_whole(i) and 0 <= i < n_parameters, expected)
            if i in bucket_of:
                where = f"in buckets {bucket_of[i]} and {k}" if bucket_of[i] != k else f"twice in bucket {k}"
                raise ValueError(f"parameter {i} is {where}, expected it once: its gradient is sent once")
            bucket_of[i] = k
    missing = [i for i in range(n_parameters) if i not in bucket_of]
    if missing:
        raise ValueError(
            f"parameters {missing} are in no bucket, expected each in one: ranks would never agree on them"
        )
