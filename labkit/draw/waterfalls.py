"""Draw what a duration is made of: a waterfall of differences from predicted, and stacked bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import emulated, short
from labkit.draw.charts import chart, check_columns, label_bars, label_groups
from labkit.draw.palette import INK, MEASURED, SOURCES, Style, darker, on_page, styles_of
from labkit.draw.picture import attach, behind, house_style, put_legend_right, scaled

_WIDTH = 0.72
TOGETHER = "together"


# --- a waterfall ----------------------------------------------------------------------------------


def waterfall(
    table: pd.DataFrame,
    *,
    label: str,
    total: float,
    value: str,
    error: tuple[str, str] | None = None,
    unit: str = "s",
    scale: float = 1.0,
    note: str = "",
    colors: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw what lies between a predicted duration and the measured one: a floating bar a part.

        waterfall(table, label="part", total=table.predicted_s.sum(), value="difference_s",
                  unit="ms a step", scale=1000)

    ``label`` and ``value`` name columns: what a part is called, and by how much it is longer than
    predicted; ``error`` two more, the ends of an interval around that. Each bar begins where the
    one before ended, the first at 0, and goes down where a part is shorter. The last bar is all
    parts together. ``total``, the predicted duration, stands under the picture with the measured
    one. All of them are multiplied by ``scale``, and ``unit`` says what comes of it. Colours are
    those of the parts' names (see :func:`style_of`), or those in ``colors`` by part.

    Raises ValueError for a missing column, an empty table, a value that is not a finite number, or
    colours of what is not drawn.
    """
    check_columns(table, "waterfall(table)", [label], [value, *(error or ())])
    if not np.isfinite(total):
        raise ValueError(f"waterfall(table): total is {total}, expected a finite number, the predicted duration")
    changes = scale * table[value].to_numpy(dtype=float)
    drawn = _way(table[label].astype(str).tolist(), changes)
    if error:
        drawn["low"], drawn["high"] = ([*(scale * table[name]), drawn["to"].iloc[-1]] for name in error)
    totals = f"predicted {short(scale * total)}, measured {short(scale * total + changes.sum())} {unit}"
    below = emulated(table, note=". ".join(filter(None, [totals, note])))
    styles = styles_of(drawn["part"].tolist()[:-1], colors)
    with chart(ax, 1.6 + 1.15 * len(drawn), 3.4, y=f"{unit}, beyond the prediction", note=below) as ax:
        _draw_way(ax, drawn, styles)
        label_groups(ax, drawn["part"].tolist())
    attach(ax, drawn)
    return ax


def _way(parts: list[str], changes: np.ndarray) -> pd.DataFrame:
    """Return the bars: a part, from where to where, and the number on it."""
    ends = np.concatenate([[0.0], np.cumsum(changes)])
    columns = {"part": [*parts, TOGETHER], "from": [*ends[:-1], 0.0], "to": [*ends[1:], ends[-1]]}
    return pd.DataFrame(columns | {"change": [*changes, ends[-1]]})


def _draw_way(ax: Axes, drawn: pd.DataFrame, styles: Mapping[str, Style]) -> None:
    """Draw bars, a thin line from each to the next, and over each its number."""
    last = len(drawn) - 1
    low, high = min(0.0, drawn["to"].min()), max(0.0, drawn["to"].max())
    if "low" in drawn:
        base = drawn["to"] - drawn["change"]  # an interval is one of the change
        low, high = min(low, (base + drawn["low"])[:-1].min()), max(high, (base + drawn["high"])[:-1].max())
    room = 0.02 * (high - low)
    for x, bar in enumerate(drawn.to_dict("records")):
        start, end = bar["from"], bar["to"]
        style = SOURCES[MEASURED].on_page() if x == last else styles[bar["part"]]
        ax.bar(x, end - start, bottom=start, width=_WIDTH, zorder=2, **style.face())
        top = max(start, end)
        if start == end:
            ax.plot([x - _WIDTH / 2, x + _WIDTH / 2], [end, end], color=on_page(darker(style.colour)), linewidth=1.2)
        if x < last:
            step: dict[str, Any] = {"color": on_page("#8A9299"), "linewidth": 0.9, "zorder": 1.5}
            ax.plot([x + _WIDTH / 2, x + 1 - _WIDTH / 2], [end, end], **step)
            if "low" in bar:
                ends = [[bar["change"] - bar["low"]], [bar["high"] - bar["change"]]]
                ax.errorbar(x, end, yerr=ends, color=on_page(INK), capsize=3, linewidth=1, zorder=3)
                top = max(top, start + bar["high"])
        _write_over(ax, x, top + room, f"{bar['change']:+.3g}".replace("-", "−"))
    ax.axhline(0, color=on_page(INK), linewidth=0.8, zorder=2.5)
    ax.set_ylim(low - 3 * room if low < 0 else 0, high + 6 * room or 1)
    ax.set_xlim(-0.6, last + 0.6)


