"""Measure what the event table of a pipeline says: its makespan, its bubble, its activations.

Everything here follows from the events alone, so it works for simulated tables and for measured
ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from labkit.base.formats import MeasuredTable
from labkit.schedule import EVENT_NAMES

NUMBER_STEPS = "call labkit.trace.set_step(n) before each step"


def check_events(events: pd.DataFrame, what: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return ``events`` if it has ``columns``, rows, and times that run forwards.

    ``what`` names it. Raises TypeError for anything but a DataFrame, and ValueError for the rest.
    """
    if not isinstance(events, pd.DataFrame):
        given = type(events).__name__
        raise TypeError(
            f"{what} is of type {given}, expected an event table (a DataFrame), such as simulate(...) or run.events"
        )
    if missing := [name for name in columns if name not in events.columns]:
        raise ValueError(
            f"{what} lacks the columns {', '.join(missing)}, expected an event table, such as simulate(...) or run.events"
        )
    if events.empty:
        raise ValueError(f"{what} is empty, expected spans in it: with span(...) records one")
    start, end = (events[name].to_numpy(dtype=float, na_value=np.nan) for name in ("start_s", "end_s"))
    if (wrong := ~(np.isfinite(start) & np.isfinite(end) & (start <= end))).any():
        row = int(wrong.argmax())
        raise ValueError(f"{what}: row {row} is from {start[row]:g} to {end[row]:g} s, expected a start, then an end")
    return events


def _compute(events: pd.DataFrame) -> pd.DataFrame:
    """Return the spans of the compute lane.

    Raises as :func:`check_events` does, and ValueError where there is none.
    """
    events = check_events(events, "events", ["rank", "lane", "start_s", "end_s"])
    spans = events[(events["lane"] == "compute").to_numpy()]
    if spans.empty:
        lanes = ", ".join(sorted(set(events["lane"])))
        raise ValueError(f"events has no spans in the lane compute, expected some: its lanes are {lanes}")
    return spans


def op_rows(events: pd.DataFrame, what: str = "events") -> pd.DataFrame:
    """Return the rows that are a pipeline's ops: computed, named in EVENT_NAMES, fully labelled.

    An op has a stage and a micro-batch. What else a table may hold (sends, the optimizer, the
    host's work) is left out. Errors are those of :func:`check_events`.
    """
    columns = ["rank", "lane", "name", "stage", "micro_batch", "start_s", "end_s"]
    events = check_events(events, what, columns)
    is_op = (events["lane"] == "compute").to_numpy(dtype=bool) & events["name"].isin(
        list(EVENT_NAMES.values())
    ).to_numpy()
    is_op &= events["stage"].notna().to_numpy() & events["micro_batch"].notna().to_numpy()
    if not is_op.any():
        names = ", ".join(EVENT_NAMES.values())
        raise ValueError(
            f"{what} has no op of a pipeline, expected spans in the lane compute named {names}, each with its stage and "
            'micro_batch: span("forward", stage=0, micro_batch=3)'
        )
    ops = events[is_op]
    for column in ("rank", "stage", "micro_batch"):
        values = ops[column] if is_numeric_dtype(ops[column]) else pd.to_numeric(ops[column], errors="coerce")
        numbers = values.to_numpy(dtype=float, na_value=np.nan)
        if (wrong := ~((numbers >= 0) & (numbers == np.floor(numbers)))).any():
            value = ops[column].iloc[int(wrong.argmax())]
            raise ValueError(f"{what} has {value!r} in the column {column}, expected whole numbers, 0 or more")
    return ops


