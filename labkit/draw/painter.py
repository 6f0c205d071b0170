"""Print panels: draw their rows, bars, labels, strips and marks on matplotlib axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.draw import palette
from labkit.draw.layout import TimeAxis
from labkit.draw.palette import Style, darker, on_page, shade, styles_of, text_colour, words_of
from labkit.draw.panel import EventsPanel, Label
from labkit.draw.picture import PAGE_IN, attach, figure_of, figure_size, house_style, put_legend_right, scaled

_SIDE_BY_SIDE: dict[Any, Any] = {tuple: HandlerTuple(ndivide=None, pad=0)}  # for a legend with legend_entries in it
_NARROW_PT = 3.0  # a bar narrower than this has no edge, and no hatching
_NARROW_OP_PT = 2.0  # the same for ops of a pipeline, which lie side by side; if they are narrow on average, none has
_HAIR_PT = 0.3  # at least so wide is a bar
_LETTERS_PT = (5.0, 8.0)  # the smallest and the largest letters in bars
_LONG_PT = 7.0  # the smallest letters of long labels
_LABEL_PT = 10.5  # the smallest distance of two labels of ranks
_MAX_NUMBERS = 1000  # labels inside bars: with more, drawing slows down and none can be read
_MARGIN = 0.12  # rows, above the first and below the last
# In a figure of panels, inches: a row, all rows together at most, titles, an axis, and a line of
# the legend or the note.
_ROW_IN, _MAX_ROWS_IN, _TITLE_IN, _AXIS_IN, _LINE_IN = 0.27, 9.5, 0.3, 0.45, 0.18
_LEGEND_PT, _NOTE_CHARACTERS = 8.5, 125
_HANDLE_PT, _LETTER_PT = 38.0, 4.9  # about as wide in the legend
_MAX_TICKS = 20  # of an axis that counts
_MAX_OUTLINES = 20_000  # bars in an SVG: with more, the file is larger than a picture made of pixels


class SharedLook(NamedTuple):
    """What the panels of a figure share."""

    styles: dict[str, Style]  # by name
    n_chunks: int
    time: TimeAxis

    @classmethod
    def of(cls, panels: Iterable[EventsPanel], time: TimeAxis, colors: Mapping[str, Any] | None = None) -> SharedLook:
        bars = pd.concat([panel.bars[["name", "chunk"]] for panel in panels])
        styles = {name: style.on_page() for name, style in styles_of(set(bars["name"]), colors).items()}
        return cls(styles, 1 + max(bars["chunk"], default=0), time)

    def fill(self, name: str, chunk: int) -> str:
        return shade(self.styles[name].colour, chunk, self.n_chunks)


def panel_figure(
    panels: Sequence[EventsPanel],
    axis: TimeAxis,
    note: str = "",
    data: Sequence[pd.DataFrame] = (),
    *,
    ax: Axes | Sequence[Axes] | None = None,
    colors: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw panels one under the other, with a legend above and a ``note`` below.

    Panels lie on one ``axis``, and rows of all are of one height. With ``ax``, one for each panel,
    they are drawn there, and the legend stands to the right of the first. ``data``, a table a
    panel, is what can be saved as CSV (:func:`labkit.draw.save`). ``colors`` are colours by name in
    place of the lab's.

    Raises ValueError for another number of axes, and for colours of what is not drawn.
    """
    axes: list[Axes] = [] if ax is None else np.ravel(np.array(ax)).tolist()
    if ax is not None and len(axes) != len(panels):
        raise ValueError(f"ax has {len(axes)} axes, expected {len(panels)}: one for each table that is drawn")
    with house_style():
        look = SharedLook.of(panels, axis, colors)
        entries = legend_entries(look.styles, look.n_chunks, panels)
        if new := not axes:
            axes = _new_figure(panels, entries, note)
        for number, (on, panel) in enumerate(zip(axes, panels, strict=True)):
            last = number == len(panels) - 1
            paint(on, panel, look, across(panels))
            on.set_title(panel.title, loc="left", fontsize=scaled(9.5), weight="bold")
            on.set_title(panel.facts, loc="right", fontsize=scaled(8.5))
            on.tick_params(axis="x", labelbottom=last)
            on.set_xlabel(axis.label if last else "")
            attach(on, data[number])
        if not new:
            peaks = any(panel.peaks for panel in panels)
            put_legend_right(axes[0], entries, handler_map=_SIDE_BY_SIDE, bbox_to_anchor=(1.05 if peaks else 1.005, 1))
            axes[-1].set_xlabel("\n".join(filter(None, [axes[-1].get_xlabel(), note])))
    return figure_of(axes[0], "panel_figure")


