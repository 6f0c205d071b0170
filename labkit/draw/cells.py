"""Draw tables of cells as grids beside each other: a row a rank, and what moves as arrows."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from labkit.draw.painter import SIDE_BY_SIDE, hide_frame
from labkit.draw.palette import IDLE, INK, STYLES, Style, darker, shade, styles_of, text_colour
from labkit.draw.picture import PAGE_IN, attach, house_style

_CELL_IN, _LEAST_CELL_IN = 0.46, 0.2  # how wide and high a cell is, as far as a page has room
_ROWS_IN, _BESIDE_IN, _ABOVE_IN, _BELOW_IN = 0.52, 0.22, 0.48, 0.12  # for labels of rows; between grids; for titles
_LINE_IN, _LEGEND_COLUMNS = 0.19, 8
_INSET = 0.05  # of a cell, left white around its colour
_WITH_ARROWS = 0.74  # how much of its width a cell's colour takes where arrows run beside it
_NUMBERS_PT = (5.5, 9.0)  # the least and the largest letters in a cell
_TITLE_PT, _COLUMN_PT = 9.0, 7.5
_LETTER, _SPACE = 0.66, 0.34  # how wide a letter is, and a space, of its height
_NOTE_CHARACTERS = 125


class CellGrid(NamedTuple):
    """One grid: cells (``rank, column, name, shade, label, sentence``), and what moves between
    them (``source, target, column``). ``corner`` says what the columns are."""

    cells: pd.DataFrame
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    moves: pd.DataFrame
    corner: str = ""


def cell_grids(
    places: Sequence[CellGrid | None], *, across: int | None = None, cell_in: float = _CELL_IN, note: str = ""
) -> Figure:
    """Draw grids of cells beside each other, ``across`` in a line; empty cells are grey.

    ``places`` are grids, or None for a place that stays free. An arrow leads from a cell that is
    sent to the rank where it goes. Of each cell the label is written in it if it can be read. In
    the CSV of the figure there is a row per cell: grid, rank, column, name, label, sentence.

    Raises ValueError if there is no grid.
    """
    grids = [grid for grid in places if grid]
    if not grids:
        raise ValueError("cell_grids: there is no grid, expected one or more")
    styles = styles_of(sorted(set().union(*(set(grid.cells["name"]) for grid in grids))))
    n_shades = 1 + max((int(grid.cells["shade"].max()) for grid in grids if len(grid.cells)), default=0)
    handles, labels = _legend(grids, styles, n_shades)
    n_columns = math.ceil(len(labels) / math.ceil(len(labels) / _LEGEND_COLUMNS))
    notes = textwrap.wrap(note, _NOTE_CHARACTERS)
    below_in = _LINE_IN * (math.ceil(len(labels) / n_columns) + len(notes)) + 0.1
    with house_style():
        width = _WITH_ARROWS if any(len(grid.moves) for grid in grids) else 1 - 2 * _INSET
        figure, all_axes, cell_in = _new_figure(places, grids, across, cell_in, below_in)
        for number, (ax, grid) in enumerate(zip(all_axes, grids, strict=True)):
            first = number == 0 or ax.get_position().x0 <= all_axes[number - 1].get_position().x0
            _set_axes(ax, grid, first or not _same_rows(grids))
            _draw_cells(ax, grid, styles, n_shades, cell_in, width)
            _draw_moves(ax, grid, width)
            attach(ax, grid.cells[["rank", "column", "name", "label", "sentence"]].assign(grid=grid.title))
        place: dict[str, Any] = {"loc": "upper left", "fontsize": 8, "columnspacing": 1.3, "borderpad": 0.0}
        corner = (0.1 / PAGE_IN, below_in / figure.get_figheight())
        figure.legend(handles, labels, ncols=n_columns, bbox_to_anchor=corner, handler_map=SIDE_BY_SIDE, **place)
        look: dict[str, Any] = {"fontsize": 8, "va": "bottom", "linespacing": 1.35}
        figure.text(0.1 / PAGE_IN, 0.06 / figure.get_figheight(), "\n".join(notes), **look)
    return figure


def _new_figure(
    places: Sequence[CellGrid | None], grids: Sequence[CellGrid], across: int | None, cell_in: float, below_in: float
) -> tuple[Figure, list[Axes], float]:
    """Return a figure, axes for each grid, and the width of a cell in inches."""
    n_columns, n_rows = max(len(grid.columns) for grid in grids), max(len(grid.rows) for grid in grids)
    n_lines_above = max(1 + name.count("\n") for grid in grids for name in grid.columns)
    labels_in = 0.0 if _same_rows(grids) else _ROWS_IN  # beside each grid, or once in a line
    room = PAGE_IN - 0.2 - (_ROWS_IN - labels_in)
    if across is None:
        most = int(room / (labels_in + _BESIDE_IN + n_columns * cell_in))
        across = math.ceil(len(places) / math.ceil(len(places) / max(1, most)))
    cell_in = max(min(cell_in, (room / across - labels_in - _BESIDE_IN) / n_columns), _LEAST_CELL_IN)
    row_in, above_in = min(cell_in, _CELL_IN), _ABOVE_IN + 0.14 * (n_lines_above - 1)
    line_in = above_in + n_rows * row_in + _BELOW_IN
    total = math.ceil(len(places) / across) * line_in + below_in
    figure = plt.figure(figsize=(PAGE_IN, total))
    axes = []
    for number, grid in enumerate(places):
        if grid is None:
            continue
        line, place = divmod(number, across)
        left = 0.1 + _ROWS_IN + place * (labels_in + _BESIDE_IN + n_columns * cell_in)
        top = total - line * line_in - above_in
        size = (len(grid.columns) * cell_in, len(grid.rows) * row_in)
        axes.append(figure.add_axes((left / PAGE_IN, (top - size[1]) / total, size[0] / PAGE_IN, size[1] / total)))
    return figure, axes, cell_in


def _same_rows(grids: Sequence[CellGrid]) -> bool:
    return all(list(grid.rows) == list(grids[0].rows) for grid in grids)


def _set_axes(ax: Axes, grid: CellGrid, name_rows: bool) -> None:
    ax.set_xlim(0, len(grid.columns))
    ax.set_ylim(len(grid.rows), 0)
    hide_frame(ax)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=2)
    ax.set_xticks([i + 0.5 for i in range(len(grid.columns))], labels=list(grid.columns), fontsize=_COLUMN_PT)
    ax.set_yticks([i + 0.5 for i in range(len(grid.rows))], labels=list(grid.rows) if name_rows else [])
    beside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
    n_lines = 1 + max(name.count("\n") for name in grid.columns)
    ax.annotate(grid.title, (0, 1), (0, 6 + 10 * n_lines), weight="bold", fontsize=_TITLE_PT, **beside)
    if grid.corner and name_rows:
        ax.annotate(grid.corner, (0, 1), (-4, 3), ha="right", fontsize=_COLUMN_PT, **beside)


def _draw_cells(
    ax: Axes, grid: CellGrid, styles: dict[str, Style], n_shades: int, cell_in: float, width: float
) -> None:
    height = 1 - 2 * _INSET
    held = set(zip(grid.cells["rank"], grid.cells["column"], strict=True))
    for rank, column in np.ndindex(len(grid.rows), len(grid.columns)):
        if (rank, column) not in held:
            place = column + _INSET, rank + _INSET
            ax.add_patch(Rectangle(place, width, height, color=IDLE, linewidth=0, zorder=1))
    shown = grid.cells[["rank", "column", "name", "shade", "label"]]
    for rank, column, name, number, label in shown.itertuples(index=False, name=None):
        style = styles[name]
        colour = shade(style.colour, number, n_shades)
        look: dict[str, Any] = {"facecolor": colour, "edgecolor": darker(colour), "hatch": style.hatch}
        place = column + _INSET, rank + _INSET
        ax.add_patch(Rectangle(place, width, height, linewidth=0.5, zorder=2, **look))
        _write(ax, label, (column + _INSET + width / 2, rank + 0.5), colour, cell_in, width)


def _write(ax: Axes, label: str, middle: tuple[float, float], colour: str, cell_in: float, width: float) -> None:
    """Write the label into a cell, in the largest letters that fit, if they can be read at all."""
    lines = label.split("\n")
    letters = max(_SPACE * line.count(" ") + _LETTER * (len(line) - line.count(" ")) for line in lines)
    by_width = 72 * cell_in * 0.94 * width / (letters or 1)
    points = min(by_width, _NUMBERS_PT[1], 72 * min(cell_in, _CELL_IN) * 0.72 / len(lines))
    if points >= _NUMBERS_PT[0]:
        look: dict[str, Any] = {"color": text_colour(colour), "zorder": 3, "ha": "center", "va": "center_baseline"}
        halo = [withStroke(linewidth=2.2, foreground=colour)]
        ax.text(*middle, label, fontsize=points, path_effects=halo, **look)


def _draw_moves(ax: Axes, grid: CellGrid, width: float) -> None:
    """Draw an arrow for each cell that is sent, right of its column.

    Where all cells of a rank go to the same rank, one thick arrow right of the grid stands for
    all.
    """
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for source, target, column in grid.moves[["source", "target", "column"]].itertuples(index=False, name=None):
        sent[source, target].append(column)
    for (source, target), columns in sent.items():
        whole = set(columns) == set(range(len(grid.columns)))
        lane = 0.16 if whole and abs(source - target) > 1 else 0.0
        for column in [len(grid.columns) - 1] if whole else columns:
            left = column + _INSET + width + 0.02
            right = left + 0.13 + lane
            corners = [(left, source + 0.66), (right, source + 0.66), (right, target + 0.34), (left, target + 0.34)]
            look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 8, "capstyle": "butt"}
            arrow = FancyArrowPatch(
                path=Path(corners), linewidth=2.4 if whole else 1.1, color=INK, zorder=4, clip_on=False, **look
            )
            ax.add_patch(arrow)


def _legend(grids: Sequence[CellGrid], styles: dict[str, Style], n_shades: int) -> tuple[list[Any], list[str]]:
    """Return handles and labels: the lightest and the darkest of a name that has shades."""
    order = [*STYLES, *styles]
    labels, handles = sorted(styles, key=order.index), list[Any]()
    shaded = set().union(*(set(grid.cells["name"][grid.cells["shade"] > 0]) for grid in grids))
    for name in labels:
        colours = [
            shade(styles[name].colour, each, n_shades) for each in ((n_shades - 1, 0) if name in shaded else (0,))
        ]
        look: dict[str, Any] = {"hatch": styles[name].hatch, "linewidth": 0.5}
        patches = tuple(Patch(facecolor=colour, edgecolor=darker(colour), **look) for colour in colours)
        handles.append(patches if len(patches) > 1 else patches[0])
    if any(len(grid.cells) < len(grid.rows) * len(grid.columns) for grid in grids):
        handles, labels = [*handles, Patch(color=IDLE)], [*labels, "nothing"]
    return handles, labels
