"""dp.1: Partition, DataPartitioner and partition_dataset cut and load data sets."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

from labkit.check.harness import Finding, Task

HALVES, THIRDS, QUARTERS, TENTHS = ((1 / n,) * n for n in (2, 3, 4, 10))


@dataclass(frozen=True)
class Case:
    """A data set that is cut, and with a ``batch_size`` loaded twice by the ranks that its shards
    are for."""

    count: int
    sizes: tuple[float, ...]
    batch_size: int = 0
    collate_fn: Any = None
    world_size: int | None = None
    init = False

    def __str__(self) -> str:
        if not self.batch_size:
            return f"{self.count} samples cut by [{', '.join(f'{size:.3g}' for size in self.sizes)}]"
        collate_fn = f", collate_fn={self.collate_fn.__name__}" if self.collate_fn else ""
        return f"{self.count} samples on {len(self.sizes)} ranks with batch_size={self.batch_size}{collate_fn}"

    def data(self) -> list[int]:
        """Return samples that cannot be taken for their numbers."""
        return [1000 + 7 * number for number in range(self.count)]

    def observe(self) -> Any:
        from labkit import dp

        def content(shard: Any) -> list[int]:
            return [shard[i] for i in range(len(shard))]

        def cut(data: list[int], **seed: int) -> list[list[int]]:
            partitioner = dp.DataPartitioner(data, list(self.sizes), **seed)
            return [content(partitioner.use(rank)) for rank in range(len(partitioner.shards))]

        random.seed(f"rank {os.environ['RANK']}")  # ranks start from different states, as real ones may
        data, n = self.data(), len(self.sizes)
        seen = {"picked": content(dp.Partition(data, [1, 0, 1])), "shards": cut(data), "data": data}
        seen |= {"again": cut(self.data()), "seed 99": cut(self.data(), seed=99)}
        if self.batch_size:
            loaders = [dp.partition_dataset(rank, n, data, self.batch_size, self.collate_fn) for rank in range(n)]
            batches, again = ([list(loader) for loader in loaders] for _ in range(2))
            seen["types"] = sorted({type(batch).__name__ for batch in chain(*batches)})
            seen["lengths"] = [[len(batch) for batch in each] for each in batches]
            seen["epochs"] = [[list(map(int, chain(*each))) for each in epoch] for epoch in (batches, again)]
        return seen


LARGE, UNEVEN = Case(1000, TENTHS), [Case(count, (0.7, 0.2, 0.1)) for count in (10, 11)]
CUTS = [Case(10, THIRDS), Case(103, QUARTERS), Case(7, HALVES), *UNEVEN, Case(2, THIRDS), LARGE]
LOADS = [Case(103, QUARTERS, 32), Case(100, THIRDS, 32), Case(64, HALVES, 64), Case(5, HALVES, 2)]
TASK = Task(given=["_check_rank", "_check_sizes", "use"])


@TASK.claim(CUTS[:1])
def partition_follows_its_index(case: Case, seen: Any) -> Finding:
    """Partition gives the samples that its index names."""
    expected = [case.data()[number] for number in (1, 0, 1)]
    return seen["picked"] != expected and (
        f"Partition(data, [1, 0, 1]) gave {seen['picked']}, expected data[1], data[0], data[1]: {expected}"
    )


@TASK.claim(CUTS, after=[partition_follows_its_index])
def each_sample_is_in_one_shard(case: Case, seen: Any) -> Finding:
    """Every sample is in exactly one shard."""
    if (count := len(seen["shards"])) != len(case.sizes):
        return f"self.shards has {count} lists, expected {len(case.sizes)}, one for each size"
    wrong = _not_each_once(case, seen["shards"])
    return wrong and (
        f"{wrong}. Cut at the sum of the sizes so far, rounded once, so that each shard begins where the one before ends, "
        "and the last ends with the data set"
    )


def _not_each_once(case: Case, shards: list[list[int]]) -> str:
    times, wanted = Counter(chain(*shards)), set(case.data())
    if lost := len(wanted - set(times)):
        return f"it left out {lost} of {case.count}"
    if set(times) - wanted:
        return "it gave samples that are not in the data set"
    repeated = sum(count > 1 for count in times.values())
    return f"it gave {repeated} of {case.count} more than once" if repeated else ""


@TASK.claim(CUTS, after=[each_sample_is_in_one_shard])
def shards_have_their_sizes(case: Case, seen: Any) -> Finding:
    """A shard is within one sample of its fraction, and equal fractions differ by at most one
    sample."""
    lengths = [len(shard) for shard in seen["shards"]]
    off = any(abs(length - size * case.count) >= 1 + 1e-9 for length, size in zip(lengths, case.sizes, strict=True))
    uneven = len(set(case.sizes)) == 1 and max(lengths) - min(lengths) > 1
    return (off or uneven) and f"it gave shards of {lengths}. What rounding leaves over must not all go to one shard"


@TASK.claim([LARGE], after=[each_sample_is_in_one_shard])
def samples_are_shuffled(case: Case, seen: Any) -> Finding:
    """The samples are shuffled before they are cut."""
    middle = case.data()[case.count // 2]
    in_order = any(shard == sorted(shard) for shard in seen["shards"])
    return (in_order or any(max(shard) < middle or min(shard) >= middle for shard in seen["shards"])) and (
        f"a shard is {'in the order of' if in_order else 'from one half of'} the data set. Shuffle the samples' "
        "numbers with random.Random(seed) before the cut, not within each shard"
    )


@TASK.claim([Case(1000, TENTHS, world_size=2)], after=[samples_are_shuffled])
def seed_alone_decides(case: Case, seen: Any) -> Finding:
    """Every rank cuts the same shards, each time, and others with another seed."""
    mine, other = seen
    if not mine["shards"] == mine["again"] == other["shards"]:
        return (
            f"{'two ranks' if mine['shards'] == mine['again'] else 'the same rank, asked twice,'} cut different shards, so "
            "ranks would share some samples and miss others. Draw the order from a random.Random(seed) of your own, "
            "not from the random state of the process"
        )
    return mine["seed 99"] == mine["shards"] and (
        "seed=99 gave the same shards as the default seed: give the seed that was passed to random.Random"
    )


@TASK.claim(CUTS[:1])
def data_stays(case: Case, seen: Any) -> Finding:
    """The data set itself stays as it is."""
    return seen["data"] != case.data() and (
        "the data set was changed in place. Shuffle a list of the samples' numbers; the data may be on a disk"
    )


@TASK.claim(LOADS, after=[seed_alone_decides])
def loaders_give_their_shards(case: Case, seen: Any) -> Finding:
    """The ranks' loaders together give every sample exactly once, each in its shard's order."""
    first, second = seen["epochs"]
    if wrong := _not_each_once(case, first):
        return f"{wrong}. Each rank loads its own shard, the last batch too, even if it is not full (drop_last)"
    for rank, (shard, loaded, again) in enumerate(zip(seen["shards"], first, second, strict=True)):
        if loaded != again or (loaded != shard and sorted(loaded) == sorted(shard)):
            order = f"another order{' each time' if loaded != again else ''}"
            return (
                f"rank {rank} loaded its shard in {order}. It is shuffled already: leave the DataLoader's shuffle off"
            )
    return None


@TASK.claim([*LOADS, Case(8, HALVES, 4, tuple)], after=[loaders_give_their_shards])
def batches_are_as_asked_for(case: Case, seen: Any) -> Finding:
    """Each rank takes floor(batch_size / world_size) samples at once, and collate_fn makes a batch
    of them."""
    share, expected = case.batch_size // len(case.sizes), "tuple" if case.collate_fn else "Tensor"
    for rank, lengths in enumerate(seen["lengths"]):
        if lengths != [min(share, sum(lengths) - start) for start in range(0, sum(lengths), share)]:
            return f"rank {rank} took {max(lengths)} at once, expected {share}: all together take {case.batch_size}"
    return seen["types"] != [expected] and (
        f"batches were of type {seen['types']}, expected {expected}: pass collate_fn on to the DataLoader, None too"
    )
