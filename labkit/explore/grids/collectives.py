"""Run seven collectives in real ranks, and show what each rank had before and has after each."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.base.texts import listed
from labkit.explore.grids.cells import Cell, cell_panel
from labkit.explore.grids.ring_panel import chunk_word, ranks_in
from labkit.explore.grids.rings import check_ranks
from labkit.explore.grids.tagged_tensor import parts_in
from labkit.explore.panel import LINK_COLUMNS, Panel
from labkit.explore.rank_run import run_on_ranks

MAX_RANKS = 8
SEVEN = {
    "broadcast": "Rank 0 gives a copy of its tensor to every rank.",
    "scatter": "Rank 0 cuts its tensor into parts, and each rank gets one.",
    "gather": "Each rank has a part, and rank 0 collects them. It is scatter backwards.",
    "all_gather": "Each rank has a part, and every rank collects them all.",
    "reduce": "All tensors are added up, and rank 0 gets the sum. Count on nothing in the tensors of the others.",
    "reduce_scatter": "All tensors are added up, and each rank gets one part of the sum.",
    "all_reduce": "All tensors are added up, and every rank gets the sum.",
}


def seen_collectives(world_size: int = 4) -> dict[str, Panel]:
    """Return a panel for each of seven collectives, by name: what real ranks had and got.

    Rank 0 is the root. The first step shows what they had, and the second what they got beside it:
    each chunk comes from those ranks whose number it has.

    Raises TypeError or ValueError for fewer than 2 or more than 8 ranks, and what
    :func:`labkit.launch.launch` raises.
    """
    from labkit.explore.grids.collectives_rank import observe_collectives

    check_ranks(world_size, MAX_RANKS)
    seen = run_on_ranks(observe_collectives, [*SEVEN], world_size=world_size).values
    return {name: _panel(name, [rank[name] for rank in seen]) for name in SEVEN}


def _panel(name: str, seen: list[np.ndarray]) -> Panel:
    """Return the panel of a collective from what each rank gave and got."""
    n, cells, columns, moves = len(seen), list[Cell](), {}, []
    had: dict[tuple[int, int], int] = {}  # the numbers of the cells before, by rank and chunk
    for step, when, first in ((0, "before", 0), (1, "after", n + 1)):
        for rank, chunk in np.ndindex(n, n):
            columns[first + chunk] = f"{chunk_word(2 * n + 1)}{chunk}"
            if parts := parts_in(chunk, seen[rank][step, chunk]):
                look, label, words = _look(parts, n)
                sentence = f"Rank {rank}, chunk {chunk}, {when}: {words}."
                if step == 0:
                    had[rank, chunk] = len(cells)
                elif isinstance(parts, int):
                    moves += [(had[source, chunk], len(cells), step, step, "") for source in ranks_in(parts)]
                cells.append(Cell(rank, first + chunk, step, 2, look, 0, label, sentence))
    facts, rows = f"left what {n} real ranks had, right what they got", [f"rank {rank}" for rank in range(n)]
    links, steps = pd.DataFrame(moves, columns=LINK_COLUMNS), [f"Before {name}", f"After {name}"]
    return cell_panel(cells, rows, columns, steps, lambda _: SEVEN[name], title=name, facts=facts, links=links)


def _look(parts: int | str, n: int) -> tuple[str, str, str]:
    """Return name, label and a description of what a cell holds."""
    if isinstance(parts, str):
        return "no such sum", "?", parts
    if parts == (1 << n) - 1:
        return "whole sum", "Σ", f"the sum of all {n} ranks' chunks"
    whose = listed(ranks_in(parts))  # of these collectives, a single rank
    return f"from rank {whose}", whose, f"what rank {whose} had there"
