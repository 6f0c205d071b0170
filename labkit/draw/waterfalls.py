"""Draw what a duration is made of: a waterfall from predicted to measured, and stacked bars."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import emulated
from labkit.draw.charts import chart, check_columns, label_bars, label_groups
from labkit.draw.palette import MEASURED, PREDICTED, SOURCES, darker, styles_of
from labkit.draw.picture import attach, house_style, put_legend_right

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
    check_columns(table, "waterfall(table)", [label], [value])
    if not np.isfinite(total):
        raise ValueError(f"waterfall(table): total is {total}, expected a finite number, the predicted duration")
    drawn = _way(table[label].astype(str).tolist(), scale * total, scale * table[value].to_numpy(dtype=float))
    floor = _floor(drawn)
    cut = f"The axis begins at {floor:g}, not at 0" if floor else ""
    below = emulated(table, note=". ".join(filter(None, [note, cut])))
    with chart(ax, 1.6 + 1.15 * len(drawn), 3.4, y=unit, note=below) as ax:
        _draw_way(ax, drawn, floor)
        label_groups(ax, drawn["part"].tolist())
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
    styles = {**styles_of(parts[1:-1]), **SOURCES}
    for x, (part, start, end, change) in enumerate(drawn.itertuples(index=False)):
        whole = x in (0, last)
        low, high = sorted([floor if whole else start, end])
        bar = ax.bar(x, high - low, bottom=low, width=_WIDTH, zorder=2, **styles[part].face())
        if low == high:
            ax.plot([x - _WIDTH / 2, x + _WIDTH / 2], [end, end], color=darker(styles[part].colour), linewidth=1.2)
        if x < last:
            ax.plot([x + _WIDTH / 2, x + 1 - _WIDTH / 2], [end, end], color="#8A9299", linewidth=0.9, zorder=1.5)
        label_bars(ax, bar, [f"{change:.4g}" if whole else f"{change:+.3g}".replace("-", "−")], 8.5)
    ax.set_ylim(floor, floor + 1.12 * (drawn["to"].max() - floor))
    ax.set_xlim(-0.6, last + 0.6)


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
    check_columns(table, "stacks(table)", [group, part], [value])
    if (table[value] < 0).any():
        raise ValueError(f"stacks(table): {value} has negative entries, which cannot stand on top of each other")
    if table.duplicated([group, part]).any():
        raise ValueError(f"stacks(table): two rows for one part; expected one row per {group} and {part}")
    groups, parts = list(table[group].unique()), [str(name) for name in table[part].unique()]
    heights = table.assign(**{part: table[part].astype(str)}).pivot(index=part, columns=group, values=value)
    heights = heights.loc[parts, groups].fillna(0.0)
    with chart(ax, 3.6 + 0.95 * len(groups), y=label or value, note=emulated(table, note=note)) as ax:
        _draw_stacks(ax, heights.to_numpy(dtype=float), parts)
        label_groups(ax, groups)
    if len(parts) > 1:  # in the order in which they stand
        handles, names = ax.get_legend_handles_labels()
        with house_style():
            put_legend_right(ax, dict(zip(names[::-1], handles[::-1], strict=True)))
    attach(ax, table[[group, part, value]])
    return ax


def _draw_stacks(ax: Axes, heights: np.ndarray, parts: list[str]) -> None:
    """Draw ``heights``, a row per part and a column per bar, with a number where there is room."""
    styles, base, tallest = styles_of(parts), np.zeros(heights.shape[1]), heights.sum(axis=0).max()
    for name, row in zip(parts, heights, strict=True):
        look = styles[name].face()
        bars = ax.bar(range(len(row)), row, bottom=base, width=_WIDTH, label=name, zorder=2, **look)
        numbers = [f"{height:.3g}" if height > 0.07 * tallest else "" for height in row]
        label_bars(ax, bars, numbers, 8.0, styles[name].colour, label_type="center")
        base = base + row
    label_bars(ax, bars, [f"{total:.3g}" for total in base], 8.5)
    ax.set_ylim(0, 1.1 * tallest or 1)
