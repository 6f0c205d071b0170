"""Draw tables of results: clusters of bars, and measured points with a predicted curve."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import LogFormatter

from labkit.base.formats import emulated
from labkit.base.texts import listed
from labkit.draw.palette import (
    GRID,
    INK,
    MEASURED,
    SOURCES,
    bar_styles,
    line_styles,
    on_page,
    own_colours,
)
from labkit.draw.picture import attach, behind, house_style, new_axes, put_legend_right, scaled

_CHARACTERS_PER_IN = 16  # of what stands under the axes
_MARKED = 24  # points of a line that all have a marker


def bars(
    table: pd.DataFrame,
    *,
    group: str,
    value: str,
    series: str | None = None,
    error: tuple[str, str] | None = None,
    label: str = "",
    log: bool = False,
    note: str = "",
    colors: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of one row per bar: a cluster per ``group``, in it a bar per ``series``.

    A cluster stands over its group's name, also where it lacks some of the series. ``group``,
    ``series``, ``value`` and ``error`` name columns. A bar is ``value`` high; ``error`` are two,
    the ends of an interval around that. ``label`` says what the value is and in which unit. With
    ``log`` the axis is logarithmic. A series whose name begins with "your guess", "predicted",
    "measured" or "published" looks as that source does in every picture: see
    :mod:`labkit.draw.palette`. ``colors`` are colours by series in place of the lab's.

    Raises ValueError for a missing column, an empty table, a value that is missing, two rows for
    one bar, an interval that its value lies outside of, or colours of what is not drawn.
    """
    errors, keys = error or (), [group] if series is None else [group, series]
    check_columns(table, "bars(table)", keys, [value, *errors])
    if log and (table[value] <= 0).any():
        raise ValueError(f"bars(table): {value} has entries that are not positive, which have no place on a log axis")
    if table.duplicated(keys).any():
        raise ValueError(f"bars(table): two rows for one bar; expected one row per {listed(keys)}")
    groups = list(table[group].unique())
    names = [""] if series is None else [str(name) for name in table[series].unique()]
    with house_style():
        styles = bar_styles(names, colors)
    keyed = table.groupby(group)[series].agg(lambda own: [*map(str, own)]) if series else None
    there = {entry: [name for name in names if keyed is None or name in keyed[entry]] for entry in groups}
    width = 0.8 / max(map(len, there.values()))
    with chart(
        ax, 2.2 + 0.75 * len(groups) * (len(names) + 1), y=label or value, note=emulated(table, note=note)
    ) as ax:
        reached = [*table[value]]
        for name in names:
            rows = table if series is None else table[table[series].astype(str) == name]
            x = [groups.index(entry) + _place_in_cluster(there[entry], name) * width for entry in rows[group]]
            ends = _ends(rows, value, error, "bars(table)")
            reached += [] if ends is None else [*(rows[value] - ends[0]), *(rows[value] + ends[1])]
            look = styles[name].face()
            drawn = ax.bar(x, rows[value], 0.92 * width, yerr=ends, label=name, error_kw=_error_bars(), **look)
            numbers = [f"{number:.3g}" if number < 1000 else f"{number:,.0f}" for number in rows[value]]
            tops = rows[value].clip(lower=0) if ends is None else (rows[value] + np.nan_to_num(ends[1])).clip(lower=0)
            label_above(
                ax, drawn, numbers, tops.tolist(), 8.0 if len(table) <= 16 else 7.0
            )  # of many bars each is narrow
        label_groups(ax, groups)
        ax.margins(y=0.12)
        if log:
            _scale_by_powers_of_ten(ax, reached)
    attach(ax, table[[*keys, value, *errors]], x=group, y=value, series=series)
    return ax


def _error_bars() -> dict[str, Any]:
    return {"capsize": 3, "elinewidth": 1, "ecolor": on_page(INK)}


@contextlib.contextmanager
def chart(ax: Axes | None, width_in: float, *, x: str = "", y: str, note: str) -> Iterator[Axes]:
    """Give axes to draw on, new ones if there are none, and label them after."""
    with house_style():
        ax = ax or new_axes(width_in, 3.6)
        yield ax
        ax.grid(axis="y", color=on_page(GRID), linewidth=0.6)
        ax.set_ylabel(y)
        ax.set_xlabel("\n".join([*([x] if x else []), *textwrap.wrap(note, _characters_across(ax))]))
        if len(ax.get_legend_handles_labels()[1]) > 1:  # or else the axis says it all
            put_legend_right(ax)


