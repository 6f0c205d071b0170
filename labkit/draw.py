"""Event table -> matplotlib axes: a timeline, or one over another, in one palette.

    save(timeline(run.events), "two_ranks", alt="Both ranks compute at once and meet in one all-reduce.")

Simulated and measured tables have the same columns, so one function draws both, and :func:`overlay` one over the other.
Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart in every common form of colour blindness;
each event name also has a hatching, so a picture survives a black and white printer.
"""

from __future__ import annotations

import itertools
import textwrap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch

from labkit.picture import INK, Picture, attach, house_style, save, show
from labkit.show import emulated
from labkit.trace import EVENT_COLUMNS, LANES

__all__ = ["HATCHES", "PALETTE", "Picture", "darker", "new_axes", "overlay", "save", "show", "style_of", "timeline"]

PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "|||", "+++", "ooo")
_SKY, _ORANGE, _GREEN, _PURPLE, _YELLOW, _BLUE, _RED, _GREY = PALETTE

# The names that the lab itself uses. Any other name gets a colour from its own letters: see style_of.
STYLES: dict[str, tuple[str, str]] = {
    "forward": (_SKY, ""),
    "backward": (_ORANGE, "///"),
    "input_grad": (_YELLOW, "\\\\\\"),
    "weight_grad": (_GREEN, "..."),
    "optimizer": (_GREY, ""),
    "all_reduce": (_PURPLE, "xxx"),
    "broadcast": (_PURPLE, "..."),
    "gather": (_RED, "///"),
    "scatter": (_RED, "..."),
    "send": (_BLUE, "---"),
    "recv": (_RED, "|||"),
    "wait": (_GREY, "///"),
}
_WIDTH_IN = 9.0
_NARROW_PT = 3.0  # a bar narrower than this has no hatching
_MOST_NUMBERS = 1000  # numbers inside bars: with more, drawing slows down and none can be read


