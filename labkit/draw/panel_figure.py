"""Draw panels with matplotlib: what stands for an interactive picture in print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.draw.artists import draw_bars, legend_entries, points_per_unit, put_legend_right
from labkit.draw.layout import TimeAxis
from labkit.draw.palette import PALETTE, shade, styles_of, text_colour
from labkit.draw.panel import Panel
from labkit.draw.picture import INK, PAGE_IN, attach, house_style

_ROW_IN, _AROUND_IN = 0.3, 0.75  # height of a row, and of what is above and below the rows
_KEPT, _TOO_MUCH = "#9aa5b1", PALETTE[6]
_LETTER_PT, _LETTER_WIDTH = 6.5, 0.62


def panel_figure(parts: Sequence[tuple[Panel, TimeAxis]], note: str = "") -> Figure:
    """Return a figure of panels one under the other, each on its own axis, with a ``note`` below.

    What is drawn can be saved as CSV (:func:`labkit.draw.save`): the bars of all panels.
    """
    heights = [panel.height * _ROW_IN + _AROUND_IN for panel, _ in parts]
    with house_style():
        figure, grid = plt.subplots(
            len(parts),
            1,
            figsize=(PAGE_IN, sum(heights)),
            layout="constrained",
            squeeze=False,
            gridspec_kw={"height_ratios": heights},
        )
        named: set[str] = set()
        for ax, (panel, axis) in zip(grid[:, 0], parts, strict=True):
            _draw(ax, panel, axis, max(_end(other) for other, its_axis in parts if its_axis == axis), named)
        if note:
            figure.supxlabel(note, fontsize=7.5, wrap=True)
    return figure


def _end(panel: Panel) -> float:
    return max([*panel.bars["right"], *(mark.x for mark in panel.marks)], default=1.0)


def _draw(ax: Axes, panel: Panel, axis: TimeAxis, end: float, named: set[str]) -> None:
    """Draw a panel on an axis until ``end``; the legend has what is not ``named`` above already."""
    bars = panel.bars.assign(start=panel.bars["left"], start_s=panel.bars["left"], end_s=panel.bars["right"])
    bars["stage"] = None
    styles, n_chunks = styles_of(set(bars["name"])), 1 + max(bars["chunk"], default=0)
    ax.set_xlim(min([0.0, *bars["left"]]) * axis.per_second, 1.01 * end * axis.per_second)
    ax.set_ylim(panel.height, 0)
    offered = bars["ghost"].to_numpy(dtype=bool) if "ghost" in bars else np.zeros(len(bars), dtype=bool)
    draw_bars(ax, bars[~offered].reset_index(drop=True), styles, axis.per_second, n_chunks)
    _draw_boxes(ax, bars[offered], axis, {"fill": False, "edgecolor": INK, "linestyle": "--", "zorder": 2})
    _write_labels(ax, panel, axis, n_chunks, offered)
    _draw_strips(ax, panel, axis)
    _label_rows(ax, panel)
    ax.set_xlabel(axis.label)
    ax.set_title("   ".join(filter(None, [panel.title, panel.facts])), fontsize=8.5, loc="left")
    handles, labels = legend_entries({name: style for name, style in styles.items() if name not in named})
    named |= set(styles)
    for mark in panel.marks:
        dashes: Any = "--" if mark.dashed else "-"
        handles.append(ax.axvline(mark.x * axis.per_second, color=INK, linestyle=dashes, linewidth=1.1, zorder=5))
        labels.append(mark.text)
    if handles:
        put_legend_right(ax, handles, labels)
    attach(ax, panel.bars.assign(title=panel.title))


def _label_rows(ax: Axes, panel: Panel) -> None:
    """Write what the rows are beside them: small words next to them, the others left of these."""
    small, large = ([row for row in panel.rows if row.small is which] for which in (True, False))
    ax.set_yticks([row.at for row in large], labels=[row.text for row in large])
    ax.tick_params(axis="y", which="both", length=0)
    if small:
        ax.yaxis.remove_overlapping_locs = False  # a small word in the middle of a large one's rows is kept
        ax.set_yticks([row.at for row in small], labels=[row.text for row in small], minor=True)
        ax.tick_params(axis="y", which="minor", labelsize=7.5, labelcolor="#555555")
        ax.tick_params(axis="y", which="major", pad=12 + 4.6 * max(len(row.text) for row in small))


def _draw_boxes(ax: Axes, boxes: pd.DataFrame, axis: TimeAxis, look: dict[str, Any]) -> None:
    for left, right, top, height in boxes[["left", "right", "top", "height"]].to_numpy(dtype=float):
        ax.add_patch(Rectangle((left * axis.per_second, top), (right - left) * axis.per_second, height, **look))


def _draw_strips(ax: Axes, panel: Panel, axis: TimeAxis) -> None:
    """Draw how much is kept under each rank, and its peak."""
    if panel.strips is not None:
        height = (panel.strips["bottom"] - panel.strips["top"]) * panel.strips["share"]
        strips = panel.strips.assign(top=panel.strips["bottom"] - height, height=height)
        over = strips["over"].to_numpy(dtype=bool) if "over" in strips else np.zeros(len(strips), dtype=bool)
        for chosen, colour in ((~over, _KEPT), (over, _TOO_MUCH)):
            _draw_boxes(ax, strips[chosen], axis, {"facecolor": colour, "linewidth": 0})
    for peak in panel.peaks:
        look: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": _LETTER_PT, "zorder": 4}
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4}
        ax.text(0.98, peak.at, peak.text, transform=ax.get_yaxis_transform(), bbox=box, **look)


def _write_labels(ax: Axes, panel: Panel, axis: TimeAxis, n_chunks: int, offered: np.ndarray) -> None:
    """Write into the bars that are wide enough what they are labelled with."""
    bars, width_pt = panel.bars, points_per_unit(ax)[0]
    room = (bars["right"] - bars["left"]) * axis.per_second * width_pt
    needed = bars["label"].str.len() * _LETTER_WIDTH * _LETTER_PT + 2
    styles = styles_of(set(bars["name"]))
    for i in np.flatnonzero((room > needed) & (bars["label"] != "")):
        bar = bars.iloc[int(i)]
        colour = "white" if offered[i] else shade(styles[bar["name"]].colour, int(bar["chunk"]), n_chunks)
        middle = (bar["left"] + bar["right"]) / 2 * axis.per_second
        box = {"facecolor": colour, "edgecolor": "none", "pad": 0.4}
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 3, "bbox": box, "clip_on": True}
        ax.text(
            middle, bar["top"] + bar["height"] / 2, bar["label"], fontsize=_LETTER_PT, color=text_colour(colour), **look
        )
