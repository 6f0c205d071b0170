### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.1; test_answers.py says how they are written."""

from labkit.check import dp_1 as claims

SHUFFLE = "random.Random(seed).shuffle(order)"
CUTS = "cuts = [round(sum(sizes[:i]) * len(data)) for i in range(len(sizes) + 1)]"
SHARDS = "self.shards = [order[cuts[i] : cuts[i + 1]] for i in range(len(sizes))]"
SHARE, COLLATE = "batch_size // world_size", "collate_fn=collate_fn"
ROUNDED_DOWN = "cuts = [sum(int(size * len(data)) for size in sizes[:i]) for i in range(len(sizes) + 1)]"
ROUNDED_UP = "self.shards = [order[i : i + int(size * len(data)) + 1] for i, size in zip(cuts, sizes)]"
BY_EDGES = """edges = [0, *(int(sum(sizes[: i + 1]) * len(data) + 0.5) for i in range(len(sizes)))]
        self.shards = [order[a:b] for a, b in zip(edges, edges[1:])]"""

WRONG = {
    claims.partition_follows_its_index: {
        "ignores the index": ("[1000, 1007, 1014], expected data[1], data[0],", ("[self.index[i]]", "[i]")),
    },
    claims.each_sample_is_in_one_shard: {
        "rounds every size down": ("it left out 1 of 10. Cut at the sum", (CUTS, ROUNDED_DOWN)),
        "rounds every size up": ("more than once. Cut at the sum", (SHARDS, ROUNDED_UP)),
        "keeps its shards to itself": ("self.shards has 0 lists, expected 3, one for", ("self.shards =", "shards =")),
        "empty shards": ("it left out 10 of 10", (SHARDS, "self.shards = [[] for _ in sizes]")),
        "everything to every rank": ("gave 10 of 10 more than once", (SHARDS, "self.shards = [order for _ in sizes]")),
    },
    claims.shards_have_their_sizes: {
        "the rest to the last shard": ("of [25, 25, 25, 28]", (CUTS, ROUNDED_DOWN + "; cuts[-1] = len(data)")),
    },
    claims.samples_are_shuffled: {
        "not shuffled": ("in the order of the data set", (SHUFFLE, "")),
        "shuffled within each shard": (
            "from one half of the data set. Shuffle the samples' numbers with random.Random(seed) before the cut",
            (SHUFFLE, ""),
            (SHARDS, SHARDS + "\n        for shard in self.shards: random.Random(seed).shuffle(shard)"),
        ),
    },
    claims.seed_alone_decides: {
        "shuffled by the state of the process": (
            "two ranks cut different shards",
            (SHUFFLE, "drawn = random.getstate(); random.shuffle(order); random.setstate(drawn)"),
        ),
        "shuffled without a seed": ("the same rank, asked twice, cut", (SHUFFLE, "random.shuffle(order)")),
        "always the same seed": ("seed=99 gave the same shards", (SHUFFLE, "random.Random(1234).shuffle(order)")),
    },
    claims.data_stays: {
        "shuffles the data in place": ("the data set was changed", (SHUFFLE, "random.Random(seed).shuffle(data)")),
    },
    claims.loaders_give_their_shards: {
        "drops the last batch": ("drop_last", (COLLATE, COLLATE + ", drop_last=True")),
        "loads everything on every rank": ("gave 103 of 103 more", ("DataLoader(shard", "DataLoader(dataset")),
        "shuffles again in the loader": (
            "103 samples on 4 ranks with batch_size=32: rank 0 loaded its shard in another order each time",
            (COLLATE, COLLATE + ", shuffle=True"),
        ),
        "sorts in the loader": (
            "rank 0 loaded its shard in another order. It is shuffled already",
            ("return DataLoader(shard", "shard.index.sort(); return DataLoader(shard"),
        ),
    },
    claims.batches_are_as_asked_for: {
        "takes the global batch on each rank": ("rank 0 took 26 at once,", (SHARE, "batch_size")),
        "rounds the batch up": ("took 11 at once, expected 10", (SHARE, "-(-batch_size // world_size)")),
        "forgets collate_fn": ("pass collate_fn on", (", collate_fn=collate_fn", "")),
        "gives lists": ("of type ['list'], expected Tensor", (COLLATE, COLLATE + " or list")),
    },
    None: {
        "raises": ("it raised TypeError: list indices must be", (SHARDS, "self.shards = order[len(data) / 2]")),
    },
}
RIGHT = {"cuts at the sum of the sizes so far": [(SHARDS, BY_EDGES), ("batch_size=batch_size //", "batch_size //")]}
