"""Judge a ring that the reader filled in by hand: which cell is wrong, and whose part is missing.

fill_ring('''
    before   0   0   0  |  1   1   1  |  2   2   2
    step 1   0   0   02 |  01  1   1  |  2   ?   ?
    ...
''')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.base.measurement_html import Lines
from labkit.explore.grids.rings import MOST_NAMED, Story, follow, grid, in_words, ranks_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMPTY = "?"
Cell = tuple[int, int, int]  # step, rank, chunk


def fill_ring(text: str) -> FilledRing:
    """Compare a grid that the reader filled in with what the ring does, step by step.

    ``text`` has a line for the start and one for each of the 2 (N − 1) steps: its name, such as
    ``step 1``, then the N chunks of each rank, with a bar between ranks. A cell says whose parts
    are added up in it, such as ``02``, or Σ for all; ``?`` is left open. Lines that begin with #
    are for the reader.

    Raises ValueError for a text of another shape, with the line that is meant.
    """
    written = _read(text)
    story = follow("ring", len(written[0]))
    wrong = {
        (step, rank, chunk): reason
        for step, ranks in enumerate(written)
        for rank, chunks in enumerate(ranks)
        for chunk, cell in enumerate(chunks)
        if cell != EMPTY and (reason := _what_is_wrong(story, (step, rank, chunk), cell))
    }
    return FilledRing(story, written, wrong)


class FilledRing(Lines):
    """A ring filled in by hand, and what to say of it; it shows itself as these lines.

    ``wrong`` has the reason for each wrong cell, by step, rank and chunk. Said are those of the
    first step that has any, as what follows from them is wrong as well.
    """

    def __init__(self, story: Story, written: Sequence[Sequence[Sequence[str]]], wrong: dict[Cell, str]):
        self.story, self.written, self.wrong = story, written, wrong
        super().__init__("\n".join(self._said()))

    def figure(self) -> Figure:
        """Return the grids as they were filled in, one a step, with the wrong cells marked."""
        from labkit.draw.cells import cell_grids

        true, places = grid(self.story), []
        for step, ranks in enumerate(self.written):
            place = true.at(step, moves=False)
            cells = place.cells.copy()
            at = [(int(rank), int(chunk)) for rank, chunk in zip(cells["rank"], cells["column"], strict=True)]
            for row, (rank, chunk) in zip(cells.index, at, strict=True):
                if reason := self.wrong.get((step, rank, chunk)):
                    cells.loc[row, ["name", "shade", "label", "sentence"]] = "wrong", 0, ranks[rank][chunk], reason
            filled = [ranks[rank][chunk] != EMPTY for rank, chunk in at]
            places.append(place._replace(cells=cells[filled]))
        return cell_grids(places, across=len(places))

    def _said(self) -> list[str]:
        cells = [cell for ranks in self.written[1:] for chunks in ranks for cell in chunks]
        n_open, n_wrong = cells.count(EMPTY), len(self.wrong)
        right = sum(cell != EMPTY for cell in cells) - sum(step > 0 for step, _, _ in self.wrong)
        head = f"Of {len(cells)} cells {right} are right, {len(cells) - n_open - right} wrong, {n_open} open."
        if n_wrong:
            first = min(step for step, _, _ in self.wrong)
            reasons = [reason for (step, _, _), reason in self.wrong.items() if step == first]
            later = n_wrong - len(reasons)
            return [head, *reasons, *([f"Mend that first. Wrong in later steps: {later}."] if later else [])]
        if n_open:
            step = next(step for step, ranks in enumerate(self.written) if any(EMPTY in chunks for chunks in ranks))
            return [head, f"Go on with step {step}."]
        half = self.story.n - 1
        return [head, f"After step {half} each rank has one whole sum, after step {2 * half} all of them."]


# --- what the reader wrote ------------------------------------------------------------------------


def _read(text: str) -> list[list[list[str]]]:
    """Return the cells [step][rank][chunk]. Raises ValueError for a text of another shape."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not lines or not 2 <= (n := lines[0].count("|") + 1) <= MOST_NAMED:
        raise ValueError(f"fill_ring: expected the cells of 2 to {MOST_NAMED} ranks in a line, with a | between ranks")
    names = ["before", *(f"step {step}" for step in range(1, 2 * n - 1))]
    if len(lines) != len(names):
        raise ValueError(f"fill_ring: {len(lines)} lines for {n} ranks, expected {len(names)}: {', '.join(names)}")
    return [_cells(line, name, n) for line, name in zip(lines, names, strict=True)]


def _cells(line: str, name: str, n: int) -> list[list[str]]:
    ranks = [chunks.split() for chunks in line.removeprefix(name).split("|")]
    if not line.startswith(name) or len(ranks) != n or any(len(chunks) != n for chunks in ranks):
        raise ValueError(
            f"fill_ring: the line is {line!r}, expected {name!r} and for each of {n} ranks {n} cells, with a | between "
            f"ranks; write {EMPTY} where you do not know yet"
        )
    return ranks


# --- what is wrong with it ------------------------------------------------------------------------


def _what_is_wrong(story: Story, place: Cell, cell: str) -> str:
    """Return what is wrong with a cell, and why; nothing for one that is right."""
    step, rank, chunk = place
    true = set(ranks_in(int(story.states[place])))
    said = list(range(story.n)) if cell == "Σ" else [int(digit) if digit.isdecimal() else -1 for digit in cell]
    if sorted(said) == sorted(true):
        return ""
    when = f"After step {step}" if step else "Before the first step"
    head = f"{when}, rank {rank}, chunk {chunk}: {cell}?"
    if not set(said) <= set(range(story.n)):
        return f"{head} Write the numbers of the ranks side by side, such as 02, of ranks {in_words(range(story.n))}."
    faults = {
        "missing": true - set(said),
        "not in it": set(said) - true,
        "added twice": {each for each in true if said.count(each) > 1},
    }
    found = [f"{_parts(ranks)} {'is' if len(ranks) == 1 else 'are'} {what}" for what, ranks in faults.items() if ranks]
    text = ", and ".join(found)
    return f"{head} {text[0].upper()}{text[1:]}. {_why(story, place)}"


def _parts(ranks: set[int]) -> str:
    numbers = in_words(sorted(ranks))
    return f"the part of rank {numbers}" if len(ranks) == 1 else f"the parts of ranks {numbers}"


def _why(story: Story, place: Cell) -> str:
    """Return what happens to this cell, without saying what it holds then."""
    step, rank, chunk = place
    if step == 0:
        return "At the start each rank has its own part of every chunk."
    sent = story.sent[(story.sent["step"] == step - 1) & (story.sent["target"] == rank)].iloc[0]
    source, column, carries = (int(sent[name]) for name in ("source", "column", "carries"))
    if column != chunk:
        return f"In this step rank {rank} gets chunk {column}, so chunk {chunk} stays as it was."
    parts = set(ranks_in(carries))
    if len(parts) == story.n:
        return f"In this step rank {source} sends the whole sum, which takes the place of what was there."
    return f"In this step rank {source} sends {_parts(parts)}, to be added to what was there."
