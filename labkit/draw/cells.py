"""Make panels of cells in rows of ranks, which change from step to step.

What each rank holds of a tensor while ranks add it up, or before and after a collective, is a list
of cells. In print some steps stand beside each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.draw.panel import BAR_COLUMNS, GridPanel, Label

INSET = 0.05  # of a cell, left free around its colour
FOREVER = 1e6  # the step in which what is there in the end vanishes: beside a grid with more steps it stays

Look = tuple[str, int, str, str]  # the last four fields of a cell


class Cell(NamedTuple):
    """What a rank has in a column from step ``appear`` on and before step ``vanish``.

    ``name`` chooses its colour and hatching, ``chunk`` how much lighter it is, ``label`` is written
    into it, and ``sentence`` says what it is.
    """

    rank: int
    column: float
    appear: int
    vanish: int
    name: str
    chunk: int
    label: str
    sentence: str


def cells_of(states: np.ndarray, look: Callable[[int, int, int, Any], Look | None]) -> list[Cell]:
    """Return a cell for everything that ``states[step, rank, column]`` ever hold, for as long.

    They are ordered by rank, column and step. ``look(rank, column, step, state)`` says how a cell
    looks that is so from ``step`` on; None for nothing.
    """
    n_steps, *shape = states.shape
    cells = []
    for rank, column in np.ndindex(*shape):
        held = states[:, rank, column].tolist()
        changes = [step for step in range(n_steps) if step == 0 or held[step] != held[step - 1]]
        for appear, vanish in zip(changes, [*changes[1:], n_steps], strict=True):
            if seen := look(rank, column, appear, held[appear]):
                cells.append(Cell(rank, column, appear, vanish, *seen))
    return cells


def cell_panel(
    cells: Iterable[Cell],
    rows: Sequence[str],
    columns: Mapping[float, str],
    steps: Sequence[str] = ("",),
    narrate: Callable[[int], str] = str,
    **more: Any,
) -> GridPanel:
    """Return cells as a panel: a bar a cell. ``columns`` says what stands above which column.

    ``steps`` are the titles of the steps from 0 on, such as "before", and ``narrate(step)`` says in
    a sentence what stands there and what happens next. ``more`` are other fields of the panel.
    """
    by_field = [list(each) for each in zip(*cells, strict=True)] or [[] for _ in Cell._fields]
    rank, column, appear, until, name, chunk, label, sentences = by_field
    left, right, last = np.add(column, INSET), np.add(column, 1) - INSET, len(steps) - 1
    vanish = np.where(np.array(until) > last, FOREVER, until)
    places = {"left": left, "right": right, "top": np.add(rank, INSET), "height": 1 - 2 * INSET}
    looks = {"name": name, "chunk": chunk, "label": label, "appear": appear, "vanish": vanish}

    def narrate_at(x: float) -> str:
        step = min(max(int(x), 0), last)
        return f"{steps[step]}: {narrate(step)}"

    return GridPanel(
        bars=pd.DataFrame(places | looks),  # in one go: it follows every move of a slider
        height=float(len(rows)),
        rows=[Label(number + 0.5, name) for number, name in enumerate(rows)],
        columns=[Label(at + 0.5, name) for at, name in columns.items()],
        stops=np.arange(len(steps), dtype=float),
        explain=sentences.__getitem__,
        narrate=narrate_at,
        **more,
    )


# --- in print -------------------------------------------------------------------------------------

_MAX_COLUMNS = 40  # in a line of grids, as far as a page has room
_BETWEEN = 0.7  # two grids, in columns
_WITH_ARROWS = 0.74  # how much of its width a cell's colour takes where arrows run beside it
NOTHING = "nothing"  # the name of an empty cell


class GridStep(NamedTuple):
    """A panel of cells as it stands at a step, under a title."""

    panel: GridPanel
    step: int
    title: str = ""


def printed_steps(panel: GridPanel, titles: Sequence[str]) -> list[GridStep]:
    """Return the first, the middle and the last step of a panel, whose steps have these titles."""
    last = len(titles) - 1
    return [GridStep(panel, step, titles[step]) for step in sorted({0, last // 2, last})]


def in_lines(grids: Sequence[GridStep], title: str = "", facts: str = "", empty: str = NOTHING) -> list[GridPanel]:
    """Return grids of one width beside each other, in as many lines as a page needs.

    The ``title`` and ``facts`` stand over the first line. An empty cell is called ``empty``.
    """
    across = max(1, int(_MAX_COLUMNS / (_width(grids[0].panel) + _BETWEEN)))
    n_lines = math.ceil(len(grids) / across)
    across = math.ceil(len(grids) / n_lines)
    lines = [_beside(grids[first : first + across], across, empty) for first in range(0, len(grids), across)]
    return [replace(lines[0], title=title, facts=facts), *lines[1:]]


def _beside(grids: Sequence[GridStep], across: int, empty: str) -> GridPanel:
    """Return grids as they stand now as one panel, with room for so many."""
    bars, links, columns, n_bars = list[pd.DataFrame](), list[pd.DataFrame](), list[Label](), 0
    has_arrows = any(panel.links is not None and len(_at(panel.links, step)) for panel, step, _ in grids)
    for number, (panel, step, title) in enumerate(grids):
        width = _width(panel)
        left = number * (width + _BETWEEN)
        cells = _at(panel.bars, step)
        numbers = pd.Series(range(n_bars, n_bars + len(cells)), index=cells.index)
        if panel.links is not None:
            now = _at(panel.links, step)
            links.append(now.assign(source=now["source"].map(numbers), target=now["target"].map(numbers)))
        cells = cells.assign(sentence=[panel.explain(bar) for bar in cells.index], step=title)
        cells = pd.concat([cells, _empty_cells(panel, cells, empty).assign(step=title)], ignore_index=True)
        cells = cells.assign(left=cells["left"] + left, right=cells["right"] + left)
        if has_arrows and panel.links is not None:  # beside the cells, up to the last column that sends
            sends = cells["left"] <= left + panel.bars["left"][panel.links["source"]].max()
            cells["right"] = cells["right"].where(~sends, cells["left"] + _WITH_ARROWS)
        bars.append(cells)
        n_bars += len(cells)
        columns += [Label(at + left, text, small=True) for at, text, _ in panel.columns]
        columns += [Label(left + width / 2, title)] * bool(title)
    drawn = pd.concat(bars, ignore_index=True)
    extent = across * (width + _BETWEEN) - _BETWEEN
    arrows = pd.concat(links, ignore_index=True) if links else None
    return GridPanel(drawn, panel.height, panel.rows, columns=columns, links=arrows, extent=extent)


def _at(table: pd.DataFrame, step: int) -> pd.DataFrame:
    return table[(table["appear"] <= step) & (step < table["vanish"])]


def _empty_cells(panel: GridPanel, cells: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a bar of that name for each place of the grid in which there is nothing."""
    lefts = [at - 0.5 + INSET for at, *_ in panel.columns]
    places = itertools.product((row.at - 0.5 + INSET for row in panel.rows), lefts)
    taken = {(round(top, 3), round(left, 3)) for top, left in cells[["top", "left"]].to_numpy().tolist()}
    free = [(top, left) for top, left in places if (round(top, 3), round(left, 3)) not in taken]
    rows = [
        (left, left + 1 - 2 * INSET, top, 1 - 2 * INSET, name, 0, "", f"{name.capitalize()}.") for top, left in free
    ]
    return pd.DataFrame(rows, columns=[*BAR_COLUMNS, "sentence"])


def _width(panel: GridPanel) -> float:
    """Return how many columns a panel has."""
    return max(at for at, *_ in panel.columns) + 0.5
