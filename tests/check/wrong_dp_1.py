### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.1; test_answers.py says how they are written."""

from __future__ import annotations

from labkit.check import dp_1 as claims

SHUFFLE = "random.Random(seed).shuffle(order)"
CUTS = "cuts = [round(sum(sizes[:i]) * len(data)) for i in range(len(sizes) + 1)]"
SHARDS = "self.shards = [order[cuts[i] : cuts[i + 1]] for i in range(len(sizes))]"
LOADER = "DataLoader(shard, batch_size=batch_size // world_size, collate_fn=collate_fn)"
ROUNDED_DOWN = "cuts = [sum(int(size * len(data)) for size in sizes[:i]) for i in range(len(sizes) + 1)]"
ROUNDED_UP = (
    "starts = [int(sum(sizes[:i]) * len(data)) for i in range(len(sizes))]\n        "
    "self.shards = [order[start : start + int(size * len(data)) + 1] for start, size in zip(starts, sizes)]"
)
BY_EDGES = """edges, share = [0], 0.0
        for size in sizes:
            share += size
            edges.append(int(share * len(data) + 0.5))
        self.shards = [order[a:b] for a, b in zip(edges, edges[1:])]"""

BY_CLAIM = {
    claims.partition_follows_its_index: {
        "ignores the index": ("expected data[4], data[9], data[0],", ("self.data[self.index[i]]", "self.data[i]")),
    },
    claims.each_sample_is_in_one_shard: {
        "rounds every size down": ("1 is in no shard", (CUTS, ROUNDED_DOWN)),
        "rounds every size up": ("there more than once", (SHARDS, ROUNDED_UP)),
        "keeps its shards to itself": ("self.shards has 0 lists, expected 3, one for", ("self.shards =", "shards =")),
        "empty shards": ("10 are in no shard", (SHARDS, "self.shards = [[] for _ in sizes]")),
        "everything to every rank": ("10 are there more than once", (SHARDS, "self.shards = [order for _ in sizes]")),
    },
    claims.shards_have_their_sizes: {
        "the rest to the last shard": (
            "gave shards of [25, 25, 25, 28]",
            (CUTS, ROUNDED_DOWN + "; cuts[-1] = len(data)"),
        ),
    },
    claims.samples_are_shuffled: {
        "not shuffled": ("order of the data set", (SHUFFLE, "")),
        "shuffled within each shard": (
            "shuffle before the cut",
            (SHUFFLE, ""),
            (SHARDS, SHARDS + "\n        for shard in self.shards: random.Random(seed).shuffle(shard)"),
        ),
    },
    claims.ranks_cut_alike: {
        "shuffled by the state of the process": (
            "two ranks cut different shards",
            (SHUFFLE, "drawn = random.getstate(); random.shuffle(order); random.setstate(drawn)"),
        ),
        "shuffled without a seed": ("the second time it gave different shards", (SHUFFLE, "random.shuffle(order)")),
    },
    claims.seed_decides: {
        "always the same seed": ("seed=99 gave the same shards", (SHUFFLE, "random.Random(1234).shuffle(order)")),
    },
    claims.data_stays: {
        "shuffles the data in place": ("the data set was changed", (SHUFFLE, "random.Random(seed).shuffle(data)")),
    },
    claims.loaders_cover_the_data: {
        "drops the last batch": ("drop_last", ("collate_fn=collate_fn", "collate_fn=collate_fn, drop_last=True")),
        "loads everything on every rank": ("103 are there more than once", ("DataLoader(shard", "DataLoader(dataset")),
    },
    claims.loaders_keep_the_order: {
        "shuffles again in the loader": (
            "103 samples on 4 ranks with batch_size=32: rank 0 loaded its shard in another order each time",
            ("collate_fn=collate_fn", "collate_fn=collate_fn, shuffle=True"),
        ),
        "sorts in the loader": (
            "rank 0 loaded its shard in another order. The shard is shuffled already",
            ("return DataLoader(shard", "shard.index.sort(); return DataLoader(shard"),
        ),
    },
    claims.batch_size_is_global: {
        "takes the global batch on each rank": ("rank 0 took 26 at once,", ("batch_size // world_size", "batch_size")),
        "rounds the batch up": (
            "took 11 at once, expected 10",
            ("batch_size // world_size", "-(-batch_size // world_size)"),
        ),
    },
    claims.batches_are_collated: {
        "forgets collate_fn": ("pass collate_fn on", (", collate_fn=collate_fn", "")),
        "gives lists": (
            "of type ['list'], expected Tensor",
            ("collate_fn=collate_fn", "collate_fn=collate_fn or list"),
        ),
    },
    None: {
        "raises": ("it raised TypeError: list indices must be", (SHARDS, "self.shards = order[len(data) / 2]")),
    },
}
WRONG = {name: (claim, *rest) for claim, answers in BY_CLAIM.items() for name, rest in answers.items()}
FOLLOWS = ["ignores the index", "everything to every rank"]
OTHER_CAUSE = {"shuffled without a seed": ("seed=99", "shuffle off")}
RIGHT = {
    "cuts at the sum of the sizes so far": [
        (SHARDS, BY_EDGES),
        (LOADER, "DataLoader(shard, batch_size // world_size, collate_fn=collate_fn)"),
    ],
}
