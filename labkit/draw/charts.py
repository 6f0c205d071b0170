"""Draw tables of results: clusters of bars, and measured points with a predicted curve."""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter

from labkit.base.formats import emulated
from labkit.draw.palette import HATCHES, PALETTE, Style, darker
from labkit.draw.picture import INK, attach, house_style, new_axes

ALIKE = Style("#AFBAC4", "")  # grey and plain, for bars that are not told apart
CURVE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # a thin line needs a dark colour
CHARACTERS_PER_IN = 16  # of what stands under the axes
MARKERS = ("o", "s", "^", "D", "v", "P")


def panels(*widths: float, height_in: float = 4.0) -> list[Axes]:
    """Return axes next to each other in one figure, each with its share of a page: panels(2, 3)."""
    with house_style():
        return list(
            plt.subplots(1, len(widths), figsize=(12.0, height_in), layout="constrained", width_ratios=widths)[1]
        )


def bars(
    table: pd.DataFrame,
    *,
    group: str,
    series: str,
    value: str,
    error: str | None = None,
    label: str = "",
    log: bool = False,
    note: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of one row per bar: a cluster per ``group``, in it a bar per ``series``.

    ``group``, ``series``, ``value`` and ``error`` name columns. A bar is ``value`` high; ``error``
    is half the length of the error bar, in the unit of the value. ``label`` says what the value is
    and in which unit. With ``log`` the axis is logarithmic.

    Raises ValueError for a missing column, an empty table, a value that is missing, or two rows for
    one bar.
    """
    _check_columns(table, "bars(table)", [group, series], [value, *([error] if error else [])])
    if log and (table[value] <= 0).any():
        raise ValueError(f"bars(table): {value} has entries that are not positive, which have no place on a log axis")
    if table.duplicated([group, series]).any():
        raise ValueError(f"bars(table): two rows for one bar; expected one row per {group} and {series}")
    groups, names = list(table[group].unique()), list(table[series].unique())
    width = 0.8 / len(names)
    with house_style():
        ax = ax or new_axes(2.2 + 0.75 * len(groups) * (len(names) + 1), 3.6)
        for i, name in enumerate(names):
            rows = table[table[series] == name]
            x = [groups.index(entry) + (i - (len(names) - 1) / 2) * width for entry in rows[group]]
            deviation = rows[error].to_numpy(dtype=float) if error else None
            style = Style(PALETTE[i % len(PALETTE)], HATCHES[i % len(HATCHES)]) if len(names) > 1 else ALIKE
            number_pt = 8.0 if len(table) <= 16 else 7.0  # of many bars each is narrow
            _draw_series(ax, str(name), style, x, rows[value].to_numpy(dtype=float), deviation, width, number_pt)
        _label_groups(ax, groups)
        ax.margins(y=0.12)
        if log:
            _scale_by_powers_of_ten(ax, table[value])
        _finish(ax, "", label or value, emulated(table, note=note))
    attach(ax, table[[group, series, value, *([error] if error else [])]])
    return ax


def _label_groups(ax: Axes, groups: list[Any]) -> None:
    room = max(8, min(22, _characters_across(ax) // len(groups)))
    labels = [textwrap.fill(str(group), room, break_long_words=False) for group in groups]
    ax.set_xticks(range(len(groups)), labels=labels)
    ax.tick_params(axis="x", length=0)


def _draw_series(
    ax: Axes,
    name: str,
    style: Style,
    x: list[float],
    y: np.ndarray,
    deviation: np.ndarray | None,
    width: float,
    number_pt: float,
) -> None:
    if deviation is not None:
        deviation = np.where(deviation > 0, deviation, np.nan)  # no line for what has no spread
    look: dict[str, Any] = {
        "color": style.colour,
        "hatch": style.hatch,
        "edgecolor": darker(style.colour),
        "linewidth": 0.5,
    }
    error_look = {"capsize": 3, "elinewidth": 1, "ecolor": INK}
    drawn = ax.bar(x, y, width=0.92 * width, yerr=deviation, label=name, error_kw=error_look, **look)
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # or a line through a number would hide it
    ax.bar_label(
        drawn,
        fmt=lambda value: f"{value:.3g}" if value < 1000 else f"{value:,.0f}",
        padding=2,
        fontsize=number_pt,
        bbox=behind,
    )


def _scale_by_powers_of_ten(ax: Axes, values: pd.Series) -> None:
    """Scale from the power of ten below to the one above, with room for numbers on bars."""
    low, high = np.log10([values.min(), values.max()])
    ax.set_yscale("log")
    ax.set_ylim(10 ** np.floor(low - 0.01), 10 ** np.ceil(high + 0.1))


def curve(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    series: str | None = None,
    error: str | None = None,
    predicted: str | None = None,
    x_label: str = "",
    y_label: str = "",
    log: str = "",
    note: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of one row per measured point: ``y`` over ``x``, and dashed what was predicted.

    ``x``, ``y``, ``series``, ``error`` and ``predicted`` name columns; ``series`` makes a line per
    name in it. ``log`` names the axes that are logarithmic: ``"x"``, ``"y"`` or ``"xy"``.

    Raises ValueError for a missing column, an empty table, or a value that is missing.
    """
    numbers = [x, y, *(name for name in (error, predicted) if name)]
    _check_columns(table, "curve(table)", [series] if series else [], numbers)
    with house_style():
        ax = ax or new_axes(7.0, 3.6)
        lines = (
            [(str(name), rows) for name, rows in table.groupby(series, sort=False)] if series else [("measured", table)]
        )
        for i, (name, rows) in enumerate(lines):
            rows, colour = rows.sort_values(x), CURVE_COLOURS[i % len(CURVE_COLOURS)]
            deviation = rows[error] if error else None
            look: dict[str, Any] = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "markersize": 5, "capsize": 3}
            ax.errorbar(rows[x], rows[y], yerr=deviation, label=name, linewidth=1.4, **look)
            if predicted:
                label = f"{name}, predicted" if series else "predicted"
                ahead = darker(colour) if series else INK
                ax.plot(rows[x], rows[predicted], color=ahead, linestyle="--", linewidth=1.2, label=label, zorder=3)
        _scale(ax, log)
        _finish(ax, x_label or x, y_label or y, emulated(table, note=note))
    attach(ax, table[[*([series] if series else []), *numbers]])
    return ax


