"""dp.1: Partition, DataPartitioner and partition_dataset cut and load data sets."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from labkit.check.harness import Task

THIRDS, QUARTERS, TENTHS = (1 / 3,) * 3, (0.25,) * 4, (0.1,) * 10


def samples(count: int) -> list[int]:
    """Return a data set whose samples cannot be taken for their numbers."""
    return [1000 + 7 * number for number in range(count)]


@dataclass(frozen=True)
class Index:
    """A shard of ten samples, by their numbers."""

    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"Partition(data, {list(self.index)})"

    def observe(self) -> Any:
        from labkit import dp

        shard = dp.Partition(samples(10), self.index)
        return [shard[i] for i in range(len(shard))]


@dataclass(frozen=True)
class Cut:
    """A data set to be cut into shards."""

    count: int
    sizes: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.count} samples cut by [{', '.join(f'{size:.3g}' for size in self.sizes)}]"

    def observe(self) -> Any:
        random.seed(f"rank {os.environ['RANK']}")  # ranks start from different states, as real ones may
        data = samples(self.count)
        return {
            "shards": self.shards(data),
            "data": data,
            "again": self.shards(samples(self.count)),
            "seed 99": self.shards(samples(self.count), seed=99),
        }

    def shards(self, data: list[int], **seed: int) -> Any:
        from labkit import dp

        partitioner = dp.DataPartitioner(data, list(self.sizes), **seed)
        shards = [partitioner.use(rank) for rank in range(len(partitioner.shards))]
        return [[shard[i] for i in range(len(shard))] for shard in shards]


class OnTwoRanks(Cut):
    """The same cut on each of two ranks."""

    world_size, init = 2, False


@dataclass(frozen=True)
class Load:
    """A data set to be loaded by each of some ranks, twice."""

    count: int
    ranks: int
    batch_size: int
    collate_fn: Any = None

    def __str__(self) -> str:
        collate_fn = f", collate_fn={self.collate_fn.__name__}" if self.collate_fn else ""
        return f"{self.count} samples on {self.ranks} ranks with batch_size={self.batch_size}{collate_fn}"

    def observe(self) -> Any:
        from labkit import dp

        n, data = self.ranks, samples(self.count)
        loaders = [dp.partition_dataset(rank, n, data, self.batch_size, self.collate_fn) for rank in range(n)]
        epochs = [[list(loader) for loader in loaders] for _ in range(2)]
        return {
            "types": sorted({type(batch).__name__ for batches in epochs[0] for batch in batches}),
            "epochs": [[[list(map(int, batch)) for batch in batches] for batches in epoch] for epoch in epochs],
            "shards": Cut(self.count, (1 / n,) * n).shards(samples(self.count)),
        }


CUTS = [
    Cut(10, THIRDS),
    Cut(103, QUARTERS),
    Cut(7, (0.5, 0.5)),
    Cut(10, (0.7, 0.2, 0.1)),
    Cut(11, (0.7, 0.2, 0.1)),
    Cut(2, THIRDS),
    Cut(1000, TENTHS),
]
LARGE = CUTS[-1:]
LOADS = [Load(103, 4, 32), Load(100, 3, 32), Load(64, 2, 64), Load(5, 2, 2)]
TASK = Task(given=["_check_rank", "_check_sizes", "use"])


@TASK.claim([Index((4, 9, 0, 4))])
def partition_follows_its_index(case: Index, seen: Any) -> str | None:
    """Partition gives the samples that its index names."""
    expected = [samples(10)[number] for number in case.index]
    named = ", ".join(f"data[{number}]" for number in case.index)
    return None if seen == expected else f"it gave {seen}, expected {named}: {expected}"


INDEXED = [partition_follows_its_index]


@TASK.claim(CUTS, after=INDEXED)
def each_sample_is_in_one_shard(case: Cut, seen: Any) -> str | None:
    """Every sample is in exactly one shard."""
    if (count := len(seen["shards"])) != len(case.sizes):
        return f"self.shards has {count} lists, expected {len(case.sizes)}, one for each size"
    if wrong := _not_each_once(seen["shards"], case.count):
        return (
            f"{wrong}. Cut at the sum of the sizes so far, rounded once, so that one shard ends where the next begins "
            "and the last ends at the last sample"
        )
    return None


def _not_each_once(shards: Sequence[Sequence[int]], count: int) -> str | None:
    """Return how the shards miss giving each of ``count`` samples once, or None."""
    times, wanted = Counter(chain(*shards)), set(samples(count))
    repeated = [sample for sample, n in times.items() if n > 1]
    for found, what in (
        (wanted - set(times), "in no shard"),
        (repeated, "there more than once"),
        (set(times) - wanted, "not from the data set"),
    ):
        if found:
            return f"{len(found)} {'is' if len(found) == 1 else 'are'} {what}"
    return None


@TASK.claim(CUTS, after=[each_sample_is_in_one_shard])
def shards_have_their_sizes(case: Cut, seen: Any) -> str | None:
    """A shard is within one sample of its fraction, and equal fractions differ by at most one sample."""
    lengths = list(map(len, seen["shards"]))
    off = any(abs(length - size * case.count) >= 1 + 1e-9 for length, size in zip(lengths, case.sizes, strict=True))
    uneven = len(set(case.sizes)) == 1 and max(lengths) - min(lengths) > 1
    if off or uneven:
        return f"it gave shards of {lengths}. The samples that rounding leaves over must not all go to one shard"
    return None


@TASK.claim(LARGE, after=[each_sample_is_in_one_shard])
def samples_are_shuffled(case: Cut, seen: Any) -> str | None:
    """The samples are shuffled before they are cut."""
    if any(shard == sorted(shard) for shard in seen["shards"]):
        return (
            "a shard has its samples in the order of the data set. Shuffle their numbers with random.Random(seed) first"
        )
    middle = samples(case.count)[case.count // 2]
    if any(max(shard) < middle or min(shard) >= middle for shard in seen["shards"]):
        return "a shard has samples of one half of the data set only: shuffle before the cut, not within each shard"
    return None


OWN_RANDOM = "Draw the order from a random.Random(seed) of your own, not from the random state of the process"


@TASK.claim([OnTwoRanks(1000, TENTHS)], after=[each_sample_is_in_one_shard])
def ranks_cut_alike(case: OnTwoRanks, seen: Any) -> str | None:
    """Every rank cuts the same shards, each time."""
    own = "Draw the order from a random.Random(seed) of your own, not from the random state of the process"
    if seen[0]["shards"] != seen[0]["again"]:
        return f"the second time it gave different shards. {own}"
    if seen[0]["shards"] != seen[1]["shards"]:
        return f"two ranks cut different shards, so they would share some samples and miss others. {own}"
    return None


@TASK.claim(LARGE, after=[samples_are_shuffled, ranks_cut_alike])
def seed_decides(case: Cut, seen: Any) -> str | None:
    """Another seed gives other shards."""
    if seen["seed 99"] != seen["shards"]:
        return None
    return "seed=99 gave the same shards as the default seed: give the seed that was passed to random.Random"


@TASK.claim(CUTS)
def data_stays(case: Cut, seen: Any) -> str | None:
    """The data set itself stays as it is."""
    if seen["data"] == samples(case.count):
        return None
    return "the data set was changed in place. Shuffle a list of the samples' numbers; the data may be on a disk"


@TASK.claim(LOADS, after=[each_sample_is_in_one_shard])
def loaders_cover_the_data(case: Load, seen: Any) -> str | None:
    """The ranks' loaders together give every sample exactly once."""
    if wrong := _not_each_once([list(chain(*batches)) for batches in seen["epochs"][0]], case.count):
        return f"{wrong}. Each rank loads its own shard, the last batch too, even if it is not full (drop_last)"
    return None