def style_of(name: str) -> tuple[str, str]:
    """Colour and hatching of an event name: always the same ones, for a name of the lab and for any other."""
    if name in STYLES:
        return STYLES[name]
    number = zlib.crc32(name.encode())
    return PALETTE[number % len(PALETTE)], HATCHES[number // len(PALETTE) % len(HATCHES)]


def _styles_of(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """style_of each name. Where two names of one picture look alike, the later one takes another hatching."""
    order = [*STYLES, *sorted(set(names) - set(STYLES))]
    styles: dict[str, tuple[str, str]] = {}
    for name in (name for name in order if name in names):
        colour, hatch = style_of(name)
        first = HATCHES.index(hatch)
        turned = HATCHES[first:] + HATCHES[:first]
        hatch = next((other for other in turned if (colour, other) not in styles.values()), hatch)
        styles[name] = (colour, hatch)
    return styles


def darker(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return to_hex((0.6 * red, 0.6 * green, 0.6 * blue))


def _text_colour(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.45 else "black"


# --- timelines -------------------------------------------------------------------------------------------------------


def timeline(events: pd.DataFrame, ax: Axes | None = None, *, note: str = "") -> Axes:
    """Draw an event table: a row per rank, in it a sub-row per lane, and spans that overlap stacked.

    ``events`` has the columns of ``trace.EVENT_COLUMNS``, times in seconds. A bar shows the number of its micro-batch,
    or else of its bucket, where there is room. ``note`` stands under the picture, with what was emulated.

    Raises ValueError for a table that is empty, lacks columns, or has times that are missing or run backwards.
    """
    checked = _checked(events, "timeline(events)")
    events, note = checked, emulated(events, note=note)
    start, extent = _extent(events)
    origin = start if start > extent else 0.0  # far from the run's start, count from the first span
    with house_style():
        label = f"time after {origin:.6g} s" if origin else "time"
        ax = _draw_events([("", 1.0, events.assign(start=events.start_s - origin))], ax, label, note, [])
    attach(ax, events[list(EVENT_COLUMNS)])
    return ax


def overlay(ideal: pd.DataFrame, measured: pd.DataFrame, ax: Axes | None = None, *, note: str = "") -> Axes:
    """Draw what should happen over what did happen, rank by rank on one time axis; both begin at 0.

    Two event tables as for :func:`timeline`, with the same unit of time. Lines mark where each of them ends. In the
    picture the first one is called predicted, as in every other picture of the lab.
    """
    tables = {"predicted": _checked(ideal, "overlay(ideal)"), "measured": _checked(measured, "overlay(measured)")}
    shifted = {}
    for source, table in tables.items():
        start = table.start_s.min()
        shifted[source] = table.assign(start_s=table.start_s - start, end_s=table.end_s - start)
    ends = [(source, table.end_s.max()) for source, table in shifted.items()]
    heights = {"predicted": 0.55, "measured": 1.0}
    parts = [(source, heights[source], table.assign(start=table.start_s)) for source, table in shifted.items()]
    with house_style():
        ax = _draw_events(parts, ax, "time", emulated(ideal, measured, note=note), ends)
    tagged = [table.assign(source=source)[["source", *EVENT_COLUMNS]] for source, table in shifted.items()]
    attach(ax, pd.concat(tagged, ignore_index=True))
    return ax


def _checked(events: pd.DataFrame, what: str) -> pd.DataFrame:
    """The table as an ordinary DataFrame in drawing order, or a ValueError that says what is wrong with it."""
    if not isinstance(events, pd.DataFrame):
        raise TypeError(
            f"{what}: got {type(events).__name__}, expected an event table (a DataFrame), such as run.events"
        )
    missing = [name for name in EVENT_COLUMNS if name not in events.columns]
    if missing:
        raise ValueError(f"{what}: columns {', '.join(missing)} are missing; expected {', '.join(EVENT_COLUMNS)}")
    if events.empty:
        raise ValueError(f"{what}: the table is empty; were there spans in what ran? with span(...): records one")
    times = events[["start_s", "end_s"]].to_numpy(dtype=float, na_value=np.nan)
    unknown = ~np.isfinite(times).all(axis=1)
    if unknown.any():
        raise ValueError(f"{what}: row {int(unknown.argmax())} has start_s or end_s that is no finite number")
    backwards = times[:, 1] < times[:, 0]
    if backwards.any():
        row = int(backwards.argmax())
        raise ValueError(f"{what}: row {row} ends before it starts: start_s {times[row, 0]:g}, end_s {times[row, 1]:g}")
    order = ["rank", "lane", "start_s", "end_s"]
    return pd.DataFrame(events).sort_values(order, kind="stable", ignore_index=True)


def _extent(events: pd.DataFrame) -> tuple[float, float]:
    start = float(events.start_s.min())
    return start, float(events.end_s.max()) - start


def _time_unit(extent_s: float) -> tuple[str, float]:
    """The unit in which the axis is written, and how many of it make a second."""
    for unit, per_second in (("s", 1.0), ("ms", 1e3)):
        if extent_s * per_second >= 1:
            return unit, per_second
    return "µs", 1e6


def _stack(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """Greedy interval packing: the row of each span, such that no two spans of a row overlap; and the number of rows.

    Longer spans first where two start together, so that an outer span lies above the ones nested in it.
    """
    slack = 1e-9 * max(float(ends.max() - starts.min()), 1e-12)  # spans that touch share a row in spite of rounding
    rows = np.zeros(len(starts), dtype=int)
    free_at: list[float] = []
    for i in np.lexsort((-ends, starts)):
        row = next((r for r, free in enumerate(free_at) if free <= starts[i] + slack), len(free_at))
        free_at[row : row + 1] = [ends[i]]
        rows[i] = row
    return rows, len(free_at)


@dataclass
class _Layout:
    """Where the rows lie, in units of a row's height, counted downwards."""

    height: float
    ranks: dict[str, tuple[float, float]]  # label -> top and bottom
    lanes: list[tuple[float, str]]  # middle and label of every lane


def _lay_out(parts: list[tuple[str, float, pd.DataFrame]]) -> _Layout:
    """Give each span the ``top`` and ``height`` of its bar: rank by rank, table by table, lane by lane."""
    layout, y = _Layout(0.0, {}, []), 0.0
    lanes_used = set().union(*(set(events["lane"]) for _, _, events in parts))
    lanes = [lane for lane in LANES if lane in lanes_used] + sorted(lanes_used - set(LANES))
    for _, row_height, events in parts:
        events["top"], events["height"] = 0.0, 0.86 * row_height
    for rank in sorted(set().union(*(set(events["rank"]) for _, _, events in parts))):
        rank_top = y
        for (source, row_height, events), lane in itertools.product(parts, lanes):
            chosen = ((events["rank"] == rank) & (events["lane"] == lane)).to_numpy()
            if not chosen.any():
                continue
            rows, n_rows = _stack(events["start_s"].to_numpy()[chosen], events["end_s"].to_numpy()[chosen])
            events.loc[chosen, "top"] = y + row_height * (rows + 0.07)
            label = " ".join(part for part in (source, lane if len(lanes) > 1 else "") if part)
            layout.lanes.append((y + row_height * n_rows / 2, label))
            y += row_height * n_rows
        layout.ranks[f"rank {rank}"] = (rank_top - 0.2, y + 0.2)
        y += 0.4
    layout.height = y
    return layout


def new_axes(width_in: float, height_in: float) -> Axes:
    """Axes in a figure of their own, at most as wide as a page (inches)."""
    return plt.subplots(figsize=(min(width_in, _WIDTH_IN), height_in), layout="constrained")[1]


def _draw_events(
    parts: list[tuple[str, float, pd.DataFrame]], ax: Axes | None, label: str, note: str, ends: list[tuple[str, float]]
) -> Axes:
    layout = _lay_out(parts)
    if ax is None:
        height = min(0.9 + 0.27 * layout.height, 14.0) + 0.15 * note.count("\n")
        ax = new_axes(_WIDTH_IN, max(height, 1.7))
    left = min(float(events["start"].min()) for _, _, events in parts)
    right = max(float((events["start"] + events.end_s - events.start_s).max()) for _, _, events in parts)
    left = min(left, 0.0)
    extent = (right - left) or 1e-6
    unit, per_second = _time_unit(extent)
    _set_axes(ax, layout, (left * per_second, (left + 1.01 * extent) * per_second))
    ax.set_xlabel("\n".join([f"{label} ({unit})", *textwrap.wrap(note, 110)]))
    styles = _styles_of(sorted(set().union(*(set(events["name"]) for _, _, events in parts))))
    for _, _, events in parts:
        _draw_bars(ax, events, styles, per_second)
    _draw_numbers(ax, parts, styles, per_second)
    handles: list[Any] = [
        Patch(facecolor=colour, edgecolor=darker(colour), hatch=hatch, label=name, linewidth=0.5)
        for name, (colour, hatch) in styles.items()
    ]
    for (source, end), dashes in zip(ends, ("--", "-"), strict=False):
        line = ax.axvline(end * per_second, color=INK, linestyle=dashes, linewidth=1.1, zorder=5)
        line.set_label(f"{source} ends at\n{end * per_second:.4g} {unit}")
        handles.append(line)
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
    return ax


def _set_axes(ax: Axes, layout: _Layout, limits: tuple[float, float]) -> None:
    ax.set_xlim(*limits)
    ax.set_ylim(layout.height - 0.2, -0.2)
    for top, bottom in list(layout.ranks.values())[1::2]:
        ax.axhspan(top, bottom, color="#f3f3f3", linewidth=0, zorder=0)
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_yticks([(top + bottom) / 2 for top, bottom in layout.ranks.values()], labels=list(layout.ranks))
    ax.tick_params(axis="y", which="both", length=0)
    lanes = [(middle, label) for middle, label in layout.lanes if label]
    if lanes:
        ax.yaxis.remove_overlapping_locs = False  # a lane in the middle of its rank keeps its label
        ax.set_yticks([middle for middle, _ in lanes], labels=[label for _, label in lanes], minor=True)
        ax.tick_params(axis="y", which="minor", labelsize=7.5, labelcolor="#555555")
        ax.tick_params(axis="y", which="major", pad=12 + 4.6 * max(len(label) for _, label in lanes))


def _draw_bars(ax: Axes, events: pd.DataFrame, styles: dict[str, tuple[str, str]], per_second: float) -> None:
    """One or two collections per name: thousands of bars cost what one does."""
    narrow = _NARROW_PT / _points_per_unit(ax)[0]
    for name, spans in events.groupby("name"):
        left = spans["start"].to_numpy() * per_second
        right = left + (spans["end_s"] - spans["start_s"]).to_numpy() * per_second
        top = spans["top"].to_numpy()
        bottom = top + spans["height"].to_numpy()
        corners = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
        colour, hatch = styles[str(name)]
        wide = right - left > narrow
        look: dict[str, Any] = {"facecolor": colour, "zorder": 2}
        if wide.any():
            edge: dict[str, Any] = {"edgecolor": darker(colour), "linewidth": 0.5}
            ax.add_collection(PolyCollection(list(corners[wide]), hatch=hatch, **edge, **look), autolim=False)
        if not wide.all():  # too narrow for an edge or a hatching to be seen; a hair of its own colour keeps it visible
            edge = {"edgecolor": colour, "linewidth": 0.5}
            ax.add_collection(PolyCollection(list(corners[~wide]), **edge, **look), autolim=False)


def _draw_numbers(
    ax: Axes, parts: list[tuple[str, float, pd.DataFrame]], styles: dict[str, tuple[str, str]], per_second: float
) -> None:
    """Write micro-batch or bucket into the bars that are wide and high enough for it."""
    spans = pd.concat([events for _, _, events in parts], ignore_index=True)
    numbers = spans["micro_batch"].fillna(spans["bucket"])
    spans, numbers = spans[numbers.notna()], numbers[numbers.notna()]
    if numbers.empty:
        return
    texts = numbers.astype("int64").astype(str)
    x = (spans["start"] + (spans["end_s"] - spans["start_s"]) / 2) * per_second
    y = spans["top"] + spans["height"] / 2
    width_pt, height_pt = _points_per_unit(ax)
    by_width = (spans["end_s"] - spans["start_s"]) * per_second * width_pt / (0.68 * texts.str.len() + 0.35)
    by_height = 0.72 * height_pt * spans["height"]
    size = np.minimum(np.minimum(by_width, by_height), 8.0)
    fits = pd.Series(size >= 5, index=spans.index)
    fits &= fits.groupby(spans["name"]).transform("mean") > 0.75  # the first ten of a row alone would confuse
    if fits.sum() > _MOST_NUMBERS:
        return
    chosen = [column[fits].tolist() for column in (x, y, texts, size, spans["name"])]
    for x_middle, y_middle, text, points, name in zip(*chosen, strict=True):
        colour = styles[name][0]
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "clip_on": True, "zorder": 3}
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 0.4}
        ax.text(x_middle, y_middle, text, fontsize=points, color=_text_colour(colour), bbox=behind, **look)


def _points_per_unit(ax: Axes) -> tuple[float, float]:
    """How many points (1/72 inch) a unit of either axis takes, roughly: the layout is not final yet."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    box, (left, right), (bottom, top) = ax.get_position(), ax.get_xlim(), ax.get_ylim()
    width, height = 72 * figure.get_figwidth() * box.width, 72 * figure.get_figheight() * box.height
    return width / abs(right - left), height / abs(top - bottom)
