"""Tag a tensor with numbers that say whose they are, and read that off whatever becomes of them.

The tensor of a rank has N chunks of N × N numbers, one for each rank's part of each chunk. All are
0 but one in each chunk: the rank's own. Sums of such tensors count what has been added to what.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def tagged_tensor(rank: int, n: int) -> Any:
    """Return the tensor of one of ``n`` ranks, of shape [chunk, whose part, of which chunk]."""
    import torch

    tensor = torch.zeros(n, n, n)
    tensor[range(n), rank, range(n)] = 1
    return tensor


def parts_in(chunk: int, held: np.ndarray) -> int | str:
    """Return a bit for each rank whose part of the chunk has been added in ``held``; 0 for zeros.

    For anything but a sum of different ranks' parts of this chunk, return in words what it is.
    """
    counts = held[:, chunk]
    if np.isin(counts, (0, 1)).all() and np.abs(held).sum() == counts.sum():
        return sum(1 << rank for rank in np.flatnonzero(counts).tolist())
    terms = [
        f"{'' if times == 1 else f'{times:g} times '}rank {rank}'s{'' if of == chunk else f' of chunk {of}'}"
        for (rank, of), times in np.ndenumerate(held)
        if times
    ]
    more = f" and {len(terms) - 4} more" if len(terms) > 4 else ""
    return ", ".join(terms[:4]) + more