def _new_figure(panels: Sequence[EventsPanel], entries: Mapping[str, Any], note: str) -> list[Axes]:
    """Return axes for the panels in a figure that has their legend and the note."""
    heights = [panel.height + 2 * _MARGIN for panel in panels]
    row_in = min(_ROW_IN, _MAX_ROWS_IN / sum(heights))
    width_in = figure_size(PAGE_IN, 0)[0] / scaled(1)  # as wide as it is for letters of the lab's size
    notes = textwrap.wrap(note, int(_NOTE_CHARACTERS * width_in / PAGE_IN))
    n_lines = math.ceil(sum(_HANDLE_PT + _LETTER_PT * len(label) for label in entries) / (72 * width_in - 36))
    height_in = sum(heights) * row_in + len(panels) * _TITLE_IN + _AXIS_IN + _LINE_IN * (n_lines + len(notes))
    form: dict[str, Any] = {"figsize": figure_size(PAGE_IN, scaled(height_in)), "height_ratios": heights}
    form["gridspec_kw"] = {"left": 0.1, "right": 0.97}  # about where the layout puts them: for labels
    figure, grid = plt.subplots(len(panels), 1, layout="constrained", squeeze=False, **form)
    if entries:
        look: dict[str, Any] = {"fontsize": scaled(_LEGEND_PT), "columnspacing": 1.4, "handletextpad": 0.5}
        look |= {"handler_map": _SIDE_BY_SIDE, "ncols": math.ceil(len(entries) / n_lines)}
        figure.legend(list(entries.values()), list(entries), loc="outside upper left", **look)
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=scaled(8))
    return list(grid[:, 0])


def across(panels: Sequence[EventsPanel]) -> tuple[float, float]:
    """Return from where to where panels on one axis go."""
    left, right = min(0.0, *(panel.bars["left"].min() for panel in panels)), max(map(_end, panels))
    return left, left + 1.01 * ((right - left) or 1e-6)


def paint(ax: Axes, panel: EventsPanel, look: SharedLook, extent: tuple[float, float]) -> None:
    """Draw a panel on axes that reach over ``extent``, from and to, in seconds.

    The title, the name of the time and the legend are the caller's.
    """
    per_second = look.time.per_second
    ax.set_xlim(extent[0] * per_second, extent[1] * per_second)
    ax.set_ylim(panel.height + _MARGIN, -_MARGIN)
    if not look.time.unit:  # a count of something, such as clocks
        ax.xaxis.set_major_locator(MaxNLocator(_MAX_TICKS, integer=True, steps=[1, 2, 5, 10]))
    every = _label_rows(ax, panel)
    ax.grid(axis="x", color=on_page(palette.GRID), linewidth=0.6)
    _draw_background(ax, panel, per_second)
    if panel.strips is not None:
        _draw_strips(ax, panel.strips, per_second)
    _write_peaks(ax, panel.peaks[::every])
    _draw_bars(ax, panel, look)
    _write_labels(ax, panel, look)
    for mark in panel.marks:
        look_of_mark: dict[str, Any] = {"linestyle": "--" if mark.dashed else "-", "linewidth": 1.1, "zorder": 5}
        ax.axvline(mark.x * per_second, color=on_page(palette.INK), label=mark.text, **look_of_mark)


def _end(panel: EventsPanel) -> float:
    return max([*panel.bars["right"], *(mark.x for mark in panel.marks)])


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


