"""The backward pass of a GPT-2 block in two parts, I and W, compared with the whole.

    python benchmarks/split_times.py [--widths 128 256 768] [--rows 4] [--tokens 64]
                                     [--blocks 1] [--pairs 30]

One thread. A pair is: autograd's own backward, labkit's B, and labkit's I and W, each on a new
graph, one right after the other and in turns first. What is measured is the thread's own time on a
core, so that neighbours on the machine count for little. The ratios are medians of the pairs'.
Where torch has its own split (torch.distributed.pipelining), that is measured too.

Wanted: I and W together at most 1.1 times the whole pass, for a block of GPT-2 (768 wide, 124M). A
narrow block has little to compute, and the work for each operation shows: about half a millisecond
a block here, whatever its width.
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

from labkit import models
from labkit.parallel.pipe.split_backward import StageGraph, enter_graph

MAX_SPLIT, MAX_WHOLE = 1.1, 1.01
WARM_UP = 3
HEAD_WIDTH = 64  # as in every GPT-2


def measure(width: int, rows: int, length: int, pairs: int, blocks: int = 1) -> list[dict[str, float]]:
    """Return seconds of each way, pair by pair: ``plain``, ``whole``, ``split``, and torch's.

    Called once in a process, with one thread; it leaves the number of threads at that.
    """
    torch.set_num_threads(1)
    gpt2 = models.gpt2("mini", n_layer=blocks, n_embd=width, n_head=max(1, width // HEAD_WIDTH), vocab_size=100)
    stage, gradient = nn.Sequential(*gpt2.transformer.h), torch.randn(rows, length, width)
    ways = [plain, whole, split, *([torchs] if torchs_split() else [])]
    found = []
    for number in range(WARM_UP + pairs):
        turn = number % len(ways)
        pair: dict[str, float] = {}
        for way in ways[turn:] + ways[:turn]:
            x = torch.randn(rows, length, width, requires_grad=True)
            pair |= way(stage(enter_graph(x)), x, gradient, stage)
        found.append(pair)
    return found[WARM_UP:]


Times = dict[str, float]


def plain(y: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, stage: nn.Module) -> Times:
    start = time.thread_time()
    torch.autograd.backward(y, gradient)
    return {"plain": time.thread_time() - start}


def whole(y: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, stage: nn.Module) -> Times:
    start = time.thread_time()
    StageGraph(y, x).backward(gradient)
    return {"whole": time.thread_time() - start}


def split(y: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, stage: nn.Module) -> Times:
    start = time.thread_time()
    graph = StageGraph(y, x)
    graph.input_grad(gradient)
    between = time.thread_time()
    graph.weight_grad()
    end = time.thread_time()
    return {"split": end - start, "I": between - start, "W": end - between}


def torchs(y: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, stage: nn.Module) -> Times:
    to_input, to_weights = torchs_split()
    start = time.thread_time()
    _, groups = to_input([y], [gradient], [x], stage.parameters())
    to_weights(stage.parameters(), groups)
    return {"torch": time.thread_time() - start}


def torchs_split() -> tuple[Callable[..., Any], Callable[..., Any]] | tuple[()]:
    """Return torch's two functions for I and W. They are private, so they may be gone."""
    try:
        from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
    except ImportError:
        return ()
    return stage_backward_input, stage_backward_weight


def row(width: int, pairs: list[dict[str, float]]) -> dict[str, Any]:
    ratios = {name: [pair[name] / pair["plain"] for pair in pairs] for name in pairs[0] if name != "plain"}
    low, middle, high = statistics.quantiles(ratios["split"], n=4)
    return {
        "width": width,
        "B ms": 1e3 * statistics.median(pair["plain"] for pair in pairs),
        "I ÷ B": statistics.median(ratios["I"]),
        "W ÷ B": statistics.median(ratios["W"]),
        "I + W ÷ B": middle,
        "quartiles": f"{low:.2f} to {high:.2f}",
        "torch's": statistics.median(ratios["torch"]) if "torch" in ratios else float("nan"),
        "labkit's B ÷ B": statistics.median(ratios["whole"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", nargs="+", type=int, default=[128, 256, 768])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    keep_freed_memory()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores of which one is used, {options.blocks} GPT-2 block(s), "
        f"{options.rows} × {options.tokens} tokens, {options.pairs} pairs",
        flush=True,
    )
    rows = [
        row(width, measure(width, options.rows, options.tokens, options.pairs, options.blocks))
        for width in options.widths
    ]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3f}".format))
    widest = max(rows, key=lambda each: each["width"])
    good = widest["I + W ÷ B"] <= MAX_SPLIT and widest["labkit's B ÷ B"] <= MAX_WHOLE
    print(f"\n{'as wanted' if good else 'missed'} at width {widest['width']}")


if __name__ == "__main__":
    main()
