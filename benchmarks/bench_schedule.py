"""Measure how long simulating 1F1B on 64 ranks with 512 micro-batches takes, next to plain code.

    python benchmarks/bench_schedule.py [--rounds 9]

The plain one goes round the ranks, as long as one of them can run its next op, and keeps the ends
in a dict. It makes a list of rows and no table, and checks nothing; ours checks the schedule and
its times, and makes the event table. Each round runs both, in turns first, and gives one ratio.
Both have to find the same times. Exits with 1 if ours takes 0.3 s or more.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable

from labkit.schedule import Op, Schedule, gpipe, one_f_one_b, validate
from labkit.simulate import activations, bubble_fraction, critical_path, simulate

N_RANKS, N_MICRO = 64, 512
MAX_S = 0.3
ROUNDS = 9
FORWARD, BACKWARD, HOP = 1.0, 2.0, 0.25


def plain_simulator(schedule: Schedule) -> list[tuple[int, Op, float, float]]:
    """Rows of (rank, op, start, end), for schedules of F and B with a stage a rank."""
    ends: dict[tuple[str, int, int], float] = {}
    rows: list[tuple[int, Op, float, float]] = []
    next_op = [0] * schedule.n_ranks
    free = [0.0] * schedule.n_ranks
    last = schedule.n_ranks - 1
    moved = True
    while moved:
        moved = False
        for rank, ops in enumerate(schedule.ops):
            while next_op[rank] < len(ops):
                op = ops[next_op[rank]]
                start = free[rank]
                if op.kind == "F" and op.stage > 0:
                    needed = ("F", op.stage - 1, op.micro_batch)
                elif op.kind == "B" and op.stage < last:
                    needed = ("B", op.stage + 1, op.micro_batch)
                else:
                    needed = None
                if needed is not None:
                    if needed not in ends:
                        break
                    start = max(start, ends[needed] + HOP)
                end = start + (FORWARD if op.kind == "F" else BACKWARD)
                ends[(op.kind, op.stage, op.micro_batch)] = free[rank] = end
                rows.append((rank, op, start, end))
                next_op[rank] += 1
                moved = True
    return rows


def ours(schedule: Schedule) -> object:
    return simulate(schedule, forward=FORWARD, backward=BACKWARD, hop=HOP)


def same_times(schedule: Schedule) -> bool:
    """Return whether both say the same of ``schedule``, op by op."""
    plain = sorted((rank, start, end) for rank, _, start, end in plain_simulator(schedule))
    table = simulate(schedule, forward=FORWARD, backward=BACKWARD, hop=HOP)
    return plain == list(zip(*(table[name].tolist() for name in ("rank", "start_s", "end_s")), strict=True))


def seconds(block: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    block()
    return time.perf_counter() - began


def pairs(schedule: Schedule, rounds: int) -> list[tuple[float, float]]:
    """Return each round's seconds of ours and of the plain one."""
    measured = []
    for number in range(rounds):
        both = [lambda: ours(schedule), lambda: plain_simulator(schedule)]
        first, second = (seconds(block) for block in (both if number % 2 == 0 else both[::-1]))
        measured.append((first, second) if number % 2 == 0 else (second, first))
    return measured


def other_work(schedule: Schedule, rounds: int) -> dict[str, float]:
    """Return the median seconds of what else is done with such a schedule and its table."""
    table = simulate(schedule, forward=FORWARD, backward=BACKWARD, hop=HOP)
    blocks: dict[str, Callable[[], object]] = {
        "one_f_one_b": lambda: one_f_one_b(N_RANKS, N_MICRO),
        "validate": lambda: validate(schedule),
        "bubble_fraction": lambda: bubble_fraction(table),
        "activations": lambda: activations(table),
        "critical_path": lambda: critical_path(schedule, table),
    }
    return {name: statistics.median(seconds(block) for _ in range(rounds)) for name, block in blocks.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    schedule = one_f_one_b(N_RANKS, N_MICRO)
    if not all(same_times(each) for each in (schedule, gpipe(8, 16))):
        print("the two simulators differ")
        return 1
    measured = pairs(schedule, options.rounds)
    ours_s, plain_s = (statistics.median(times) for times in zip(*measured, strict=True))
    ratio = statistics.median(plain / our for our, plain in measured)
    other = other_work(schedule, options.rounds)
    if options.json:
        print(json.dumps({"simulate_s": ours_s, "plain_s": plain_s, "ratio": ratio, "other_s": other}))
    else:
        print(f"1F1B, {N_RANKS} ranks, {N_MICRO} micro-batches, {sum(map(len, schedule.ops))} ops")
        print(f"{'labkit simulate':<24} {ours_s:8.3f} s")
        print(f"{'plain list simulator':<24} {plain_s:8.3f} s   {ratio:6.2f} × labkit, median of {len(measured)} pairs")
        for name, cost in other.items():
            print(f"{name:<24} {cost:8.3f} s")
        print(f"simulated in under {MAX_S:g} s: {'yes' if ours_s < MAX_S else 'NO'}")
    return 0 if ours_s < MAX_S else 1


if __name__ == "__main__":
    sys.exit(main())
