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
RANK = "rank"


def prepare(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the table as an ordinary DataFrame in drawing order, with a column ``chunk``.

    ``chunk`` is the number of a span's stage among those of its rank: 0, 1, …, and 0 without one.
    ``what`` names the table. Errors are those of :func:`labkit.simulate.measures.check_events`.
    """
    checked = measures.check_events(events, what, EVENT_COLUMNS)
    events = pd.DataFrame(checked)
    events.attrs = dict(checked.attrs)
    order = [events[name].to_numpy() for name in ("end_s", "start_s")]
    order += [events[name].factorize(sort=True)[0] for name in ("lane", "rank")]
    events = events.iloc[np.lexsort(order)].reset_index(drop=True)
    events["chunk"] = _chunks(events)
    return events


def _chunks(events: pd.DataFrame) -> np.ndarray:
    stage = events["stage"].to_numpy(dtype=float, na_value=np.nan)
    chunks, has_stage = np.zeros(len(events), dtype="int64"), ~np.isnan(stage)
    pairs = np.stack([events["rank"].factorize(sort=True)[0], stage], axis=1)[has_stage]
    in_order = np.lexsort(pairs.T[::-1])
    is_new = np.any(np.diff(pairs[in_order], axis=0, prepend=-1.0) != 0, axis=1)
    number = np.cumsum(is_new)  # of the pair, over all ranks
    rank = pairs[in_order, 0]
    first = number[np.searchsorted(rank, rank)]  # pair of its rank
    chunks[np.flatnonzero(has_stage)[in_order]] = number - first
    return chunks


def row_word(*tables: pd.DataFrame) -> str:
    """Return what a rank of these tables is called: a rank, or a stage where those are threads."""
    return next((table.attrs["row"] for table in tables if "row" in table.attrs), RANK)


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
    row: str = RANK  # what a rank of the table is called


def lay_out(parts: Sequence[Part], gap: float = GAP, strip: float = 0.0) -> Layout:
    """Give each span the ``top`` and ``height`` of its bar: by rank, by table, by lane.

    Under the bars of each rank is room for a strip.
    """
    layout, y = Layout(row=row_word(*(part.events for part in parts))), 0.0
    lanes_used = set().union(*(set(part.events["lane"]) for part in parts))
    lanes = [lane for lane in LANES if lane in lanes_used] + sorted(lanes_used - set(LANES))
    columns = [[part.events[name].to_numpy() for name in ("rank", "lane", "start_s", "end_s")] for part in parts]
    tops = [np.zeros(len(part.events)) for part in parts]
    for rank in sorted(set().union(*(set(part.events["rank"]) for part in parts))):
        rank_top = y
        for (number, (name, row_height, _)), lane in itertools.product(enumerate(parts), lanes):
            rank_of, lane_of, start, end = columns[number]
            chosen = (rank_of == rank) & (lane_of == lane)
            if not chosen.any():
                continue
            rows, n_rows = stack(start[chosen], end[chosen])
            tops[number][chosen] = y + row_height * (rows + 0.07)
            label = " ".join(word for word in (name, lane if len(lanes) > 1 else "") if word)
            layout.lanes.append((y + row_height * n_rows / 2, label))
            y += row_height * n_rows
        layout.ranks[rank], layout.strips[rank] = (rank_top, y), (y, y + strip)
        y += strip + gap
    for part, top in zip(parts, tops, strict=True):
        part.events["top"], part.events["height"] = top, 0.86 * part.row_height
    layout.height = y
    return layout
