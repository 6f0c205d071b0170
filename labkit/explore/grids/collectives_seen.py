"""Run seven collectives in real ranks, and show what each rank had before and has after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.base.checks import check_number, is_whole
from labkit.explore.grids.cells import Grid, intervals
from labkit.explore.grids.marked import bits_of, marked_tensor
from labkit.explore.grids.rings import in_words, ranks_in
from labkit.explore.rank_run import run_on_ranks

MOST_RANKS = 8
SEVEN = {
    "broadcast": "Rank 0 gives a copy of its tensor to every rank.",
    "scatter": "Rank 0 cuts its tensor into parts, and each rank gets one.",
    "gather": "Each rank has a part, and rank 0 collects them. It is scatter backwards.",
    "all_gather": "Each rank has a part, and every rank collects them all.",
    "reduce": "All tensors are added up, and rank 0 gets the sum. Count on nothing in the tensors of the others.",
    "reduce_scatter": "All tensors are added up, and each rank gets one part of the sum.",
    "all_reduce": "All tensors are added up, and every rank gets the sum.",
}


def seen_collectives(world_size: int = 4) -> dict[str, Grid]:
    """Return a grid with the steps before and after for each of seven collectives, by name.

    It is made of what so many real ranks had and got, rank 0 being the root.

    Raises TypeError or ValueError for fewer than 2 or more than 8 ranks, and what
    :func:`labkit.launch.launch` raises.
    """
    expected = f"a whole number of ranks, 2 to {MOST_RANKS}"
    check_number("world_size", world_size, lambda n: is_whole(n) and 2 <= n <= MOST_RANKS, expected)
    seen = run_on_ranks(_observe, world_size=world_size, tasks=[]).values
    return {name: _grid(name, [rank[name] for rank in seen]) for name in SEVEN}


def _observe() -> dict[str, np.ndarray]:
    """Return for each collective what this rank gives and what it gets, as [2, chunk, …]."""
    import torch
    import torch.distributed as dist

    from labkit.launch import device

    rank, n = dist.get_rank(), dist.get_world_size()
    whole, root = marked_tensor(rank, n).to(device()), rank == 0
    nothing = torch.zeros_like(whole)
    part = nothing.clone()
    part[rank] = whole[rank]  # what a rank has that has a part only
    seen = {}

    copy = whole.clone()
    dist.broadcast(copy, src=0)
    seen["broadcast"] = whole if root else nothing, copy

    got = nothing.clone()
    dist.scatter(got[rank], list(whole) if root else None, src=0)
    seen["scatter"] = whole if root else nothing, got

    got = nothing.clone()
    dist.gather(whole[rank], list(got) if root else None, dst=0)
    seen["gather"] = part, got

    got = nothing.clone()
    dist.all_gather(list(got), whole[rank])
    seen["all_gather"] = part, got

    total = whole.clone()
    dist.reduce(total, dst=0)
    seen["reduce"] = whole, total if root else nothing

    got = nothing.clone()
    dist.reduce_scatter(got[rank], list(whole))
    seen["reduce_scatter"] = whole, got

    total = whole.clone()
    dist.all_reduce(total)
    seen["all_reduce"] = whole, total
    return {name: torch.stack(both).cpu().numpy() for name, both in seen.items()}


def _grid(name: str, seen: Sequence[Any]) -> Grid:
    """Return the grid of a collective from what each rank gave and got."""
    n, strange = len(seen), list[str]()
    states = np.array(
        [[bits_of(chunk, held[at][chunk], strange) for chunk in range(n)] for at in (0, 1) for held in seen]
    )
    before, after = (intervals(state[None]) for state in states.reshape(2, n, n))
    cells = pd.concat([before, after.assign(appear=1, vanish=2)], ignore_index=True)
    looks = [_look(int(bits), n, strange) for bits in cells["holds"]]
    cells["name"], cells["shade"] = [look[0] for look in looks], 0
    cells["label"] = [look[1] for look in looks]
    cells["sentence"] = [
        f"Rank {cell.rank}, chunk {cell.column}, {'after' if cell.appear else 'before'}: {look[2]}."
        for cell, look in zip(cells.itertuples(), looks, strict=True)
    ]
    return Grid(
        cells=cells.drop(columns="holds"),
        columns=[str(chunk) for chunk in range(n)],
        steps=["before", "after"],
        narrate=lambda step: SEVEN[name],
        n_ranks=n,
        corner="chunk",
        title=name,
        facts=f"what {n} real ranks had and got",
    )


def _look(bits: int, n: int, strange: Sequence[str]) -> tuple[str, str, str]:
    """Return name, label and a description of what a cell holds."""
    if bits < 0:
        return "no such sum", "?", strange[-bits - 1]
    ranks = ranks_in(bits)
    if len(ranks) == n:
        return "whole sum", "Σ", f"the sum of all {n} ranks' chunks"
    if len(ranks) == 1:
        return f"from rank {ranks[0]}", str(ranks[0]), f"what rank {ranks[0]} had there"
    return "partial sum", " ".join(map(str, ranks)), f"the sum of ranks {in_words(ranks)}"
