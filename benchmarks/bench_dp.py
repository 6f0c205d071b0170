"""A training step with labkit's BucketedDataParallel beside the same step with torch's DistributedDataParallel.

    python benchmarks/bench_dp.py [--models gpt2 bert-small] [--links gloo ETHERNET_1G] [--caps 1 4 25] [--pairs 20]

Two gloo ranks with one thread each, on this machine and on an emulated 1 Gb/s link. A pair is one step with each of them, one
right after the other, in turns first; a step is forward, backward and synchronisation, without the optimizer's. Three tables:

1. The ratio of each pair: median and quartiles. Wanted: at most 1.03.
2. On the slow link: how much of the communication that could hide behind the backward pass did. Wanted: at least 90 %.
3. On the slow link: the step that cost.ddp_timeline predicts, fitted at the largest bucket size only. Wanted: within 5 %.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import models
from labkit.cost import ETHERNET_1G, Link, ddp_timeline
from labkit.dp import MIB, BucketedDataParallel, assign_buckets
from labkit.launch import launch
from labkit.trace import span

LINKS: dict[str, Link | None] = {"gloo": None, "ETHERNET_1G": ETHERNET_1G}
MOST_RATIO, LEAST_HIDDEN, MOST_ERROR = 1.03, 0.90, 0.05
NOTHING = 0.02  # of the communication: so little is lost in the noise
TOKENS = 64
WARM_UP = 2


def build(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model and this rank's batch for it."""
    torch.manual_seed(dist.get_rank())
    if name == "gpt2":
        tokens = torch.randint(0, 50257, (1, TOKENS))
        return models.gpt2("gpt2"), {"input_ids": tokens, "labels": tokens}
    if name == "gpt2-mini":
        tokens = torch.randint(0, 2000, (4, TOKENS))
        return models.gpt2("mini", vocab_size=2000), {"input_ids": tokens, "labels": tokens}
    tokens, labels = torch.randint(0, 30522, (4, TOKENS)), torch.randint(0, 2, (4,))
    return models.bert(name.removeprefix("bert-")), {"input_ids": tokens, "labels": labels}


# --- in the ranks ----------------------------------------------------------------------------------------------------


def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """Seconds for forward, backward and synchronisation. Ranks begin together; gradients are None before, as users have it."""
    model.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    with span("forward"):
        loss = model(**batch).loss
    with span("backward"):
        loss.backward()
    if isinstance(model, BucketedDataParallel):
        with span("finish", lane="host"):
            model.finish_gradient_synchronization()
    return time.perf_counter() - start


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, as PyTorch's tuning guide would have another allocator do.

    Otherwise every step gets its gradients' memory from the kernel anew, and in a virtual machine perhaps from the host:
    slowest for whoever has freed his own longest ago, which depends on who else runs in between.
    """
    if sys.platform == "linux":
        m_trim_threshold, m_mmap_max = -1, -4
        libc = ctypes.CDLL(None)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_mmap_max, 0)


def pairs(name: str, cap: float, count: int) -> dict[str, list[float]]:
    """Steps with torch's and with ours, in turns."""
    keep_freed_memory()
    (theirs, batch), (ours, _) = build(name), build(name)
    wrapped = {"torch": DistributedDataParallel(theirs, bucket_cap_mb=cap), "labkit": BucketedDataParallel(ours, cap)}
    seconds: dict[str, list[float]] = {"torch": [], "labkit": []}
    for number in range(WARM_UP + count):
        for who in sorted(wrapped, reverse=bool(number % 2)):
            seconds[who].append(step(wrapped[who], batch))
    return {who: values[WARM_UP:] for who, values in seconds.items()}


def alone(name: str, count: int) -> dict[str, Any]:
    """Steps that synchronise nothing: how long the forward pass takes, and how long after it each gradient is ready."""
    keep_freed_memory()
    model, batch = build(name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ready: list[list[float]] = [[] for _ in trained]
    for number, parameter in enumerate(trained):
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: ready[number].append(time.perf_counter()))
    forward, began = [], []
    for _ in range(WARM_UP + count):
        dist.barrier()
        model.zero_grad()
        start = time.perf_counter()
        loss = model(**batch).loss
        began.append(time.perf_counter())
        forward.append(began[-1] - start)
        loss.backward()
    after = [[end - start for start, end in zip(began, ends, strict=True)][WARM_UP:] for ends in ready]
    return {
        "forward_s": statistics.median(forward[WARM_UP:]),
        "ready_s": [statistics.median(times) for times in after],
        "sizes_bytes": [parameter.nbytes for parameter in trained],
    }


# --- the three tables ------------------------------------------------------------------------------------------------


