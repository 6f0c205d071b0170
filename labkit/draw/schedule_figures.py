"""Draw schedules as papers do: several on one time axis with their memory, or one as a table.

As the last line of a cell:

    schedules({"GPipe": simulate(gpipe(4, 8)), "1F1B": simulate(one_f_one_b(4, 8))})
"""

from __future__ import annotations

import math
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
from labkit.draw.layout import Part, TimeAxis, from_zero, lay_out, prepare, time_axis
from labkit.draw.memory_strips import ABOVE, peaks_of, pieces_of, strips_of, unit_of
from labkit.draw.painter import (
    SIDE_BY_SIDE,
    Look,
    hide_frame,
    legend_entries,
    paint,
    points_per_unit,
    put_legend_right,
    strip_entry,
)
from labkit.draw.palette import GRID, IDLE, KEPT_EDGE
from labkit.draw.panel import Panel
from labkit.draw.picture import PAGE_IN, attach, house_style, new_axes
from labkit.schedule import Schedule
from labkit.simulate import bubble_fraction, makespan, simulate
from labkit.trace import EVENT_COLUMNS

# --- several on one time axis ---------------------------------------------------------------------

# The figure is laid out in inches by hand: rows of all panels are of one height, and bars of one
# second of one width.
ROW_IN, _STRIP, _GAP = 0.21, 0.68, 0.34  # a rank's bars; its strip and the gap below it, in rows
_TITLE_IN, _LEGEND_IN, _AXIS_IN, _LINE_IN = 0.3, 0.26, 0.42, 0.16
_LEFT_IN, _RIGHT_IN = 0.6, 0.55
_MOST_IN = 13.0  # so high may all rows be together
_NUMBERS_PT = (7.0, 7.6)  # in bars of that height, least and most
_CHARACTERS_ACROSS = 125
_LEGEND_PT = 8.5
_HANDLE_PT, _LETTER_PT = 35.0, 4.3  # about as wide in the legend


class _Run(NamedTuple):
    """A table to be drawn, from 0 on, and what is said of it; ``pieces`` are of its strips."""

    events: pd.DataFrame
    makespan_s: float
    bubble: float
    pieces: pd.DataFrame | None

    @classmethod
    def of(cls, title: str, table: pd.DataFrame, memory: bool) -> _Run:
        what = f"schedules(tables): {title!r}"
        events = from_zero(prepare(table, what)).assign(schedule=str(title))
        try:
            makespan_s, bubble = makespan(events), bubble_fraction(events)
            pieces = pieces_of(events, _end_s(events)) if memory else None
        except ValueError as error:
            hint = "; memory=False draws a table that is none of a pipeline" if memory else ""
            raise ValueError(f"{what}: {error}{hint}") from None
        return cls(events, makespan_s, bubble, pieces)

    def panel(self, most_kept: float) -> Panel:
        """Return its panel, with strips that are full for ``most_kept`` micro-batches."""
        strip = 0.0 if self.pieces is None else _STRIP
        panel = lay_out([Part("", 1.0, self.events)], gap=_GAP, strip=strip)
        bars = panel.bars.assign(bottom=panel.bars["top"] + panel.bars["height"], rank=self.events["rank"])
        rows = bars[self.events["lane"] == "compute"].groupby("rank").agg({"top": "min", "bottom": "max"})
        end_s = _end_s(self.events)
        panel = replace(panel, idle=rows.assign(left=end_s - self.makespan_s, right=end_s))
        if self.pieces is None:
            return panel
        strips, peaks = strips_of(self.pieces, panel, strip, most_kept), peaks_of(self.pieces, panel, strip)
        return replace(panel, strips=strips, peaks=peaks)

    def data(self) -> pd.DataFrame:
        """Return what its panel shows: its events, and pieces of its strips, named activations."""
        table = self.events[["schedule", *EVENT_COLUMNS]]
        if self.pieces is None:
            return table
        pieces = self.pieces[["rank", "start_s", "end_s", "kept"]].assign(
            name="activations", schedule=table["schedule"]
        )
        return pd.concat([table, pieces], ignore_index=True).astype({"kept": "Int64"})


def _end_s(events: pd.DataFrame) -> float:
    """Return the end of the last op."""
    return float(events[events["lane"] == "compute"]["end_s"].max())