def _scale(ax: Axes, log: str) -> None:
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    if "x" in log:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
    if "y" in log:
        ax.set_yscale("log")
        for axis_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            axis_formatter(LogFormatter(minor_thresholds=(1.5, 0.4)))  # 20, not 2 × 10¹


def _check_columns(table: pd.DataFrame, what: str, names: list[str], numbers: list[str]) -> None:
    missing = [name for name in [*names, *numbers] if name not in table.columns]
    if missing:
        raise ValueError(f"{what}: no column {', '.join(missing)}; the table has {', '.join(map(str, table.columns))}")
    if table.empty:
        raise ValueError(f"{what}: the table is empty, so there is nothing to draw")
    for name in numbers:
        values = pd.to_numeric(table[name], errors="coerce")
        if not np.isfinite(values.to_numpy(dtype=float, na_value=np.nan)).all():
            raise ValueError(f"{what}: column {name} has entries that are no finite numbers")


def _characters_across(ax: Axes) -> int:
    """Return how many characters fit next to each other under the axes."""
    return int(CHARACTERS_PER_IN * ax.bbox.width / ax.get_figure().dpi)  # type: ignore[union-attr]


def _finish(ax: Axes, x_label: str, y_label: str, note: str) -> None:
    ax.grid(axis="y", color="#dddddd", linewidth=0.6)
    ax.set_ylabel(y_label)
    ax.set_xlabel("\n".join([*([x_label] if x_label else []), *textwrap.wrap(note, _characters_across(ax))]))
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return  # the axis says it all
    order = sorted(range(len(labels)), key=lambda i: isinstance(handles[i], Line2D))  # what was measured comes first
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
