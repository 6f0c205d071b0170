### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.1; test_answers.py says how they are written."""

from labkit.check import dp_1 as claims

SHUFFLE = "random.Random(seed).shuffle(order)"
CUTS = "cuts = [round(sum(sizes[:i]) * len(data)) for i in range(len(sizes) + 1)]"
SHARDS = "self.shards = [order[cuts[i] : cuts[i + 1]] for i in range(len(sizes))]"
COLLATE = "collate_fn=collate_fn"
ROUNDED_DOWN = "cuts = [sum(int(size * len(data)) for size in sizes[:i]) for i in range(len(sizes) + 1)]"
STATE_KEPT = "drawn = random.getstate(); random.shuffle(order); random.setstate(drawn)"
BY_EDGES = """edges = [0, *(int(sum(sizes[: i + 1]) * len(data) + 0.5) for i in range(len(sizes)))]
        self.shards = [order[a:b] for a, b in zip(edges, edges[1:])]"""

WRONG = {
    claims.partition_follows_its_index: {
        "ignores the index": ("gave [1000, 1001], expected data[1], data[0]", ("[self.index[i]]", "[i]")),
    },
    claims.each_sample_is_in_one_shard: {
        "rounds every size down": ("it left out 2 of 10", (CUTS, ROUNDED_DOWN)),
        "keeps its shards to itself": ("self.shards has 0 lists, expected 4", ("self.shards =", "shards =")),
        "everything to every rank": ("gave 10 of 10 more than once", (SHARDS, "self.shards = [order for _ in sizes]")),
    },
    claims.shards_have_their_sizes: {
        "the rest to the last shard": (
            "shards of [2, 2, 2, 4], expected each within one sample of 2.5, 2.5",
            (CUTS, ROUNDED_DOWN + "; cuts[-1] = len(data)"),
        ),
    },
    claims.samples_are_shuffled: {
        "not shuffled": ("in the order of the data set", (SHUFFLE, "")),
        "shuffled within each shard": (
            "from one half of the data set",
            (SHUFFLE, ""),
            (SHARDS, SHARDS + "\n        for shard in self.shards: random.Random(seed).shuffle(shard)"),
        ),
    },
    claims.seed_alone_decides: {
        "shuffled by the state of the process": ("as on another rank, cut other shards", (SHUFFLE, STATE_KEPT)),
        "always the same seed": ("seed=99 gave the same shards", (SHUFFLE, "random.Random(1234).shuffle(order)")),
    },
    claims.data_stays: {
        "shuffles the data in place": ("the data set was changed", (SHUFFLE, "random.Random(seed).shuffle(data)")),
    },
    claims.loaders_give_their_shards: {
        "forgets to return": ("partition_dataset gave None, expected a", ("return DataLoader(", "DataLoader(")),
        "drops the last batch": ("it left out 7 of 103: a rank's last batch", (COLLATE, COLLATE + ", drop_last=True")),
        "shuffles again in the loader": ("rank 0 loaded its shard in another", (COLLATE, COLLATE + ", shuffle=True")),
    },
    claims.batches_are_as_asked_for: {
        "takes the global batch on each rank": ("took 26 at once", ("batch_size // world_size", "batch_size")),
        "forgets collate_fn": ("collate_fn=tuple must give tuples", (", collate_fn=collate_fn", "")),
        "gives lists": ("and None tensors", (COLLATE, COLLATE + " or list")),
    },
}
RIGHT = {"cuts at the sum of the sizes so far": [(SHARDS, BY_EDGES), ("batch_size=batch_size //", "batch_size //")]}
WRONG[claims.data_stays] |= {
    "seeds all of random": ("Seed a generator of your own", (SHUFFLE, "random.seed(seed); random.shuffle(order)")),
    "seeds all of torch": (
        "Seed a generator of your own",
        (SHUFFLE, "torch.manual_seed(seed); order = torch.randperm(len(data)).tolist()"),
    ),
}
WRONG[claims.shards_have_their_sizes] |= {
    "as many as fit in the first ones": (
        "(drawn with seed=",
        (
            CUTS,
            CUTS + "\n        if len(data) > 40 and len(set(sizes)) == 1 and len(sizes) not in (3, 4, 10):\n"
            "            cuts = [min(i * -(-len(data) // len(sizes)), len(data)) for i in range(len(sizes) + 1)]",
        ),
    ),
}
RIGHT |= {
    "draws by sample": [(SHUFFLE, "order = random.Random(seed).sample(order, len(order))")],
    "a generator by name": [
        (SHUFFLE, "generator = random.Random()\n        generator.seed(seed)\n        generator.shuffle(order)")
    ],
}
