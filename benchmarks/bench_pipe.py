"""labkit's pipelines compared with no pipeline, with torch's, and with what the simulator says.

    python benchmarks/bench_pipe.py [--tables ratios makespan …] [--pairs 20]
                                    [--micro-batches 2 4 8] [--widths 256 512]

What is compared takes turns at being first; each number is the median of the rounds' own. A step is
forward and backward, from when the first rank begins it to when the last is done, without the
optimizer's. Six tables:

pipe         The forward pass of Pipe on two virtual devices, a worker thread each, and of the plain
             module in one thread, and in two, which is what torch does by itself. The most there is
             to gain is 2m / (m + 1). Wanted: at least 1.1 times as fast as one thread.
             ``--backward`` adds the backward pass, run in one thread; nothing is wanted of it.
ratios       A step of ScheduledPipeline ÷ one of torch.distributed.pipelining, GPipe and 1F1B, the
             same stages of GPT-2 blocks, on two gloo ranks with one thread each. Wanted: at most
             1.03.
speed_up     The same stages without a pipeline, one after the other in one thread ÷ those steps.
             Wanted: at least 1.6 for m = 8. Each core does so alone, in turns, and the mean of the
             two counts, as the cores of a virtual machine differ.
makespan     Of ScheduledPipeline's steps ÷ that of simulate, fed with each step's own op times, a
             mean for each stage. Wanted: within 10 %.
zero_bubble  ZB-H1 and 1F1B on four ranks over an emulated link, with emulated compute, ÷ what
             simulate says. Wanted: within 10 %, and ZB-H1 quicker than 1F1B.
split        The two parts of a GPT-2 block's backward pass, I and W, ÷ the whole, as split_times.py
             measures them. Wanted: at most 1.1 for a block of GPT-2 124M.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pipe_forward
import pipeline_steps
import split_times
import torch
from bench_dp import keep_freed_memory

from labkit.cost import Link
from labkit.launch import Run, launch
from labkit.schedule import Schedule, one_f_one_b, zero_bubble_h1
from labkit.simulate import makespan, simulate

TABLES = ("pipe", "ratios", "speed_up", "makespan", "zero_bubble", "split")
MAX_RATIO, MIN_SPEED_UP, MAX_ERROR = 1.03, 1.6, 0.10

# Emulated: four ranks, and messages of 64 KiB that take 2.3 ms, most of it on the link, where each
# op takes 10 ms.
SLOW = Link(latency_s=1e-3, bytes_per_s=50e6, name="SLOW")
N_RANKS, N_MICRO, OP_S = 4, 8, 10e-3
SHAPE = (64, 2048)  # of the batch, in float32
MESSAGE_BYTES = SHAPE[0] // N_MICRO * SHAPE[1] * 4

SPLIT_ROWS = 4
GPT2_WIDTH = 768  # that of the 124M one; a narrow block has little to compute, and the work for each operation shows

Row = dict[str, Any]


# --- steps, from the spans of a run ---------------------------------------------------------------


def steps(run: Run, way: str) -> pd.DataFrame:
    """Return when each step in that way began and ended, over all ranks, by its round."""
    spans = run.events[(run.events.name == way) & (run.events.step >= 0)]
    table = pd.DataFrame(spans.groupby("step").agg(start_s=("start_s", "min"), end_s=("end_s", "max")))
    return table.assign(seconds=table.end_s - table.start_s)


def ops(run: Run, way: str) -> Iterator[pd.DataFrame]:
    """Return the ops of each step in that way."""
    computed = run.events[run.events.lane == "compute"]
    for step in steps(run, way).itertuples():
        yield computed[(computed.start_s >= step.start_s) & (computed.end_s <= step.end_s)]


def ratio_of(run: Run, above: str, below: str) -> tuple[float, str]:
    """Return the median and the quartiles of the rounds' own ratios."""
    low, middle, high = statistics.quantiles(steps(run, above).seconds / steps(run, below).seconds, n=4)
    return middle, f"{low:.3f} to {high:.3f}"


def median_s(run: Run, way: str) -> float:
    return steps(run, way).seconds.median()


# --- the tables -----------------------------------------------------------------------------------


def ratio_row(kind: str, n_micro: int, run: Run) -> Row:
    ratio, quartiles = ratio_of(run, "labkit", "torch")
    row = {"schedule": kind, "m": n_micro, "torch s": median_s(run, "torch"), "ours s": median_s(run, "labkit")}
    return row | {"ours ÷ torch": ratio, "quartiles": quartiles, "good": ratio <= MAX_RATIO}


def speed_up_row(kind: str, n_micro: int, run: Run) -> Row:
    """Return the speed-up over one thread: the mean of two cores, as these may differ."""
    on_cores = [steps(run, way).seconds for way in pipeline_steps.ALONE]
    one_thread = sum(on_cores) / len(on_cores)
    low, speed_up, high = statistics.quantiles(one_thread / steps(run, "labkit").seconds, n=4)
    row: Row = {"schedule": kind, "m": n_micro, "one thread s": one_thread.median()}
    row["slower core ÷ other"] = max(times.median() for times in on_cores) / min(times.median() for times in on_cores)
    row |= {"ours": speed_up, "quartiles": f"{low:.3f} to {high:.3f}"}
    row |= {"torch's": (one_thread / steps(run, "torch").seconds).median(), "at most": 2 * n_micro / (n_micro + 1)}
    return row | {"good": speed_up >= MIN_SPEED_UP}


