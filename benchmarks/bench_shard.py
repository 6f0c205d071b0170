"""ShardedOptimizer against torch's ZeroRedundancyOptimizer, ShardedModel against its fully_shard.

    python benchmarks/bench_shard.py [--models gpt2-mini bert-small]
                                     [--optimizers SGD Adam AdamW] [--pairs 20]

Two gloo ranks with one thread each. A pair is one step with each of them, one right after the
other, in turns first, until the slower rank is done. An optimizer's step begins with the same
gradients. Wanted: a ratio of at most 1.05, and the same weights at the end, to the bit. Beside it
stands the ratio of CPU times, on which other work on the machine has less influence. A model's step
is forward, backward and AdamW, with a unit for each block; for it no ratio is wanted.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from labkit import models
from labkit.launch import launch
from labkit.shard import ShardedModel, ShardedOptimizer
from labkit.trace import barrier

MAX_RATIO = 1.05
WARM_UP = 2
MODEL = "(a model's step)"
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
    found = timed({way: each.step for way, each in optimizers.items()}, count)
    return found | {"same": all(map(torch.equal, ours.parameters(), theirs.parameters()))}


def model_pairs(name: str, count: int) -> dict[str, Any]:
    """Do steps of training with torch's fully_shard and with ours, in turns: as :func:`pairs`."""
    plain, n_words = build(name), 2000
    kinds = tuple({type(layer) for layer in plain.modules() if type(layer).__name__ in ("GPT2Block", "BertLayer")})
    theirs, ours = copy.deepcopy(plain), ShardedModel(plain, kinds)
    for layer in [each for each in theirs.modules() if isinstance(each, kinds)]:
        fully_shard(layer)
    fully_shard(theirs)
    optimizers = {"torch": torch.optim.AdamW(theirs.parameters()), "labkit": torch.optim.AdamW(ours.parameters())}
    tokens = torch.randint(n_words, (4, 64))

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        model(tokens).logits.square().mean().backward()
        if isinstance(model, ShardedModel):
            model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()

    models_of = {"torch": theirs, "labkit": ours}
    found = timed({way: partial(step, models_of[way], optimizers[way]) for way in models_of}, count)
    right = {key: parameter.full_tensor() for key, parameter in theirs.named_parameters()}
    return found | {
        "same": all(torch.allclose(each, right[key], atol=1e-4) for key, each in ours.full_parameters().items())
    }


def timed(steps: dict[str, Callable[[], object]], count: int) -> dict[str, list[tuple[float, float]]]:
    """Take steps of each way in turns. Return the seconds of each, by the clock and of the CPU."""
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in steps}
    for number in range(WARM_UP + count):
        for way in sorted(steps, reverse=bool(number % 2)):
            barrier()
            start, cpu = time.perf_counter(), time.process_time()
            steps[way]()
            seconds[way].append((time.perf_counter() - start, time.process_time() - cpu))
    return {way: values[WARM_UP:] for way, values in seconds.items()}


def row(name: str, optimizer: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios: a pair is done when the slower rank is; CPU time is that of all ranks."""
    of_ranks = {way: [*zip(*(value[way] for value in values), strict=True)] for way in ("torch", "labkit")}
    torch_s, ours_s = ([max(s for s, _ in ranks) for ranks in of_ranks[way]] for way in ("torch", "labkit"))
    torch_cpu, ours_cpu = ([sum(cpu for _, cpu in ranks) for ranks in of_ranks[way]] for way in ("torch", "labkit"))
    low, middle, high = statistics.quantiles([ours / other for ours, other in zip(ours_s, torch_s, strict=True)], n=4)
    cpu = statistics.median(ours / other for ours, other in zip(ours_cpu, torch_cpu, strict=True))
    found = {"model": name, "optimizer": optimizer, "same weights": all(value["same"] for value in values)}
    found |= {"torch ms": 1e3 * statistics.median(torch_s), "ours ms": 1e3 * statistics.median(ours_s), "ratio": middle}
    good = found["same weights"] and (middle <= MAX_RATIO or optimizer == MODEL)
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
        run = launch(model_pairs, name, options.pairs, threads=1, backend="gloo", timeout_s=600)
        rows.append(row(name, MODEL, run.values))
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3f}".format))
    missed = sum(not each["good"] for each in rows)
    print(f"\nmissed: {missed}" if missed else "\nall as wanted")


if __name__ == "__main__":
    main()
