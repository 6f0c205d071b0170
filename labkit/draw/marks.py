"""Mark single values on axes that are drawn: the reader's guess, and values to compare with.

A guess is grey: a star where it is a point, a dotted line where it is a value of one axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from labkit.base.texts import listed
from labkit.draw.palette import GUESS, MUTED, SOURCES
from labkit.draw.picture import attach, drawn_table, house_style
from labkit.draw.sources import source_of

_HALF_GROUP = 0.45  # of the room that a group of bars takes


class _Columns(NamedTuple):
    """Which columns of the table of some axes are drawn where."""

    x: str
    y: str
    series: str | None


_columns: WeakKeyDictionary[Axes, _Columns] = WeakKeyDictionary()


def remember_columns(ax: Axes, x: str, y: str, series: str | None) -> None:
    """Remember what the columns of the axes' table mean, so that a guess becomes a row of it."""
    _columns[ax] = _Columns(x, y, series)


def mark_guess(
    ax: Axes,
    guess: Any,
    *,
    x: float | None = None,
    y: float | None = None,
    group: object = None,
    axis: str | None = None,
    scale: float = 1.0,
) -> Axes:
    """Mark the reader's guess in a picture, in its legend, and in the data that are saved with it.

    ``guess`` is a number, or what :func:`labkit.guess.guess` returned; times ``scale`` it is in the
    unit of the axis. Without a guess (None, or "I don't know") nothing is drawn. Say where with one
    of these:

    ``x=16``         a star at (16, guess)
    ``y=0.1``        a star at (guess, 0.1)
    ``group="weak"`` a dotted line with a star, as high as the guess, across that group of bars
    ``axis="x"``     a dotted line at the guess through the whole picture; ``"y"`` a level one

    An axis grows to show it. On a logarithmic one, a guess of 0 or less stands at the lower end.

    Raises TypeError for a guess that is no number, such as a choice, or not exactly one place;
    ValueError for a number that is not finite, a group that is not there, or an unknown axis.
    """
    places = {
        name: place for name, place in (("x", x), ("y", y), ("group", group), ("axis", axis)) if place is not None
    }
    if len(places) != 1:
        raise TypeError(f"mark_guess: got {listed(places) or 'no place'}, expected one of x, y, group and axis")
    value = _number(getattr(guess, "value", guess))
    if value is None:
        return ax
    value *= scale
    before = drawn_table(ax)  # of axes that were drawn by hand, what is on them so far
    with house_style():
        if axis is not None:
            row = _draw_line(ax, value, axis)
        elif group is not None:
            row = _draw_across(ax, value, _position(ax, group)) | {"x": group}
        else:
            row = _draw_star(ax, value if x is None else x, value if y is None else y)
        _refresh_legend(ax)
    columns = _columns.get(ax, _Columns("x", "y", "series"))
    named = {getattr(columns, name): place for name, place in row.items()}
    attach(ax, pd.DataFrame([{columns.series or "source": GUESS, **named}]), after=before)
    return ax


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"mark_guess: the guess is {value!r}, expected a number: a choice has no place on an axis")
    if not math.isfinite(value):
        raise ValueError(f"mark_guess: the guess is {value}, expected a finite number")
    return float(value)


def _draw_line(ax: Axes, value: float, axis: str) -> dict[str, object]:
    if axis not in ("x", "y"):
        raise ValueError(f"mark_guess: axis is {axis!r}, expected 'x' or 'y'")
    draw = ax.axvline if axis == "x" else ax.axhline
    draw(_shown(ax, axis, value), color=SOURCES[GUESS].edge, linestyle=":", linewidth=1.6, label=GUESS, zorder=4)
    return {axis: value}


def _draw_across(ax: Axes, value: float, position: float) -> dict[str, object]:
    look: dict[str, Any] = {"color": SOURCES[GUESS].edge, "linestyle": ":", "linewidth": 1.6, "zorder": 5}
    ends = [position - _HALF_GROUP, position, position + _HALF_GROUP]
    ax.plot(ends, 3 * [_shown(ax, "y", value)], marker="*", markevery=[1], label=GUESS, **look, **_STAR)
    return {"y": value}


