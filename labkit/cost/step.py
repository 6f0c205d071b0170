"""Predict one whole step of data-parallel training: forward, backward, buckets, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.base.checks import check_seconds
from labkit.cost.collectives import ring_all_reduce_s
from labkit.cost.ddp import ddp_timeline, handed_over_s
from labkit.trace import event_table

if TYPE_CHECKING:
    import pandas as pd


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
    compute    wait          from the end of backward until all gradients are means: the exposed
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
