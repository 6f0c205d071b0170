"""Draw an event table as a timeline, or one over another."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import emulated
from labkit.draw.layout import GAP, Part, TimeAxis, from_zero, lay_out, prepare, time_axis
from labkit.draw.painter import Look, paint, put_panel_legend
from labkit.draw.palette import BAND, GRID
from labkit.draw.panel import Mark, Panel
from labkit.draw.picture import PAGE_IN, attach, house_style, new_axes
from labkit.trace import EVENT_COLUMNS

_MOST_IN, _MANY_RANKS_IN = 14.0, 10.0  # so high may a timeline be, inches, and one of many ranks
_MANY_RANKS = 16
_HEIGHTS = {"predicted": 0.55, "measured": 1.0}  # of rows


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
    shown = drawn.assign(start_s=drawn["start_s"] - origin, end_s=drawn["end_s"] - origin)
    ax = _draw(lay_out([Part("", 1.0, shown)]), ax, axis, emulated(events, note=note))
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
    given = {"predicted": prepare(ideal, "overlay(ideal)"), "measured": prepare(measured, "overlay(measured)")}
    tables = {source: from_zero(table) for source, table in given.items()}
    panel = lay_out([Part(source, _HEIGHTS[source], table) for source, table in tables.items()])
    ends = {source: float(table["end_s"].max()) for source, table in tables.items()}
    axis = time_axis(max(ends.values()), time_label)
    marks = [Mark(end, f"{source} ends at\n{axis(end)}", source == "predicted") for source, end in ends.items()]
    ax = _draw(replace(panel, marks=marks), ax, axis, emulated(ideal, measured, note=note), least_in=2.8)
    tagged = [table.assign(source=source)[["source", *EVENT_COLUMNS]] for source, table in tables.items()]
    attach(ax, pd.concat(tagged, ignore_index=True))
    return ax


def _draw(panel: Panel, ax: Axes | None, time: TimeAxis, note: str, least_in: float = 1.7) -> Axes:
    look, ranks = Look.of([panel], time), list(panel.ranks.values())
    left, right = min(0.0, panel.bars["left"].min()), panel.bars["right"].max()
    with house_style():
        if ax is None:
            most = _MOST_IN if len(ranks) <= _MANY_RANKS else _MANY_RANKS_IN
            height = min(0.9 + 0.27 * panel.height, most) + 0.15 * note.count("\n")
            ax = new_axes(PAGE_IN, max(height, least_in))
        paint(ax, panel, look, (left, left + 1.01 * ((right - left) or 1e-6)), margin=GAP / 2)
        ax.grid(axis="x", color=GRID, linewidth=0.6)
        for top, bottom in ranks[1::2]:
            ax.axhspan(top - GAP / 2, bottom + GAP / 2, color=BAND, linewidth=0, zorder=0)
        ax.set_xlabel("\n".join([time.label, *textwrap.wrap(note, 110)]))
        put_panel_legend(ax, look.styles, look.n_chunks)
    return ax