@TASK.claim(LOADS, after=[loaders_cover_the_data, ranks_cut_alike])
def loaders_keep_the_order(case: Load, seen: Any) -> str | None:
    """A loader gives its shard in the shard's order."""
    for rank, shard in enumerate(seen["shards"]):
        first, second = (list(chain(*epoch[rank])) for epoch in seen["epochs"])
        if first != second or (first != shard and sorted(first) == sorted(shard)):
            return (
                f"rank {rank} loaded its shard in another order{' each time' * (first != second)}. The shard is shuffled "
                "already, and by its seed alone: leave the DataLoader's shuffle off"
            )
    return None


@TASK.claim(LOADS)
def batch_size_is_global(case: Load, seen: Any) -> str | None:
    """batch_size is what all ranks take together: each takes floor(batch_size / world_size)."""
    expected = case.batch_size // case.ranks
    for rank, batches in enumerate(seen["epochs"][0]):
        lengths = list(map(len, batches))
        if any(length != expected for length in lengths[:-1]) or max(lengths, default=0) > expected:
            return (
                f"rank {rank} took {max(lengths)} at once, expected {expected}, so that the ranks together take no more "
                f"than {case.batch_size}"
            )
    return None


@TASK.claim([*LOADS, Load(8, 2, 4, tuple)], after=[loaders_cover_the_data])
def batches_are_collated(case: Load, seen: Any) -> str | None:
    """A batch is made by collate_fn, or stacked into a tensor where there is none."""
    expected = "tuple" if case.collate_fn else "Tensor"
    if seen["types"] == [expected]:
        return None
    return f"batches were of type {seen['types']}, expected {expected}: pass collate_fn on to the DataLoader, None too"
