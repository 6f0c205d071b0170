"""Draw panels of cells beside each other, each as it stands at a step, and what moves as arrows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from labkit.draw.cells import INSET
from labkit.draw.painter import SIDE_BY_SIDE, hide_frame
from labkit.draw.palette import IDLE, INK, Style, darker, shade, styles_of, text_colour
from labkit.draw.panel import Panel
from labkit.draw.picture import PAGE_IN, attach, house_style

_CELL_IN, _LEAST_CELL_IN = 0.46, 0.2  # how wide and high a cell is, as far as a page has room
_ROWS_IN, _BESIDE_IN, _ABOVE_IN, _BELOW_IN = 0.52, 0.22, 0.48, 0.12  # for labels of rows; between grids; for titles
_LINE_IN, _LEGEND_COLUMNS = 0.19, 8
_WITH_ARROWS = 0.74  # how much of its width a cell's colour takes where arrows run beside it
_LETTERS_PT = (5.5, 9.0)  # the least and the largest letters in a cell
_LETTER, _SPACE = 0.66, 0.34  # how wide a letter is, and a space, of its height
_NOTE_CHARACTERS = 125


class GridStep(NamedTuple):
    """A panel of cells as it stands at a step, from column ``first`` on, under a title."""

    panel: Panel
    step: int
    title: str
    first: int = 0

    def cells(self, n_columns: int) -> pd.DataFrame:
        """Return the bars that are seen in so many columns, with ``rank, column, sentence``."""
        bars = self.panel.bars
        rank, column = np.floor(bars["top"]).astype(int), np.floor(bars["left"]).astype(int) - self.first
        seen = bars.assign(rank=rank, column=column)[self._now(bars) & column.between(0, n_columns - 1)]
        return seen.assign(sentence=[self.panel.explain(bar) for bar in seen.index])

    def arrows(self) -> Iterator[tuple[float, int, int, bool]]:
        """Return of each arrow where it leaves, from and to which rank, and whether all is sent."""
        bars, links = self.panel.bars, self.panel.links
        if links is not None:
            for source, target, _, _, label in links[self._now(links)].itertuples(index=False, name=None):
                yield bars["right"][source], int(bars["top"][source]), int(bars["top"][target]), label != ""

    def rows(self) -> list[str]:
        """Return what the rows are called."""
        return [row.text for row in self.panel.rows]

    def _now(self, table: pd.DataFrame) -> pd.Series[bool]:
        return (table["appear"] <= self.step) & (self.step < table["vanish"])


def cell_figure(
    places: Sequence[GridStep | None],
    columns: Sequence[str],
    *,
    corner: str = "",
    across: int | None = None,
    cell_in: float = _CELL_IN,
    note: str = "",
) -> Figure:
    """Draw grids of cells beside each other, ``across`` in a line; empty cells are grey.

    ``places`` are grids, or None for a place that stays free. Above each are the names of its
    ``columns``, and ``corner`` says what they name. An arrow leads from a cell that is sent to the
    rank where it goes. The label of a cell is written in it if it can be read. In the CSV of the
    figure there is a row per cell: rank, column, name, label, sentence, grid.

    Raises ValueError if there is no grid.
    """
    grids = [grid for grid in places if grid]
    if not grids:
        raise ValueError("cell_figure: there is no grid, expected one or more")
    tables = [grid.cells(len(columns)) for grid in grids]
    cells, n_cells = pd.concat(tables), sum(len(grid.rows()) for grid in grids) * len(columns)
    styles, n_shades = styles_of(set(cells["name"])), 1 + max(cells["chunk"], default=0)
    handles = _legend(cells, styles, n_shades) | ({"nothing": Patch(color=IDLE)} if len(cells) < n_cells else {})
    n_lines, notes = math.ceil(len(handles) / _LEGEND_COLUMNS), textwrap.wrap(note, _NOTE_CHARACTERS)
    below_in = _LINE_IN * (n_lines + len(notes)) + 0.1
    width = _WITH_ARROWS if any(list(grid.arrows()) for grid in grids) else 1 - 2 * INSET
    same_rows = all(grid.rows() == grids[0].rows() for grid in grids)
    with house_style():
        figure, axes, cell_in = _new_figure(places, columns, same_rows, across, cell_in, below_in)
        left = min(ax.get_position().x0 for ax in axes)
        for grid, table, ax in zip(grids, tables, axes, strict=True):
            _label(ax, grid, columns, corner, ax.get_position().x0 == left or not same_rows)
            _draw_cells(ax, table, styles, n_shades, cell_in, width)
            _draw_arrows(ax, grid, width)
            attach(ax, table[["rank", "column", "name", "label", "sentence"]].assign(grid=grid.title))
        figure.legend(
            list(handles.values()),
            list(handles),
            ncols=math.ceil(len(handles) / n_lines),
            loc="upper left",
            bbox_to_anchor=(0.1 / PAGE_IN, below_in / figure.get_figheight()),
            handler_map=SIDE_BY_SIDE,
            fontsize=8,
            columnspacing=1.3,
            borderpad=0.0,
        )
        place = (0.1 / PAGE_IN, 0.06 / figure.get_figheight())
        figure.text(*place, "\n".join(notes), fontsize=8, va="bottom", linespacing=1.35)
    return figure


def _new_figure(
    places: Sequence[GridStep | None],
    columns: Sequence[str],
    same_rows: bool,
    across: int | None,
    cell_in: float,
    below_in: float,
) -> tuple[Figure, list[Axes], float]:
    """Return a figure, axes for each grid, and the width of a cell in inches."""
    labels_in = 0.0 if same_rows else _ROWS_IN  # beside each grid, or once in a line
    room = PAGE_IN - 0.2 - (_ROWS_IN - labels_in)
    if across is None:
        most = int(room / (labels_in + _BESIDE_IN + len(columns) * cell_in))
        across = math.ceil(len(places) / math.ceil(len(places) / max(1, most)))
    cell_in = max(min(cell_in, (room / across - labels_in - _BESIDE_IN) / len(columns)), _LEAST_CELL_IN)
    row_in, above_in = min(cell_in, _CELL_IN), _ABOVE_IN + 0.14 * max(name.count("\n") for name in columns)
    line_in = above_in + max(len(grid.rows()) for grid in places if grid) * row_in + _BELOW_IN
    total = math.ceil(len(places) / across) * line_in + below_in
    figure, axes = plt.figure(figsize=(PAGE_IN, total)), []
    for number, grid in enumerate(places):
        if grid:
            line, place = divmod(number, across)
            left = 0.1 + _ROWS_IN + place * (labels_in + _BESIDE_IN + len(columns) * cell_in)
            width, height = len(columns) * cell_in, len(grid.rows()) * row_in
            bottom = total - line * line_in - above_in - height
            axes.append(figure.add_axes((left / PAGE_IN, bottom / total, width / PAGE_IN, height / total)))
    return figure, axes, cell_in


def _label(ax: Axes, grid: GridStep, columns: Sequence[str], corner: str, name_rows: bool) -> None:
    ax.set(xlim=(0, len(columns)), ylim=(len(grid.rows()), 0))
    hide_frame(ax)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=2)
    ax.set_xticks([place + 0.5 for place in range(len(columns))], labels=list(columns), fontsize=7.5)
    ax.set_yticks([row.at for row in grid.panel.rows], labels=grid.rows() if name_rows else [])
    beside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
    n_lines = 1 + max(name.count("\n") for name in columns)
    ax.annotate(grid.title, (0, 1), (0, 6 + 10 * n_lines), weight="bold", fontsize=9.0, **beside)
    if corner and name_rows:
        ax.annotate(corner, (0, 1), (-4, 3), ha="right", fontsize=7.5, **beside)


def _draw_cells(
    ax: Axes, cells: pd.DataFrame, styles: dict[str, Style], n_shades: int, cell_in: float, width: float
) -> None:
    n_rows, n_columns, height = round(ax.get_ylim()[0]), round(ax.get_xlim()[1]), 1 - 2 * INSET
    held = set(zip(cells["rank"], cells["column"], strict=True))
    for rank, column in set(np.ndindex(n_rows, n_columns)) - held:
        ax.add_patch(Rectangle((column + INSET, rank + INSET), width, height, color=IDLE, linewidth=0, zorder=1))
    looks = cells[["rank", "column", "name", "chunk", "label"]].itertuples(index=False, name=None)
    for rank, column, name, chunk, label in looks:
        colour, hatch = shade(styles[name].colour, chunk, n_shades), styles[name].hatch
        cell = Rectangle((column + INSET, rank + INSET), width, height, facecolor=colour, linewidth=0.5, zorder=2)
        cell.set(edgecolor=darker(colour), hatch=hatch)
        ax.add_patch(cell)
        _write(ax, label, (column + INSET + width / 2, rank + 0.5), colour, cell_in, width)


def _write(ax: Axes, label: str, middle: tuple[float, float], colour: str, cell_in: float, width: float) -> None:
    """Write the label into a cell, in the largest letters that fit, if they can be read at all."""
    letters = _SPACE * label.count(" ") + _LETTER * (len(label) - label.count(" "))
    least, most = _LETTERS_PT
    points = min(72 * cell_in * 0.94 * width / (letters or 1), most, 72 * min(cell_in, _CELL_IN) * 0.72)
    if points >= least:
        text = ax.text(*middle, label, fontsize=points, color=text_colour(colour), zorder=3)
        text.set(ha="center", va="center_baseline", path_effects=[withStroke(linewidth=2.2, foreground=colour)])


def _draw_arrows(ax: Axes, grid: GridStep, width: float) -> None:
    """Draw an arrow for each cell that is sent, right of its column; a thick one stands for all."""
    for cell_right, source, target, whole in grid.arrows():
        left = cell_right - (1 - 2 * INSET) + width + 0.02
        right = left + 0.13 + (0.16 if whole and abs(source - target) > 1 else 0.0)
        corners = [(left, source + 0.66), (right, source + 0.66), (right, target + 0.34), (left, target + 0.34)]
        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 8, "capstyle": "butt", "clip_on": False}
        thick = 2.4 if whole else 1.1
        ax.add_patch(FancyArrowPatch(path=Path(corners), linewidth=thick, color=INK, zorder=4, **look))


def _legend(cells: pd.DataFrame, styles: dict[str, Style], n_shades: int) -> dict[str, Any]:
    """Return what stands for each name: of one that has shades the lightest and the darkest."""
    handles = {}
    for name, style in styles.items():
        shades = (n_shades - 1, 0) if cells["chunk"][cells["name"] == name].any() else (0,)
        colours = [shade(style.colour, chunk, n_shades) for chunk in shades]
        patches = [Patch(fc=colour, ec=darker(colour), hatch=style.hatch, linewidth=0.5) for colour in colours]
        handles[name] = tuple(patches) if len(patches) > 1 else patches[0]
    return handles