def schedules(
    tables: Mapping[str, pd.DataFrame],
    memory: bool = True,
    note: str = "",
    *,
    time_label: str = "",
    row_in: float = ROW_IN,
) -> Figure:
    """Draw event tables one above the other on one time axis, each with its makespan and bubble.

    ``tables`` has the titles and the event tables, simulated or measured. Where a rank waits is
    grey. With ``memory`` there is a strip below each rank: of how many micro-batches it keeps the
    activations, over time, with the peak next to it, on one scale for all (see
    :mod:`labkit.draw.memory_strips`). ``note`` and ``time_label`` are those of
    :func:`labkit.draw.timeline`. ``row_in`` is how high a rank's bars are, inches, unless many
    ranks have to fit on the page; the numbers in them grow with it.

    Raises TypeError for what is no dict of titles and event tables, ValueError for an empty one and
    for a table that cannot be drawn, by its title.
    """
    if not isinstance(tables, Mapping):
        raise TypeError(
            f"schedules(tables): got {type(tables).__name__}, expected titles and event tables, such as "
            '{"GPipe": simulate(gpipe(4, 8))}'
        )
    if not tables:
        raise ValueError("schedules(tables): there is no table, expected at least one title with an event table")
    runs = {str(title): _Run.of(title, events, memory) for title, events in tables.items()}
    counts = [run.pieces for run in runs.values() if run.pieces is not None]
    most_kept = max((pieces["micro_batches"].max() for pieces in counts), default=1)
    panels = [run.panel(most_kept) for run in runs.values()]
    row_in = min(row_in, _MOST_IN / sum(panel.height for panel in panels))
    extent_s = max(float(panel.bars["right"].max()) for panel in panels)
    time = time_axis(extent_s, time_label)
    look = Look.of(panels, time, (_NUMBERS_PT[0], _NUMBERS_PT[1] * max(1.0, row_in / ROW_IN)))
    note, unit = emulated(*tables.values(), note=note), unit_of(counts)
    note = f"{note.removesuffix('.')}. {unit}" if note and unit else note or unit
    note_lines = textwrap.wrap(note, _CHARACTERS_ACROSS)
    with house_style():
        entries = _legend(look, 72 * row_in * (_STRIP - ABOVE) if memory else None)
        figure, grid = _new_figure([row_in * panel.height for panel in panels], entries, len(note_lines))
        for ax, panel, (title, run) in zip(grid[:, 0], panels, runs.items(), strict=True):
            ax.grid(axis="x", color=GRID, linewidth=0.6)
            ax.tick_params(axis="x", length=0, labelbottom=False)
            hide_frame(ax)
            paint(ax, panel, look, (-0.002 * extent_s, 1.002 * extent_s), margin=_GAP / 2, peaks="beside")
            above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
            ax.annotate(title, (0, 1), (0, 5), weight="bold", fontsize=10, **above)
            ax.annotate(f"makespan {time(run.makespan_s)}", (1, 1), (-88, 5), ha="right", **above)
            ax.annotate(f"bubble {100 * run.bubble:.1f} %", (1, 1), (0, 5), ha="right", **above)
            if memory:
                ax.annotate("peak", (1, 1), (8, 5), fontsize=8, color=KEPT_EDGE, **above)
            attach(ax, run.data())
        ax.tick_params(axis="x", length=3, labelbottom=True)
        ax.set_xlabel("\n".join([time.label, *note_lines]))
    return figure


def _legend(look: Look, strip_pt: float | None) -> tuple[list[Any], list[str], int]:
    """Return handles, labels and the number of lines that they take."""
    handles, labels = legend_entries(look.styles, look.n_chunks)
    more = [(Patch(color=IDLE), "idle"), *([strip_entry(strip_pt)] if strip_pt else [])]
    handles, labels = handles + [handle for handle, _ in more], labels + [label for _, label in more]
    width_pt = sum(_HANDLE_PT + _LETTER_PT * len(label) for label in labels)
    return handles, labels, math.ceil(width_pt / (72 * (PAGE_IN - _LEFT_IN)))