def label_above(ax: Axes, bars: BarContainer, labels: Sequence[str], tops: Sequence[float], points: float) -> None:
    """Write a label above each bar and its line, also of a negative one: not at the line's foot."""
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": scaled(points), "color": on_page(INK)}
    look["bbox"] = behind()
    for bar, label, top in zip(bars, labels, tops, strict=True):
        middle = bar.get_x() + bar.get_width() / 2
        ax.annotate(label, (middle, top), xytext=(0, 3), textcoords="offset points", **look)


def label_groups(ax: Axes, groups: Sequence[Any]) -> None:
    """Write the name of each group of bars under it, broken into lines where it is long."""
    room = max(8, min(22, _characters_across(ax) // len(groups)))
    labels = [textwrap.fill(str(group), room, break_long_words=False) for group in groups]
    ax.set_xticks(range(len(groups)), labels=labels)
    ax.tick_params(axis="x", length=0)


def _characters_across(ax: Axes) -> int:
    """Return how many characters fit next to each other under the axes."""
    return int(_CHARACTERS_PER_IN * ax.bbox.width / scaled(ax.get_figure().dpi))  # type: ignore[union-attr]


def _place_in_cluster(names: list[str], name: str) -> float:
    """Return how many bars right of a cluster's middle the bar of this name stands."""
    return names.index(name) - (len(names) - 1) / 2


def by_source(numbers: Mapping[str, Mapping[str, Any]], *, label: str, **look: Any) -> Axes:
    """Draw bars of the same quantity from several sources: guessed, predicted, measured, published.

        by_source({"your guess": {"weak": 2.0}, "measured": {"weak": 1.4}}, label="times as fast")

    ``numbers`` has a number per source and group, and need not have each. A number with an interval
    is ``(median, low, high)``, as :func:`labkit.stats.interval` returns it. A guess may be what
    ``guess(...)`` returned; one that was not given is left out. ``look`` is as for :func:`bars`,
    which draws them and raises what it raises.
    """
    rows = [(group, source, *number) for source, group, *number in _numbers_of(numbers)]
    columns = ["group", "source", label, "low", "high"]
    table = pd.DataFrame(rows, columns=columns).sort_values(
        "group", kind="stable", key=lambda column: column.map(list(dict.fromkeys(row[0] for row in rows)).index)
    )
    return bars(table, group="group", series="source", value=label, error=("low", "high"), **look)


def _numbers_of(numbers: Mapping[Any, Mapping[Any, Any]]) -> Iterator[tuple[Any, Any, float, float, float]]:
    """Give series, place, number and the ends of its interval, for each number that is there."""
    for series, by_place in numbers.items():
        for place, number in by_place.items():
            number = getattr(number, "value", number)
            if number is not None:
                yield series, place, *(number if isinstance(number, tuple) else (number, number, number))


def _ends(rows: pd.DataFrame, value: str, error: tuple[str, str] | None, what: str) -> np.ndarray | None:
    """Return how far error bars go down and up from their values, as two rows; None without any."""
    if error is None:
        return None
    middle, low, high = (rows[name].to_numpy(dtype=float) for name in (value, *error))
    ends = np.array([middle - low, high - middle])
    if (ends < -1e-9 * abs(middle)).any():
        raise ValueError(f"{what}: {value} lies outside of {error[0]} to {error[1]}; expected the ends around it")
    spread = ends.max(axis=0) > 0  # what has none has no line, and a series without any no error bars
    return np.where(spread, ends.clip(min=0), np.nan) if spread.any() else None


def _scale_by_powers_of_ten(ax: Axes, reached: Iterable[float]) -> None:
    """Scale from the power of ten below to the one above, with room for numbers on bars."""
    low, high = np.log10([end(value for value in reached if value > 0) for end in (min, max)])
    ax.set_yscale("log")
    ax.set_ylim(10 ** np.floor(low - 0.01), 10 ** np.ceil(high + 0.1))


def curve(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    series: str | None = None,
    error: tuple[str, str] | None = None,
    source: str = MEASURED,
    x_label: str = "",
    y_label: str = "",
    log: str = "",
    ticks: Mapping[float, str] | Collection[float] | None = None,
    note: str = "",
    steps: bool = False,
    colors: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of one row per point: ``y`` over ``x``.

    ``x``, ``y``, ``series`` and ``error`` name columns; ``series`` makes a line per name in it,
    ``error`` is as for :func:`bars`. ``log`` names the axes that are logarithmic:
    ``"x"``, ``"y"`` or ``"xy"``. ``ticks`` are the positions that the x axis names, with what to
    write there if it is not the number.

    Only what was measured or published has markers, and a line of many points few. With ``steps``
    a value holds until the next one, and nothing has markers. A line of which
    the series' name says that it was predicted ("formula", "ring, simulated") is dashed; ``source``
    says where the lines come from whose names do not: ``"measured"``, ``"predicted"`` or
    ``"published"``. ``colors`` are colours by what the legend says, in place of the lab's.

    Raises ValueError for a missing column, an empty table, a value that is missing, an unknown
    source, an interval that its value lies outside of, or colours of what is not drawn.
    """
    numbers = [x, y, *(error or ())]
    check_columns(table, "curve(table)", [series] if series else [], numbers)
    if source not in SOURCES:
        raise ValueError(f"curve(table): source is {source!r}, expected one of {', '.join(SOURCES)}")
    lines = [(str(name), rows) for name, rows in table.groupby(series, sort=False)] if series else [(source, table)]
    own = own_colours(colors, [*dict(lines)])
    with chart(ax, 7.0, x=x_label or x, y=y_label or y, note=emulated(table, note=note)) as ax:
        styles = line_styles([name for name, _ in lines], source)
        for name, rows in lines:
            rows, style = rows.sort_values(x), styles[name]
            ends = _ends(rows, y, error, "curve(table)")
            look: dict[str, Any] = {"color": own.get(name, style.edge), "linestyle": style.line, "capsize": 3}
            look |= {"marker": style.marker, "markersize": 10 if style.marker == "*" else 5}
            look |= {"markevery": 0.06 if len(rows) > _MARKED else 1}  # of the diagonal
            look |= {"marker": "", "drawstyle": "steps-post"} if steps else {}
            ax.errorbar(rows[x], rows[y], yerr=ends, label=name, linewidth=1.4, **look)
        _scale(ax, log)
        if ticks is not None:
            named = ticks if isinstance(ticks, Mapping) else {position: f"{position:g}" for position in ticks}
            ax.set_xticks(list(named), labels=list(named.values()))
            ax.tick_params(axis="x", which="minor", bottom=False)
    attach(ax, table[[*([series] if series else []), *numbers]], x=x, y=y, series=series)
    return ax


def curves(numbers: Mapping[str, Mapping[float, Any]], *, x: str, y: str, **look: Any) -> Axes:
    """Draw lines of numbers by position: a line per name, with an interval where a number has one.

        curves({"measured": {2: (1.1, 1.0, 1.3)}, "predicted": {2: 1.0}}, x="ranks", y="ms")

    ``x`` and ``y`` say what the axes are. A number is as for :func:`by_source`; names and ``look``
    are as for :func:`curve`, which draws them and raises what it raises.
    """
    table = pd.DataFrame(_numbers_of(numbers), columns=["series", x, y, "low", "high"])
    return curve(table, x=x, y=y, series="series", error=("low", "high"), **look)


def _scale(ax: Axes, log: str) -> None:
    ax.grid(axis="x", color=on_page(GRID), linewidth=0.6)
    if "x" in log:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
    if "y" in log:
        ax.set_yscale("log")
        for axis_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            axis_formatter(_PlainLogFormatter(minor_thresholds=(1.5, 0.4)))  # 20, not 2 × 10¹


class _PlainLogFormatter(LogFormatter):
    """Labels what its base class does: with 0.1, not 1e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def check_columns(table: pd.DataFrame, what: str, names: list[str], numbers: list[str]) -> None:
    """Raise ValueError where the table is empty or lacks a column, or a number is not finite."""
    missing = [name for name in [*names, *numbers] if name not in table.columns]
    if missing:
        raise ValueError(f"{what}: no column {', '.join(missing)}; the table has {', '.join(map(str, table.columns))}")
    if table.empty:
        raise ValueError(f"{what}: the table is empty, so there is nothing to draw")
    for name in numbers:
        values = pd.to_numeric(table[name], errors="coerce")
        if not np.isfinite(values.to_numpy(dtype=float, na_value=np.nan)).all():
            raise ValueError(f"{what}: column {name} has entries that are not finite numbers")