def _draw_bars(ax: Axes, panel: EventsPanel, look: SharedLook) -> None:
    """Draw one or two collections per name and chunk: thousands of bars cost what one does."""
    bars = panel.bars.assign(bottom=panel.bars["top"] + panel.bars["height"])
    corners = _corners(bars, look.time.per_second)
    width_pt, of_ops = (corners[:, 1, 0] - corners[:, 0, 0]) * points_per_unit(ax)[0], panel.of_ops
    are_wide = of_ops and width_pt.mean() > _NARROW_PT
    min_pt = _NARROW_PT if not of_ops else _NARROW_OP_PT if are_wide else np.inf
    shared = {"zorder": 2, "rasterized": len(bars) > _MAX_OUTLINES}
    groups: dict[Any, Any] = bars.groupby(["name", "chunk"]).groups
    for (name, chunk), chosen in groups.items():
        colour, hatch = look.fill(name, chunk), look.styles[name].hatch
        wide, narrow = chosen[width_pt[chosen] > min_pt], chosen[width_pt[chosen] <= min_pt]
        _add_boxes(ax, corners[wide], **look.styles[name]._replace(colour=colour).face(), **shared)
        hair = _narrow_look(colour, hatch, width_pt[narrow] if of_ops else None)
        _add_boxes(ax, corners[narrow], **hair, **shared)


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


def _write_labels(ax: Axes, panel: EventsPanel, look: SharedLook) -> None:
    """Write its label into each bar that is large enough for the smallest letters.

    On a hatching it stands on a ground of the bar's colour.
    """
    bars, min_pt = panel.bars[panel.bars["label"] != ""], scaled(_LETTERS_PT[0])
    size = _letters_pt(ax, bars, bars["label"], look)
    if "long" in bars and ((long := _letters_pt(ax, bars, bars["long"], look)) >= scaled(_LONG_PT)).all():
        bars, size = bars.assign(label=bars["long"]), long
    fits = size >= min_pt
    if panel.of_ops:  # of a row all ops of a kind have one, or none: the first ten alone would confuse
        fits &= fits.groupby([bars["top"], bars["name"]]).transform("mean") > 0.75
    if fits.sum() > _MAX_NUMBERS:
        return
    at: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 3}
    for bar in bars.assign(size=size)[fits].to_dict("records"):
        colour = look.fill(bar["name"], bar["chunk"])
        x, y = (bar["left"] + bar["right"]) / 2 * look.time.per_second, bar["top"] + bar["height"] / 2
        ground = (
            {"facecolor": palette.label_ground(colour), "edgecolor": "none", "pad": 0.3}
            if look.styles[bar["name"]].hatch
            else None
        )
        ax.text(x, y, bar["label"], fontsize=bar["size"], color=text_colour(colour), bbox=ground, **at)


def _letters_pt(ax: Axes, bars: pd.DataFrame, labels: pd.Series, look: SharedLook) -> pd.Series:
    """Return how large letters may be for a label to fit into its bar."""
    width_pt, height_pt = points_per_unit(ax)
    room_pt = (bars["right"] - bars["left"]) * look.time.per_second * width_pt
    letters = labels.str.len() - 0.5 * labels.str.count(" ")
    by_width, by_height = room_pt / (0.68 * letters + 0.35), 0.72 * height_pt * bars["height"]
    return pd.concat([by_width, by_height], axis=1).min(axis=1).clip(upper=scaled(_LETTERS_PT[1]))


# --- rows and strips ------------------------------------------------------------------------------