def _new_figure(
    heights: Sequence[float], entries: tuple[list[Any], list[str], int], n_note_lines: int
) -> tuple[Figure, np.ndarray]:
    """Return a figure of axes of these heights, inches, with a legend above and room for a note."""
    handles, labels, n_lines = entries
    above = _LEGEND_IN + 1.5 * _LEGEND_PT / 72 * (n_lines - 1) + _TITLE_IN
    below, titles = _AXIS_IN + _LINE_IN * n_note_lines, _TITLE_IN * (len(heights) - 1)
    total = above + sum(heights) + titles + below
    edges = {
        "left": _LEFT_IN / PAGE_IN,
        "right": 1 - _RIGHT_IN / PAGE_IN,
        "top": 1 - above / total,
        "bottom": below / total,
    }
    form = {**edges, "height_ratios": heights, "hspace": _TITLE_IN * len(heights) / sum(heights)}
    figure, grid = plt.subplots(len(heights), figsize=(PAGE_IN, total), squeeze=False, gridspec_kw=form)
    place: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (_LEFT_IN / PAGE_IN, 1 - 0.06 / total),
        "borderaxespad": 0.0,
    }
    space: dict[str, Any] = {"borderpad": 0.0, "columnspacing": 1.4, "handletextpad": 0.5, "fontsize": _LEGEND_PT}
    n_columns = math.ceil(len(labels) / n_lines)
    figure.legend(handles, labels, ncols=n_columns, handler_map=SIDE_BY_SIDE, **place, **space)
    return figure, grid


# --- one as a table -------------------------------------------------------------------------------

# A cell is as wide as high, as far as a page has room.
_CELL_IN, _LEAST_ROW_IN, _MOST_TABLE_IN = 0.27, 0.17, 10.0
_BESIDE_IN, _BELOW_IN = 2.1, 0.75  # for rank labels and legend; for title and axis
_INSET = 0.05  # of a cell, left white around its colour
_SLOT_PT = 15.0  # the least distance of two labels of slots


def schedule_table(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Draw ``schedule`` as a table, under its name.

    Idle slots are grey; a rank's second stage is lighter than its first.

    Every op takes one slot, whatever its kind, and a result can be used in the next slot: unit
    times, no hop. In the CSV of the figure there is a row per op: rank, slot, name, stage,
    micro_batch.

    Raises TypeError for what is no Schedule, ScheduleError for one that cannot run.
    """
    events = prepare(simulate(schedule, 1.0, 1.0, 1.0, 1.0), "schedule_table(schedule)")
    events["slot"] = events["start_s"].round().astype(int)
    cells = events.assign(start_s=events["slot"] + _INSET, end_s=events["slot"] + 1 - _INSET)
    panel, n_slots = lay_out([Part("", 1.0, cells)], gap=0.0), 1 + int(events["slot"].max())
    panel = replace(panel, idle=_idle_cells(panel, events, n_slots))
    look = Look.of([panel], TimeAxis("time slot", "", 1.0))
    with house_style():
        if ax is None:
            cell_in = min(_CELL_IN, (PAGE_IN - _BESIDE_IN) / n_slots)
            row_in = min(_CELL_IN, max(cell_in, _LEAST_ROW_IN), _MOST_TABLE_IN / panel.height)
            ax = new_axes(_BESIDE_IN + cell_in * n_slots, _BELOW_IN + row_in * panel.height)
        hide_frame(ax)
        paint(ax, panel, look, (0, n_slots))
        _label_slots(ax, n_slots, look.time)
        ax.set_title(schedule.name, loc="left", fontsize=10, weight="bold")
        put_legend_right(ax, *legend_entries(look.styles, look.n_chunks))
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


def _idle_cells(panel: Panel, events: pd.DataFrame, n_slots: int) -> pd.DataFrame:
    """Return a cell wherever a rank runs no op."""
    busy = set(zip(events["rank"], events["slot"], strict=True))
    idle = [
        (top, slot) for rank, (top, _) in panel.ranks.items() for slot in range(n_slots) if (rank, slot) not in busy
    ]
    tops, slots = np.array(idle, dtype=float).reshape(-1, 2).T
    cells = {"left": slots + _INSET, "right": slots + 1 - _INSET, "top": tops + 0.07, "bottom": tops + 0.93}
    return pd.DataFrame(cells)
