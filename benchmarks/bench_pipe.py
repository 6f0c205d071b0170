"""The forward pass of labkit's Pipe on two virtual devices beside the plain module, in one thread and in two.

    python benchmarks/bench_pipe.py [--widths 256 512] [--micro-batches 8] [--pairs 15] [--backward]

Two stages of transformer layers, a worker thread for each, and each worker computes with one thread. A round is one forward
pass of the plain module in one thread, one in two threads, and one of the Pipe, in turns first. Without a bubble two workers
would be twice as fast as one thread; with m micro-batches it is at most 2m / (m + 1): 1.78 for m = 8.

Wanted: at least 1.1 times as fast as the plain module in one thread. Two threads for each operation stand beside it, which is
what torch does unasked. With ``--backward`` a pass is forward and backward. Autograd runs the backward pass of all stages in the
caller's thread, where two threads share each operation, as in the plain module in two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from bench_dp import keep_freed_memory
from torch import nn

from labkit.pipe import Pipe, WithDevice

LEAST_SPEED_UP = 1.1
LAYERS, ROWS, TOKENS = 8, 32, 64
WARM_UP = 3


def build(width: int) -> nn.Sequential:
    """Transformer layers, the first half of them on cpu:0 and the others on cpu:1."""
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    ]
    return nn.Sequential(*(WithDevice(layer, f"cpu:{2 * number // LAYERS}") for number, layer in enumerate(layers)))


def seconds(model: nn.Module, x: torch.Tensor, num_threads: int, backward: bool) -> float:
    torch.set_num_threads(num_threads)
    model.zero_grad()
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        output = model(x)
        if backward:
            output.square().mean().backward()
    return time.perf_counter() - start


def row(width: int, micro_batches: int, pairs: int, backward: bool) -> dict[str, Any]:
    """What one width gives: median seconds, and the median and quartiles of the rounds' own ratios."""
    model, x = build(width), torch.randn(ROWS, TOKENS, width)
    torch.set_num_threads(2)  # of which each of two workers takes one
    with Pipe(model, ROWS // micro_batches) as piped:
        ways: dict[str, Callable[[], float]] = {
            "one": lambda: seconds(model, x, 1, backward),
            "two": lambda: seconds(model, x, 2, backward),
            "pipe": lambda: seconds(piped, x, 2, backward),
        }
        rounds = []
        for number in range(WARM_UP + pairs):
            order = sorted(ways, reverse=bool(number % 2))
            rounds.append({name: ways[name]() for name in order})
    rounds = rounds[WARM_UP:]
    ratios = [each["one"] / each["pipe"] for each in rounds]
    low, middle, high = statistics.quantiles(ratios, n=4)
    median = {f"{name} s": statistics.median(each[name] for each in rounds) for name in ways}
    return {
        "width": width,
        **median,
        "one ÷ pipe": middle,
        "quartiles": f"{low:.2f} to {high:.2f}",
        "one ÷ two": statistics.median(each["one"] / each["two"] for each in rounds),
        "good": backward or middle >= LEAST_SPEED_UP,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--micro-batches", type=int, default=8, choices=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--backward", action="store_true", help="forward and backward; nothing is wanted of it")
    options = parser.parse_args()
    keep_freed_memory()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {LAYERS} layers in 2 stages, batch {ROWS} × {TOKENS} tokens, "
        f"m = {options.micro_batches}, {options.pairs} rounds, {'forward and backward' if options.backward else 'forward'}",
        flush=True,
    )
    rows = [row(width, options.micro_batches, options.pairs, options.backward) for width in options.widths]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3f}".format))
    missed = sum(not each["good"] for each in rows)
    print(f"\nmissed: {missed}" if missed else "\nall as wanted")


if __name__ == "__main__":
    main()
