"""Draw the parts of a timeline: bars, the numbers in them, rank and lane labels, legend entries.

The tables come from :mod:`labkit.draw.layout`, with the columns ``start``, ``top``, ``height`` and
``chunk``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from labkit.draw.layout import Layout
from labkit.draw.palette import Style, darker, shade, text_colour

Styles = dict[str, Style]  # by event name

BAND = "#f3f3f3"
GRID = "#dddddd"
IDLE = "#ececec"
SIDE_BY_SIDE: dict[Any, Any] = {tuple: HandlerTuple(ndivide=None, pad=0)}  # for a legend with legend_entries in it
_NARROW_PT = 3.0  # a bar narrower than this has no edge, and no hatching
_NARROW_OP_PT = 2.0  # the same for ops of a pipeline, which lie side by side; if they are narrow on average, none has
_HAIR_PT = 0.3  # at least so wide is a bar
_LABEL_PT = 10.5  # the least distance of two labels
_ANY_COLOUR = "#8c8c8c"  # in a legend, for what holds for every colour
_MOST_NUMBERS = 1000  # numbers inside bars: with more, drawing slows down and none can be read
_MOST_OUTLINES = 20_000  # bars in an SVG: with more, the file is larger than a picture made of pixels


def draw_bars(ax: Axes, events: pd.DataFrame, styles: Styles, per_second: float, n_chunks: int = 1) -> None:
    """Draw one or two collections per name and chunk: thousands of bars cost what one does."""
    width_pt = (events["end_s"] - events["start_s"]) * per_second * points_per_unit(ax)[0]
    is_pipeline = bool(events["stage"].notna().any())
    least_pt = _NARROW_PT if not is_pipeline else _NARROW_OP_PT if width_pt.mean() > _NARROW_PT else np.inf
    for (name, number), spans in events.groupby(["name", "chunk"]):
        chunk = int(str(number))
        left = spans["start"].to_numpy() * per_second
        right = left + (spans["end_s"] - spans["start_s"]).to_numpy() * per_second
        top = spans["top"].to_numpy()
        bottom = top + spans["height"].to_numpy()
        corners: Any = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
        colour, hatch = styles[str(name)]
        colour = shade(colour, chunk, n_chunks)
        look: dict[str, Any] = {"zorder": 2, "rasterized": len(events) > _MOST_OUTLINES}
        wide = (width_pt[spans.index] > least_pt).to_numpy()
        if wide.any():
            edge: dict[str, Any] = {"edgecolor": darker(colour), "linewidth": 0.5, "hatch": hatch}
            ax.add_collection(PolyCollection(corners[wide], facecolor=colour, **edge, **look), autolim=False)
        if not wide.all():
            look |= _narrow_look(colour, hatch, width_pt[spans.index][~wide] if is_pipeline else None)
            ax.add_collection(PolyCollection(corners[~wide], **look), autolim=False)


def _narrow_look(colour: str, hatch: str, op_widths_pt: pd.Series | None) -> dict[str, Any]:
    """Return how bars look that are too narrow for an edge or a hatching to be seen.

    A hair of its own colour keeps a lonely bar visible. Ops of a pipeline lie side by side, where
    hairs would cover their neighbours, so only the narrowest have one; and a hatching that is not
    drawn darkens them as it would have.
    """
    if op_widths_pt is None:
        return {"facecolor": colour, "edgecolor": colour, "linewidth": 0.5}
    colour = darker(colour, 0.2) if hatch else colour
    hairs = np.where(op_widths_pt < _HAIR_PT, _HAIR_PT, 0.0)
    return {"facecolor": colour, "edgecolor": colour, "linewidth": hairs, "snap": False}


def draw_numbers(
    ax: Axes,
    spans: pd.DataFrame,
    styles: Styles,
    per_second: float,
    n_chunks: int = 1,
    *,
    sizes_pt: tuple[float, float] = (5.0, 8.0),
    halo: bool = False,
) -> None:
    """Write micro-batch or bucket into the bars that are large enough for the least letters.

    Around a number no hatching is drawn: in a box, or as a ``halo`` that leaves more of it to be
    seen in small bars.
    """
    numbers = spans["micro_batch"].fillna(spans["bucket"])
    spans, numbers = spans[numbers.notna()], numbers[numbers.notna()]
    if numbers.empty:
        return
    texts = numbers.astype("int64").astype(str)
    x = (spans["start"] + (spans["end_s"] - spans["start_s"]) / 2) * per_second
    y = spans["top"] + spans["height"] / 2
    width_pt, height_pt = points_per_unit(ax)
    by_width = (spans["end_s"] - spans["start_s"]) * per_second * width_pt / (0.68 * texts.str.len() + 0.35)
    by_height = 0.72 * height_pt * spans["height"]
    least_pt, most_pt = sizes_pt
    size = np.minimum(np.minimum(by_width, by_height), most_pt)
    fits = pd.Series(size >= least_pt, index=spans.index)
    # Of a row all ops of a kind have one, or none: the first ten alone would confuse.
    fits &= fits.groupby([spans["rank"], spans["name"]]).transform("mean") > 0.75
    if fits.sum() > _MOST_NUMBERS:
        return
    chosen = [column[fits].tolist() for column in (x, y, texts, size, spans["name"], spans["chunk"])]
    for x_middle, y_middle, text, points, name, chunk in zip(*chosen, strict=True):
        colour = shade(styles[name].colour, chunk, n_chunks)
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "clip_on": True, "zorder": 3}
        if halo:
            look["path_effects"] = [withStroke(linewidth=1.8, foreground=colour)]
        else:
            look["bbox"] = {"facecolor": colour, "edgecolor": "none", "pad": 0.4}
        ax.text(x_middle, y_middle, text, fontsize=points, color=text_colour(colour), **look)


def points_per_unit(ax: Axes) -> tuple[float, float]:
    """Return how many points (1/72 inch) a unit of either axis takes, about."""
    # The layout is not final yet.
    figure = ax.get_figure(root=True)
    assert figure is not None
    box, (left, right), (bottom, top) = ax.get_position(), ax.get_xlim(), ax.get_ylim()
    width, height = 72 * figure.get_figwidth() * box.width, 72 * figure.get_figheight() * box.height
    return width / abs(right - left), height / abs(top - bottom)


def label_rows(ax: Axes, layout: Layout) -> list[int]:
    """Write ranks and lanes next to their rows, and return the ranks that are named.

    Of many ranks it is every second, fourth, …, as far as there is room.
    """
    row_pt = points_per_unit(ax)[1] * layout.height / len(layout.ranks)
    every = 2 ** max(0, math.ceil(math.log2(_LABEL_PT / row_pt)))
    named = list(layout.ranks)[::every]
    ax.set_yticks([sum(layout.ranks[rank]) / 2 for rank in named], labels=[f"{layout.row} {rank}" for rank in named])
    ax.tick_params(axis="y", which="both", length=0)
    lanes = [(middle, label) for middle, label in layout.lanes if label]
    if lanes:
        ax.yaxis.remove_overlapping_locs = False  # a lane in the middle of its rank keeps its label
        ax.set_yticks([middle for middle, _ in lanes], labels=[label for _, label in lanes], minor=True)
        ax.tick_params(axis="y", which="minor", labelsize=7.5, labelcolor="#555555")
        ax.tick_params(axis="y", which="major", pad=12 + 4.6 * max(len(label) for _, label in lanes))
    return named


def legend_entries(styles: Styles, n_chunks: int = 1) -> tuple[list[Any], list[str]]:
    """Return a patch and a label per event name, and how the stages of a rank are told apart."""
    handles: list[Any] = [
        Patch(facecolor=colour, edgecolor=darker(colour), hatch=hatch, linewidth=0.5)
        for colour, hatch in styles.values()
    ]
    labels = list(styles)
    if n_chunks > 1:
        shades = [shade(_ANY_COLOUR, chunk, n_chunks) for chunk in range(n_chunks)]
        handles.append(tuple(Patch(facecolor=each, edgecolor=darker(each), linewidth=0.5) for each in shades))
        labels.append("1st, 2nd stage of a rank" if n_chunks == 2 else f"1st to last of a rank's {n_chunks} stages")
    return handles, labels


def put_legend_right(ax: Axes, handles: list[Any], labels: list[str]) -> None:
    """Put a legend to the right of the axes."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
    ax.legend(handles, labels, handler_map=SIDE_BY_SIDE, **place)


def hide_frame(ax: Axes) -> None:
    """Hide the lines around the axes."""
    for spine in ax.spines.values():
        spine.set_visible(False)


def names_of(tables: Iterable[pd.DataFrame]) -> list[str]:
    """Return the event names that stand in the tables, sorted."""
    return sorted(set().union(*(set(events["name"]) for events in tables)))
