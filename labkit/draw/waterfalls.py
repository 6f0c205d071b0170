"""Draw what a duration is made of: a waterfall from predicted to measured, and stacked bars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import emulated
from labkit.draw.charts import _check_columns, _finish, _label_groups
from labkit.draw.palette import MEASURED, PREDICTED, SOURCES, styles_of, text_colour
from labkit.draw.picture import attach, house_style, new_axes, put_legend_right

_WIDTH = 0.72
_SMALL = 0.35  # of the height: parts together smaller than this are drawn larger, on an axis cut off below


# --- a waterfall ----------------------------------------------------------------------------------


def waterfall(
    table: pd.DataFrame,
    *,
    label: str,
    total: float,
    value: str,
    unit: str = "s",
    scale: float = 1.0,
    note: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw the way from a predicted duration to the measured one: a floating bar for every part.

        waterfall(table, label="part", total=table.predicted_s.sum(), value="difference_s",
                  unit="ms a step", scale=1000)

    ``total`` is where it begins, the predicted duration. ``label`` and ``value`` name columns: what
    a part is called, and by how much it is longer than predicted. Each bar begins where the one
    before ended, and goes down where a part is shorter. The last bar is what was measured: the
    total and all values together. Total and values are multiplied by ``scale``, and ``unit`` says
    what comes of it. Colours are those of the parts' names: see :func:`style_of`. Where the parts
    are small beside the total, the axis begins above 0, which is written under it.

    Raises ValueError for a missing column, an empty table, or a value that is no finite number.
    """
    _check_columns(table, "waterfall(table)", [label], [value])
    if not np.isfinite(total):
        raise ValueError(f"waterfall(table): total is {total}, expected a finite number, the predicted duration")
    drawn = _way(table[label].astype(str).tolist(), scale * total, scale * table[value].to_numpy(dtype=float))
    with house_style():
        ax = ax or new_axes(1.6 + 1.15 * len(drawn), 3.4)
        floor = _floor(drawn)
        _draw_way(ax, drawn, floor)
        _label_groups(ax, drawn["part"].tolist())
        cut = f"The axis begins at {floor:g}, not at 0" if floor else ""
        _finish(ax, "", unit, emulated(table, note=". ".join(filter(None, [note, cut]))))
        ax.set_axisbelow(True)
    attach(ax, drawn)
    return ax


def _way(parts: list[str], total: float, changes: np.ndarray) -> pd.DataFrame:
    """Return the bars: a part, from where to where, and the number on it."""
    ends = total + np.concatenate([[0.0], np.cumsum(changes)])
    columns = {
        "part": [PREDICTED, *parts, MEASURED],
        "from": [0.0, *ends[:-1], 0.0],
        "to": [*ends, ends[-1]],
        "change": [total, *changes, ends[-1]],
    }
    return pd.DataFrame(columns)


def _floor(drawn: pd.DataFrame) -> float:
    """Return where the axis begins: at 0, or higher where all that changes is a small part."""
    low, high = drawn["to"].min(), drawn["to"].max()
    if not 0 < high - low < _SMALL * high:
        return 0.0
    step = 10.0 ** np.floor(np.log10(high - low))
    return max(0.0, float(step * np.floor((low - 1.2 * (high - low)) / step)))


