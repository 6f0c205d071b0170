"""Draw event tables: as a timeline, one over another, several on one axis; a schedule as a table.

As the last line of a cell:

    schedules({"GPipe": simulate(gpipe(4, 8)), "1F1B": simulate(one_f_one_b(4, 8))})
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.base.formats import emulated
from labkit.draw.cell_figure import GridStep
from labkit.draw.cells import Cell, cell_panel
from labkit.draw.layout import GAP, Part, TimeAxis, from_zero, lay_out, prepare, time_axis
from labkit.draw.memory_strips import ABOVE, peaks_of, pieces_of, strips_of, unit_of
from labkit.draw.painter import (
    LEGEND_LINE_IN,
    Look,
    legend_entries,
    legend_lines,
    paint,
    points_per_unit,
    put_figure_legend,
    put_panel_legend,
    strip_entry,
)
from labkit.draw.palette import BAND, GRID, IDLE, KEPT_EDGE
from labkit.draw.panel import Mark, Panel
from labkit.draw.picture import PAGE_IN, attach, house_style, new_axes
from labkit.schedule import Schedule
from labkit.simulate import bubble_fraction, makespan, simulate
from labkit.trace import EVENT_COLUMNS

# --- one, and one over another --------------------------------------------------------------------

_MAX_TIMELINE_IN, _MANY_RANKS_IN = 14.0, 10.0  # so high may a timeline be, inches, and one of many ranks
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
            most = _MAX_TIMELINE_IN if len(ranks) <= _MANY_RANKS else _MANY_RANKS_IN
            height = min(0.9 + 0.27 * panel.height, most) + 0.15 * note.count("\n")
            ax = new_axes(PAGE_IN, max(height, least_in))
        paint(ax, panel, look, (left, left + 1.01 * ((right - left) or 1e-6)), margin=GAP / 2)
        ax.grid(axis="x", color=GRID, linewidth=0.6)
        for top, bottom in ranks[1::2]:
            ax.axhspan(top - GAP / 2, bottom + GAP / 2, color=BAND, linewidth=0, zorder=0)
        ax.set_xlabel("\n".join([time.label, *textwrap.wrap(note, 110)]))
        put_panel_legend(ax, look.styles, look.n_chunks)
    return ax


# --- several on one time axis ---------------------------------------------------------------------

# The figure is laid out in inches by hand: rows of all panels are of one height, and bars of one
# second of one width.
ROW_IN, _STRIP, _GAP = 0.21, 0.68, 0.34  # a rank's bars; its strip and the gap below it, in rows
_TITLE_IN, _LEGEND_IN, _AXIS_IN, _LINE_IN = 0.3, 0.26, 0.42, 0.16
_LEFT_IN, _RIGHT_IN = 0.6, 0.55
_MAX_IN = 13.0  # so high may all rows be together
_NUMBERS_PT = (7.0, 7.6)  # in bars of that height, least and most
_CHARACTERS_ACROSS = 125


class _Run(NamedTuple):
    """A table to be drawn, from 0 on, and what is said of it; ``pieces`` are of its strips."""

    events: pd.DataFrame
    makespan_s: float
    bubble: float
    pieces: pd.DataFrame

    @classmethod
    def of(cls, title: str, table: pd.DataFrame) -> _Run:
        what = f"schedules(tables): {title!r}"
        events = from_zero(prepare(table, what))
        try:
            return cls(events, makespan(events), bubble_fraction(events), pieces_of(events, _end_s(events)))
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None

    def panel(self, most_kept: float) -> Panel:
        """Return its panel, with strips that are full for ``most_kept`` micro-batches."""
        panel, end_s = lay_out([Part("", 1.0, self.events)], gap=_GAP, strip=_STRIP), _end_s(self.events)
        bars = panel.bars.assign(bottom=panel.bars["top"] + panel.bars["height"], rank=self.events["rank"])
        rows = bars[self.events["lane"] == "compute"].groupby("rank").agg({"top": "min", "bottom": "max"})
        return replace(
            panel,
            idle=rows.assign(left=end_s - self.makespan_s, right=end_s),
            strips=strips_of(self.pieces, panel, _STRIP, most_kept),
            peaks=peaks_of(self.pieces, panel, _STRIP),
        )

    def data(self, title: str) -> pd.DataFrame:
        """Return what its panel shows: its events, and pieces of its strips, named activations."""
        both = pd.concat([self.events, self.pieces.assign(name="activations")], ignore_index=True)
        return both.assign(schedule=title)[["schedule", *EVENT_COLUMNS, "kept"]].astype({"kept": "Int64"})


def _end_s(events: pd.DataFrame) -> float:
    """Return the end of the last op."""
    return float(events[events["lane"] == "compute"]["end_s"].max())


def schedules(
    tables: Mapping[str, pd.DataFrame], *, note: str = "", time_label: str = "", row_in: float = ROW_IN
) -> Figure:
    """Draw event tables one above the other on one time axis, each with its makespan and bubble.

    ``tables`` has the titles and the event tables, simulated or measured. Where a rank waits is
    grey. The strip below each rank tells of how many micro-batches it keeps the activations, over
    time, with the peak next to it, on one scale for all (see :mod:`labkit.draw.memory_strips`).
    ``note`` and ``time_label`` are those of :func:`labkit.draw.timeline`. ``row_in`` is how high a
    rank's bars are, inches, unless many ranks have to fit on the page; the numbers in them grow
    with it.

    Raises TypeError for anything but a dict of titles and event tables, ValueError for an empty one
    and for a table that cannot be drawn, by its title.
    """
    if not isinstance(tables, Mapping):
        raise TypeError(
            f"schedules(tables): got {type(tables).__name__}, expected titles and event tables, such as "
            '{"GPipe": simulate(gpipe(4, 8))}'
        )
    if not tables:
        raise ValueError("schedules(tables): there is no table, expected at least one title with an event table")
    runs = {str(title): _Run.of(title, events) for title, events in tables.items()}
    counts = [run.pieces for run in runs.values()]
    most_kept = max(pieces["micro_batches"].max() for pieces in counts)
    panels = [run.panel(most_kept) for run in runs.values()]
    row_in = min(row_in, _MAX_IN / sum(panel.height for panel in panels))
    extent_s = max(float(panel.bars["right"].max()) for panel in panels)
    time = time_axis(extent_s, time_label)
    look = Look.of(panels, time, (_NUMBERS_PT[0], _NUMBERS_PT[1] * max(1.0, row_in / ROW_IN)))
    note, unit = emulated(*tables.values(), note=note), unit_of(counts)
    note = f"{note.removesuffix('.')}. {unit}" if note and unit else note or unit
    note_lines = textwrap.wrap(note, _CHARACTERS_ACROSS)
    with house_style():
        entries = legend_entries(look.styles, look.n_chunks) | {"idle": Patch(color=IDLE)}
        entries |= strip_entry(72 * row_in * (_STRIP - ABOVE))
        figure, grid = _new_figure([row_in * panel.height for panel in panels], entries, len(note_lines))
        for ax, panel, (title, run) in zip(grid[:, 0], panels, runs.items(), strict=True):
            ax.grid(axis="x", color=GRID, linewidth=0.6)
            ax.tick_params(axis="x", length=0, labelbottom=False)
            ax.spines[:].set_visible(False)
            paint(ax, panel, look, (-0.002 * extent_s, 1.002 * extent_s), margin=_GAP / 2, peaks="beside")
            above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
            ax.annotate(title, (0, 1), (0, 5), weight="bold", fontsize=10, **above)
            ax.annotate(f"makespan {time(run.makespan_s)}", (1, 1), (-88, 5), ha="right", **above)
            ax.annotate(f"bubble {100 * run.bubble:.1f} %", (1, 1), (0, 5), ha="right", **above)
            ax.annotate("peak", (1, 1), (8, 5), fontsize=8, color=KEPT_EDGE, **above)
            attach(ax, run.data(title))
        ax.tick_params(axis="x", length=3, labelbottom=True)
        ax.set_xlabel("\n".join([time.label, *note_lines]))
    return figure


def _new_figure(heights: Sequence[float], entries: Mapping[str, Any], n_note_lines: int) -> tuple[Figure, np.ndarray]:
    """Return a figure of axes of these heights, inches, with a legend above and room for a note."""
    n_lines = legend_lines(entries, PAGE_IN - _LEFT_IN)
    above = _LEGEND_IN + LEGEND_LINE_IN * (n_lines - 1) + _TITLE_IN
    below, titles = _AXIS_IN + _LINE_IN * n_note_lines, _TITLE_IN * (len(heights) - 1)
    total = above + sum(heights) + titles + below
    figure, grid = plt.subplots(len(heights), figsize=(PAGE_IN, total), squeeze=False, height_ratios=heights)
    hspace = _TITLE_IN * len(heights) / sum(heights)
    figure.subplots_adjust(_LEFT_IN / PAGE_IN, below / total, 1 - _RIGHT_IN / PAGE_IN, 1 - above / total, hspace=hspace)
    put_figure_legend(figure, entries, (_LEFT_IN, total - 0.06), n_lines)
    return figure, grid


# --- one as a table -------------------------------------------------------------------------------

# A cell is as wide as high, as far as a page has room.
_CELL_IN, _MIN_ROW_IN, _MAX_TABLE_IN = 0.27, 0.17, 10.0
_BESIDE_IN, _BELOW_IN = 2.1, 0.75  # for rank labels and legend; for title and axis
_SLOT_PT = 15.0  # the least distance of two labels of slots


def schedule_table(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Draw ``schedule`` as a table, under its name.

    Idle slots are grey; a rank's second stage is lighter than its first.

    Every op takes one slot, whatever its kind, and a result can be used in the next slot: unit
    times, no hop. In the CSV of the figure there is a row per op: rank, slot, name, stage,
    micro_batch.

    Raises TypeError for anything but a Schedule, ScheduleError for one that cannot run.
    """
    events = prepare(simulate(schedule, 1.0, 1.0, 1.0, 1.0), "schedule_table(schedule)")
    events["slot"] = events["start_s"].round().astype(int)
    n_slots, n_ranks = 1 + int(events["slot"].max()), 1 + int(events["rank"].max())
    columns = ["rank", "slot", "name", "chunk", "micro_batch"]
    ops = events[columns].itertuples(index=False, name=None)
    cells = [Cell(rank, slot, 0, 1, name, chunk, str(micro_batch), "") for rank, slot, name, chunk, micro_batch in ops]
    grid = GridStep(cell_panel(cells, [f"rank {rank}" for rank in range(n_ranks)], {}), 0, schedule.name)
    panel = replace(grid.shown(n_slots), of_ops=True)
    look = Look.of([panel], TimeAxis("time slot", "", 1.0))
    with house_style():
        if ax is None:
            cell_in = min(_CELL_IN, (PAGE_IN - _BESIDE_IN) / n_slots)
            row_in = min(_CELL_IN, max(cell_in, _MIN_ROW_IN), _MAX_TABLE_IN / panel.height)
            ax = new_axes(_BESIDE_IN + cell_in * n_slots, _BELOW_IN + row_in * panel.height)
        ax.spines[:].set_visible(False)
        paint(ax, panel, look, (0, n_slots))
        _label_slots(ax, n_slots, look.time)
        ax.set_title(schedule.name, loc="left", fontsize=10, weight="bold")
        put_panel_legend(ax, look.styles, look.n_chunks)
    attach(ax, events[["rank", "slot", "name", "stage", "micro_batch"]])
    return ax


def _label_slots(ax: Axes, n_slots: int, time: TimeAxis) -> None:
    """Number the slots from 0, or every second, fifth, tenth, … of them."""
    slot_pt = points_per_unit(ax)[0]
    steps = (digit * 10**power for power, digit in product(range(9), (1, 2, 5)))
    labelled = range(0, n_slots, next(step for step in steps if step * slot_pt >= _SLOT_PT))
    ax.set_xticks([slot + 0.5 for slot in labelled], labels=[str(slot) for slot in labelled])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel(time.label)