def measured_like(events: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return ``table``, which prints as measured if ``events`` do, with their ``.attrs``."""
    result = MeasuredTable(table) if isinstance(events, MeasuredTable) else table
    result.attrs = dict(events.attrs)
    return result


# --- time -----------------------------------------------------------------------------------------


def makespan(events: pd.DataFrame) -> float:
    """Return the seconds from the first start to the last end of what was computed.

    The lanes comm and host do not count.

    Raises ValueError for a table without compute spans, TypeError for anything but a table.
    """
    spans = _compute(events)
    return float(spans["end_s"].max() - spans["start_s"].min())


def bubble_fraction(events: pd.DataFrame) -> float:
    """Return idle time ÷ (ranks × makespan): how much of the ranks' time no op filled, 0 to 1.

    A rank works while at least one of its compute spans is open: spans inside one another count
    once, and the lanes comm and host do not count. Megatron's bubble is something else, idle ÷
    ideal time (Narayanan et al. 2021, arXiv 2104.04473).

    Raises as :func:`makespan` does, and ValueError if all that was computed took no time.
    """
    spans, ranks = _compute(events), events["rank"].nunique()
    if not (total := ranks * makespan(events)):
        raise ValueError("all compute spans of events take 0 s, so there is no time that could be idle")
    return (total - sum(_covered_s(of_rank) for _, of_rank in spans.groupby("rank"))) / total


def _covered_s(spans: pd.DataFrame) -> float:
    """Return the seconds in which at least one of the spans is open."""
    spans = spans.sort_values("start_s", kind="stable")
    start, end = spans["start_s"].to_numpy(), spans["end_s"].to_numpy()
    covered_until = np.maximum.accumulate(end)
    from_s = np.maximum(start[1:], covered_until[:-1])  # what an earlier span covers is not counted again
    return float(end[0] - start[0] + np.maximum(end[1:] - from_s, 0.0).sum())


def by_stage(events: pd.DataFrame) -> pd.DataFrame:
    """Return the events of stages with ``rank`` = ``stage``: for stages that are threads.

    Spans of threads all have the rank of their process. Rows without a stage are left out. Pictures
    of the table call its rows stages, by ``.attrs["row"]``. Raises ValueError if no row has one.
    """
    events = check_events(events, "events", ["rank", "stage", "start_s", "end_s"])
    with_stage = events[events["stage"].notna().to_numpy()]
    if with_stage.empty:
        raise ValueError('events has no row with a stage, expected spans that name theirs: span("forward", stage=0)')
    moved = with_stage.assign(rank=with_stage["stage"].astype("int64"))
    moved.attrs["row"] = "stage"
    return moved.sort_values(["rank", "start_s"], kind="stable", ignore_index=True)


def steps_of(events: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the ops of each step, by their number (:func:`labkit.trace.set_step`), a table each.

    Rows that are not ops of a pipeline are left out. Raises ValueError for a table without them,
    and where an op has no step.
    """
    ops = op_rows(events)
    if "step" not in ops or ops["step"].isna().any():
        raise ValueError(f"events has an op without a step, expected one of every op: {NUMBER_STEPS}")
    return [step for _, step in ops.groupby("step")]


# --- memory ---------------------------------------------------------------------------------------

_ACTIVATION = ["rank", "step", "stage", "micro_batch"]


def activations(events: pd.DataFrame) -> pd.DataFrame:
    """Return how many activations each rank keeps: ``count`` from ``time_s`` to its next row.

    A forward pass adds one when it starts, and the end of its backward pass (B, or W where that is
    split) frees it. Where both fall on one time, the free comes first. Each stage and micro-batch
    counts as one, so a rank with two stages counts chunks. What no backward pass frees is kept
    until the rank begins its next step, where the table has several.

    Columns: rank, time_s, count; by rank, then time. Raises ValueError for a table without the ops
    of a pipeline.
    """
    ops = op_rows(events)
    labels = {column: _whole_numbers(ops, column) for column in _ACTIVATION}
    times = {column: ops[column].to_numpy(dtype=float) for column in ("start_s", "end_s")}
    table = pd.DataFrame(labels | times | {"name": ops["name"].to_numpy()}).sort_values("start_s", kind="stable")
    # If steps have no number, an activation may occur several times: the n-th is freed by the n-th.
    table["nth"] = table.groupby([*_ACTIVATION, "name"]).cumcount()
    forward, frees = (table[table["name"].isin(names)] for names in (["forward"], ["backward", "weight_grad"]))
    pairs = forward.merge(frees, on=[*_ACTIVATION, "nth"], how="left", suffixes=("", "_of_backward"))
    step = ["rank", "step", "nth"]
    begin_s = table.groupby(step)["start_s"].min().sort_values()
    next_step_s = pairs.join(begin_s.groupby("rank").shift(-1).rename("next_s"), on=step)["next_s"]
    freed = pairs[["rank"]].assign(time_s=pairs["end_s_of_backward"].fillna(next_step_s), change=-1).dropna()
    kept = pairs[["rank"]].assign(time_s=pairs["start_s"], change=1)
    changes = pd.concat([freed, kept]).sort_values(["rank", "time_s", "change"], ignore_index=True)
    count = changes.groupby("rank")["change"].cumsum()
    result = type(events)(
        {"rank": changes["rank"].astype(ops["rank"].dtype), "time_s": changes["time_s"], "count": count}
    )
    result.attrs = dict(events.attrs)
    return result


def _whole_numbers(ops: pd.DataFrame, column: str) -> np.ndarray:
    """Return a column of whole numbers, with -1 for what is missing."""
    if column not in ops:
        return np.full(len(ops), -1)
    return ops[column].to_numpy(dtype=float, na_value=-1).astype("int64")


def peak_activations(events: pd.DataFrame) -> dict[int, int]:
    """Return the most activations that each rank keeps at one time, by rank.

    See :func:`activations`, also for its errors.
    """
    peaks = activations(events).groupby("rank")["count"].max()
    return dict(zip(peaks.index.tolist(), peaks.tolist(), strict=True))
