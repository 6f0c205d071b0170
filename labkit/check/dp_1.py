"""dp.1: Partition, DataPartitioner and partition_dataset cut and load data sets."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain
from typing import Any, NamedTuple

from labkit.check.harness import Finding, Task


class Case(NamedTuple):
    """A data set that is cut, and with a ``batch_size`` also loaded by a rank for each shard."""

    samples: int
    sizes: list[float]
    batch_size: int = 0

    def __str__(self) -> str:
        load = f"on {len(self.sizes)} ranks with batch_size={self.batch_size}"
        return f"{self.samples} samples {load if self.batch_size else f'cut by {self.sizes}'}"

    def data(self) -> list[int]:
        return list(range(1000, 1000 + self.samples))  # samples that differ from every sample's index

    def observe(self) -> Any:
        from torch import get_rng_state
        from torch.utils.data import DataLoader

        from labkit import dp

        def cut(data: list[int], **seed: int) -> list[list[int]]:
            partitioner = dp.DataPartitioner(data, self.sizes, **seed)
            shards = map(partitioner.use, range(len(partitioner.shards)))
            return [[shard[i] for i in range(len(shard))] for shard in shards]

        data, picked = self.data(), dp.Partition(self.data(), [1, 0])
        random.seed(0)
        before = random.getstate(), get_rng_state()
        seen: dict[str, Any] = {"picked": [picked[0], picked[1]], "shards": cut(data), "data": data}
        seen["seeded"] = random.getstate() != before[0] or not get_rng_state().equal(before[1])
        random.seed(1)  # as another rank's may be
        seen |= {"again": cut(self.data()), "seed 99": cut(self.data(), seed=99)}
        n = len(self.sizes) if self.batch_size else 0
        for key, collate_fn in (("batches", None), ("tuples", tuple)):
            options = n, self.data(), self.batch_size, collate_fn
            loaders = [dp.partition_dataset(rank, *options) for rank in range(n)]
            seen[key] = [[*each] if isinstance(each, DataLoader) else each for each in loaders]
        return seen


HALVES, QUARTERS, LARGE = [0.5] * 2, [0.25] * 4, Case(1000, [0.1] * 10)


def drawn(draw: random.Random) -> list[Case]:
    """Return one sample more than ranks share evenly, and a batch with a remainder."""
    n = draw.randint(5, 7)
    batch_size = n * draw.randint(1, 4) + draw.randint(1, n - 1)
    return [Case(n * draw.randint(10, 20) + 1, [1 / n] * n, batch_size)]


CUTS: list[Any] = [Case(10, QUARTERS), Case(11, [0.7, 0.2, 0.1]), Case(2, QUARTERS), LARGE, drawn]
LOADS: list[Any] = [
    Case(103, QUARTERS, 32),
    Case(100, [1 / 3] * 3, 32),
    Case(64, HALVES, 64),
    Case(5, HALVES, 2),
    drawn,
]
TASK = Task(
    writes="Partition, DataPartitioner, partition_dataset",
    minutes=22,
    points=10,
    notebooks="01, 03",
    given=["_check_rank", "_check_sizes", "use"],
    hints=(
        """A size times the number of samples is seldom a whole number. If every shard rounds by itself, how
many samples do three equal shards of 10 have together?""",
        """Think of cuts instead of lengths: a shard goes from one cut to the next, so neighbours share a cut.
Shuffle the sample numbers once, with a generator of your own, and take what lies between two cuts.""",
        """Most people round each length, and lose a sample or give one away twice. Round the place where a