def _label_rows(ax: Axes, panel: EventsPanel) -> int:
    """Write what the rows are beside them: small words next to them, the others left of these.

    Of many rows it is every second, fourth, …, as far as there is room. Return which.
    """
    large, small = ([row for row in panel.rows if row.small is which] for which in (False, True))
    row_pt = points_per_unit(ax)[1] * panel.height / max(1, len(large))
    every = 2 ** max(0, math.ceil(math.log2(scaled(_LABEL_PT) / row_pt)))
    ax.set_yticks([row.at for row in large[::every]], labels=[row.text for row in large[::every]])
    ax.tick_params(axis="y", which="both", length=0)
    spacing_pt = points_per_unit(ax)[1] * np.diff(sorted(row.at for row in small)).min(initial=np.inf)
    if small and spacing_pt >= scaled(_LETTERS_PT[0]):  # or else they would touch
        ax.yaxis.remove_overlapping_locs = False  # a small word in the middle of a large one's rows is kept
        ax.set_yticks([row.at for row in small], labels=[row.text for row in small], minor=True)
        ax.tick_params(
            axis="y", which="minor", labelsize=min(scaled(7.5), spacing_pt), labelcolor=on_page(palette.MUTED)
        )
        ax.tick_params(axis="y", which="major", pad=12 + scaled(4.6) * max(len(row.text) for row in small))
    return every


def _draw_strips(ax: Axes, strips: pd.DataFrame, per_second: float) -> None:
    """Draw how much is kept under each rank as steps."""
    ends = {"left": strips["left"].min(), "right": strips["right"].max()}
    for _, pieces in strips.groupby("bottom"):
        top, bottom = pieces[["top", "bottom"]].to_numpy()[0]
        _add_boxes(
            ax, _corners(pieces[:1].assign(**ends), per_second), color=on_page(palette.ROOM), linewidth=0, zorder=1
        )
        edges = np.append(pieces["left"], pieces["right"].iloc[-1]) * per_second
        tops = bottom - (bottom - top) * np.append(pieces["share"], pieces["share"].iloc[-1])
        ax.fill_between(edges, tops, bottom, step="post", zorder=1.5, **_strip_look())


def _strip_look() -> dict[str, Any]:
    return {"facecolor": on_page(palette.KEPT), "edgecolor": on_page(palette.KEPT_EDGE), "linewidth": 0.5}


def _write_peaks(ax: Axes, peaks: Sequence[Label]) -> None:
    """Write beside the axes how much is kept at most."""
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    for peak in peaks:
        ax.annotate(peak.text, (1, peak.at), (6, 0), fontsize=scaled(8), color=on_page(palette.KEPT_EDGE), **place)


def _draw_background(ax: Axes, panel: EventsPanel, per_second: float) -> None:
    """Draw grey where ranks wait, or else a ground under every second rank."""
    if panel.idle is not None:
        _add_boxes(ax, _corners(panel.idle, per_second), color=on_page(palette.IDLE), linewidth=0, zorder=1)
        return
    for top, bottom in list(panel.ranks.values())[1::2]:
        ax.axhspan(top - 0.12, bottom + 0.12, color=on_page(palette.BAND), linewidth=0, zorder=0)


# --- legends --------------------------------------------------------------------------------------


def legend_entries(styles: Mapping[str, Style], n_chunks: int, panels: Sequence[EventsPanel]) -> dict[str, Any]:
    """Return a patch for each name in words, how stages are told apart, and what else is drawn."""
    entries: dict[str, Any] = {words_of(name): Patch(**style.face()) for name, style in styles.items()}
    if n_chunks > 1:
        label = "1st, 2nd stage of a rank" if n_chunks == 2 else f"1st to last of a rank's {n_chunks} stages"
        shades = [shade(palette.ANY, chunk, n_chunks) for chunk in range(n_chunks)]
        entries[label] = tuple(Patch(**Style(colour, "").face()) for colour in shades)
    if any(panel.idle is not None for panel in panels):
        entries["idle"] = Patch(color=on_page(palette.IDLE))
    if any(panel.strips is not None for panel in panels):
        entries["activations kept"] = Patch(**_strip_look())
    for mark in (mark for panel in panels for mark in panel.marks):
        line: dict[str, Any] = {"linestyle": "--" if mark.dashed else "-", "linewidth": 1.1}
        entries[mark.text] = Line2D([], [], color=on_page(palette.INK), **line)
    return entries
