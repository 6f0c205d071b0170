"""Judge a ring that the reader filled in by hand: which cell is wrong, and whose part is missing.

fill_ring('''
    before   0   0   0  |  1   1   1  |  2   2   2
    step 1   0   0   02 |  01  1   1  |  2   ?   ?
    ...
''')
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import display

from labkit.base.measurement_html import Lines
from labkit.base.texts import listed
from labkit.explore.grids.cells import Cell, cell_panel
from labkit.explore.grids.ring_panel import MAX_NAMED, ranks_in, ring_cells
from labkit.explore.grids.rings import RingTrace, simulate_ring
from labkit.explore.scene_message import styles_message
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline

EMPTY = "?"
_APART = 0.5  # of a cell, between ranks
Place = tuple[int, int, int]  # step, rank, chunk


def fill_ring(text: str) -> RingAnswer:
    """Compare a grid that the reader filled in with what the ring does, step by step.

    ``text`` has a line for the start and one for each of the 2 (N − 1) steps: its name, such as
    ``step 1``, then the N chunks of each rank, with a bar between ranks. A cell says whose parts
    are added up in it, such as ``02``, or Σ for all; ``?`` is left open. Lines that begin with #
    are for the reader.

    Raises ValueError for a text of another shape, with the line that is meant.
    """
    return RingAnswer(_read(text))


class RingAnswer(Lines):
    """A ring filled in by hand, and what to say of it; it shows itself as these lines and a grid.

    ``wrong`` has the reason for each wrong cell, by step, rank and chunk. Said are those of the
    first step that has any, as what follows from them is wrong as well. In the grid, the
    ``timeline``, each says its own.
    """

    def __init__(self, cells: dict[Place, str]):
        self.cells, self.trace = cells, simulate_ring("ring", 1 + max(rank for _, rank, _ in cells))
        reasons = {place: _what_is_wrong(self.trace, place, cell) for place, cell in cells.items() if cell != EMPTY}
        self.wrong = {place: reason for place, reason in reasons.items() if reason}
        super().__init__("\n".join(self._lines()))

    @cached_property
    def timeline(self) -> Timeline:
        """The grid as it was filled in, a row per step, with the wrong cells marked."""
        n, cells = self.trace.n, []
        for place, cell in self._true_cells():
            if place in self.wrong:
                cell = cell._replace(name="wrong", chunk=0, label=self.cells[place], sentence=self.wrong[place])
            if self.cells[place] == EMPTY:
                cell = cell._replace(name="open", chunk=0, label=EMPTY, sentence="Still to be filled in.")
            cells.append(cell)
        columns = {
            rank * (n + _APART) + chunk: f"rank\u00a0{rank}, chunk\u00a0{chunk}" for rank, chunk in np.ndindex(n, n)
        }
        panel = replace(cell_panel(cells, _names(n), columns), stops=np.zeros(0))
        alt = f"What {n} ranks hold of {n} chunks, step by step. {self._lines()[0]}"
        timeline = Timeline()
        timeline.show([panel], alt=alt, title="The ring, filled in")
        timeline.static_form = lambda: StaticForm(alt, self._table(), scene=lambda: timeline.scene)
        timeline.library = self._library
        return timeline

    def _true_cells(self) -> Iterator[tuple[Place, Cell]]:
        """Yield the cells of the grid as they should be, each with its place."""
        for true in ring_cells(self.trace):
            for step in range(true.appear, true.vanish):
                column = true.rank * (self.trace.n + _APART) + true.column
                yield (
                    (step, true.rank, int(true.column)),
                    true._replace(rank=step, column=column, appear=0, vanish=1),
                )

    def _library(self) -> dict[str, Any]:
        """Return what a file needs to be filled in: of each cell, what is said to which answer."""
        whole = "".join(map(str, range(self.trace.n)))
        answers = ["".join(some) for size in range(1, 1 + len(whole)) for some in combinations(whole, size)]
        bars, names, shades = [], {"open", "wrong"}, {0}
        for place, cell in self._true_cells():
            own = self.cells[place].replace("Σ", whole).replace(EMPTY, "")
            reasons = {answer: _what_is_wrong(self.trace, place, answer) for answer in {own, *answers} - {""}}
            wrong = {answer: reason for answer, reason in reasons.items() if reason}
            looks = {name: getattr(cell, name) for name in ("name", "chunk", "label", "sentence")}
            bars.append({"step": place[0], "place": _place(place), "filled": own, "right": looks, "wrong": wrong})
            names.add(cell.name)
            shades.add(cell.chunk)
        styles = styles_message(names, 1 + max(shades))
        return {"fill": {"bars": bars, "styles": styles, "whole": whole, "done": self._done()}}

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """Write the grid to ``path``: see :meth:`Timeline.to_html`."""
        return self.timeline.to_html(path)

    def _ipython_display_(self) -> None:
        display(Lines(str(self)))
        self.timeline._ipython_display_()

    def _table(self) -> pd.DataFrame:
        """Return the grid as text, a row per step; a ✗ stands after what is wrong."""
        n = self.trace.n

        def row(step: int, rank: int) -> str:
            places = [(step, rank, chunk) for chunk in range(n)]
            return " ".join(self.cells[place] + "✗" * (place in self.wrong) for place in places)

        names = _names(n)
        rows = {f"rank {rank}": [row(step, rank) for step in range(len(names))] for rank in range(n)}
        return pd.DataFrame(rows, index=names)

    def _lines(self) -> list[str]:
        after = [(place in self.wrong, cell == EMPTY) for place, cell in self.cells.items() if place[0] > 0]
        n_wrong, n_open = (sum(column) for column in zip(*after, strict=True))
        head = f"Of {len(after)} cells {len(after) - n_wrong - n_open} are right, {n_wrong} wrong, {n_open} open."
        if self.wrong:
            first = min(self.wrong)[0]
            head = head if first else "Your first line, before, is wrong already, and every step begins from it."
            reasons = [reason for (step, _, _), reason in self.wrong.items() if step == first]
            later = len(self.wrong) - len(reasons)
            return [head, *reasons, *([f"Fix that first. Wrong in later steps: {later}."] if later else [])]
        if EMPTY in self.cells.values():
            step = next(step for (step, _, _), cell in self.cells.items() if cell == EMPTY)
            return [head, f"Go on with step {step}."]
        return [head, self._done()]

    def _done(self) -> str:
        half = self.trace.n - 1
        return f"After step {half} each rank has one whole sum, after step {2 * half} all of them."


# --- what the reader wrote ------------------------------------------------------------------------


def _names(n: int) -> list[str]:
    return ["before", *(f"step {step}" for step in range(1, 2 * n - 1))]


def _read(text: str) -> dict[Place, str]:
    """Return the cells. Raises ValueError for a text of another shape."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not lines or not 2 <= (n := lines[0].count("|") + 1) <= MAX_NAMED:
        raise ValueError(f"fill_ring: expected the cells of 2 to {MAX_NAMED} ranks in a line, with a | between ranks")
    names = _names(n)
    if len(lines) != len(names):
        raise ValueError(f"fill_ring: {len(lines)} lines for {n} ranks, expected {len(names)}: {', '.join(names)}")
    cells: dict[Place, str] = {}
    for step, (line, name) in enumerate(zip(lines, names, strict=True)):
        ranks = [chunks.split() for chunks in line.removeprefix(name).split("|")]
        if not line.startswith(name) or [len(chunks) for chunks in ranks] != [n] * n:
            raise ValueError(
                f"fill_ring: the line is {line!r}, expected {name!r} and for each of {n} ranks {n} cells, with a | "
                f"between ranks; write {EMPTY} where you do not know yet"
            )
        cells |= {(step, rank, chunk): ranks[rank][chunk] for rank in range(n) for chunk in range(n)}
    return cells