def _draw_way(ax: Axes, drawn: pd.DataFrame, floor: float) -> None:
    """Draw bars, a thin line from each to the next, and over each its number."""
    parts, last = drawn["part"].tolist(), len(drawn) - 1
    styles = styles_of(parts[1:-1])
    room = 0.02 * (drawn["to"].max() - floor)
    look: dict[str, Any]
    for x, (part, start, end, change) in enumerate(drawn.itertuples(index=False)):
        if whole := x in (0, last):
            source, start = SOURCES[part], floor
            look = {"facecolor": source.fill, "edgecolor": source.edge, "linestyle": source.line, "linewidth": 1.1}
        else:
            look = styles[part].face(0.6)
        ax.bar(x, end - start, bottom=start, width=_WIDTH, zorder=2, **look)
        if start == end:
            ax.plot([x - _WIDTH / 2, x + _WIDTH / 2], [end, end], color=look["edgecolor"], linewidth=1.2)
        if x < last:
            ax.plot([x + _WIDTH / 2, x + 1 - _WIDTH / 2], [end, end], color="#8A9299", linewidth=0.9, zorder=1.5)
        text = f"{change:.4g}" if whole else f"{change:+.3g}".replace("-", "−")
        _write_over(ax, x, max(start, end) + room, text)
    ax.set_ylim(floor, floor + 1.12 * (drawn["to"].max() - floor))
    ax.set_xlim(-0.6, last + 0.6)


def _write_over(ax: Axes, x: float, y: float, text: str) -> None:
    """Write a number over a bar, on white, or a line through it would hide it."""
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    ax.text(x, y, text, ha="center", va="bottom", fontsize=8.5, bbox=behind, zorder=4)


# --- stacked bars ---------------------------------------------------------------------------------


def stacks(
    table: pd.DataFrame,
    *,
    group: str,
    part: str,
    value: str,
    label: str = "",
    note: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of one row per part of a bar: a bar per ``group``, its parts stacked.

    ``group``, ``part`` and ``value`` name columns. Parts stand in the order in which they first
    come in the table, from the bottom up. Their colours are those of their names (see
    :func:`style_of`), the same in every picture: "forward", "backward", "optimizer", "exposed
    communication", "hidden" … Over a bar stands its sum. ``label`` says what the value is and in
    which unit.

    Raises ValueError for a missing column, an empty table, a value that is missing or negative, or
    two rows for one part of a bar.
    """
    _check_columns(table, "stacks(table)", [group, part], [value])
    if (table[value] < 0).any():
        raise ValueError(f"stacks(table): {value} has negative entries, which cannot stand on top of each other")
    if table.duplicated([group, part]).any():
        raise ValueError(f"stacks(table): two rows for one part; expected one row per {group} and {part}")
    groups, parts = list(table[group].unique()), [str(name) for name in table[part].unique()]
    heights = table.assign(**{part: table[part].astype(str)}).pivot(index=part, columns=group, values=value)
    heights = heights.loc[parts, groups].fillna(0.0)
    with house_style():
        ax = ax or new_axes(3.6 + 0.95 * len(groups), 3.6)
        _draw_stacks(ax, heights.to_numpy(dtype=float), parts)
        _label_groups(ax, groups)
        _finish(ax, "", label or value, emulated(table, note=note))
        ax.set_axisbelow(True)
        if len(parts) > 1:  # in the order in which they stand
            handles, names = ax.get_legend_handles_labels()
            put_legend_right(ax, dict(zip(names[::-1], handles[::-1], strict=True)))
    attach(ax, table[[group, part, value]])
    return ax


def _draw_stacks(ax: Axes, heights: np.ndarray, parts: list[str]) -> None:
    """Draw ``heights``, a row per part and a column per bar, with a number where there is room."""
    styles, base, tallest = styles_of(parts), np.zeros(heights.shape[1]), heights.sum(axis=0).max()
    for name, row in zip(parts, heights, strict=True):
        colour = styles[name].colour
        ax.bar(range(len(row)), row, bottom=base, width=_WIDTH, label=name, zorder=2, **styles[name].face(0.6))
        look: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "fontsize": 8,
            "color": text_colour(colour),
            "zorder": 3,
        }
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 1.2}
        for x, (height, low) in enumerate(zip(row, base, strict=True)):
            if height > 0.07 * tallest:
                ax.text(x, low + height / 2, f"{height:.3g}", bbox=behind, **look)
        base = base + row
    for x, total in enumerate(base):
        _write_over(ax, x, total + 0.015 * tallest, f"{total:.3g}")
    ax.set_ylim(0, 1.1 * tallest or 1)