def _draw_star(ax: Axes, x: float, y: float) -> dict[str, object]:
    look: dict[str, Any] = {"color": SOURCES[GUESS].edge, "linestyle": "", "marker": "*", "zorder": 5}
    ax.plot(_shown(ax, "x", x), _shown(ax, "y", y), label=GUESS, **look, **_STAR)
    return {"x": x, "y": y}


def _shown(ax: Axes, axis: str, value: float) -> float:
    """Return where a value stands on an axis, and make room for it if the axis has fixed limits."""
    low, high = ax.get_xlim() if axis == "x" else ax.get_ylim()
    if (ax.get_xscale() if axis == "x" else ax.get_yscale()) == "log" and value <= 0:
        return low
    follows = ax.get_autoscalex_on() if axis == "x" else ax.get_autoscaley_on()
    if not follows and not low <= value <= high:
        (ax.set_xlim if axis == "x" else ax.set_ylim)(min(low, value), max(high, value))
    return value


_STAR: dict[str, Any] = {"markersize": 13, "markeredgecolor": "white", "markeredgewidth": 0.7, "clip_on": False}


def _position(ax: Axes, group: object) -> float:
    """Return where a group of bars stands. Its name may be broken into lines under the axis."""
    names = {
        " ".join(label.get_text().split()): x for x, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
    }
    name = " ".join(str(group).split())
    if name not in names:
        raise ValueError(f"mark_guess: no group {name!r}; the groups are {', '.join(names)}")
    return float(names[name])


def _refresh_legend(ax: Axes) -> None:
    """Write the legend anew, each name once, where it stood; without one, beside the axes."""
    entries = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    before: Any = ax.get_legend()
    if before is None:
        order = sorted(entries, key=lambda name: isinstance(entries[name], Line2D))  # what was measured comes first
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
        ax.legend([entries[name] for name in order], order, **place)
        return
    order = [text.get_text() for text in before.get_texts()]
    names = [*(name for name in order if name in entries), *(name for name in entries if name not in order)]
    place = {"loc": before._loc, "borderaxespad": before.borderaxespad, "frameon": before.get_frame_on()}
    if before._bbox_to_anchor is not None:  # in dots; the legend wants it in parts of the axes
        anchor = before.get_bbox_to_anchor().transformed(ax.transAxes.inverted())
        place["bbox_to_anchor"] = (anchor.x0, anchor.y0, anchor.width, anchor.height)
    ax.legend([entries[name] for name in names], names, **place)


def lines_at(ax: Axes, values: Mapping[str, float | tuple[float, float]], *, axis: str = "y") -> Axes:
    """Draw a thin line for each named value, and its name on it: ``{"A100, 80 GiB": 80}``.

    ``axis="y"`` makes level lines, with names at their left end; ``"x"`` upright ones, with names
    along them. A pair of values is a band from one to the other. A name that begins with
    "published" or "reported" is green, any other grey.

    Raises ValueError for an unknown axis.
    """
    if axis not in ("x", "y"):
        raise ValueError(f"lines_at: axis is {axis!r}, expected 'x' or 'y'")
    level = axis == "y"
    draw_line, draw_band = (ax.axhline, ax.axhspan) if level else (ax.axvline, ax.axvspan)
    for name, value in values.items():
        source = source_of(name)
        colour = SOURCES[source].edge if source else MUTED
        if isinstance(value, tuple):
            draw_band(*value, color=colour, alpha=0.12, linewidth=0, zorder=0.5)
        else:
            draw_line(value, color=colour, linewidth=1, linestyle="-." if source else "--", zorder=1.5)
        first = min(value) if isinstance(value, tuple) else value
        look: dict[str, Any] = {"fontsize": 8, "color": colour, "textcoords": "offset points", "zorder": 4}
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}
        if level:
            ax.annotate(name, (0.0, first), (3, 3), xycoords=("axes fraction", "data"), va="bottom", **look)
        else:
            ax.annotate(name, (first, 1.0), (3, -3), xycoords=("data", "axes fraction"), va="top", rotation=90, **look)
    return ax
