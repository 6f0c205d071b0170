"""The forward pass of Pipe on two virtual devices, compared with the plain module's.

Two stages of transformer layers, a worker thread for each, and each worker computes with one
thread. A round is one forward pass of the plain module in one thread, one in two threads, and one
of the Pipe, in turns first. bench_pipe.py prints it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from labkit.parallel.pipe.placement import WithDevice
from labkit.pipe import Pipe

MIN_SPEED_UP = 1.1
LAYERS, ROWS, TOKENS = 8, 32, 64
WARM_UP = 3


def build(width: int) -> nn.Sequential:
    """Return transformer layers, the first half on cpu:0 and the others on cpu:1."""
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
    """Return a width's median seconds, and the median and quartiles of the rounds' own ratios."""
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
        "good": backward or middle >= MIN_SPEED_UP,
    }
