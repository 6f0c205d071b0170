### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to dp.1, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import shards_claims as claims

RIGHT_ORDER = "order = list(range(len(data))); random.Random(seed).shuffle(order)"
RIGHT_CUT = """
        edges, share = [0], 0.0
        for size in sizes:
            share += size
            edges.append(int(share * len(data) + 0.5))
        self.shards = [order[a:b] for a, b in zip(edges, edges[1:])]"""


def partitioner(order: str = RIGHT_ORDER, cut: str = RIGHT_CUT) -> str:
    """A DataPartitioner that differs from a right one in how it orders or cuts."""
    return f"""
class DataPartitioner:
    def __init__(self, data, sizes, seed=1234):
        self.data = data
        {order}
        {cut.strip()}

    def use(self, rank):
        return Partition(self.data, self.shards[rank])
"""


def loader(body: str) -> str:
    return (
        "def partition_dataset(rank, world_size, dataset, batch_size=128, collate_fn=None):\n"
        "    shard = DataPartitioner(dataset, [1 / world_size] * world_size).use(rank)\n"
        f"    return DataLoader({body})\n"
    )


CUT_DOWN = "n = len(data); lengths = [int(size * n) for size in sizes]; "
SLICES = "self.shards = [order[sum(lengths[:i]):sum(lengths[:i + 1])] for i in range(len(sizes))]"
CUT_UP = """
        starts = [int(sum(sizes[:i]) * len(data)) for i in range(len(sizes))]
        self.shards = [order[start : start + int(size * len(data)) + 1] for start, size in zip(starts, sizes)]"""

WRONG = {
    "ignores the index": (
        claims.partition_follows_its_index,
        "Partition.__getitem__ = lambda self, i: self.data[i]",
        "expected data[4], data[9], data[0], data[4]",
    ),
    "rounds every size down": (
        claims.each_sample_is_in_one_shard,
        partitioner(cut=CUT_DOWN + SLICES),
        "1 is in no shard",
    ),
    "rounds every size up": (
        claims.each_sample_is_in_one_shard,
        partitioner(cut=CUT_UP),
        "there more than once",
    ),
    "empty shards": (
        claims.each_sample_is_in_one_shard,
        partitioner(cut="self.shards = [[] for _ in sizes]"),
        "10 are in no shard",
    ),
    "everything to every rank": (
        claims.each_sample_is_in_one_shard,
        partitioner(cut="self.shards = [order for _ in sizes]"),
        "10 are there more than once",
    ),
    "the rest to the last shard": (
        claims.shards_have_their_sizes,
        partitioner(cut=CUT_DOWN + "lengths[-1] += n - sum(lengths); " + SLICES),
        "gave shards of [25, 25, 25, 28]",
    ),
    "not shuffled": (
        claims.samples_are_shuffled,
        partitioner("order = list(range(len(data)))"),
        "order of the data set",
    ),
    "shuffled within each shard": (
        claims.samples_are_shuffled,
        partitioner(
            "order = list(range(len(data)))",
            RIGHT_CUT + "\n        for shard in self.shards: random.Random(seed).shuffle(shard)",
        ),
        "shuffle before the cut",
    ),
    "shuffled without a seed": (
        claims.ranks_cut_alike,
        partitioner("order = list(range(len(data))); random.shuffle(order)"),
        "two ranks cut different shards",
    ),
    "one random order after another": (
        claims.ranks_cut_alike,
        "_random = random.Random(1234)\n" + partitioner("order = list(range(len(data))); _random.shuffle(order)"),
        "different shards the second time",
    ),
    "always the same seed": (
        claims.seed_decides,
        partitioner("order = list(range(len(data))); random.Random(1234).shuffle(order)"),
        "seed=99 gave the same shards",
    ),
    "shuffles the data in place": (
        claims.data_stays,
        partitioner("order = list(range(len(data))); random.Random(seed).shuffle(data)"),
        "shuffled in place",
    ),
    "drops the last batch": (
        claims.loaders_cover_the_data,
        loader("shard, batch_size // world_size, collate_fn=collate_fn, drop_last=True"),
        "drop_last",
    ),
    "loads everything on every rank": (
        claims.loaders_cover_the_data,
        loader("dataset, batch_size // world_size, collate_fn=collate_fn"),
        "103 are there more than once",
    ),
    "takes the global batch on each rank": (
        claims.batch_size_is_global,
        loader("shard, batch_size, collate_fn=collate_fn"),
        "rank 0 took 26 at once, expected 8",
    ),
    "rounds the batch up": (
        claims.batch_size_is_global,
        loader("shard, -(-batch_size // world_size), collate_fn=collate_fn"),
        "took 11 at once, expected 10",
    ),
    "forgets collate_fn": (
        claims.batches_are_collated,
        loader("shard, batch_size // world_size"),
        "pass collate_fn on",
    ),
    "raises": (
        claims.each_sample_is_in_one_shard,
        partitioner(cut="self.shards = order[len(data) / 2]"),
        "it raised TypeError: list indices must be integers or slices, not float (labkit/dp.py, line ",
    ),
}

RIGHT = {
    "cuts at the sum of the sizes so far": partitioner()
    + loader("shard, batch_size=batch_size // world_size, collate_fn=collate_fn")
}
