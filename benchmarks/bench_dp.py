"""A training step with BucketedDataParallel compared with torch's DistributedDataParallel.

    python benchmarks/bench_dp.py [--models gpt2 bert-small] [--links gloo ETHERNET_1G]
                                  [--caps 1 4 25] [--pairs 20]

Two gloo ranks with one thread each, on this machine and on an emulated 1 Gb/s link. A pair is one
step with each of them, one right after the other, in turns first; a step is forward, backward and
synchronisation, without the optimizer's. Three tables:

1. The ratio of each pair: median and quartiles. Wanted: at most 1.03.
2. On the slow link: how much of the communication that could hide behind the backward pass did.
   Wanted: at least 90 %. What could is what cost.ddp_timeline hides when it is given the times at
   which the gradients of that very step were ready on all ranks. On this link no message takes less
   than the model says, so nobody can hide more: the share is 100 % at most.
3. On the slow link: the step that cost.ddp_timeline predicts, fitted at the largest bucket size
   only. Wanted: within 5 %.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import models
from labkit.cost import ETHERNET_1G, Link, ddp_timeline
from labkit.dp import MIB, BucketedDataParallel, assign_buckets
from labkit.launch import launch
from labkit.trace import barrier, span

LINKS: dict[str, Link | None] = {"gloo": None, "ETHERNET_1G": ETHERNET_1G}
MAX_RATIO, MIN_HIDDEN, MAX_ERROR = 1.03, 0.90, 0.05
NOTHING = 0.02  # of the communication: so little is lost in the noise
TOKENS = 64
WARM_UP = 2


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return a model and this rank's batch for it."""
    torch.manual_seed(dist.get_rank())
    if name == "gpt2":
        tokens = torch.randint(0, 50257, (1, TOKENS))
        return models.gpt2("gpt2"), {"input_ids": tokens, "labels": tokens}
    if name == "gpt2-mini":
        tokens = torch.randint(0, 2000, (4, TOKENS))
        return models.gpt2("mini", vocab_size=2000), {"input_ids": tokens, "labels": tokens}
    tokens, labels = torch.randint(0, 30522, (4, TOKENS)), torch.randint(0, 2, (4,))
    return models.bert(name.removeprefix("bert-")), {"input_ids": tokens, "labels": labels}


# --- in the ranks ---------------------------------------------------------------------------------


def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """Return the seconds of forward, backward and synchronisation; gradients are None before."""
    model.zero_grad()
    barrier()
    start = time.perf_counter()
    with span("forward"):
        loss = model(**batch).loss
    with span("backward"):
        loss.backward()
    if isinstance(model, BucketedDataParallel):
        model.finish_gradient_synchronization()
    return time.perf_counter() - start


def mark_ready(model: torch.nn.Module) -> None:
    """Have each gradient leave a span when it is ready; ``bucket`` is its parameter's number."""

    def mark(number: int, _: torch.Tensor) -> None:
        with span("ready", bucket=number):
            pass

    for number, parameter in enumerate(trained(model)):
        parameter.register_post_accumulate_grad_hook(functools.partial(mark, number))


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, as PyTorch's tuning guide would have another allocator do.

    Otherwise every step gets its gradients' memory from the kernel anew, and in a virtual machine
    perhaps from the host: slowest for the side that freed its own longest ago, which depends on
    what runs in between.
    """
    if sys.platform == "linux":
        m_trim_threshold, m_mmap_max = -1, -4
        libc = ctypes.CDLL(None)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_mmap_max, 0)


def pairs(name: str, cap: float, count: int) -> dict[str, list[float]]:
    """Do steps with torch's and with ours, in turns."""
    keep_freed_memory()
    (theirs, batch), (ours, _) = build(name), build(name)
    mark_ready(theirs)
    mark_ready(ours)
    wrapped = {"torch": DistributedDataParallel(theirs, bucket_cap_mb=cap), "labkit": BucketedDataParallel(ours, cap)}
    seconds: dict[str, list[float]] = {"torch": [], "labkit": []}
    for number in range(WARM_UP + count):
        for name in sorted(wrapped, reverse=bool(number % 2)):
            seconds[name].append(step(wrapped[name], batch))
    return {name: values[WARM_UP:] for name, values in seconds.items()}


def alone(name: str, count: int) -> list[int]:
    """Do steps that synchronise nothing. Return the sizes of the gradients, in bytes."""
    keep_freed_memory()
    model, batch = build(name)
    mark_ready(model)
    for _ in range(WARM_UP + count):
        step(model, batch)
    return [parameter.nbytes for parameter in trained(model)]


# --- what happened in them ------------------------------------------------------------------------


@dataclass
class Step:
    """One step of one rank: the backward pass, each gradient's and the last message's time."""

    forward_s: float
    start_s: float
    end_s: float
    ready_s: np.ndarray
    arrived_s: float  # NaN where nothing was sent


def steps(events: pd.DataFrame, rank: int) -> list[Step]:
    """Return a rank's steps in which buckets were sent, or all if none were, without warm-up."""
    own = events[events["rank"] == rank].sort_values("start_s")
    forward, backward, ready, sent = (own[own.name == name] for name in ("forward", "backward", "ready", "all_reduce"))
    found = []
    for before, now in zip(forward.itertuples(), backward.itertuples(), strict=True):
        marks = ready[ready.start_s.between(now.start_s, now.end_s)].sort_values("bucket").start_s.to_numpy()
        arrived_s = sent[sent.start_s.between(before.end_s, now.end_s)].end_s.max()
        found.append(Step(before.end_s - before.start_s, now.start_s, now.end_s, marks, arrived_s))
    return ([each for each in found if not math.isnan(each.arrived_s)] or found)[WARM_UP:]


