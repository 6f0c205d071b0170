"""Measure how an emulated data-parallel step scales, for notebooks 03 and 04.

How long an all_reduce takes there is the ring's formula, by construction (see
:mod:`labkit.parallel.emulated_step`). How long ranks wait for each other is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median
from typing import Any

import pandas as pd

from labkit.base.formats import MeasuredTable
from labkit.launch import Run, workers
from labkit.parallel.emulated_step import EmulatedStep
from labkit.simulate import explain_step, hidden_and_exposed
from labkit.stats import interval

BY_CONSTRUCTION = "an all_reduce takes what the ring's formula says, by construction"


def emulated_scaling(
    steps: Mapping[str, Mapping[int, EmulatedStep]],
    overlap: Collection[str] = (),
    shared: Collection[str] = (),
    rounds: int = 7,
) -> MeasuredTable:
    """Run each way's step on each number of ranks; return a row for each: predicted and measured.

        emulated_scaling({"weak": {n: EmulatedStep() for n in (1, 4, 16, 64)}})

    All ways have the same numbers of ranks, 1 among them. The buckets of ways in ``overlap`` leave
    during backward, all others after it; in ways in ``shared`` the ranks share the batch of one, in
    all others each brings its own. The first of the ``rounds`` warms up.

    Columns: way, ranks; step_s; predicted_s; compute_s, hidden_s and exposed_s, how a step divides
    (see :func:`labkit.simulate.hidden_and_exposed`); waiting_s, for a slower rank; late, how many
    all_reduces took longer than the formula says; speed, low, high and predicted: how many times as
    fast as one rank, its interval, and what was predicted. What is measured of a step is its mean
    over ranks, and of that the median over steps. What was emulated stands under the table.
    """
    rows, emulated = [], ""
    for n in next(iter(steps.values())):
        with workers(n, backend="gloo", threads=1) as ranks:
            for way, by_count in steps.items():
                run = ranks.run(by_count[n].train, [way in overlap], rounds)
                rows.append({"way": way, "ranks": n} | _facts(run, by_count[n], n, way in overlap))
                emulated = run.events.attrs["emulated"]
    table = MeasuredTable(rows)
    one_s = table["way"].map(table[table["ranks"] == 1].set_index("way")["predicted_s"])
    batches = table["ranks"].where(~table["way"].isin(list(shared)), 1)
    for column, of in {"speed": "step_s", "low": "high_s", "high": "low_s", "predicted": "predicted_s"}.items():
        table[column] = batches * one_s / table[of]
    table = table.drop(columns=["low_s", "high_s"])
    table.attrs["emulated"] = f"{emulated}. {BY_CONSTRUCTION}"
    return table


def _facts(run: Run, step: EmulatedStep, n: int, overlap: bool) -> dict[str, Any]:
    """Return a row of :func:`emulated_scaling`, of what was measured and predicted."""
    predicted = step.predict(n, overlap)
    divided = hidden_and_exposed(run.events).iloc[1:].set_index("step")
    step_s, shares = interval(divided.sum(axis=1)), divided.median()
    waits_s = [_waiting_s(explain_step(predicted, run.events, steps=[number])) for number in divided.index]
    return {
        "step_s": step_s.median,
        "low_s": step_s.low,
        "high_s": step_s.high,
        "predicted_s": predicted["end_s"].max(),
        "compute_s": shares["compute"],
        "hidden_s": shares["hidden communication"],
        "exposed_s": shares["exposed communication"],
        "waiting_s": median(waits_s),
        "late": max(run.values),
    }


def _waiting_s(explained: pd.DataFrame) -> float:
    return float(explained.set_index("part")["measured_s"]["waiting"])
