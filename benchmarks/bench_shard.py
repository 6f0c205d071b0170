"""A step of ShardedOptimizer compared with one of torch's ZeroRedundancyOptimizer.

    python benchmarks/bench_shard.py [--models gpt2-mini bert-small]
                                     [--optimizers SGD Adam AdamW] [--pairs 20]

Two gloo ranks with one thread each. A pair is one step with each of them, one right after the
other, in turns first, with the same gradients, until the slower rank is done. Wanted: a ratio of at
most 1.05, and the same weights at the end, to the bit. Beside it stands the ratio of CPU times, on
which other work on the machine has less influence.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from typing import Any

import pandas as pd
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from labkit import models
from labkit.launch import launch
from labkit.shard import ShardedOptimizer
from labkit.trace import barrier

MAX_RATIO = 1.05
WARM_UP = 2
OPTIONS: dict[str, dict[str, float]] = {"SGD": {"lr": 1e-3, "momentum": 0.9}, "Adam": {}, "AdamW": {}}


def build(name: str) -> torch.nn.Module:
    """Return a model, the same on every rank."""
    torch.manual_seed(1)
    if name == "gpt2-mini":
        return models.gpt2("mini", vocab_size=2000)
    return models.gpt2("gpt2") if name == "gpt2" else models.bert(name.removeprefix("bert-"))


def pairs(name: str, optimizer: str, count: int) -> dict[str, Any]:
    """Do steps with torch's and with ours, in turns.

    Return the seconds of each, by the clock and of the CPU, and whether weights agree.
    """
    optimizer_class, options = vars(torch.optim)[optimizer], OPTIONS[optimizer]
    ours = build(name)
    theirs = copy.deepcopy(ours)
    optimizers: dict[str, torch.optim.Optimizer] = {
        "torch": ZeroRedundancyOptimizer(theirs.parameters(), optimizer_class, **options),
        "labkit": ShardedOptimizer(ours.parameters(), optimizer_class, **options),
    }
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        mine.grad = other.grad = torch.randn_like(mine)  # from the same seed on every rank
    seconds: dict[str, list[tuple[float, float]]] = {"torch": [], "labkit": []}
    for number in range(WARM_UP + count):
        for who in sorted(optimizers, reverse=bool(number % 2)):
            barrier()
            start, cpu = time.perf_counter(), time.process_time()
            optimizers[who].step()
            seconds[who].append((time.perf_counter() - start, time.process_time() - cpu))
    same = all(map(torch.equal, ours.parameters(), theirs.parameters()))
    return {who: values[WARM_UP:] for who, values in seconds.items()} | {"same": same}


def row(name: str, optimizer: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios: a pair is done when the slower rank is; CPU time is that of all ranks."""
    of_ranks = {who: [*zip(*(value[who] for value in values), strict=True)] for who in ("torch", "labkit")}
    torch_s, ours_s = ([max(s for s, _ in ranks) for ranks in of_ranks[who]] for who in ("torch", "labkit"))
    torch_cpu, ours_cpu = ([sum(cpu for _, cpu in ranks) for ranks in of_ranks[who]] for who in ("torch", "labkit"))
    low, middle, high = statistics.quantiles([ours / other for ours, other in zip(ours_s, torch_s, strict=True)], n=4)
    cpu = statistics.median(ours / other for ours, other in zip(ours_cpu, torch_cpu, strict=True))
    found = {"model": name, "optimizer": optimizer, "same weights": all(value["same"] for value in values)}
    found |= {"torch ms": 1e3 * statistics.median(torch_s), "ours ms": 1e3 * statistics.median(ours_s), "ratio": middle}
    good = middle <= MAX_RATIO and found["same weights"]
    return found | {"quartiles": f"{low:.3f} to {high:.3f}", "CPU ratio": cpu, "good": good}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["gpt2-mini", "bert-small"], help="gpt2, gpt2-mini, bert-tiny …")
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, 2 gloo ranks, 1 thread each, {options.pairs} pairs")
    rows = []
    for name in options.models:
        for optimizer in options.optimizers:
            run = launch(pairs, name, optimizer, options.pairs, threads=1, backend="gloo", timeout_s=600)
            rows.append(row(name, optimizer, run.values))
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3f}".format))
    missed = sum(not each["good"] for each in rows)
    print(f"\nmissed: {missed}" if missed else "\nall as wanted")


if __name__ == "__main__":
    main()
