"""Draw a schedule as papers print it in a table: a row a rank, a column a time slot."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from labkit.draw.artists import (
    IDLE,
    draw_bars,
    draw_numbers,
    hide_frame,
    label_rows,
    legend_entries,
    names_of,
    points_per_unit,
    put_legend_right,
)
from labkit.draw.layout import Part, lay_out, prepare
from labkit.draw.palette import styles_of
from labkit.draw.picture import PAGE_IN, attach, house_style, new_axes
from labkit.schedule import Schedule
from labkit.simulate import simulate

_CELL_IN, _LEAST_ROW_IN, _MOST_IN = 0.27, 0.17, 10.0  # a cell as wide as high, as far as a page has room; all rows
_BESIDE_IN, _BELOW_IN = 2.1, 0.75  # for rank labels and legend; for title and axis
_INSET = 0.05  # of a cell, left white around its colour
_LABEL_PT = 15.0  # the least distance of two labels of slots


def schedule_table(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """Draw ``schedule`` as a table, under its name.

    Idle slots are grey; a rank's second stage is lighter than its first.

    Every op takes one slot, whatever its kind, and a result can be used in the next slot: unit
    times, no hop. In the CSV of the figure there is a row per op: rank, slot, name, stage,
    micro_batch.

    Raises TypeError for what is no Schedule, ScheduleError for one that cannot run.
    """
    events = prepare(simulate(schedule, 1.0, 1.0, 1.0, 1.0), "schedule_table(schedule)")
    events["slot"] = events["start_s"].round().astype(int)
    cells = events.assign(start=events["slot"] + _INSET, end_s=events["end_s"] - 2 * _INSET)
    layout = lay_out([Part("", 1.0, cells)], gap=0.0)
    n_slots, n_chunks = 1 + int(cells["slot"].max()), 1 + int(cells["chunk"].max())
    styles = styles_of(names_of([cells]))
    with house_style():
        if ax is None:
            cell_in = min(_CELL_IN, (PAGE_IN - _BESIDE_IN) / n_slots)
            row_in = min(_CELL_IN, max(cell_in, _LEAST_ROW_IN), _MOST_IN / layout.height)
            ax = new_axes(_BESIDE_IN + cell_in * n_slots, _BELOW_IN + row_in * layout.height)
        ax.set_xlim(0, n_slots)
        ax.set_ylim(layout.height, 0)
        hide_frame(ax)
        label_rows(ax, layout)
        _label_slots(ax, n_slots)
        ax.set_title(schedule.name, loc="left", fontsize=10, weight="bold")
        _draw_idle(ax, cells, n_slots)
        draw_bars(ax, cells, styles, 1.0, n_chunks)
        draw_numbers(ax, cells, styles, 1.0, n_chunks, halo=True)
        put_legend_right(ax, *legend_entries(styles, n_chunks))
    attach(ax, events[["rank", "slot", "name", "stage", "micro_batch"]])
    return ax


def _label_slots(ax: Axes, n_slots: int) -> None:
    """Number the slots from 0, or every second, fifth, tenth, … of them."""
    slot_pt = points_per_unit(ax)[0]
    steps = (digit * 10**power for power, digit in product(range(9), (1, 2, 5)))
    labelled = range(0, n_slots, next(step for step in steps if step * slot_pt >= _LABEL_PT))
    ax.set_xticks([slot + 0.5 for slot in labelled], labels=[str(slot) for slot in labelled])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("time slot")


def _draw_idle(ax: Axes, cells: pd.DataFrame, n_slots: int) -> None:
    """Draw a grey cell wherever a rank runs no op."""
    tops = cells.groupby("rank")["top"].first()
    busy = set(zip(cells["rank"], cells["slot"], strict=True))
    idle = [(tops[rank], slot) for rank in tops.index for slot in range(n_slots) if (rank, slot) not in busy]
    height, left, right = float(cells["height"].iloc[0]), _INSET, 1 - _INSET
    corners = np.array([(left, 0.0), (right, 0.0), (right, height), (left, height)])
    squares = [corners + np.array([slot, top]) for top, slot in idle]
    ax.add_collection(PolyCollection(squares, facecolor=IDLE, linewidth=0, zorder=1), autolim=False)
