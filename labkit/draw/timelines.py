"""Draw an event table as a timeline, or one over another."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import emulated
from labkit.draw.artists import (
    BAND,
    GRID,
    draw_bars,
    draw_numbers,
    label_rows,
    legend_entries,
    names_of,
    put_legend_right,
)
from labkit.draw.layout import GAP, Layout, Part, TimeAxis, from_zero, lay_out, prepare, time_axis
from labkit.draw.palette import styles_of
from labkit.draw.picture import INK, PAGE_IN, attach, house_style, new_axes
from labkit.trace import EVENT_COLUMNS

_MOST_IN, _MANY_RANKS_IN = 14.0, 10.0  # so high may a timeline be, inches, and one of many ranks
_MANY_RANKS = 16


def timeline(events: pd.DataFrame, ax: Axes | None = None, *, note: str = "", time_label: str = "") -> Axes:
    """Draw an event table: a row per rank, in it one per lane; spans that overlap are stacked.

    ``events`` has the columns of ``trace.EVENT_COLUMNS``, times in seconds. A bar shows the number
    of its micro-batch, or else of its bucket, where there is room. The second and further stages of
    a rank are lighter. ``note`` stands under the picture, with what was emulated. ``time_label``
    names the axis where a second stands for something else, such as ``"time (forward passes)"``.

    Raises ValueError for a table that is empty, lacks columns, or has times that are missing or run
    backwards.
    """
    drawn = prepare(events, "timeline(events)")
    start, end = float(drawn["start_s"].min()), float(drawn["end_s"].max())
    origin = start if start > end - start else 0.0  # far from the run's start, count from the first span
    axis = time_axis(end - origin - min(start - origin, 0.0), time_label, origin)
    part = Part("", 1.0, drawn.assign(start=drawn["start_s"] - origin))
    with house_style():
        ax = _draw_events([part], ax, axis, emulated(events, note=note))
    attach(ax, drawn[list(EVENT_COLUMNS)])
    return ax


def overlay(
    ideal: pd.DataFrame, measured: pd.DataFrame, ax: Axes | None = None, *, note: str = "", time_label: str = ""
) -> Axes:
    """Draw what should happen over what did happen, rank by rank on one time axis; both begin at 0.

    Two event tables as for :func:`timeline`, with the same unit of time. Lines mark where each of
    them ends. In the picture the first one is called predicted, as in every other picture of the
    lab.
    """
    tables = {
        "predicted": prepare(ideal, "overlay(ideal)"),
        "measured": prepare(measured, "overlay(measured)"),
    }
    shifted = {source: from_zero(table) for source, table in tables.items()}
    ends = [(source, float(table["end_s"].max())) for source, table in shifted.items()]
    heights = {"predicted": 0.55, "measured": 1.0}
    parts = [Part(source, heights[source], table.assign(start=table["start_s"])) for source, table in shifted.items()]
    axis = time_axis(max(end for _, end in ends), time_label)
    with house_style():
        ax = _draw_events(parts, ax, axis, emulated(ideal, measured, note=note), ends)
    tagged = [table.assign(source=source)[["source", *EVENT_COLUMNS]] for source, table in shifted.items()]
    attach(ax, pd.concat(tagged, ignore_index=True))
    return ax


def _draw_events(
    parts: Sequence[Part],
    ax: Axes | None,
    time: TimeAxis,
    note: str,
    ends: Sequence[tuple[str, float]] = (),
) -> Axes:
    """Draw tables that have a ``start``, each with its label and row height, and mark each end."""
    layout, tables = lay_out(parts), [part.events for part in parts]
    if ax is None:
        most = _MOST_IN if len(layout.ranks) <= _MANY_RANKS else _MANY_RANKS_IN
        height = min(0.9 + 0.27 * layout.height, most) + 0.15 * note.count("\n")
        ax = new_axes(PAGE_IN, max(height, 1.7))
    _set_axes(ax, layout, tables, time.per_second)
    ax.set_xlabel("\n".join([time.label, *textwrap.wrap(note, 110)]))
    styles, n_chunks = styles_of(names_of(tables)), 1 + max(int(events["chunk"].max()) for events in tables)
    for events in tables:
        draw_bars(ax, events, styles, time.per_second, n_chunks)
    draw_numbers(ax, pd.concat(tables, ignore_index=True), styles, time.per_second, n_chunks)
    handles, labels = legend_entries(styles, n_chunks)
    for (source, end), dashes in zip(ends, ("--", "-"), strict=False):
        handles.append(ax.axvline(end * time.per_second, color=INK, linestyle=dashes, linewidth=1.1, zorder=5))
        labels.append(f"{source} ends at\n{time(end)}")
    put_legend_right(ax, handles, labels)
    return ax


def _set_axes(ax: Axes, layout: Layout, tables: Sequence[pd.DataFrame], per_second: float) -> None:
    left = min(0.0, *(float(events["start"].min()) for events in tables))
    right = max(float((events["start"] + events["end_s"] - events["start_s"]).max()) for events in tables)
    extent = (right - left) or 1e-6
    ax.set_xlim(left * per_second, (left + 1.01 * extent) * per_second)
    ax.set_ylim(layout.height - GAP / 2, -GAP / 2)
    for top, bottom in list(layout.ranks.values())[1::2]:
        ax.axhspan(top - GAP / 2, bottom + GAP / 2, color=BAND, linewidth=0, zorder=0)
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    label_rows(ax, layout)