def ratio_row(name: str, link: str, cap: float, values: list[dict[str, list[float]]]) -> dict[str, Any]:
    """A pair is done when the slower rank is."""
    torch_s, ours_s = (
        [max(ranks) for ranks in zip(*(value[who] for value in values), strict=True)] for who in ("torch", "labkit")
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
    return row | {"ratio": middle, "quartiles": f"{low:.3f} to {high:.3f}", "good": middle <= MOST_RATIO}


def predicted(free: dict[str, Any], cap: float, link: Link) -> tuple[pd.DataFrame, float]:
    """The timeline of the buckets, from the start of the backward pass on, and the end of the backward pass."""
    buckets = assign_buckets(free["sizes_bytes"], cap * MIB)
    timeline = ddp_timeline(free["ready_s"], free["sizes_bytes"], buckets, 2, link.latency_s, link.bytes_per_s)
    return timeline, max(free["ready_s"])


def hidden_row(name: str, cap: float, free: dict[str, Any], events: pd.DataFrame, link: Link) -> dict[str, Any]:
    """Exposed is what comes after the backward pass. The rest of the communication hid behind it.

    What could hide is what ddp_timeline hides behind a backward pass as long as the measured one: while bytes go through
    gloo on the same cores, it takes longer than alone, and gradients are ready later.
    """
    backward_s, exposed_s = measured_tail(events)
    stretch = backward_s / max(free["ready_s"])
    timeline, _ = predicted(free | {"ready_s": [stretch * ready for ready in free["ready_s"]]}, cap, link)
    communication_s = (timeline.end_s - timeline.start_s).sum()
    could_s = communication_s - max(0.0, timeline.end_s.max() - backward_s)
    hidden_s = communication_s - exposed_s
    row = {"model": name, "MiB": cap, "communication s": communication_s, "exposed s": exposed_s, "hidden s": hidden_s}
    row["could hide s"] = could_s
    if could_s < NOTHING * communication_s:  # one bucket: it can only leave when the backward pass is over
        return row | {"share": float("nan"), "good": True}
    return row | {"share": hidden_s / could_s, "good": hidden_s >= LEAST_HIDDEN * could_s}


def measured_tail(events: pd.DataFrame) -> tuple[float, float]:
    """Median seconds, over the reducer's steps and ranks, of the backward pass, and from its end to the last bucket's."""
    backward, exposed = [], []
    for _, rank in events.groupby("rank"):
        sent = rank[rank.name == "all_reduce"]
        for finish in rank[rank.name == "finish"].itertuples():
            before = rank[(rank.name == "backward") & (rank.end_s <= finish.start_s)].iloc[-1]
            backward.append(before.end_s - before.start_s)
            exposed.append(max(0.0, sent[sent.end_s <= finish.end_s].end_s.max() - before.end_s))
    return statistics.median(backward), statistics.median(exposed)


def prediction_rows(name: str, free: dict[str, Any], measured: dict[float, float], link: Link) -> list[dict[str, Any]]:
    """What the timeline leaves out (averaging, zeroing, waking up) is fitted at the largest bucket size, as one constant."""
    plain = {}
    for cap in measured:
        timeline, backward_s = predicted(free, cap, link)
        plain[cap] = free["forward_s"] + max(backward_s, timeline.end_s.max())
    fitted_at = max(measured)
    rest_s = measured[fitted_at] - plain[fitted_at]
    return [
        {"model": name, "MiB": cap, "measured s": measured[cap], "predicted s": plain[cap] + rest_s}
        | {
            "error": (plain[cap] + rest_s) / measured[cap] - 1,
            "good": abs((plain[cap] + rest_s) / measured[cap] - 1) <= MOST_ERROR,
        }
        for cap in measured
        if cap != fitted_at
    ]


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
        free = launch(alone, name, 5, threads=1, timeout_s=600).values[0]
        for link_name in options.links:
            link, measured = LINKS[link_name], {}
            for cap in options.caps:
                run = launch(pairs, name, cap, options.pairs, threads=1, link=link, timeout_s=3600)
                tables["ratios"].append(ratio_row(name, link_name, cap, run.values))
                print(tables["ratios"][-1], flush=True)
                measured[cap] = tables["ratios"][-1]["ours s"]
                if link is not None:
                    tables["hidden"].append(hidden_row(name, cap, free, run.events, link))
            if link is not None:
                tables["predicted"] += prediction_rows(name, free, measured, link)
    for title, rows in tables.items():
        print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, float_format='{:.3f}'.format)}")
    missed = sum(not row["good"] for rows in tables.values() for row in rows)
    print(f"\nmissed: {missed}" if missed else "\nall as wanted")


if __name__ == "__main__":
    main()
