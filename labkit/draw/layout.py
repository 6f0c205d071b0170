"""Lay out event tables: which row of a picture each span has, and in which unit time is written.

Nothing is drawn here. :mod:`labkit.draw.artists` puts what is laid out here on matplotlib axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.simulate import measures
from labkit.trace import EVENT_COLUMNS, LANES

GAP = 0.4  # between two ranks, in rows


def prepare(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the table as an ordinary DataFrame in drawing order, with a column ``chunk``.

    ``chunk`` is the number of a span's stage among those of its rank: 0, 1, …, and 0 without one.
    ``what`` names the table. Errors are those of :func:`labkit.simulate.measures.check_events`.
    """
    order = ["rank", "lane", "start_s", "end_s"]
    events = pd.DataFrame(measures.check_events(events, what, EVENT_COLUMNS))
    events = events.sort_values(order, kind="stable", ignore_index=True)
    return events.assign(chunk=_chunks(events))


def _chunks(events: pd.DataFrame) -> pd.Series:
    pairs = events[["rank", "stage"]].dropna().drop_duplicates().sort_values(["rank", "stage"])
    numbers = pairs.assign(chunk=pairs.groupby("rank").cumcount())
    return events[["rank", "stage"]].merge(numbers, on=["rank", "stage"], how="left")["chunk"].fillna(0).astype(int)


def from_zero(events: pd.DataFrame) -> pd.DataFrame:
    """Return the same table with its first span at 0."""
    start = events["start_s"].min()
    return events.assign(start_s=events["start_s"] - start, end_s=events["end_s"] - start)


@dataclass(frozen=True)
class TimeAxis:
    """How a picture writes time: the label of the axis, the unit, how many of it make a second."""

    label: str
    unit: str
    per_second: float

    def __call__(self, seconds: float) -> str:
        return f"{seconds * self.per_second:.4g} {self.unit}".strip()


def time_axis(extent_s: float, time_label: str = "", origin: float = 0.0) -> TimeAxis:
    """Return an axis in s, ms or µs, as fits the extent; the plain number with a ``time_label``.

    ``origin`` is the time in seconds that stands at 0.
    """
    if time_label:
        return TimeAxis(time_label + (f", from {origin:.6g} on" if origin else ""), "", 1.0)
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
    unit, per_second = next((pair for pair in units if extent_s * pair[1] >= 1), units[-1])
    return TimeAxis(f"time after {origin:.6g} s ({unit})" if origin else f"time ({unit})", unit, per_second)


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


class Part(NamedTuple):
    """A table to be drawn, what its lanes are labelled with, and the height of its rows."""

    label: str
    row_height: float
    events: pd.DataFrame


@dataclass
class Layout:
    """Where the rows lie, in units of a row's height, counted downwards from the first bar."""

    height: float = 0.0  # with a gap below the last rank
    ranks: dict[int, tuple[float, float]] = field(default_factory=dict)  # their bars
    lanes: list[tuple[float, str]] = field(default_factory=list)  # middle and label of every lane
    strips: dict[int, tuple[float, float]] = field(default_factory=dict)  # below the bars of a rank


def lay_out(parts: Sequence[Part], gap: float = GAP, strip: float = 0.0) -> Layout:
    """Give each span the ``top`` and ``height`` of its bar: by rank, by table, by lane.

    Under the bars of each rank is room for a strip.
    """
    layout, y = Layout(), 0.0
    lanes_used = set().union(*(set(part.events["lane"]) for part in parts))
    lanes = [lane for lane in LANES if lane in lanes_used] + sorted(lanes_used - set(LANES))
    for part in parts:
        part.events["top"], part.events["height"] = 0.0, 0.86 * part.row_height
    for rank in sorted(set().union(*(set(part.events["rank"]) for part in parts))):
        rank_top = y
        for (name, row_height, events), lane in itertools.product(parts, lanes):
            chosen = ((events["rank"] == rank) & (events["lane"] == lane)).to_numpy()
            if not chosen.any():
                continue
            rows, n_rows = stack(events["start_s"].to_numpy()[chosen], events["end_s"].to_numpy()[chosen])
            events.loc[chosen, "top"] = y + row_height * (rows + 0.07)
            label = " ".join(word for word in (name, lane if len(lanes) > 1 else "") if word)
            layout.lanes.append((y + row_height * n_rows / 2, label))
            y += row_height * n_rows
        layout.ranks[rank], layout.strips[rank] = (rank_top, y), (y, y + strip)
        y += strip + gap
    layout.height = y
    return layout
