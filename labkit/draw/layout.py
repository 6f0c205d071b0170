"""Lay out event tables as panels: which row each span has, and in which unit time is written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.base.formats import short
from labkit.base.units import DURATIONS, unit_for
from labkit.draw.panel import BAR_COLUMNS, EventsPanel, Label, TimeAxis
from labkit.simulate import measures
from labkit.trace import EVENT_COLUMNS, LANES

GAP = 0.4  # between two ranks, in rows
RANK = "rank"


def prepare(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the table as an ordinary DataFrame in drawing order, with a column ``chunk``.

    ``chunk`` is the number of a span's stage among those of its rank: 0, 1, …, and 0 without one.
    ``what`` names the table. Errors are those of :func:`labkit.simulate.measures.check_events`.
    """
    checked = measures.check_events(events, what, EVENT_COLUMNS)
    events = pd.DataFrame(checked).sort_values(["rank", "lane", "start_s", "end_s"], kind="stable", ignore_index=True)
    events.attrs = dict(checked.attrs)
    events["chunk"] = events.groupby("rank")["stage"].rank(method="dense").sub(1).fillna(0).astype("int64")
    return events


def row_word(*tables: pd.DataFrame) -> str:
    """Return what a rank of these tables is called: a rank, or a stage where those are threads."""
    return next((table.attrs["row"] for table in tables if "row" in table.attrs), RANK)


def unit_label(*tables: pd.DataFrame) -> str:
    """Return what the axis of these tables is called where their times are not seconds, or ""."""
    return next((table.attrs["time"] for table in tables if "time" in table.attrs), "")


def from_zero(events: pd.DataFrame) -> pd.DataFrame:
    """Return the same table with its first span at 0."""
    start = events["start_s"].min()
    return events.assign(start_s=events["start_s"] - start, end_s=events["end_s"] - start)


def time_axis(extent_s: float, time_label: str = "", origin: float = 0.0) -> TimeAxis:
    """Return an axis in s, ms or µs, as fits the extent; the plain number with a ``time_label``.

    ``origin`` is the time in seconds that stands at 0.
    """
    if time_label:
        return TimeAxis(time_label + (f", from {short(origin, 6)} on" if origin else ""), "", 1.0)
    unit = unit_for(extent_s, DURATIONS)
    label = f"time after {short(origin, 6)} s ({unit})" if origin else f"time ({unit})"
    return TimeAxis(label, unit, 1 / DURATIONS[unit])


def from_start(events: pd.DataFrame, time_label: str = "") -> tuple[pd.DataFrame, TimeAxis]:
    """Return the same table, from its first span on where that is far from 0, and its axis."""
    start, end = float(events["start_s"].min()), float(events["end_s"].max())
    origin = start if start > end - start else 0.0
    axis = time_axis(end - origin - min(start - origin, 0.0), time_label or unit_label(events), origin)
    return events.assign(start_s=events["start_s"] - origin, end_s=events["end_s"] - origin), axis


def stack(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the row of each span, such that no two spans of a row overlap, and the number of rows.

    This is greedy interval packing. Longer spans come first where two start together, so that an
    outer span lies above the ones nested in it.
    """
    slack = 1e-9 * max(float(ends.max() - starts.min()), 1e-12)  # spans that touch share a row in spite of rounding
    rows = np.zeros(len(starts), dtype=int)
    free_at: list[float] = []
    for i in np.lexsort((-ends, starts)):
        row = next((r for r, free in enumerate(free_at) if free <= starts[i] + slack), len(free_at))
        free_at[row : row + 1] = [ends[i]]
        rows[i] = row
    return rows, len(free_at)


class LabelledTable(NamedTuple):
    """A table to be drawn, what its lanes are labelled with, and the height of its rows."""

    label: str
    row_height: float
    events: pd.DataFrame


def lay_out(parts: Sequence[LabelledTable], gap: float = GAP, strip: float = 0.0) -> EventsPanel:
    """Return the panel of these tables, a bar per span: by rank, by table, by lane.

    Under the bars of each rank, space is left for a ``strip``, and then a ``gap``.
    """
    tables = [part.events for part in parts]
    used = set().union(*(events["lane"].unique() for events in tables))
    lanes = [lane for lane in LANES if lane in used] + sorted(used - set(LANES))
    columns = [[events[name].to_numpy() for name in ("rank", "lane", "start_s", "end_s")] for events in tables]
    tops = [np.zeros(len(events)) for events in tables]
    ranks, beside, y = dict[int, tuple[float, float]](), list[Label](), 0.0
    for rank in sorted(set().union(*(set(events["rank"]) for events in tables))):
        rank_top = y
        for (number, (name, row_height, _)), lane in itertools.product(enumerate(parts), lanes):
            rank_of, lane_of, start, end = columns[number]
            chosen = (rank_of == rank) & (lane_of == lane)
            if not chosen.any():
                continue
            rows, n_rows = stack(start[chosen], end[chosen])
            tops[number][chosen] = y + row_height * (rows + 0.07)
            if label := " ".join(word for word in (name, lane if len(lanes) > 1 else "") if word):
                beside.append(Label(y + row_height * n_rows / 2, label, small=True))
            y += row_height * n_rows
        ranks[rank] = rank_top, y
        y += strip + gap
    bars = [_bars(part.events, top, 0.86 * part.row_height) for part, top in zip(parts, tops, strict=True)]
    names = [Label((top + bottom) / 2, f"{row_word(*tables)} {rank}") for rank, (top, bottom) in ranks.items()]
    return EventsPanel(
        pd.concat(bars, ignore_index=True) if len(bars) > 1 else bars[0],
        height=y - gap,
        rows=names + beside,
        ranks=ranks,
        of_ops=any(bool(events["stage"].notna().any()) for events in tables),
    )


def _bars(events: pd.DataFrame, top: np.ndarray, height: float) -> pd.DataFrame:
    """Return the spans as bars, labelled with their micro-batch, or else their bucket."""
    micro_batch, bucket = (events[name].to_numpy(dtype=float, na_value=np.nan) for name in ("micro_batch", "bucket"))
    numbers = np.where(np.isnan(micro_batch), bucket, micro_batch).tolist()
    labels = ["" if number != number else str(int(number)) for number in numbers]
    span = [events[name].array for name in ("start_s", "end_s")]
    columns = [*span, top, np.full(len(top), height), events["name"].array, events["chunk"].array, labels]
    return pd.DataFrame(dict(zip(BAR_COLUMNS, columns, strict=True)))
