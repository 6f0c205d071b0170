"""Predict a step of data-parallel training: its buckets on one channel, and what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from labkit.base.checks import check_number, check_seconds, check_whole_bytes, check_world_size, is_whole
from labkit.cost.links import Link, collective_s, parameter_server_s, ring_all_reduce_s
from labkit.trace import event_table

if TYPE_CHECKING:
    import pandas as pd


# --- buckets on one channel -----------------------------------------------------------------------


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

    ``host_s`` is what a call costs the thread that computes. It is held up that long for every
    bucket that it hands over, so all later gradients are ready that much later, and the bucket
    itself goes out after its own call (see :func:`handed_over_s`). A world of one rank
    makes no calls.

    Raises ValueError for lists of different lengths, negative or NaN times and sizes, an empty
    bucket, and a parameter that is not there, in two buckets, or in none; TypeError for anything
    but a number. After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data
    Parallel Training", VLDB 13 (12).
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
    expected = f"an index of {n_parameters} parameters, counted from 0"
    bucket_of: dict[int, int] = {}
    for k, bucket in enumerate(buckets):
        if not hasattr(bucket, "__len__"):
            raise TypeError(
                f"bucket {k} is {bucket!r}, expected a list of parameters, as assign_buckets returns it: [[2, 1], [0]]"
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


# --- the step around them -------------------------------------------------------------------------


def ddp_step(
    forward_s: float,
    ready_s: Sequence[float],
    optimizer_s: float,
    sizes_bytes: Sequence[float],
    buckets: Sequence[Sequence[int]],
    world_size: int,
    latency_s: float,
    bytes_per_s: float,
    host_s: float = 0.0,
    overlap: bool = True,
) -> pd.DataFrame:
    """Return one whole step of rank 0 as it should be: an event table, in seconds from its start.

    ``forward_s`` and ``optimizer_s`` are how long these take. ``ready_s[i]`` is when parameter i's
    gradient is ready, in seconds from the start of the backward pass, which is over with the last
    of them. The rest is as in :func:`ddp_timeline`. With ``overlap`` a bucket leaves during the
    backward pass, once it is full. Without it they all leave after it, one after the other, each
    called for once the one before has arrived: as ``average_gradients`` does, with a bucket for
    every parameter.

    =========  ============  ===================================================================
    lane       name
    =========  ============  ===================================================================
    compute    forward
    compute    backward      with the calls in it, where buckets overlap
    compute    wait          from the end of backward until all gradients are averaged: the exposed
                             communication, and without overlap its calls
    compute    optimizer
    host       hand over     ``host_s`` for each bucket: the call
    comm       all_reduce    each bucket on its way
    =========  ============  ===================================================================

    Raises as :func:`ddp_timeline` does, and ValueError where there is no parameter at all.
    """
    check_seconds("forward_s", forward_s)
    check_seconds("optimizer_s", optimizer_s)
    sent = ddp_timeline(ready_s, sizes_bytes, buckets, world_size, latency_s, bytes_per_s, host_s)
    if sent.empty:
        raise ValueError("ready_s is empty, expected at least one parameter: a step without a gradient has no backward")
    call_s = host_s if world_size > 1 else 0.0
    n_bytes, backward_s = sent["bytes"].tolist(), max(ready_s)
    if overlap:
        calls = handed_over_s([max(ready_s[i] for i in bucket) for bucket in buckets], call_s)
        reduces = list(zip(sent["start_s"].tolist(), sent["end_s"].tolist(), strict=True))
        backward_s += len(calls) * call_s
    else:
        costs_s = [ring_all_reduce_s(size, world_size, latency_s, bytes_per_s) for size in n_bytes]
        calls, reduces = _one_after_the_other(backward_s, call_s, costs_s)
    agreed_s = max(backward_s, reduces[-1][1])
    compute = (("forward", -forward_s, 0.0), ("backward", 0.0, backward_s), ("wait", backward_s, agreed_s))
    rows: list[tuple[Any, ...]] = [("compute", name, None, None, *times) for name, *times in compute]
    rows += [("compute", "optimizer", None, None, agreed_s, agreed_s + optimizer_s)]
    rows += [("host", "hand over", k, None, *times) for k, times in enumerate(calls) if call_s]
    rows += [("comm", "all_reduce", k, n_bytes[k], *times) for k, times in enumerate(reduces)]
    return event_table(
        (0, lane, name, 0, None, None, bucket, size, forward_s + start_s, forward_s + end_s)
        for lane, name, bucket, size, start_s, end_s in rows
    )


Times = list[tuple[float, float]]


def _one_after_the_other(start_s: float, call_s: float, costs_s: Sequence[float]) -> tuple[Times, Times]:
    """Return the calls and the all_reduces of buckets that each wait for the one before."""
    calls, reduces = [], []
    for cost_s in costs_s:
        calls.append((start_s, start_s + call_s))
        reduces.append((start_s + call_s, start_s + call_s + cost_s))
        start_s += call_s + cost_s
    return calls, reduces


# --- its terms, for three ways to agree -----------------------------------------------------------


def way_terms(
    compute_s: Sequence[float],
    sizes_bytes: Sequence[float],
    buckets: Sequence[Sequence[int]],
    world_size: int,
    link: Link,
    host_s: float = 0.0,
) -> pd.DataFrame:
    """Return the seconds of each term of an iteration: a row per way, which adds up to it.

    ``compute_s`` are forward, backward and optimizer on one rank's share, the gradients made evenly
    during backward; ``sizes_bytes`` are the parameters' and ``buckets`` what DDP sends together.
    ``host_s`` is what one call costs a rank. Latencies of a gather follow each other, as on an
    emulated link; :func:`labkit.cost.parameter_server_s` has them side by side.

    =========  =====================================================================================
    latency    two messages for each parameter, or each bucket, and each other rank, in a row
    bytes      through rank 0 with gather and scatter, else around a ring
    host       ``host_s`` for each call: two a parameter, one a parameter, one a bucket
    hidden     what happens during backward, so it is 0 or less, and only with DDP
    compute    the sum of ``compute_s``
    iteration  the sum of all
    =========  =====================================================================================

    Raises as :func:`labkit.cost.ddp_step` does.
    """
    import pandas as pd  # here, since every rank imports this package for its Link

    check_seconds("host_s", host_s)
    forward_s, backward_s, optimizer_s = compute_s
    n_bytes, latency_s = sum(sizes_bytes), 2 * (world_size - 1) * link.latency_s
    ring_s = ring_all_reduce_s(n_bytes, world_size, 0.0, link.bytes_per_s)
    through_rank_0_s = parameter_server_s(n_bytes, world_size, 0.0, link.bytes_per_s)
    p, k = len(sizes_bytes), len(buckets)
    sent = {
        "gather_scatter": (p * latency_s, through_rank_0_s, 2 * p * host_s),
        "all_reduce": (p * latency_s, ring_s, p * host_s),
        "ddp": (k * latency_s, ring_s, k * host_s),
    }
    table = pd.DataFrame(sent, index=["latency", "bytes", "host"]).T.assign(hidden=0.0, compute=sum(compute_s))
    ready_s = [backward_s * sum(sizes_bytes[i:]) / n_bytes for i in range(len(sizes_bytes))]
    rates = world_size, link.latency_s, link.bytes_per_s, host_s
    step = ddp_step(forward_s, ready_s, optimizer_s, sizes_bytes, buckets, *rates)
    table.loc["ddp", "hidden"] = min(0.0, step["end_s"].max() - table.loc["ddp"].sum())
    return table.assign(iteration=table.sum(axis=1))