def _write_over(ax: Axes, x: float, y: float, text: str) -> None:
    """Write a number over a bar, on a ground, or a line through it would hide it."""
    ax.text(x, y, text, ha="center", va="bottom", fontsize=scaled(8.5), bbox=behind(), zorder=4)


# --- stacked bars ---------------------------------------------------------------------------------


def stacks(
    table: pd.DataFrame,
    *,
    group: str,
    part: str,
    value: str,
    label: str = "",
    note: str = "",
    colors: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a table of one row per part of a bar: a bar per ``group``, its parts stacked.

    ``group``, ``part`` and ``value`` name columns. Parts stand in the order in which they first
    come in the table, from the bottom up. Their colours are those of their names (see
    :func:`style_of`), the same in every picture: "forward", "backward", "optimizer", "exposed
    communication", "hidden" …; or those in ``colors`` by part. Over a bar stands its sum. ``label``
    says what the value is and in which unit.

    Raises ValueError for a missing column, an empty table, a value that is missing or negative,
    two rows for one part of a bar, or colours of what is not drawn.
    """
    check_columns(table, "stacks(table)", [group, part], [value])
    if (table[value] < 0).any():
        raise ValueError(f"stacks(table): {value} has negative entries, which cannot stand on top of each other")
    if table.duplicated([group, part]).any():
        raise ValueError(f"stacks(table): two rows for one part; expected one row per {group} and {part}")
    groups, parts = list(table[group].unique()), [str(name) for name in table[part].unique()]
    heights = table.assign(**{part: table[part].astype(str)}).pivot(index=part, columns=group, values=value)
    heights = heights.loc[parts, groups].fillna(0.0)
    styles = styles_of(parts, colors)
    styles = {name: styles[name] for name in parts}
    with chart(ax, 3.6 + 0.95 * len(groups), y=label or value, note=emulated(table, note=note)) as ax:
        _draw_stacks(ax, heights.to_numpy(dtype=float), styles)
        label_groups(ax, groups)
    if len(parts) > 1:  # in the order in which they stand
        handles, names = ax.get_legend_handles_labels()
        with house_style():
            put_legend_right(ax, dict(zip(names[::-1], handles[::-1], strict=True)))
    attach(ax, table[[group, part, value]])
    return ax


def _draw_stacks(ax: Axes, heights: np.ndarray, styles: Mapping[str, Style]) -> None:
    """Draw ``heights``, a row per part and a column per bar, with a number where there is room."""
    base, tallest = np.zeros(heights.shape[1]), heights.sum(axis=0).max()
    for (name, style), row in zip(styles.items(), heights, strict=True):
        bars = ax.bar(range(len(row)), row, bottom=base, width=_WIDTH, label=name, zorder=2, **style.face())
        numbers = [short(height, 3) if height > 0.07 * tallest else "" for height in row]
        label_bars(ax, bars, numbers, 8.0, label_type="center")
        base = base + row
    label_bars(ax, bars, [short(total, 3) for total in base], 8.5)
    ax.set_ylim(0, 1.1 * tallest or 1)