shard ends: the sum of all sizes up to it, times the number of samples. The loader's batch size is
that of all ranks together, so a rank takes its share of it, rounded down.""",
    ),
)


@TASK.claim(CUTS[:1])
def partition_follows_its_index(case: Case, seen: Any) -> Finding:
    """Partition gives the samples that its index names."""
    gave, expected = seen["picked"], [1001, 1000]
    return gave != expected and f"Partition(data, [1, 0]) gave {gave}, expected data[1], data[0]: {expected}"


@TASK.claim(CUTS, core=True)
def each_sample_is_in_one_shard(case: Case, seen: Any) -> Finding:
    """Every sample is in exactly one shard."""
    if (count := len(seen["shards"])) != len(case.sizes):
        return f"self.shards has {count} lists, expected {len(case.sizes)}, one for each size"
    return _not_each_once(case, seen["shards"])


def _not_each_once(case: Case, shards: list[list[int]]) -> str:
    times = Counter(chain(*shards))
    if lost := len(set(case.data()) - set(times)):
        return f"it left out {lost} of {case.samples}"
    repeated = sum(count > 1 for count in times.values())
    return f"it gave {repeated} of {case.samples} more than once" if repeated else ""


@TASK.claim(CUTS)
def shards_have_their_sizes(case: Case, seen: Any) -> Finding:
    """A shard is within one sample of its fraction, and equal fractions differ by at most one
    sample."""
    lengths = [len(shard) for shard in seen["shards"]]
    fair = [size * case.samples for size in case.sizes]
    off = any(abs(n - share) > 1 + 1e-9 for n, share in zip(lengths, fair, strict=True))
    uneven = len(set(case.sizes)) == 1 and max(lengths) - min(lengths) > 1
    expected = ", ".join(f"{share:g}" for share in fair)
    wrong = f"it gave shards of {lengths}, expected each within one sample of {expected}"
    return (off or uneven) and wrong


@TASK.claim([LARGE])
def samples_are_shuffled(case: Case, seen: Any) -> Finding:
    """The samples are shuffled before they are cut."""
    shards = [shard for shard in seen["shards"] if len(shard) > 1]
    in_order = any(shard == sorted(shard) for shard in shards)
    near = any(max(shard) - min(shard) < case.samples / 2 for shard in shards)
    how = "in the order of" if in_order else "from one half of"
    return (in_order or near) and f"a shard is {how} the data set"


@TASK.claim([LARGE])
def seed_alone_decides(case: Case, seen: Any) -> Finding:
    """Every rank cuts the same shards, each time, and others with another seed."""
    if seen["again"] != seen["shards"]:
        return "a second call, as on another rank, cut other shards"
    return seen["seed 99"] == seen["shards"] and "seed=99 gave the same shards as 1234"


@TASK.claim(CUTS[:1])
def data_stays(case: Case, seen: Any) -> Finding:
    """The data set itself stays as it is, and so do the random numbers of the process."""
    if seen["seeded"]:
        return "whatever else draws random numbers now draws the same on every rank. Seed a generator of your own"
    return seen["data"] != case.data() and "the data set was changed in place"


@TASK.claim(LOADS)
def loaders_give_their_shards(case: Case, seen: Any) -> Finding:
    """The ranks' loaders together give every sample exactly once, each in its shard's order."""
    for loaded in seen["batches"]:
        if not isinstance(loaded, list):
            return f"partition_dataset gave {loaded}, expected a DataLoader"
    first = [[int(x) for x in chain(*batches)] for batches in seen["batches"]]
    again = [[int(x) for x in chain(*batches)] for batches in seen["tuples"]]
    if wrong := _not_each_once(case, first):
        return f"{wrong}: a rank's last batch may be smaller than the others"
    for rank, (shard, loaded) in enumerate(zip(seen["shards"], first, strict=True)):
        if loaded != again[rank] or (loaded != shard and sorted(loaded) == sorted(shard)):
            return f"rank {rank} loaded its shard in another order than DataPartitioner's"


@TASK.claim(LOADS)
def batches_are_as_asked_for(case: Case, seen: Any) -> Finding:
    """Each rank takes floor(batch_size / world_size) samples at once, and collate_fn makes a batch
    of them."""
    share, batches, tuples = case.batch_size // len(case.sizes), seen["batches"], seen["tuples"]
    for rank, longest in enumerate(max(map(len, own), default=0) for own in batches):
        if longest != share:
            took = f"rank {rank} took {longest} at once, expected {share}"
            return f"{took}: all together take {case.batch_size}"
    # A tuple arrives here as a list.
    made = not isinstance(batches[0][0], list) and isinstance(tuples[0][0], list)
    return not made and "collate_fn=tuple must give tuples, and None tensors"
