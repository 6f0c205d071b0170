"""Print panels: draw their rows, bars, labels, strips and marks on matplotlib axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from labkit.draw import palette
from labkit.draw.layout import TimeAxis
from labkit.draw.palette import Style, darker, mixed, shade, styles_of, text_colour, words_of
from labkit.draw.panel import Label, Panel
from labkit.draw.picture import PAGE_IN, attach, house_style, put_legend_right

_SIDE_BY_SIDE: dict[Any, Any] = {tuple: HandlerTuple(ndivide=None, pad=0)}  # for a legend with legend_entries in it
_NARROW_PT = 3.0  # a bar narrower than this has no edge, and no hatching
_NARROW_OP_PT = 2.0  # the same for ops of a pipeline, which lie side by side; if they are narrow on average, none has
_HAIR_PT = 0.3  # at least so wide is a bar
_LABEL_PT = 10.5  # the least distance of two labels of ranks
_STEPS: dict[str, Any] = {"facecolor": palette.KEPT, "edgecolor": palette.KEPT_EDGE, "linewidth": 0.5}
_MIN_STEPS_PT = 5.5  # a strip that is lower has shades instead of steps
_MAX_NUMBERS = 1000  # labels inside bars: with more, drawing slows down and none can be read
_ROW_IN, _AROUND_IN = 0.3, 0.75  # in panel_figure: height of a row, and of what is above and below the rows
_LEGEND_PT = 8.5
LEGEND_LINE_IN = 1.5 * _LEGEND_PT / 72
_HANDLE_PT, _LETTER_PT = 35.0, 4.3  # about as wide in the legend of a figure
_MAX_OUTLINES = 20_000  # bars in an SVG: with more, the file is larger than a picture made of pixels


class Look(NamedTuple):
    """What the panels of a figure share: the least and largest letters in bars are in points."""

    styles: dict[str, Style]  # by name
    n_chunks: int
    time: TimeAxis
    letters_pt: tuple[float, float]

    @classmethod
    def of(cls, panels: Iterable[Panel], time: TimeAxis, letters_pt: tuple[float, float] = (5.0, 8.0)) -> Look:
        bars = pd.concat([panel.bars[["name", "chunk"]] for panel in panels])
        return cls(styles_of(set(bars["name"])), 1 + max(bars["chunk"], default=0), time, letters_pt)

    def fill(self, name: str, chunk: int) -> str:
        return shade(self.styles[name].colour, chunk, self.n_chunks)


def paint(
    ax: Axes, panel: Panel, look: Look, across: tuple[float, float], *, margin: float = 0.0, peaks: str = "inside"
) -> None:
    """Draw a panel on axes that go ``across`` from one time to another, in seconds.

    ``margin`` rows are free above, and taken from below the last one. The ``peaks`` of strips stand
    inside or beside the axes. The title, the name of the time and the legend are the caller's.
    """
    per_second = look.time.per_second
    ax.set_xlim(across[0] * per_second, across[1] * per_second)
    ax.set_ylim(panel.height - margin, -margin)
    every = _label_rows(ax, panel)
    if panel.idle is not None:
        _add_boxes(ax, _corners(panel.idle, per_second), color=palette.IDLE, linewidth=0, zorder=1)
    if panel.strips is not None:
        _draw_strips(ax, panel.strips, per_second)
    _write_peaks(ax, panel.peaks[::every], peaks == "inside")
    _draw_bars(ax, panel, look)
    _write_labels(ax, panel, look)
    for mark in panel.marks:
        look_of_mark: dict[str, Any] = {"linestyle": "--" if mark.dashed else "-", "linewidth": 1.1, "zorder": 5}
        ax.axvline(mark.x * per_second, color=palette.INK, label=mark.text, **look_of_mark)


def panel_figure(panels: Sequence[Panel], axis: TimeAxis, note: str = "") -> Figure:
    """Return a figure of panels one under the other, with a ``note`` below.

    A panel lies on its own axis, or without one on ``axis``.

    What is drawn can be saved as CSV (:func:`labkit.draw.save`): the bars of all panels.
    """
    heights, named = [panel.height * _ROW_IN + _AROUND_IN for panel in panels], set[str]()
    with house_style():
        form: dict[str, Any] = {"figsize": (PAGE_IN, sum(heights)), "height_ratios": heights}
        figure, grid = plt.subplots(len(panels), 1, layout="constrained", squeeze=False, **form)
        for ax, panel in zip(grid[:, 0], panels, strict=True):
            time = panel.axis or axis
            look = Look.of(panels, time)
            end = max(_end(other) for other in panels if other.axis == panel.axis)
            paint(ax, panel, look, (min([0.0, *panel.bars["left"]]), 1.01 * end))
            ax.set_xlabel(time.label)
            ax.set_title("   ".join(filter(None, [panel.title, panel.facts])), fontsize=8.5, loc="left")
            styles = {name: style for name, style in look.styles.items() if name in set(panel.bars["name"]) - named}
            put_panel_legend(ax, styles)
            named |= set(styles)
            attach(ax, panel.bars.assign(title=panel.title))
        if note:
            figure.supxlabel(note, fontsize=7.5, wrap=True)
    return figure


def _end(panel: Panel) -> float:
    return max([*panel.bars["right"], *(mark.x for mark in panel.marks)], default=1.0)


def points_per_unit(ax: Axes) -> tuple[float, float]:
    """Return how many points (1/72 inch) a unit of either axis takes, about."""
    # The layout is not final yet.
    figure = ax.get_figure(root=True)
    assert figure is not None
    x, y = 72 * figure.get_size_inches() * ax.get_position().size / np.ptp([ax.get_xlim(), ax.get_ylim()], axis=1)
    return float(x), float(y)


def _corners(boxes: pd.DataFrame, per_second: float) -> np.ndarray:
    left, right, top, bottom = boxes[["left", "right", "top", "bottom"]].to_numpy(dtype=float).T
    left, right = left * per_second, right * per_second
    return np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)


def _add_boxes(ax: Axes, corners: np.ndarray, **look: Any) -> None:
    if len(corners):
        ax.add_collection(PolyCollection(corners, **look), autolim=False)  # type: ignore[arg-type]


# --- bars -----------------------------------------------------------------------------------------


def _draw_bars(ax: Axes, panel: Panel, look: Look) -> None:
    """Draw one or two collections per name and chunk: thousands of bars cost what one does."""
    bars = panel.bars.assign(bottom=panel.bars["top"] + panel.bars["height"])
    corners = _corners(bars, look.time.per_second)
    offered = bars["ghost"].to_numpy(dtype=bool) if "ghost" in bars else np.zeros(len(bars), dtype=bool)
    width_pt = (corners[:, 1, 0] - corners[:, 0, 0]) * points_per_unit(ax)[0]
    are_wide = panel.of_ops and width_pt.mean() > _NARROW_PT
    least_pt = _NARROW_PT if not panel.of_ops else _NARROW_OP_PT if are_wide else np.inf
    shared = {"zorder": 2, "rasterized": len(bars) > _MAX_OUTLINES}
    groups: dict[Any, Any] = bars[~offered].groupby(["name", "chunk"]).groups
    for (name, chunk), chosen in groups.items():
        colour, hatch = look.fill(name, chunk), look.styles[name].hatch
        wide, narrow = chosen[width_pt[chosen] > least_pt], chosen[width_pt[chosen] <= least_pt]
        _add_boxes(ax, corners[wide], **Style(colour, hatch).face(), **shared)
        hair = _narrow_look(colour, hatch, width_pt[narrow] if panel.of_ops else None)
        _add_boxes(ax, corners[narrow], **hair, **shared)
    _add_boxes(ax, corners[offered], facecolor="none", edgecolor=palette.INK, linestyle="--", zorder=2)


def _narrow_look(colour: str, hatch: str, op_widths_pt: np.ndarray | None) -> dict[str, Any]:
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


def _write_labels(ax: Axes, panel: Panel, look: Look) -> None:
    """Write its label into each bar that is large enough for the least letters.

    On a hatching it stands on a ground of the bar's colour.
    """
    bars, (width_pt, height_pt) = panel.bars[panel.bars["label"] != ""], points_per_unit(ax)
    room_pt = (bars["right"] - bars["left"]) * look.time.per_second * width_pt
    letters = bars["label"].str.len() - 0.5 * bars["label"].str.count(" ")
    by_width, by_height = room_pt / (0.68 * letters + 0.35), 0.72 * height_pt * bars["height"]
    least_pt, most_pt = look.letters_pt
    size = pd.concat([by_width, by_height], axis=1).min(axis=1).clip(upper=most_pt)
    fits = size >= least_pt
    if panel.of_ops:  # of a row all ops of a kind have one, or none: the first ten alone would confuse
        fits &= fits.groupby([bars["top"], bars["name"]]).transform("mean") > 0.75
    if fits.sum() > _MAX_NUMBERS:
        return
    at: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 3}
    for bar in bars.assign(size=size)[fits].to_dict("records"):
        colour = "white" if bar.get("ghost") else look.fill(bar["name"], bar["chunk"])
        x, y = (bar["left"] + bar["right"]) / 2 * look.time.per_second, bar["top"] + bar["height"] / 2
        ground = {"facecolor": colour, "edgecolor": "none", "pad": 0.3} if look.styles[bar["name"]].hatch else None
        ax.text(x, y, bar["label"], fontsize=bar["size"], color=text_colour(colour), bbox=ground, **at)


# --- rows and strips ------------------------------------------------------------------------------


def _label_rows(ax: Axes, panel: Panel) -> int:
    """Write what the rows are beside them: small words next to them, the others left of these.

    Of many rows it is every second, fourth, …, as far as there is room. Return which.
    """
    large, small = ([row for row in panel.rows if row.small is which] for which in (False, True))
    row_pt = points_per_unit(ax)[1] * panel.height / max(1, len(large))
    every = 2 ** max(0, math.ceil(math.log2(_LABEL_PT / row_pt)))
    ax.set_yticks([row.at for row in large[::every]], labels=[row.text for row in large[::every]])
    ax.tick_params(axis="y", which="both", length=0)
    if small:
        ax.yaxis.remove_overlapping_locs = False  # a small word in the middle of a large one's rows is kept
        ax.set_yticks([row.at for row in small], labels=[row.text for row in small], minor=True)
        ax.tick_params(axis="y", which="minor", labelsize=7.5, labelcolor=palette.MUTED)
        ax.tick_params(axis="y", which="major", pad=12 + 4.6 * max(len(row.text) for row in small))
    return every


def _draw_strips(ax: Axes, strips: pd.DataFrame, per_second: float) -> None:
    """Draw how much is kept under each rank as steps, or as shades where a strip is low.

    What is over the cap is red.
    """
    row_pt, ends = points_per_unit(ax)[1], {"left": strips["left"].min(), "right": strips["right"].max()}
    for _, pieces in strips.groupby("bottom"):
        top, bottom = pieces[["top", "bottom"]].to_numpy()[0]
        _add_boxes(ax, _corners(pieces[:1].assign(**ends), per_second), color=palette.ROOM, linewidth=0, zorder=1)
        if row_pt * (bottom - top) < _MIN_STEPS_PT:
            colours = [_kept_shade(share) for share in pieces["share"]]
            _add_boxes(ax, _corners(pieces, per_second), facecolor=colours, linewidth=0, zorder=1.5, snap=False)
        else:
            edges = np.append(pieces["left"], pieces["right"].iloc[-1]) * per_second
            tops = bottom - (bottom - top) * np.append(pieces["share"], pieces["share"].iloc[-1])
            ax.fill_between(edges, tops, bottom, step="post", zorder=1.5, **_STEPS)
        over = pieces[pieces["over"].astype(bool)] if "over" in pieces else pieces[:0]
        over = over.assign(top=bottom - (bottom - top) * over["share"])
        _add_boxes(ax, _corners(over, per_second), facecolor=palette.TOO_MUCH, linewidth=0, zorder=1.6)


def _kept_shade(share: float) -> str:
    return mixed(palette.ROOM, palette.KEPT_EDGE, share)


def _write_peaks(ax: Axes, peaks: Sequence[Label], inside: bool) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4}
    look: dict[str, Any] = {"ha": "right", "fontsize": 6.5, "bbox": box, "zorder": 4} if inside else {"fontsize": 8}
    look |= {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    for peak in peaks:
        ax.annotate(peak.text, (0.98 if inside else 1, peak.at), (0 if inside else 8, 0), **look)


# --- legends --------------------------------------------------------------------------------------


def legend_entries(styles: Mapping[str, Style], n_chunks: int = 1) -> dict[str, Any]:
    """Return a patch for each name in words, and how the stages of a rank are told apart."""
    entries: dict[str, Any] = {words_of(name): Patch(**style.face()) for name, style in styles.items()}
    if n_chunks > 1:
        label = "1st, 2nd stage of a rank" if n_chunks == 2 else f"1st to last of a rank's {n_chunks} stages"
        shades = [shade(palette.ANY, chunk, n_chunks) for chunk in range(n_chunks)]
        entries[label] = tuple(Patch(**Style(colour, "").face()) for colour in shades)
    return entries


def strip_entry(height_pt: float) -> dict[str, Any]:
    """Return the handle for strips of that height."""
    if height_pt >= _MIN_STEPS_PT:
        return {"activations kept": Patch(**_STEPS)}
    shades = tuple(Patch(facecolor=_kept_shade(share)) for share in (0.2, 0.6, 1.0))
    return {"activations kept (darker: more)": shades}


def put_panel_legend(ax: Axes, styles: Mapping[str, Style], n_chunks: int = 1) -> None:
    """Put a legend of names and marks to the right of the axes."""
    marks = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if entries := legend_entries(styles, n_chunks) | marks:
        put_legend_right(ax, entries, handler_map=_SIDE_BY_SIDE)


def legend_lines(entries: Iterable[str], width_in: float) -> int:
    """Return how many lines a legend takes that is so wide, about."""
    return math.ceil(sum(_HANDLE_PT + _LETTER_PT * len(label) for label in entries) / (72 * width_in))


def put_figure_legend(figure: Figure, entries: Mapping[str, Any], corner_in: tuple[float, float], n_lines: int) -> None:
    """Put a legend of so many lines on a figure: its upper left corner is at ``corner_in``."""
    corner = np.array(corner_in) / figure.get_size_inches()
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": corner, "borderaxespad": 0.0, "borderpad": 0.0}
    space: dict[str, Any] = {"columnspacing": 1.4, "handletextpad": 0.5, "fontsize": _LEGEND_PT}
    n_columns = math.ceil(len(entries) / n_lines)
    figure.legend(list(entries.values()), list(entries), ncols=n_columns, handler_map=_SIDE_BY_SIDE, **place, **space)
