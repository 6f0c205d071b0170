"""Draw the panel of a board with matplotlib, for outputs that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.draw.artists import GRID, SIDE_BY_SIDE, draw_bars, legend_entries
from labkit.draw.memory_strips import EDGE
from labkit.draw.palette import styles_of
from labkit.draw.picture import INK, PAGE_IN, attach, house_style, new_axes
from labkit.explore.fallback import StaticForm
from labkit.explore.puzzle.game import Game
from labkit.explore.puzzle.picture import TIME_LABEL, alt_text, board_panel, table
from labkit.explore.scene import Panel

_ROW_IN = 0.3
_KEPT = "#9aa5b1"


def static_form(game: Game) -> StaticForm:
    """Return picture, words and table of a game: outlines are ops that may be placed."""
    panel = board_panel(game)
    with house_style():
        ax = _draw(panel)
    attach(ax, panel.bars)
    return StaticForm(ax, alt_text(game), table(game.board).set_index("rank"))


def _draw(panel: Panel) -> Axes:
    bars = panel.bars.assign(start=panel.bars["left"], start_s=panel.bars["left"], end_s=panel.bars["right"], stage=0)
    placed, offered = bars[~bars["ghost"]].reset_index(drop=True), bars[bars["ghost"]]
    ax = new_axes(PAGE_IN, 1.0 + _ROW_IN * panel.height)
    right = max([1.0, *bars["right"], *(mark.x for mark in panel.marks)])
    ax.set(xlim=(0, 1.02 * right), ylim=(panel.height, -0.1), xlabel=TIME_LABEL)
    ax.set_title(panel.title, loc="left")
    ax.set_title(panel.facts, loc="right", fontsize=8)
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.tick_params(axis="y", length=0)
    ax.set_yticks([label.at for label in panel.rows], labels=[label.text.lstrip("▸ ") for label in panel.rows])
    styles = styles_of(set(bars["name"]))
    n_chunks = 1 + int(bars["chunk"].max()) if len(bars) else 1
    if len(placed):
        draw_bars(ax, placed, styles, 1.0, n_chunks)
    for bar in _rows(offered):
        look: dict[str, Any] = {"fill": False, "edgecolor": INK, "linestyle": "--", "linewidth": 1.0}
        ax.add_patch(Rectangle((bar.left, bar.top), bar.right - bar.left, bar.height, **look))
    _write(ax, panel)
    _draw_strips(ax, panel)
    for mark in panel.marks:
        ax.axvline(mark.x, color=INK, linestyle="--", linewidth=1.1)
        ax.text(mark.x, 0.5, f" {mark.text}", fontsize=8, va="center", rotation=90)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.42 / (_ROW_IN * panel.height))}
    ax.legend(*legend_entries(styles, n_chunks), ncols=4, borderaxespad=0.0, handler_map=SIDE_BY_SIDE, **place)
    return ax


def _write(ax: Axes, panel: Panel) -> None:
    """Write each op's name into its bar, if it has room."""
    for bar in _rows(panel.bars):
        size = min(8.0, 16.0 * bar.height)
        box = None if bar.ghost else {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
        x, y = (bar.left + bar.right) / 2, bar.top + bar.height / 2
        ax.text(x, y, bar.label, ha="center", va="center", fontsize=size, bbox=box, clip_on=True, zorder=4)


def _draw_strips(ax: Axes, panel: Panel) -> None:
    """Draw what each rank keeps, in a frame that is full where it may keep no more."""
    assert panel.strips is not None
    for strip in _rows(panel.strips[panel.strips["share"] > 0]):
        height = (strip.bottom - strip.top) * strip.share
        look: dict[str, Any] = {"facecolor": "#D55E00" if strip.over else _KEPT, "edgecolor": EDGE, "linewidth": 0.5}
        ax.add_patch(Rectangle((strip.left, strip.bottom - height), strip.right - strip.left, height, **look))
    for label in panel.peaks:
        ax.annotate(
            label.text, (1, label.at), (4, 0), ("axes fraction", "data"), "offset points", fontsize=7, va="center"
        )


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    return iter(table.itertuples(index=False))
