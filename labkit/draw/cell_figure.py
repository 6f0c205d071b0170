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
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.path import Path

from labkit.draw.cells import INSET
from labkit.draw.layout import TimeAxis
from labkit.draw.painter import Look, legend_entries, legend_lines, paint, put_figure_legend
from labkit.draw.palette import IDLE, INK, Style
from labkit.draw.panel import Panel
from labkit.draw.picture import PAGE_IN, attach, house_style

_CELL_IN, _MIN_CELL_IN = 0.46, 0.2  # how wide and high a cell is, as far as a page has room
_ROWS_IN, _BESIDE_IN, _ABOVE_IN, _BELOW_IN = 0.52, 0.22, 0.48, 0.12  # for labels of rows; between grids; for titles
_LINE_IN = 0.19
_WITH_ARROWS = 0.74  # how much of its width a cell's colour takes where arrows run beside it
_LETTERS_PT = (5.0, 9.0)  # the least and the largest letters in a cell
_NOTE_CHARACTERS = 125
_TITLE_LETTER_IN = 0.07


class GridStep(NamedTuple):
    """A panel of cells as it stands at a step, from column ``first`` on, under a title."""

    panel: Panel
    step: int
    title: str
    first: int = 0

    def shown(self, n_columns: int, width: float = 1 - 2 * INSET) -> Panel:
        """Return what is seen now in so many columns: cells as wide as that, or nothing in grey."""
        bars, rows = self.panel.bars, self.panel.rows
        rank, column = np.floor(bars["top"]).astype(int), np.floor(bars["left"]).astype(int) - self.first
        seen = bars.assign(rank=rank, column=column)[self._now(bars) & column.between(0, n_columns - 1)]
        seen = seen.assign(left=seen["column"] + INSET, sentence=[self.panel.explain(bar) for bar in seen.index])
        seen = seen.assign(right=seen["left"] + width).reset_index(drop=True)
        free = set(np.ndindex(len(rows), n_columns)) - set(zip(seen["rank"], seen["column"], strict=True))
        idle = pd.DataFrame(sorted(free), columns=["top", "left"]) + INSET
        idle = idle.assign(right=idle["left"] + width, bottom=idle["top"] + 1 - 2 * INSET)
        return Panel(seen, self.panel.height, rows, idle=idle if free else None)

    def arrows(self) -> Iterator[tuple[float, int, int, bool]]:
        """Return of each arrow where it leaves, from and to which rank, and whether all is sent."""
        bars, links = self.panel.bars, self.panel.links
        if links is not None:
            for source, target, _, _, label in links[self._now(links)].itertuples(index=False, name=None):
                yield bars["right"][source], int(bars["top"][source]), int(bars["top"][target]), label != ""

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
    """
    grids = [grid for grid in places if grid]
    width = _WITH_ARROWS if any(list(grid.arrows()) for grid in grids) else 1 - 2 * INSET
    panels = [grid.shown(len(columns), width) for grid in grids]
    look = Look.of(panels, TimeAxis("", "", 1), _LETTERS_PT)
    handles = _legend(panels, look)
    n_lines, notes = legend_lines(handles, PAGE_IN - 0.6), textwrap.wrap(note, _NOTE_CHARACTERS)
    below_in = _LINE_IN * (n_lines + len(notes)) + 0.1
    same_rows = all(panel.rows == panels[0].rows for panel in panels)
    with house_style():
        figure, axes = _new_figure(places, columns, same_rows, across, cell_in, below_in)
        left = min(ax.get_position().x0 for ax in axes)
        for grid, panel, ax in zip(grids, panels, axes, strict=True):
            paint(ax, panel, look, (0, len(columns)))
            title = _title(grid, ax.get_position().width * PAGE_IN + _BESIDE_IN)
            _label(ax, title, columns, corner, ax.get_position().x0 == left or not same_rows)
            _draw_arrows(ax, grid, width)
            attach(ax, panel.bars[["rank", "column", "name", "label", "sentence"]].assign(grid=grid.title))
        put_figure_legend(figure, handles, (0.1, below_in - 0.05), n_lines)
        at = 0.1 / PAGE_IN, 0.06 / figure.get_figheight()
        figure.text(*at, "\n".join(notes), fontsize=8, va="bottom", linespacing=1.35)
    return figure


def _new_figure(
    places: Sequence[GridStep | None],
    columns: Sequence[str],
    same_rows: bool,
    across: int | None,
    cell_in: float,
    below_in: float,
) -> tuple[Figure, list[Axes]]:
    """Return a figure, and axes for each grid."""
    labels_in = 0.0 if same_rows else _ROWS_IN  # beside each grid, or once in a line
    room = PAGE_IN - 0.2 - (_ROWS_IN - labels_in)
    if across is None:
        most = int(room / (labels_in + _BESIDE_IN + len(columns) * cell_in))
        across = math.ceil(len(places) / math.ceil(len(places) / max(1, most)))
    cell_in = max(min(cell_in, (room / across - labels_in - _BESIDE_IN) / len(columns)), _MIN_CELL_IN)
    titles = [_title(grid, len(columns) * cell_in + _BESIDE_IN) for grid in places if grid]
    more_lines = sum(max(text.count("\n") for text in texts) for texts in (columns, titles))
    row_in, above_in = min(cell_in, _CELL_IN), _ABOVE_IN + 0.14 * more_lines
    line_in = above_in + max(len(grid.panel.rows) for grid in places if grid) * row_in + _BELOW_IN
    total = math.ceil(len(places) / across) * line_in + below_in
    figure, axes = plt.figure(figsize=(PAGE_IN, total)), []
    for number, grid in enumerate(places):
        if grid:
            line, place = divmod(number, across)
            left = 0.1 + _ROWS_IN + place * (labels_in + _BESIDE_IN + len(columns) * cell_in)
            width, height = len(columns) * cell_in, len(grid.panel.rows) * row_in
            bottom = total - line * line_in - above_in - height
            axes.append(figure.add_axes((left / PAGE_IN, bottom / total, width / PAGE_IN, height / total)))
    return figure, axes


def _title(grid: GridStep, width_in: float) -> str:
    """Return its title in lines that are no wider than that."""
    return textwrap.fill(grid.title, round(width_in / _TITLE_LETTER_IN), break_long_words=False)


def _label(ax: Axes, title: str, columns: Sequence[str], corner: str, name_rows: bool) -> None:
    ax.spines[:].set_visible(False)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=2)
    ax.set_xticks([place + 0.5 for place in range(len(columns))], labels=list(columns), fontsize=7.5)
    beside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "baseline"}
    n_lines = 1 + max(name.count("\n") for name in columns)
    ax.annotate(title, (0, 1), (0, 6 + 10 * n_lines), weight="bold", fontsize=9.0, **beside)
    if not name_rows:
        ax.set_yticklabels([])
    elif corner:
        ax.annotate(corner, (0, 1), (-4, 3), ha="right", fontsize=7.5, **beside)


def _draw_arrows(ax: Axes, grid: GridStep, width: float) -> None:
    """Draw an arrow for each cell that is sent, right of its column; a thick one stands for all."""
    for cell_right, source, target, whole in grid.arrows():
        left = cell_right - (1 - 2 * INSET) + width + 0.02
        right = left + 0.13 + (0.16 if whole and abs(source - target) > 1 else 0.0)
        corners = [(left, source + 0.66), (right, source + 0.66), (right, target + 0.34), (left, target + 0.34)]
        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 8, "capstyle": "butt", "clip_on": False}
        thick = 2.4 if whole else 1.1
        ax.add_patch(FancyArrowPatch(path=Path(corners), linewidth=thick, color=INK, zorder=4, **look))


def _legend(panels: Sequence[Panel], look: Look) -> dict[str, Any]:
    """Return what stands for each name: of one that has shades the lightest and the darkest."""
    entries = legend_entries(look.styles)
    for name in {name for panel in panels for name in panel.bars["name"][panel.bars["chunk"] > 0]}:
        ends = [Style(look.fill(name, chunk), look.styles[name].hatch) for chunk in (look.n_chunks - 1, 0)]
        entries[name] = tuple(Patch(**style.face()) for style in ends)
    return entries | ({"nothing": Patch(color=IDLE)} if any(panel.idle is not None for panel in panels) else {})
