"""Make panels of cells in rows of ranks, which change from step to step.

What each rank holds of a tensor while ranks add it up, or before and after a collective, is a list
of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.draw.panel import Label
from labkit.explore.panel import Panel

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
) -> Panel:
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

    return Panel(
        bars=pd.DataFrame(places | looks),  # in one go: it follows every move of a slider
        height=float(len(rows)),
        rows=[Label(number + 0.5, name) for number, name in enumerate(rows)],
        columns=[Label(at + 0.5, name) for at, name in columns.items()],
        stops=np.arange(len(steps), dtype=float),
        explain=sentences.__getitem__,
        narrate=narrate_at,
        **more,
    )
