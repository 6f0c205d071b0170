"""Show a measurement: a figure by its name, whose words are in ``notebooks/figures.toml``.

An entry of that file:

    [overlap_step_time]
    kind = "bars"                # bars, parts, curve, curves, timeline, overlay or drawn
    title = "A step, six ways"
    y = "ms a step"              # what an axis is; x for curves alone
    y_unit = "ms"                # numbers come in seconds and bytes, and are drawn in this unit
    guess = {group = "flat"}     # where the reader's guess stands, as for labkit.draw.marks
    note = "…"                   # under the picture, before what was emulated
    alt = "…"                    # what it shows, to readers who cannot see it

Curves may have ``log = "xy"``, ``ticks`` by position or ``"auto"``, ``steps = true`` where a value
holds until the next one, ``lines`` at named values
(level ones, or with ``lines_across = "x"`` upright ones), and ``series``, words for keywords of
:func:`show`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.base.formats import MeasuredTable, emulated, fact, measured
from labkit.base.measurement_html import Lines
from labkit.base.notebook import display
from labkit.base.texts import listed
from labkit.base.units import size_of
from labkit.base.words import words
from labkit.draw import charts, marks, timelines
from labkit.draw.layout import from_zero
from labkit.draw.picture import figure_of, house_style, save, scaled
from labkit.stats import Interval, interval

TOGETHER = "together"
_Numbers = Mapping[str, Any]


def show(what: Any, *, guess: Any = None, at: Mapping[str, float] | None = None, **numbers: Any) -> None:
    """Show the figure of that name, or without a name a number, a table or a verdict.

        show("overlap_step_time", measured=step_s, predicted=predicted_s, guess=one_by_one)
        show(verdict("threads", seconds["threads"], "alone", seconds["alone"]))
        show({"host cost of a call, µs": 1e6 * host_s})

    A number of a figure is by its source: ``measured``, ``predicted``, ``published``, or a keyword
    that the figure's ``series`` has words for. What a source holds depends on the figure's kind:

    ``bars``, ``parts``      a number by group; of parts, their sum stands beside them
    ``curve``                a number by position
    ``curves``               a number by position, by the name of a line
    ``timeline``             an event table, or several by name, above each other
    ``overlay``              an event table, the predicted one over the measured
    ``drawn``                axes or a figure that a function has drawn

    A number may be an :class:`Interval`, or repeats, such as a column of seconds: then it is their
    median and its interval. ``guess`` is what ``guess(...)`` returned, or a number; one that was
    not given is left out. ``at`` are named values to draw a line at, beside the figure's own
    ``lines``. The figure is saved as PNG, SVG, CSV and alt text, see :func:`labkit.draw.save`.

    Raises ValueError for a name that is not in ``figures.toml``, TypeError for a keyword that the
    figure has no words for, and what drawing raises.
    """
    if not isinstance(what, str):
        display(_as_measured(what))
        return
    entry = words("figures", what)
    series = entry.get("series", {})
    expected = ["drawn"] if entry["kind"] == "drawn" else ["measured", "predicted", "published", *series]
    if not numbers or not numbers.keys() <= {*expected}:
        got = ", ".join(numbers) or "no numbers"
        raise TypeError(f"show({what!r}): got {got}, expected {listed(expected, 'or')}")
    named = {series.get(key, key): value for key, value in numbers.items()}
    figure = _KINDS[entry["kind"]](entry, named)
    _mark(figure, entry, guess, at or {})
    display(save(figure, what, alt=entry["alt"]))


def _as_measured(what: Any) -> Any:
    match what:
        case pd.DataFrame():
            return what if isinstance(what, MeasuredTable) else MeasuredTable(what)
        case Mapping():
            width = max(map(len, map(str, what)), default=0)
            lines = (f"{name!s:<{width}}  {_text_of(value)}" for name, value in what.items())
            return Lines("\n".join(lines), aligned=True)
        case float() | Interval():
            return Lines(_text_of(what), aligned=True)
    return what


def _text_of(value: Any) -> str:
    match value:
        case Interval():
            return fact(value.text(), width=26)
        case float():
            return measured(value)
        case list():
            return fact(", ".join(f"{each:g}" for each in value), width=26)
    return _text_of(interval(value)) if hasattr(value, "median") else fact(value, width=26)


# --- the kinds of figures -------------------------------------------------------------------------


def _bars(entry: _Numbers, numbers: _Numbers) -> Axes:
    sources = {source: _scaled(by_group, entry.get("y_unit", "")) for source, by_group in numbers.items()}
    if entry["kind"] == "parts":
        sources = {source: parts | {TOGETHER: sum(map(_median, parts.values()))} for source, parts in sources.items()}
    return charts.by_source(sources, label=entry["y"], note=_note(entry, numbers), log="y" in entry.get("log", ""))


def _curves(entry: _Numbers, numbers: _Numbers) -> Axes:
    several = len(numbers) > 1
    lines = {
        f"{line}, {source}" if several and source != "measured" else line: points
        for source, by_line in numbers.items()
        for line, points in by_line.items()
    }
    return _draw_lines(entry, lines, numbers)


def _draw_lines(entry: _Numbers, lines: _Numbers, numbers: _Numbers) -> Axes:
    x_size = size_of(entry.get("x_unit", ""))
    drawn = {
        name: {x / x_size: y for x, y in _scaled(points, entry.get("y_unit", "")).items()}
        for name, points in lines.items()
    }
    positions = sorted({x for points in drawn.values() for x in points})
    first = [*next(iter(drawn.values()))]
    ticks = entry.get("ticks") or (first if len(first) < 13 else None)
    ticks = None if ticks == "auto" else ticks
    if isinstance(ticks, Mapping):
        ticks = {float(x): name for x, name in ticks.items() if float(x) <= positions[-1]}
    source = "measured" if "measured" in numbers else next(iter(numbers))
    look = {"log": entry.get("log", ""), "steps": entry.get("steps", False)}
    look |= {"ticks": ticks, "note": _note(entry, numbers)}
    return charts.curves(drawn, x=entry["x"], y=entry["y"], source=source, **look)


def _timeline(entry: _Numbers, numbers: _Numbers) -> Axes:
    (events,) = numbers.values()
    events = events if isinstance(events, Mapping) else from_zero(events)
    return timelines.timeline(events, time_label=entry["x"], note=entry.get("note", ""))


_KINDS: dict[str, Callable[[_Numbers, _Numbers], Axes | Figure]] = {
    "bars": _bars,
    "parts": _bars,
    "curve": lambda entry, numbers: _draw_lines(entry, numbers, numbers),
    "curves": _curves,
    "timeline": _timeline,
    "overlay": lambda _, numbers: timelines.overlay(numbers["predicted"], numbers["measured"]),
    "drawn": lambda _, numbers: numbers["drawn"],
}


# --- numbers and words ----------------------------------------------------------------------------


def _scaled(numbers: _Numbers, unit: str) -> dict[Any, Any]:
    """Return numbers by place in ``unit``, repeats as intervals, without guesses not given."""
    size = size_of(unit)
    scaled = {place: _divided(value, size) for place, value in numbers.items()}
    return {place: value for place, value in scaled.items() if isinstance(value, Interval) or not math.isnan(value)}


def _divided(value: Any, size: float) -> Any:
    found = interval(value) if hasattr(value, "__len__") and not isinstance(value, Interval) else value
    return Interval(*(each / size for each in found)) if isinstance(found, Interval) else found / size


def _median(value: Any) -> float:
    return float(value.median if isinstance(value, Interval) else value)


def _note(entry: _Numbers, numbers: _Numbers) -> str:
    """Return the figure's note, and what was emulated while its numbers were measured."""
    return emulated(*_tables_in(numbers), note=entry.get("note", ""))


def _tables_in(numbers: Any) -> Iterator[Any]:
    if hasattr(numbers, "attrs"):
        yield numbers
    elif isinstance(numbers, Mapping):
        for each in numbers.values():
            yield from _tables_in(each)


def _mark(drawn: Axes | Figure, entry: _Numbers, guess: Any, at: Mapping[str, float]) -> None:
    """Put title, guess and lines into a figure that is drawn."""
    figure = figure_of(drawn, "show")
    if title := entry.get("title"):
        with house_style():
            figure.suptitle(title, fontsize=scaled(11))
    axis = entry.get("lines_across", "y")
    size = size_of(entry.get(f"{axis}_unit", ""))
    if lines := {name: value / size for name, value in at.items()} | entry.get("lines", {}):
        marks.lines_at(figure.axes[0], lines, axis=axis)
    number = getattr(guess, "number", guess)
    if number is None or math.isnan(number):
        return
    place = entry["guess"]
    axis = "x" if "y" in place or place.get("axis") == "x" else "y"
    marks.mark_guess(figure.axes[0], number / size_of(entry.get(f"{axis}_unit", "")), **place)