def makespan_row(kind: str, n_micro: int, run: Run) -> Row:
    """Return measured over simulated makespans, of mean op times, which add up as a step's do."""
    schedule = pipeline_steps.OURS[kind](pipeline_steps.N_STAGES, n_micro)
    measured, predicted = [], []
    for step in ops(run, "labkit"):
        means = step.assign(seconds=step.end_s - step.start_s).groupby(["name", "stage"]).seconds.mean()
        ideal = simulate(schedule, means["forward"].tolist(), means["backward"].tolist())
        measured.append(makespan(step))
        predicted.append(makespan(ideal))
    return {"schedule": kind, "m": n_micro} | compared(measured, predicted)


def compared(measured: list[float], predicted: list[float]) -> Row:
    ratios = [m / p for m, p in zip(measured, predicted, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    row = {"measured s": statistics.median(measured), "predicted s": statistics.median(predicted)}
    row |= {"measured ÷ predicted": middle, "quartiles": f"{low:.3f} to {high:.3f}"}
    return row | {"good": abs(middle - 1) <= MAX_ERROR}


def two_ranks(micro_batches: list[int], pairs: int) -> dict[str, list[Row]]:
    """Return the tables ratios, speed_up and makespan, all three from the same runs."""
    tables: dict[str, list[Row]] = {"ratios": [], "speed_up": [], "makespan": []}
    for kind in pipeline_steps.OURS:
        for n_micro in micro_batches:
            alone = n_micro == max(micro_batches)
            run = launch(pipeline_steps.compared_with_torch, kind, n_micro, pairs, alone, threads=1, timeout_s=600)
            tables["ratios"].append(ratio_row(kind, n_micro, run))
            tables["makespan"].append(makespan_row(kind, n_micro, run))
            if alone:
                tables["speed_up"].append(speed_up_row(kind, n_micro, run))
    return tables


def zero_bubble_rows(pairs: int) -> list[Row]:
    schedules: dict[str, Schedule] = {
        "1f1b": one_f_one_b(N_RANKS, N_MICRO),
        "zb-h1": zero_bubble_h1(N_RANKS, N_MICRO),
    }
    times = (OP_S, OP_S, OP_S)
    run = launch(
        pipeline_steps.emulated, schedules, times, SHAPE, pairs, world_size=N_RANKS, threads=1, link=SLOW, timeout_s=600
    )
    print(f"zero_bubble: {run.events.attrs['emulated']}", flush=True)
    hop = SLOW.message_s(MESSAGE_BYTES)
    # Stage 0 sends no gradient back, so it leaves all work to W.
    input_grad, weight_grad = [1e-6] + [OP_S] * (N_RANKS - 1), [2 * OP_S] + [OP_S] * (N_RANKS - 1)
    rows = []
    for name, schedule in schedules.items():
        measured = [makespan(step) for step in ops(run, name)]
        ideal = makespan(simulate(schedule, OP_S, 2 * OP_S, input_grad, weight_grad, hop))
        rows.append({"schedule": name} | compared(measured, [ideal] * len(measured)))
    quicker = rows[1]["measured s"] / rows[0]["measured s"]
    expected = rows[1]["predicted s"] / rows[0]["predicted s"]
    rows.append({"schedule": "zb-h1 ÷ 1f1b", "measured s": quicker, "predicted s": expected, "good": quicker < 1})
    return rows


def split_rows(pairs: int) -> list[Row]:
    """Return the split's rows, a rank for each width: a process that does nothing else."""
    rows = []
    for width in (256, GPT2_WIDTH):
        measured = launch(split_pairs, width, pairs, world_size=1, threads=1, backend="gloo", timeout_s=600).values[0]
        row = split_times.row(width, measured)
        rows.append(row | {"good": width < GPT2_WIDTH or row["I + W ÷ B"] <= split_times.MAX_SPLIT})
    return rows


def split_pairs(width: int, pairs: int) -> list[dict[str, float]]:
    keep_freed_memory()
    return split_times.measure(width, SPLIT_ROWS, pipeline_steps.TOKENS, pairs)


def pipe_rows(options: argparse.Namespace) -> list[Row]:
    keep_freed_memory()
    m = max(options.micro_batches)
    return [pipe_forward.row(width, m, options.pairs, options.backward) for width in options.widths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[2, 4, 8], choices=[1, 2, 4, 8, 16])
    parser.add_argument("--widths", nargs="+", type=int, default=[256, 512], help="of the layers in a Pipe")
    parser.add_argument("--backward", action="store_true", help="Pipe's backward pass, too; nothing is wanted of it")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {options.pairs} pairs", flush=True)
    tables: dict[str, list[Row]] = {}
    if {"ratios", "speed_up", "makespan"} & {*options.tables}:
        tables |= two_ranks(options.micro_batches, options.pairs)
    if "zero_bubble" in options.tables:
        tables["zero_bubble"] = zero_bubble_rows(options.pairs)
    if "split" in options.tables:
        tables["split"] = split_rows(options.pairs)
    if "pipe" in options.tables:
        tables["pipe"] = pipe_rows(options)
    for title in filter(tables.__contains__, options.tables):
        print(f"\n{title}\n{pd.DataFrame(tables[title]).to_string(index=False, float_format='{:.3f}'.format)}")
    missed = sum(not row["good"] for title in options.tables for row in tables[title])
    print(f"\nmissed: {missed}" if missed else "\nall as wanted")


if __name__ == "__main__":
    main()
