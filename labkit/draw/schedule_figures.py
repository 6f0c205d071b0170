"""Draw several schedules on one time axis, as a paper does, each with makespan, bubble, memory.

As the last line of a cell:

    schedules({"GPipe": simulate(gpipe(4, 8)), "1F1B": simulate(one_f_one_b(4, 8))})
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.base.formats import emulated
from labkit.draw import memory_strips as strips
from labkit.draw.artists import (
    GRID,
    IDLE,
    SIDE_BY_SIDE,
    Styles,
    draw_bars,
    draw_numbers,
    hide_frame,
    label_rows,
    legend_entries,
    names_of,
)
from labkit.draw.layout import Layout, Part, TimeAxis, from_zero, lay_out, prepare, time_axis
from labkit.draw.palette import styles_of
from labkit.draw.picture import PAGE_IN, attach, house_style
from labkit.simulate import bubble_fraction, makespan
from labkit.trace import EVENT_COLUMNS

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


@dataclass
class _Panel:
    title: str
    events: pd.DataFrame  # as drawn: from 0 on, laid out
    layout: Layout
    computing_s: tuple[float, float]  # from the first start to the last end: the makespan
    bubble: float
    pieces: pd.DataFrame | None  # of the memory strips


@dataclass
class _Look:
    """What all panels of a figure share."""

    styles: Styles
    n_chunks: int
    time: TimeAxis
    extent_s: float
    row_in: float  # a rank's bars
    most_kept: float  # micro-batches, where strips are highest


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
    panels = [_panel(title, events, memory) for title, events in tables.items()]
    look = _look(panels, time_label, _fitting(row_in, panels))
    note_lines = textwrap.wrap(_note(panels, emulated(*tables.values(), note=note)), _CHARACTERS_ACROSS)
    handles, labels = _legend(look, panels)
    n_lines = math.ceil(sum(_HANDLE_PT + _LETTER_PT * len(label) for label in labels) / (72 * (PAGE_IN - _LEFT_IN)))
    with house_style():
        figure, all_axes = _new_figure(panels, look.row_in, n_lines, len(note_lines))
        for ax, panel in zip(all_axes, panels, strict=True):
            _draw_panel(ax, panel, look)
            attach(ax, _data_of(panel))
        all_axes[-1].tick_params(axis="x", length=3, labelbottom=True)
        all_axes[-1].set_xlabel("\n".join([look.time.label, *note_lines]))
        corner = _LEFT_IN / PAGE_IN, 1 - 0.06 / figure.get_figheight()
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": corner, "borderaxespad": 0.0}
        space: dict[str, Any] = {"borderpad": 0.0, "columnspacing": 1.4, "handletextpad": 0.5, "fontsize": _LEGEND_PT}
        n_columns = math.ceil(len(labels) / n_lines)
        figure.legend(handles, labels, ncols=n_columns, handler_map=SIDE_BY_SIDE, **place, **space)
    return figure


def _panel(title: str, table: pd.DataFrame, memory: bool) -> _Panel:
    what = f"schedules(tables): {title!r}"
    events = from_zero(prepare(table, what))
    try:
        makespan_s, bubble = makespan(events), bubble_fraction(events)
        end_s = float(events[events["lane"] == "compute"]["end_s"].max())
        pieces = strips.pieces_of(events, end_s) if memory else None
    except ValueError as error:
        hint = "; memory=False draws a table that is none of a pipeline" if memory else ""
        raise ValueError(f"{what}: {error}{hint}") from None
    events = events.assign(start=events["start_s"])
    layout = lay_out([Part("", 1.0, events)], gap=_GAP, strip=_STRIP if memory else 0.0)
    return _Panel(str(title), events, layout, (end_s - makespan_s, end_s), bubble, pieces)


def _look(panels: Sequence[_Panel], time_label: str, row_in: float) -> _Look:
    extent_s = max(float(panel.events["end_s"].max()) for panel in panels)
    return _Look(
        styles=styles_of(names_of(panel.events for panel in panels)),
        n_chunks=1 + max(int(panel.events["chunk"].max()) for panel in panels),
        time=time_axis(extent_s, time_label),
        extent_s=extent_s,
        row_in=row_in,
        most_kept=max((panel.pieces["micro_batches"].max() for panel in panels if panel.pieces is not None), default=1),
    )


def _note(panels: Sequence[_Panel], note: str) -> str:
    unit = strips.unit_of(panel.pieces for panel in panels if panel.pieces is not None)
    return f"{note.removesuffix('.')}. {unit}" if note and unit else note or unit


def _fitting(row_in: float, panels: Sequence[_Panel]) -> float:
    return min(row_in, _MOST_IN / sum(panel.layout.height for panel in panels))


def _legend(look: _Look, panels: Sequence[_Panel]) -> tuple[list[Any], list[str]]:
    handles, labels = legend_entries(look.styles, look.n_chunks)
    handles, labels = [*handles, Patch(color=IDLE)], [*labels, "idle"]
    if any(panel.pieces is not None for panel in panels):
        handle, label = strips.legend_entry(72 * look.row_in * _STRIP)
        handles, labels = [*handles, handle], [*labels, label]
    return handles, labels


def _new_figure(
    panels: Sequence[_Panel], row_in: float, n_legend_lines: int, n_note_lines: int
) -> tuple[Figure, list[Axes]]:
    heights = [row_in * panel.layout.height for panel in panels]
    legend_in = _LEGEND_IN + 1.5 * _LEGEND_PT / 72 * (n_legend_lines - 1)
    total = legend_in + sum(heights) + _TITLE_IN * len(panels) + _AXIS_IN + _LINE_IN * n_note_lines
    figure = plt.figure(figsize=(PAGE_IN, total))
    all_axes, top = [], total - legend_in
    for height in heights:
        top -= _TITLE_IN + height
        box = (_LEFT_IN / PAGE_IN, top / total, (PAGE_IN - _LEFT_IN - _RIGHT_IN) / PAGE_IN, height / total)
        all_axes.append(figure.add_axes(box))
    return figure, all_axes


def _draw_panel(ax: Axes, panel: _Panel, look: _Look) -> None:
    per_second = look.time.per_second
    ax.set_xlim(-0.002 * look.extent_s * per_second, 1.002 * look.extent_s * per_second)
    ax.set_ylim(panel.layout.height - _GAP / 2, -_GAP / 2)
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    ax.tick_params(axis="x", length=0, labelbottom=False)
    hide_frame(ax)
    named = label_rows(ax, panel.layout)
    _draw_idle(ax, panel, per_second)
    draw_bars(ax, panel.events, look.styles, per_second, look.n_chunks)
    sizes_pt = (_NUMBERS_PT[0], _NUMBERS_PT[1] * max(1.0, look.row_in / ROW_IN))
    draw_numbers(ax, panel.events, look.styles, per_second, look.n_chunks, sizes_pt=sizes_pt, halo=True)
    if panel.pieces is not None:
        strips.draw_strips(ax, panel.pieces, panel.layout, per_second, panel.computing_s, look.most_kept, named)
    _write_title(ax, panel, look.time)


def _draw_idle(ax: Axes, panel: _Panel, per_second: float) -> None:
    """Draw grey under all that a rank computes: it shows where nothing is computed."""
    left, right = (seconds * per_second for seconds in panel.computing_s)
    computed = panel.events[panel.events["lane"] == "compute"]
    for _, bars in computed.groupby("rank"):
        top, bottom = bars["top"].min(), (bars["top"] + bars["height"]).max()
        ax.add_patch(Rectangle((left, top), right - left, bottom - top, color=IDLE, linewidth=0, zorder=1))


def _write_title(ax: Axes, panel: _Panel, time: TimeAxis) -> None:
    start_s, end_s = panel.computing_s
    above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
    ax.annotate(panel.title, (0, 1), (0, 5), weight="bold", fontsize=10, **above)
    ax.annotate(f"makespan {time(end_s - start_s)}", (1, 1), (-88, 5), ha="right", **above)
    ax.annotate(f"bubble {100 * panel.bubble:.1f} %", (1, 1), (0, 5), ha="right", **above)
    if panel.pieces is not None:
        ax.annotate("peak", (1, 1), (8, 5), fontsize=8, color=strips.EDGE, **above)


def _data_of(panel: _Panel) -> pd.DataFrame:
    """Return what a panel shows: its events, and the pieces of its strips, named activations."""
    table = panel.events[list(EVENT_COLUMNS)].assign(schedule=panel.title)
    if panel.pieces is not None:
        pieces = panel.pieces[["rank", "start_s", "end_s", "kept"]].assign(name="activations", schedule=panel.title)
        table = pd.concat([table, pieces], ignore_index=True).astype({"kept": "Int64"})
    return table[["schedule", *EVENT_COLUMNS, *(["kept"] if "kept" in table else [])]]
