"""Predict an iteration of data-parallel training term by term, for three ways to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.base.checks import check_seconds
from labkit.cost.collectives import parameter_server_s, ring_all_reduce_s
from labkit.cost.links import Link
from labkit.cost.step import ddp_step

if TYPE_CHECKING:
    import pandas as pd

WAYS = ("gather_scatter", "all_reduce", "ddp")


def way_terms(
    compute_s: Sequence[float],
    sizes_bytes: Sequence[float],
    buckets: Sequence[Sequence[int]],
    world_size: int,
    link: Link,
    host_s: Mapping[str, float],
) -> pd.DataFrame:
    """Return the seconds of each term of an iteration: a row per way, which adds up to it.

    ``compute_s`` are forward, backward and optimizer on one rank's share, the gradients made evenly
    during backward; ``sizes_bytes`` are the parameters' and ``buckets`` what DDP sends together.
    ``host_s`` is what an iteration's calls cost a rank, by way, with all that is done beside them,
    such as to average.

    =========  =====================================================================================
    latency    messages one after the other: two for each parameter, or for each bucket, and rank
    bytes      through rank 0 with gather and scatter, else around a ring
    host       ``host_s``
    hidden     what happens during backward: 0 or less, and only with DDP
    compute    the sum of ``compute_s``
    iteration  the sum of all
    =========  =====================================================================================

    Raises as :func:`labkit.cost.ddp_step` does, and KeyError for a way without its ``host_s``.
    """
    import pandas as pd  # here, since every rank imports this package for its Link

    for way in WAYS:
        check_seconds(f"host_s[{way!r}]", host_s[way])
    forward_s, backward_s, optimizer_s = compute_s
    n_bytes, latency_s = sum(sizes_bytes), 2 * (world_size - 1) * link.latency_s
    ring_s = ring_all_reduce_s(n_bytes, world_size, 0.0, link.bytes_per_s)
    through_rank_0_s = parameter_server_s(n_bytes, world_size, 0.0, link.bytes_per_s)
    sent = {
        "gather_scatter": (len(sizes_bytes) * latency_s, through_rank_0_s),
        "all_reduce": (len(sizes_bytes) * latency_s, ring_s),
        "ddp": (len(buckets) * latency_s, ring_s),
    }
    table = pd.DataFrame(sent, index=["latency", "bytes"]).T
    table = table.assign(host=[host_s[way] for way in WAYS], hidden=0.0, compute=sum(compute_s))
    ready_s = [backward_s * sum(sizes_bytes[i:]) / n_bytes for i in range(len(sizes_bytes))]
    rates = world_size, link.latency_s, link.bytes_per_s, host_s["ddp"] / len(buckets)
    step = ddp_step(forward_s, ready_s, optimizer_s, sizes_bytes, buckets, *rates)
    table.loc["ddp", "hidden"] = min(0.0, step["end_s"].max() - table.loc["ddp"].sum())
    return table.assign(iteration=table.sum(axis=1))
