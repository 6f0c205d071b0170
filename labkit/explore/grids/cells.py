"""Hold a grid of cells that changes from step to step: what each rank has, and what moves.

Every grid of the lab is one table of cells: the chunks of a tensor while ranks add them up, before
and after a collective, and the parts of a model. :func:`panel` makes of it what a browser draws,
:func:`labkit.draw.cells.cell_grids` draws it on paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from labkit.draw.panel import Label, Panel

if TYPE_CHECKING:
    from labkit.draw.cells import CellGrid

CELL_COLUMNS = ("rank", "column", "appear", "vanish", "name", "shade", "label", "sentence")
MOVE_COLUMNS = ("step", "source", "target", "column", "label")
INSET = 0.05  # of a cell, left free around its colour
APART = 0.3  # of a cell, between the columns and one more beside them
FOREVER = 1e6  # the step in which what is there in the end vanishes: beside a longer story it stays
_MOST_WORDS = 8  # of more columns each has a number only


def _no_moves() -> pd.DataFrame:
    return pd.DataFrame(columns=list(MOVE_COLUMNS))


@dataclass(frozen=True)
class Grid:
    """Cells in rows of ranks, over ``columns``, that change from step to step.

    ``cells`` has a row for everything that a cell ever holds, and the columns of CELL_COLUMNS: it
    is there from step ``appear`` on and before step ``vanish``. ``name`` chooses its colour and
    hatching, ``shade`` how much lighter it is, ``label`` is written into it, and ``sentence`` says
    what it is. ``moves`` has a row for each cell that is sent: in ``step`` it still lies at rank
    ``source``, and is on its way to ``target``.

    ``steps`` are the titles of the steps from 0 on, such as "before", and ``narrate(step)`` says in
    a sentence what stands there and what happens next. ``corner`` says what the columns are.
    """

    cells: pd.DataFrame
    columns: Sequence[str]
    steps: Sequence[str]
    narrate: Callable[[int], str]
    n_ranks: int
    moves: pd.DataFrame = field(default_factory=_no_moves)
    corner: str = ""
    title: str = ""
    facts: str = ""

    def at(self, step: int, title: str | None = None, moves: bool = True) -> CellGrid:
        """Return what stands in the grid at ``step``, to be drawn by labkit.draw.cells."""
        from labkit.draw.cells import CellGrid

        seen = self.cells[(self.cells["appear"] <= step) & (step < self.cells["vanish"])]
        title = self.steps[step] if title is None else title
        rows = [f"rank {rank}" for rank in range(self.n_ranks)]
        moving = self.moves[self.moves["step"] == step] if moves else self.moves[:0]
        return CellGrid(seen, rows, self.columns, title, moving, self.corner)


def intervals(states: np.ndarray) -> pd.DataFrame:
    """Return what the cells hold, and from which step to which.

    ``states[step, rank, column]`` are whole numbers, 0 for nothing. Columns of the table: ``rank,
    column, appear, vanish, holds``, ordered by rank, column and step.
    """
    n_steps = len(states)
    changed = np.ones(states.shape, dtype=bool)
    changed[1:] = states[1:] != states[:-1]
    rank, column, appear = np.nonzero(changed.transpose(1, 2, 0))
    same_cell = (rank[1:] == rank[:-1]) & (column[1:] == column[:-1])
    vanish = np.append(np.where(same_cell, appear[1:], n_steps), n_steps)
    holds = states[appear, rank, column]
    table = pd.DataFrame({"rank": rank, "column": column, "appear": appear, "vanish": vanish, "holds": holds})
    return table[holds != 0].reset_index(drop=True)


def panel(grid: Grid, beside: pd.DataFrame | None = None, heading: str = "") -> Panel:
    """Return the grid as a picture that is stepped through: a row a rank, a bar a cell.

    A link leads from each cell that is sent to the cell where it goes; where a rank sends all its
    cells to the same one, a single link from the last of them stands for all. ``beside`` are cells
    of one more column, right of the others and apart from them, under ``heading``.
    """
    n, last = len(grid.columns), len(grid.steps) - 1
    cells = grid.cells if beside is None else pd.concat([grid.cells, beside.assign(column=n + APART)])
    bars = pd.DataFrame(
        {
            "left": cells["column"] + INSET,
            "right": cells["column"] + 1 - INSET,
            "top": cells["rank"] + INSET,
            "height": 1 - 2 * INSET,
            "name": cells["name"],
            "chunk": cells["shade"],
            "label": cells["label"],
            "appear": cells["appear"],
            "vanish": np.where(cells["vanish"] > last, FOREVER, cells["vanish"]),
        }
    ).reset_index(drop=True)
    sentences = cells["sentence"].tolist()
    corner = grid.corner if n <= _MOST_WORDS else ""
    names = [" ".join([corner, *name.split()]).strip() for name in grid.columns]
    columns = [Label(number + 0.5, name) for number, name in enumerate(names) if grid.columns[number]]
    if beside is not None:
        columns.append(Label(n + APART + 0.5, heading))

    def narrate(x: float) -> str:
        step = min(max(int(x), 0), last)
        return f"{grid.steps[step]}: {grid.narrate(step)}"

    return Panel(
        bars=bars,
        height=float(grid.n_ranks),
        rows=[Label(rank + 0.5, f"rank {rank}") for rank in range(grid.n_ranks)],
        columns=columns,
        title=grid.title,
        facts=grid.facts,
        links=_links(grid),
        clocks=np.arange(len(grid.steps), dtype=float),
        explain=lambda bar: sentences[bar],
        narrate=narrate,
    )


def _links(grid: Grid) -> pd.DataFrame:
    """Return the moves as arrows between bars, where both ends have one."""
    numbers, same = _numbers(grid), ["step", "source", "target"]
    whole = (grid.moves.groupby(same)["column"].transform("nunique") == len(grid.columns)).astype(bool)
    moves = grid.moves[~whole | (grid.moves["column"] == len(grid.columns) - 1)]
    step, source, target, column = (moves[name].to_numpy(dtype=int) for name in MOVE_COLUMNS[:4])
    ends = numbers[step, source, column], numbers[step, target, column]
    labels = np.where(whole[moves.index], "all", "")
    links = pd.DataFrame({"source": ends[0], "target": ends[1], "appear": step, "vanish": step + 1, "label": labels})
    return links[(ends[0] >= 0) & (ends[1] >= 0)].reset_index(drop=True)


def _numbers(grid: Grid) -> np.ndarray:
    """Return the number of the cell that is at [step, rank, column], -1 where there is none."""
    numbers = np.full((len(grid.steps), grid.n_ranks, len(grid.columns)), -1)
    rank, column, appear, vanish = (grid.cells[name].to_numpy() for name in CELL_COLUMNS[:4])
    for step in range(len(grid.steps)):
        seen = np.flatnonzero((appear <= step) & (step < vanish))
        numbers[step, rank[seen], column[seen]] = seen
    return numbers
