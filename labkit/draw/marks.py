"""Mark single values on axes that are drawn: the reader's guess, and values to compare with.

A guess is grey: a star where it is a point, a dotted line where it is a value of one axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from labkit.base.texts import listed
from labkit.draw.palette import GUESS, MUTED, SOURCES, ground, on_page, source_of
from labkit.draw.picture import attach, behind, drawn_columns, house_style, put_legend_right, scaled

_HALF_GROUP = 0.45  # of the room that a group of bars takes


def mark_guess(
    ax: Axes,
    guess: Any,
    *,
    x: float | None = None,
    y: float | None = None,
    group: object = None,
    axis: str | None = None,
) -> Axes:
    """Mark the reader's guess in a picture, in its legend, and in the data that are saved with it.

    ``guess`` is a number in the unit of the axis, or what :func:`labkit.guess.guess` returned.
    Without a guess (None, or "I don't know") nothing is drawn. Say where with one of these:

    ``x=16``         a star at (16, guess)
    ``y=0.1``        a star at (guess, 0.1)
    ``group="weak"`` a dotted line with a star, as high as the guess, across that group of bars
    ``axis="x"``     a dotted line at the guess through the whole picture; ``"y"`` a level one

    An axis grows to show it. On a logarithmic one, a guess of 0 or less stands at the lower end.

    Raises TypeError for a guess that is not a number, such as a choice, or not exactly one place;
    ValueError for a number that is not finite, a group that is not there, or an unknown axis.
    """
    given = {"x": x, "y": y, "group": group, "axis": axis}
    places = [name for name, place in given.items() if place is not None]
    if len(places) != 1:
        raise TypeError(f"mark_guess: got {listed(places) or 'no place'}, expected one of x, y, group and axis")
    value = _number(getattr(guess, "value", guess))
    if value is None:
        return ax
    with house_style():
        if axis is not None:
            row = _draw_line(ax, value, axis)
        elif group is not None:
            row = _draw_across(ax, value, _position(ax, group)) | {"x": group}
        else:
            row = _draw_star(ax, value if x is None else x, value if y is None else y)
        put_legend_right(ax)
    columns = {"x": "x", "y": "y", "series": "source"} | drawn_columns(ax)
    attach(ax, pd.DataFrame([{columns["series"]: GUESS, **{columns[name]: place for name, place in row.items()}}]))
    return ax


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"mark_guess: the guess is {value!r}, expected a number: a choice has no place on an axis")
    if not math.isfinite(value):
        raise ValueError(f"mark_guess: the guess is {value}, expected a finite number")
    return float(value)


def _dots() -> dict[str, Any]:
    return {"color": SOURCES[GUESS].on_page().edge, "linestyle": ":", "linewidth": 1.6, "label": GUESS}


def _star() -> dict[str, Any]:
    look = {"color": SOURCES[GUESS].on_page().edge, "marker": "*", "markersize": scaled(13), "label": GUESS}
    return look | {"zorder": 5, "markeredgecolor": ground(), "markeredgewidth": 0.7, "clip_on": False}


def _draw_line(ax: Axes, value: float, axis: str) -> dict[str, object]:
    if axis not in ("x", "y"):
        raise ValueError(f"mark_guess: axis is {axis!r}, expected 'x' or 'y'")
    draw = ax.axvline if axis == "x" else ax.axhline
    draw(_shown(ax, axis, value), zorder=4, **_dots())
    return {axis: value}


def _draw_across(ax: Axes, value: float, position: float) -> dict[str, object]:
    ends = [position - _HALF_GROUP, position, position + _HALF_GROUP]
    ax.plot(ends, 3 * [_shown(ax, "y", value)], markevery=[1], **_star() | _dots())
    return {"y": value}


def _draw_star(ax: Axes, x: float, y: float) -> dict[str, object]:
    ax.plot(_shown(ax, "x", x), _shown(ax, "y", y), linestyle="", **_star())
    return {"x": x, "y": y}


def _shown(ax: Axes, axis: str, value: float) -> float:
    """Return where a value stands on an axis, and make room for it if the axis has fixed limits."""
    low, high = getattr(ax, f"get_{axis}lim")()
    if value <= 0 and getattr(ax, f"get_{axis}scale")() == "log":
        return float(low)
    if not getattr(ax, f"get_autoscale{axis}_on")():
        getattr(ax, f"set_{axis}lim")(min(low, value), max(high, value))
    return value


def _position(ax: Axes, group: object) -> float:
    """Return where a group of bars stands. Its name may be broken into lines under the axis."""
    names = {
        " ".join(label.get_text().split()): x for x, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
    }
    name = " ".join(str(group).split())
    if name not in names:
        raise ValueError(f"mark_guess: no group {name!r}; the groups are {', '.join(names)}")
    return float(names[name])


def lines_at(ax: Axes, values: Mapping[str, float], *, axis: str = "y") -> Axes:
    """Draw a thin line for each named value, and its name on it: ``{"A100, 80 GiB": 80}``.

    ``axis="y"`` makes level lines, with names at their left end; ``"x"`` upright ones, with names
    along them. A name that begins with "published" or "reported" is green, any other grey.

    Raises ValueError for an unknown axis.
    """
    if axis not in ("x", "y"):
        raise ValueError(f"lines_at: axis is {axis!r}, expected 'x' or 'y'")
    with house_style():
        for name, value in values.items():
            _draw_named_line(ax, name, value, axis)
    return ax


def _draw_named_line(ax: Axes, name: str, value: float, axis: str) -> None:
    source = source_of(name)
    colour = on_page(SOURCES[source].edge if source else MUTED)
    line: dict[str, Any] = {"color": colour, "linewidth": 1, "linestyle": "-." if source else "--", "zorder": 1.5}
    look: dict[str, Any] = {"fontsize": scaled(8), "color": colour, "zorder": 4, "bbox": behind(0.4, alpha=0.8)}
    look["textcoords"] = "offset points"
    if axis == "y":
        ax.axhline(value, **line)
        ax.annotate(name, (0.0, value), (3, 3), xycoords=("axes fraction", "data"), va="bottom", **look)
    else:
        ax.axvline(value, **line)
        x, _ = ax.transAxes.inverted().transform(ax.get_xaxis_transform().transform((value, 0.0)))
        look |= {"va": "top", "rotation": 90, "ha": "right" if x > 0.9 else "left"}  # beyond it is the legend
        aside = -3 if x > 0.9 else 3
        ax.annotate(name, (value, 1.0), (aside, -3), xycoords=("data", "axes fraction"), **look)
