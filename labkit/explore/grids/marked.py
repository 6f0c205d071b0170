"""Fill a tensor with numbers that say whose they are, and read that off whatever becomes of them.

The tensor of a rank has N chunks of N × N numbers, one for each rank's part of each chunk. All are
0 but one in each chunk: the rank's own. Sums of such tensors count what has been added to what.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def marked_tensor(rank: int, n: int) -> Any:
    """Return the tensor of one of ``n`` ranks, of shape [chunk, whose part, of which chunk]."""
    import torch

    tensor = torch.zeros(n, n, n)
    tensor[range(n), rank, range(n)] = 1
    return tensor


def bits_of(chunk: int, part: np.ndarray, strange: list[str]) -> int:
    """Return a bit for each rank whose part of the chunk has been added in ``part``; 0 for zeros.

    For anything else, return -i, and have ``strange[i - 1]`` say what it is.
    """
    counts = part[:, chunk]
    if np.isin(counts, (0, 1)).all() and np.abs(part).sum() == counts.sum():
        return int((counts.astype(np.int64) << np.arange(len(counts))).sum())
    text = describe(chunk, part)
    if text not in strange:
        strange.append(text)
    return -1 - strange.index(text)


def describe(chunk: int, part: np.ndarray) -> str:
    """Return what is in a chunk that is no sum of different ranks' parts of it."""
    terms = [
        f"{'' if times == 1 else f'{times:g} times '}rank {rank}'s{'' if of == chunk else f' of chunk {of}'}"
        for (rank, of), times in np.ndenumerate(part)
        if times
    ]
    more = f" and {len(terms) - 4} more" if len(terms) > 4 else ""
    return ", ".join(terms[:4]) + more