# --- what is wrong with it ------------------------------------------------------------------------


def _what_is_wrong(trace: RingTrace, place: Place, cell: str) -> str:
    """Return what is wrong with a cell, and why; nothing for one that is right."""
    true = ranks_in(int(trace.states[place]))
    answer = list(range(trace.n)) if cell == "Σ" else [int(digit) if digit.isdecimal() else -1 for digit in cell]
    if sorted(answer) == true:
        return ""
    head = f"{_place(place)}: {cell}?"
    if not set(answer) <= set(range(trace.n)):
        return f"{head} Write the numbers of the ranks side by side, such as 02, of ranks {listed(range(trace.n))}."
    faults = {
        "missing": set(true) - set(answer),
        "not in it": set(answer) - set(true),
        "added twice": {each for each in true if answer.count(each) > 1},
    }
    found = [f"{_parts(ranks)} {'is' if len(ranks) == 1 else 'are'} {what}" for what, ranks in faults.items() if ranks]
    text = ", and ".join(found)
    return f"{head} {text[0].upper()}{text[1:]}. {_why(trace, place)}"


def _place(place: Place) -> str:
    step, rank, chunk = place
    return f"{f'After step {step}' if step else 'Before the first step'}, rank {rank}, chunk {chunk}"


def _parts(ranks: Collection[int]) -> str:
    numbers = listed(sorted(ranks))
    return f"the part of rank {numbers}" if len(ranks) == 1 else f"the parts of ranks {numbers}"


def _why(trace: RingTrace, place: Place) -> str:
    """Return what happens to this cell, without saying what it holds then."""
    step, rank, chunk = place
    if step == 0:
        return "At the start each rank has its own part of every chunk."
    source = (rank - 1) % trace.n
    (received,) = trace.messages[step - 1, source, rank]
    if received != chunk:
        return f"In this step rank {rank} gets chunk {received}, so chunk {chunk} stays as it was."
    parts = ranks_in(int(trace.states[step - 1, source, chunk]))
    if len(parts) == trace.n:
        return f"In this step rank {source} sends the whole sum, which takes the place of what was there."
    return f"In this step rank {source} sends {_parts(parts)}, to be added to what was there."
