"""Tell an all-reduce step by step: as a panel of cells, and in words."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.base.texts import listed
from labkit.base.units import BYTES, bytes_in_words, unit_for
from labkit.explore.grids.cells import Cell, Look, cell_panel, cells_of
from labkit.explore.grids.rings import (
    ALGORITHMS,
    RingTrace,
    min_tensors,
    simulate_ring,
)
from labkit.explore.panel import LINK_COLUMNS, Panel

MAX_NAMED = 4  # with more ranks a cell has their number instead of their names
GAP = 0.3  # of a cell, between the chunks and the bytes beside them


def ring_panel(trace: RingTrace, n_bytes: float) -> Panel:
    """Return what each rank holds of each chunk, step by step, and what is sent to whom.

    Beside the chunks stands how many bytes each rank has sent so far, of a tensor of ``n_bytes``.
    """
    cells, n, n_steps, unit = ring_cells(trace), trace.n, trace.n_steps, unit_for(trace.busiest * n_bytes, BYTES)
    beside = [cell._replace(column=n + GAP) for cell in _sent_cells(trace, n_bytes, unit)]
    return cell_panel(
        [*cells, *beside],
        [f"rank {rank}" for rank in range(n)],
        {chunk: f"{chunk_word(n)}{chunk}" for chunk in range(n)} | {n + GAP: unit},
        [f"before step 1 of {n_steps}", *(f"after step {step} of {n_steps}" for step in range(1, n_steps + 1))],
        lambda step: _narrate(trace, step),
        title=trace.name,
        facts=f"{n_steps} steps, the busiest rank sends {trace.busiest:.3g} tensors (minimum: {min_tensors(n):.3g})",
        links=_links(trace, cells),
    )


def chunk_word(n_columns: int) -> str:
    """Return what stands before a chunk's number above its column: nothing, if there are many."""
    return "chunk " if n_columns <= 8 else ""


def ring_cells(trace: RingTrace) -> list[Cell]:
    """Return a cell for each chunk of each rank."""
    n = trace.n

    def look(rank: int, chunk: int, step: int, parts: int | str) -> Look | None:
        name, shade = "partial sum", 0
        if isinstance(parts, str):
            name, label, words = "no such sum", "?", f"no sum of different ranks' parts, but {parts}"
        elif not (ranks := ranks_in(parts)):
            return None
        elif len(ranks) == n:
            name, label, words = "whole sum", "Σ", f"the whole sum, of all {n} ranks"
        else:
            shade = n - 1 - len(ranks)
            label = "".join(map(str, ranks)) if n <= MAX_NAMED else str(len(ranks))
            words = f"the sum of ranks {listed(ranks)}" if len(ranks) > 1 else f"the part of rank {ranks[0]} alone"
            if ranks == [rank]:
                name, shade = "own part", 0
        when = f"from step {step} on" if step else "at the start"
        return name, shade, label, f"Rank {rank}, chunk {chunk}, {when}: {words}."

    return cells_of(trace.states, look)


def _sent_cells(trace: RingTrace, n_bytes: float, unit: str) -> list[Cell]:
    """Return cells that say, step by step, how many bytes each rank has sent so far, in a unit."""
    minimum = round(min_tensors(trace.n) * n_bytes)

    def look(rank: int, _: int, __: int, sent: int) -> Look:
        name = "more than the minimum" if sent > minimum + 0.01 * n_bytes else "bytes sent"
        words = f"Rank {rank} has sent {bytes_in_words(sent)} so far. In any all_reduce the rank that sends most"
        return name, 0, f"{sent / BYTES[unit]:.3g}", f"{words} sends {bytes_in_words(minimum)} or more in all."

    return cells_of(np.rint(trace.bytes_sent * n_bytes).astype(np.int64)[:, :, None], look)


def _links(trace: RingTrace, cells: list[Cell]) -> pd.DataFrame:
    """Return what is sent as arrows between bars.

    Where a rank sends all its chunks to another, an arrow from the last of them stands for all:
    the others move, but have none.
    """
    bars = {
        (step, cell.rank, cell.column): bar
        for bar, cell in enumerate(cells)
        for step in range(cell.appear, cell.vanish)
    }
    rows = []
    for (step, source, target), chunks in trace.messages.items():
        whole = len(set(chunks)) == trace.n
        for chunk in chunks:
            ends = [bars.get((step, rank, chunk)) for rank in (source, target)]
            if None not in ends:
                has_arrow = not whole or chunk == trace.n - 1
                rows.append((*ends, step if has_arrow else step + 1, step + 1, "all" if whole else ""))
    return pd.DataFrame(rows, columns=LINK_COLUMNS)


# --- in words -------------------------------------------------------------------------------------


def ranks_in(parts: int) -> list[int]:
    """Return the numbers of the bits that are set."""
    return [rank for rank in range(parts.bit_length()) if parts >> rank & 1]


def _narrate(trace: RingTrace, step: int) -> str:
    """Return what happens next, in one sentence."""
    if step == trace.n_steps:
        if trace.n_whole_sums == trace.n**2:
            return "every rank has the whole sum of every chunk."
        return f"{trace.n_whole_sums} of {trace.n**2} cells are the whole sum, and nothing more is sent."
    phase = ""
    if algorithm := ALGORITHMS.get(trace.name):
        phase = (algorithm.first_half if 2 * step < trace.n_steps else algorithm.second_half) + ". "
    return f"{phase}Next, {_who_sends(trace, step)}."


def _who_sends(trace: RingTrace, step: int) -> str:
    """Return who sends how much to whom, in words."""
    n = trace.n
    pairs = {(source, target): chunks for (at, source, target), chunks in trace.messages.items() if at == step}
    counts = {len(chunks) for chunks in pairs.values()}
    for hop, side in ((1, "right"), (n - 1, "left")):
        if len(counts) == 1 and sorted(pairs) == [(rank, (rank + hop) % n) for rank in range(n)]:
            return f"every rank sends {_amount(counts.pop(), n)} to its {side} neighbour"
    return ", ".join(
        f"rank {source} sends {'chunk ' + listed(chunks) if len(chunks) < min(n, 3) else _amount(len(chunks), n)}"
        f" to rank {target}"
        for (source, target), chunks in pairs.items()
    )


def _amount(count: int, n: int) -> str:
    return "its whole tensor" if count == n else "a chunk" if count == 1 else f"{count} chunks"


def verdict(trace: RingTrace) -> str:
    """Return in a few sentences what a recorded ring did, compared with the ring of the picture."""
    minimum, ideal, n_cells = min_tensors(trace.n), simulate_ring("ring", trace.n), trace.n**2
    sums = "Every rank ends up with the whole sum."
    if trace.n_whole_sums < n_cells:
        count = f"Only {trace.n_whole_sums}" if trace.n_whole_sums else "None"
        sums = f"{count} of {n_cells} cells end up as the whole sum; point at one to see what is in it."
    steps = "Step by step it is the ring of the picture."
    if not np.array_equal(trace.states, ideal.states):
        steps = f"It takes {trace.n_steps} steps, the ring of the picture {ideal.n_steps}."
    compared = f"{trace.busiest / minimum:.3g} × the minimum of an all_reduce"
    if abs(trace.busiest - minimum) < 0.01:
        compared = "the minimum of an all_reduce"
    elif trace.busiest < minimum:
        compared = f"less than the {minimum:.3g} that an all_reduce needs"
    return f"{sums} {steps} The busiest rank sends {trace.busiest:.3g} times the tensor, {compared}."
