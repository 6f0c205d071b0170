"""Measure what a span costs, next to torch's record_function under torch.profiler.

    python benchmarks/bench_trace.py

Prints microseconds per span and the ratio to labkit, all measured in this run, alternating, best of
several rounds. Exits with 1 if a span takes 5 µs or more on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import time
from collections.abc import Callable

import torch

from labkit.trace import record, span

MAX_US = 5.0
N_SPANS = 20_000
ROUNDS = 7


def timed(block: Callable[[], None]) -> float:
    """Return microseconds per span."""
    gc.collect()
    began = time.perf_counter()
    block()
    return (time.perf_counter() - began) / N_SPANS * 1e6


def empty_loop() -> None:
    for _ in range(N_SPANS):
        pass


def our_spans() -> None:
    for i in range(N_SPANS):
        with span("forward", step=1, micro_batch=i):
            pass


def spans_of_torch() -> None:
    for _ in range(N_SPANS):
        with torch.profiler.record_function("forward"):
            pass


@contextlib.contextmanager
def torch_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


CASES: dict[str, tuple[Callable, Callable[[], None]]] = {
    "labkit span, recording": (record, our_spans),
    "labkit span, not recording": (contextlib.nullcontext, our_spans),
    "torch record_function, profiling": (torch_profiler, spans_of_torch),
    "torch record_function, not profiling": (contextlib.nullcontext, spans_of_torch),
}


def measure(rounds: int) -> dict[str, float]:
    """Return microseconds per span and case, without the loop around it: the least of the rounds.

    Noise only adds to them.
    """
    best = dict.fromkeys(CASES, float("inf"))
    loop = min(timed(empty_loop) for _ in range(rounds))
    for _ in range(rounds):
        for name, (recording, block) in CASES.items():
            with recording():
                best[name] = min(best[name], timed(block) - loop)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    costs = measure(options.rounds)
    ours = costs["labkit span, recording"]
    if options.json:
        print(json.dumps({name: {"us": cost, "ratio": cost / ours} for name, cost in costs.items()}))
    else:
        for name, cost in costs.items():
            print(f"{name:<38} {cost:8.2f} µs a span   {cost / ours:7.2f} × labkit")
        print(f"a span under {MAX_US:g} µs: {'yes' if ours < MAX_US else 'NO'}")
    return 0 if ours < MAX_US else 1


if __name__ == "__main__":
    sys.exit(main())