# --- the three tables -----------------------------------------------------------------------------


def ratio_row(name: str, link: str, cap: float, values: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return the ratio of a link: a pair is done when the slower rank is."""
    torch_s, ours_s = (
        [max(ranks) for ranks in zip(*(value[name] for value in values), strict=True)] for name in ("torch", "labkit")
    )
    ratios = [ours / theirs for ours, theirs in zip(ours_s, torch_s, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    row = {
        "model": name,
        "link": link,
        "MiB": cap,
        "DDP s": statistics.median(torch_s),
        "ours s": statistics.median(ours_s),
    }
    return row | {"ratio": middle, "quartiles": f"{low:.3f} to {high:.3f}", "good": middle <= MAX_RATIO}


def timeline_of(ready_s: Sequence[float], sizes_bytes: list[int], cap: float, link: Link) -> pd.DataFrame:
    buckets = assign_buckets(sizes_bytes, cap * MIB)
    return ddp_timeline(ready_s, sizes_bytes, buckets, 2, link.latency_s, link.bytes_per_s)


def hidden_row(name: str, cap: float, sizes_bytes: list[int], events: pd.DataFrame, link: Link) -> dict[str, Any]:
    """Return how much communication was hidden: what does not come after the backward pass."""
    exposed, unhideable, shares = [], [], []
    for ranks in zip(steps(events, 0), steps(events, 1), strict=True):
        start_s = min(each.start_s for each in ranks)
        ready_s = np.max([each.ready_s for each in ranks], axis=0) - start_s
        timeline = timeline_of(ready_s.tolist(), sizes_bytes, cap, link)
        communication_s, ideal_s = (timeline.end_s - timeline.start_s).sum(), start_s + timeline.end_s.max()
        for each in ranks:
            exposed.append(max(0.0, each.arrived_s - each.end_s))
            unhideable.append(max(0.0, ideal_s - each.end_s))
            shares.append((communication_s - exposed[-1]) / (communication_s - unhideable[-1]))
    row = {"model": name, "MiB": cap, "communication s": communication_s}
    row |= {"exposed s": statistics.median(exposed), "at least s": statistics.median(unhideable)}
    if communication_s - row["at least s"] < NOTHING * communication_s:  # one bucket: it leaves after the backward pass
        return row | {"share": float("nan"), "good": True}
    return row | {"share": statistics.median(shares), "good": statistics.median(shares) >= MIN_HIDDEN}


def prediction_rows(
    name: str, sizes_bytes: list[int], free: list[Step], measured: dict[float, float], link: Link
) -> list[dict[str, Any]]:
    """Return predictions; what the timeline leaves out is one constant, of the largest buckets."""
    ready_s = np.median([each.ready_s - each.start_s for each in free], axis=0).tolist()
    forward_s = statistics.median(each.forward_s for each in free)
    plain = {cap: forward_s + timeline_of(ready_s, sizes_bytes, cap, link).end_s.max() for cap in measured}
    fitted_at = max(measured)
    rest_s = measured[fitted_at] - plain[fitted_at]
    rows = []
    for cap in measured.keys() - {fitted_at}:
        error = (plain[cap] + rest_s) / measured[cap] - 1
        row = {"model": name, "MiB": cap, "measured s": measured[cap], "predicted s": plain[cap] + rest_s}
        rows.append(row | {"error": error, "good": abs(error) <= MAX_ERROR})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", default=["gpt2", "bert-small"], help="gpt2, gpt2-mini, bert-tiny … bert-base"
    )
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=list(LINKS))
    parser.add_argument("--caps", nargs="+", type=float, default=[1.0, 4.0, 25.0], help="bucket sizes in MiB")
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, 2 gloo ranks, 1 thread each, {options.pairs} pairs",
        flush=True,
    )
    tables: dict[str, list[dict[str, Any]]] = {"ratios": [], "hidden": [], "predicted": []}
    for name in options.models:
        run = launch(alone, name, 5, threads=1, backend="gloo", timeout_s=600)
        sizes_bytes, free = run.values[0], steps(run.events, 0)
        for link_name in options.links:
            link, measured = LINKS[link_name], {}
            for cap in options.caps:
                run = launch(pairs, name, cap, options.pairs, threads=1, backend="gloo", link=link, timeout_s=3600)
                tables["ratios"].append(ratio_row(name, link_name, cap, run.values))
                print(tables["ratios"][-1], flush=True)
                measured[cap] = tables["ratios"][-1]["ours s"]
                if link is not None:
                    tables["hidden"].append(hidden_row(name, cap, sizes_bytes, run.events, link))
            if link is not None:
                tables["predicted"] += prediction_rows(name, sizes_bytes, free, measured, link)
    for title, rows in tables.items():
        print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, float_format='{:.3f}'.format)}")
    missed = sum(not row["good"] for rows in tables.values() for row in rows)
    print(f"\nmissed: {missed}" if missed else "\nall as wanted")


if __name__ == "__main__":
    main()
