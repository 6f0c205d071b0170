"""Measure what emulating a link costs: a free one next to plain gloo, a slow one next to its model.

The model is α–β.

    python benchmarks/bench_link.py [--rounds 20]

Two gloo ranks with one thread each, all_reduces of several sizes. A round measures each launch
once, one after the other; the table gives medians over rounds. A free link (no latency, no limit)
emulates nothing, so it should cost what gloo costs.

Last comes what a call costs its rank: the CPU time that the calling thread spends in it, and in
waiting, on gloo and on the slow link.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time

import torch
import torch.distributed as dist

from labkit.cost import ETHERNET_1G, Link, ring_all_reduce_s
from labkit.launch import workers
from labkit.trace import barrier

SIZES = [2**10, 2**14, 2**18, 2**20, 2**22]
REPEATS = {"gloo": 51, "free": 51, "slow": 9}
MAX_FREE = 1.05  # × gloo: below the noise of a round here


def all_reduces(size: int, repeats: int) -> float:
    """Return the median seconds of an all_reduce of ``size`` bytes."""
    tensor, seconds = torch.ones(size // 4), []
    for _ in range(repeats):
        barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def call_cpu(repeats: int = 200) -> float:
    """Return the median seconds of CPU time that the calling thread spends in a tiny all_reduce."""
    tensor, seconds = torch.ones(4), []
    barrier()
    for _ in range(repeats):
        start = time.thread_time()
        dist.all_reduce(tensor)
        seconds.append(time.thread_time() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    links = {"gloo": None, "free": Link(0.0, math.inf), "slow": ETHERNET_1G}
    ranks = {name: workers(link=link, threads=1) for name, link in links.items()}
    seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in links for size in SIZES}
    cpu_s: dict[str, list[float]] = {"gloo": [], "slow": []}
    try:
        for _ in range(rounds):
            for name, size in seconds:
                seconds[name, size].append(max(ranks[name].run(all_reduces, size, REPEATS[name]).values))
            for name, found in cpu_s.items():
                found.append(max(ranks[name].run(call_cpu).values))
    finally:
        for each in ranks.values():
            each.close()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {rounds} rounds; the slow link is {ETHERNET_1G}")
    print(f"{'bytes':>9} {'gloo ms':>9} {'free ÷ gloo':>12} {'slow ms':>9} {'slow ÷ model':>13}")
    ratios = []
    for size in SIZES:
        pairs = zip(seconds["free", size], seconds["gloo", size], strict=True)
        ratios.append(statistics.median(free / gloo for free, gloo in pairs))
        slow = statistics.median(seconds["slow", size])
        model = ring_all_reduce_s(size, 2, ETHERNET_1G.latency_s, ETHERNET_1G.bytes_per_s)
        gloo_ms = 1e3 * statistics.median(seconds["gloo", size])
        print(f"{size:9} {gloo_ms:9.3f} {ratios[-1]:12.3f} {1e3 * slow:9.3f} {slow / model:13.3f}")
    middle = statistics.median(ratios)
    print(
        f"free ÷ gloo over all sizes: {middle:.3f}, wanted: at most {MAX_FREE}",
        "" if middle <= MAX_FREE else "(missed)",
    )
    gloo_us, slow_us = (1e6 * statistics.median(found) for found in cpu_s.values())
    times = statistics.median(slow / gloo for gloo, slow in zip(*cpu_s.values(), strict=True))
    print(
        f"CPU time of the calling thread, a call: gloo {gloo_us:.0f} µs, slow {slow_us:.0f} µs; slow ÷ gloo {times:.1f}"
    )


if __name__ == "__main__":
    main()
