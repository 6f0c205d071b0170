"""What runs in ranks to judge dp.1: it cuts and loads data sets with the student's labkit.dp and reports the samples."""

from __future__ import annotations

import os
import random
from typing import Any

from labkit.judging.evidence import DP, attempt

THIRDS, QUARTERS, TENTHS = (1 / 3,) * 3, (0.25,) * 4, (0.1,) * 10
CUTS = [
    (10, THIRDS),
    (103, QUARTERS),
    (7, (0.5, 0.5)),
    (10, (0.7, 0.2, 0.1)),
    (11, (0.7, 0.2, 0.1)),
    (2, THIRDS),
    (1000, TENTHS),
]
LOADERS = [(103, 4, 32), (100, 3, 32), (64, 2, 64), (5, 2, 2)]  # samples, world size, global batch size


def samples(count: int) -> list[int]:
    """A data set whose samples cannot be taken for their numbers."""
    return [1000 + 7 * number for number in range(count)]


def probe_shards() -> dict[str, Any]:
    """In each rank: cut data sets and load them. Ranks start from different random states, as real ones may."""
    import torch

    from labkit import dp

    random.seed(f"rank {os.environ['RANK']}")
    torch.manual_seed(int(os.environ["RANK"]))

    def cut(count: int, sizes: tuple[float, ...], data: list[int] | None = None, **seed: int) -> list[list[int]]:
        partitioner = dp.DataPartitioner(samples(count) if data is None else data, list(sizes), **seed)
        shards = [partitioner.use(rank) for rank in range(len(sizes))]
        return [[shard[i] for i in range(len(shard))] for shard in shards]

    def load(count: int, world_size: int, batch_size: int) -> list[list[list[int]]]:
        data = samples(count)
        loaders = [dp.partition_dataset(rank, world_size, data, batch_size) for rank in range(world_size)]
        return [[[int(sample) for sample in batch] for batch in loader] for loader in loaders]

    def kind_of_batch(**collate_fn: Any) -> str:
        return type(next(iter(dp.partition_dataset(0, 2, samples(8), 4, **collate_fn)))).__name__

    def indexed() -> tuple[int, list[int]]:
        shard = dp.Partition(samples(10), [4, 9, 0, 4])
        return len(shard), [shard[i] for i in range(4)]

    data = samples(103)
    return {
        "indexed": attempt(indexed, DP),
        "cuts": attempt(lambda: [cut(*case) for case in CUTS], DP),
        "another seed": attempt(lambda: cut(*CUTS[-1], seed=99), DP),
        "once more": attempt(lambda: cut(*CUTS[-1]), DP),
        "data afterwards": attempt(lambda: (cut(len(data), QUARTERS, data), data)[1], DP),
        "loaded": attempt(lambda: [load(*case) for case in LOADERS], DP),
        "collated": attempt(lambda: kind_of_batch(collate_fn=tuple), DP),
        "stacked": attempt(kind_of_batch, DP),
    }
