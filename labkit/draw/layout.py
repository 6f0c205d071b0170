"""Where the bars of event tables lie: which row of a picture each span has, and in which unit time is written.

Nothing is drawn here. :mod:`labkit.draw.artists` puts what is laid out here on matplotlib axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from labkit.simulate import measures
from labkit.trace import EVENT_COLUMNS, LANES

GAP = 0.4  # between two ranks, in rows


def checked(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """The table as an ordinary DataFrame in drawing order; ``what`` it is. Errors are those of :func:`labkit.simulate.measures.checked`."""
    order = ["rank", "lane", "start_s", "end_s"]
    events = measures.checked(events, what, EVENT_COLUMNS)
    return pd.DataFrame(events).sort_values(order, kind="stable", ignore_index=True)


def from_zero(events: pd.DataFrame) -> pd.DataFrame:
    """The same table with its first span at 0."""
    start = events["start_s"].min()
    return events.assign(start_s=events["start_s"] - start, end_s=events["end_s"] - start)


@dataclass(frozen=True)
class TimeAxis:
    """How time is written in a picture: the label of the axis, the unit, and how many of it make a second."""

    label: str
    unit: str
    per_second: float

    def __call__(self, seconds: float) -> str:
        return f"{seconds * self.per_second:.4g} {self.unit}".strip()


def time_axis(extent_s: float, time_label: str = "", origin: float = 0.0) -> TimeAxis:
    """Seconds, milliseconds or microseconds, as fits the extent; with a ``time_label`` that names it, the plain number.

    ``origin`` is the time in seconds that stands at 0.
    """
    if time_label:
        return TimeAxis(time_label + (f", from {origin:.6g} on" if origin else ""), "", 1.0)
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
    unit, per_second = next((pair for pair in units if extent_s * pair[1] >= 1), units[-1])
    return TimeAxis(f"time after {origin:.6g} s ({unit})" if origin else f"time ({unit})", unit, per_second)


def stack(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """Greedy interval packing: the row of each span, such that no two spans of a row overlap; and the number of rows.

    Longer spans first where two start together, so that an outer span lies above the ones nested in it.
    """
    slack = 1e-9 * max(float(ends.max() - starts.min()), 1e-12)  # spans that touch share a row in spite of rounding
    rows = np.zeros(len(starts), dtype=int)
    free_at: list[float] = []
    for i in np.lexsort((-ends, starts)):
        row = next((r for r, free in enumerate(free_at) if free <= starts[i] + slack), len(free_at))
        free_at[row : row + 1] = [ends[i]]
        rows[i] = row
    return rows, len(free_at)


def chunks(events: pd.DataFrame) -> pd.Series:
    """For each span the number of its stage among those of its rank: 0, 1, … in the order of the stages, 0 without one."""
    pairs = events[["rank", "stage"]].dropna().drop_duplicates().sort_values(["rank", "stage"])
    numbers = pairs.assign(chunk=pairs.groupby("rank").cumcount())
    return events[["rank", "stage"]].merge(numbers, on=["rank", "stage"], how="left")["chunk"].fillna(0).astype(int)


@dataclass
class Layout:
    """Where the rows lie, in units of a row's height, counted downwards from the first bar: top and bottom, or middle."""

    height: float = 0.0  # with a gap below the last rank
    ranks: dict[int, tuple[float, float]] = field(default_factory=dict)  # their bars
    lanes: list[tuple[float, str]] = field(default_factory=list)  # middle and label of every lane
    strips: dict[int, tuple[float, float]] = field(default_factory=dict)  # below the bars of a rank


def lay_out(parts: Sequence[tuple[str, float, pd.DataFrame]], gap: float = GAP, strip: float = 0.0) -> Layout:
    """Give each span the ``top`` and ``height`` of its bar: rank by rank, table by table, lane by lane.

    A part is the label of a table, the height of its rows, and the table. Under the bars of each rank is room for a strip.
    """
    layout, y = Layout(), 0.0
    lanes_used = set().union(*(set(events["lane"]) for _, _, events in parts))
    lanes = [lane for lane in LANES if lane in lanes_used] + sorted(lanes_used - set(LANES))
    for _, row_height, events in parts:
        events["top"], events["height"] = 0.0, 0.86 * row_height
    for rank in sorted(set().union(*(set(events["rank"]) for _, _, events in parts))):
        rank_top = y
        for (source, row_height, events), lane in itertools.product(parts, lanes):
            chosen = ((events["rank"] == rank) & (events["lane"] == lane)).to_numpy()
            if not chosen.any():
                continue
            rows, n_rows = stack(events["start_s"].to_numpy()[chosen], events["end_s"].to_numpy()[chosen])
            events.loc[chosen, "top"] = y + row_height * (rows + 0.07)
            label = " ".join(part for part in (source, lane if len(lanes) > 1 else "") if part)
            layout.lanes.append((y + row_height * n_rows / 2, label))
            y += row_height * n_rows
        layout.ranks[rank], layout.strips[rank] = (rank_top, y), (y, y + strip)
        y += strip + gap
    layout.height = y
    return layout
