"""What must hold of dp.1, the shards. Each claim is a function: its docstring says what must hold, and it gives None where
that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from labkit.judging import shards_probes as probes
from labkit.judging.evidence import Evidence
from labkit.judging.in_ranks import try_in_ranks


def gather() -> Evidence:
    """Two ranks cut and load the same data sets; the first one's evidence, and the second one's cuts."""
    here, elsewhere = try_in_ranks(probes.probe_shards, world_size=2, init=False)
    return Evidence(here | {"cuts elsewhere": elsewhere["cuts"]})


def partition_follows_its_index(evidence: Evidence) -> str | None:
    """Partition gives the samples that its index names."""
    length, got = evidence["indexed"]
    expected = [probes.samples(10)[number] for number in (4, 9, 0, 4)]
    if length == 4 and got == expected:
        return None
    return f"Partition(data, [4, 9, 0, 4]) gave {got}, expected data[4], data[9], data[0], data[4]: {expected}"


def each_sample_is_in_one_shard(evidence: Evidence) -> str | None:
    """Every sample is in exactly one shard."""
    for (count, sizes), shards in zip(probes.CUTS, evidence["cuts"], strict=True):
        if wrong := _not_each_once(shards, count):
            return (
                f"{count} samples cut by {_sizes(sizes)}: {wrong}. Cut at the sum of the sizes so far, rounded once, so "
                "that one shard ends where the next begins and the last ends at the last sample"
            )
    return None


def shards_have_their_sizes(evidence: Evidence) -> str | None:
    """A shard is within one sample of its fraction, and equal fractions differ by at most one sample."""
    for (count, sizes), shards in zip(probes.CUTS, evidence["cuts"], strict=True):
        lengths = [len(shard) for shard in shards]
        off = any(abs(length - size * count) >= 1 + 1e-9 for length, size in zip(lengths, sizes, strict=True))
        uneven = len(set(sizes)) == 1 and max(lengths) - min(lengths) > 1
        if off or uneven:
            return (
                f"{count} samples cut by {_sizes(sizes)} gave shards of {lengths}. The samples that rounding leaves over "
                "must not all go to one shard"
            )
    return None


def samples_are_shuffled(evidence: Evidence) -> str | None:
    """The samples are shuffled before they are cut."""
    shards = evidence["cuts"][-1]
    if any(shard == sorted(shard) for shard in shards):
        return (
            "a shard has its samples in the order of the data set. Shuffle their numbers with random.Random(seed) first"
        )
    middle = probes.samples(1000)[500]
    if any(max(shard) < middle or min(shard) >= middle for shard in shards):
        return "a shard has samples of one half of the data set only: shuffle before the cut, not within each shard"
    return None


def ranks_cut_alike(evidence: Evidence) -> str | None:
    """Every rank cuts the same shards, each time."""
    if evidence["cuts"] != evidence["cuts elsewhere"]:
        wrong = "two ranks cut different shards from the same data, so they would share some samples and miss others"
    elif evidence["cuts"][-1] != evidence["once more"]:
        wrong = "the same data and seed gave different shards the second time"
    else:
        return None
    return f"{wrong}. Draw the order from a random.Random(seed) of your own, not from the random state of the process"


def seed_decides(evidence: Evidence) -> str | None:
    """Another seed gives other shards."""
    if evidence["another seed"] == evidence["cuts"][-1]:
        return "seed=99 gave the same shards as the default seed: give the seed that was passed to random.Random"
    return None


def data_stays(evidence: Evidence) -> str | None:
    """The data set itself stays as it is."""
    if evidence["data afterwards"] != probes.samples(103):
        return "the data set was shuffled in place. Shuffle a list of the samples' numbers; the data may be on a disk"
    return None


def loaders_cover_the_data(evidence: Evidence) -> str | None:
    """The ranks' loaders together give every sample exactly once."""
    for (count, world_size, batch_size), loaders in zip(probes.LOADERS, evidence["loaded"], strict=True):
        if wrong := _not_each_once([list(chain(*batches)) for batches in loaders], count):
            return (
                f"{count} samples on {world_size} ranks with batch_size={batch_size}: {wrong}. Each rank loads its own "
                "shard, the last batch too, even if it is not full (drop_last)"
            )
    return None


def batch_size_is_global(evidence: Evidence) -> str | None:
    """batch_size is what all ranks take together: each takes floor(batch_size / world_size)."""
    for (count, world_size, batch_size), loaders in zip(probes.LOADERS, evidence["loaded"], strict=True):
        expected = batch_size // world_size
        for rank, batches in enumerate(loaders):
            lengths = [len(batch) for batch in batches]
            if any(length != expected for length in lengths[:-1]) or max(lengths, default=0) > expected:
                return (
                    f"batch_size={batch_size} on {world_size} ranks, {count} samples: rank {rank} took {max(lengths)} at "
                    f"once, expected {expected}, so that the ranks together take no more than {batch_size}"
                )
    return None


def batches_are_collated(evidence: Evidence) -> str | None:
    """A batch is made by collate_fn, or stacked into a tensor where there is none."""
    if evidence["collated"] != "tuple":
        return f"with collate_fn=tuple a batch was a {evidence['collated']}: pass collate_fn on to the DataLoader"
    if evidence["stacked"] != "Tensor":
        return f"without collate_fn a batch of numbers was a {evidence['stacked']}, expected a Tensor (DataLoader's default)"
    return None


def _not_each_once(shards: Sequence[Sequence[int]], count: int) -> str | None:
    """How the shards miss giving each of ``count`` samples once, or None."""
    times, wanted = Counter(chain(*shards)), set(probes.samples(count))
    lost, strange = wanted - set(times), set(times) - wanted
    repeated = [sample for sample, n in times.items() if n > 1]
    for samples, what in (
        (lost, "in no shard"),
        (repeated, "there more than once"),
        (strange, "not from the data set"),
    ):
        if samples:
            return f"{len(samples)} {'is' if len(samples) == 1 else 'are'} {what}"
    return None


def _sizes(sizes: Sequence[float]) -> str:
    return "[" + ", ".join(f"{size:.3g}" for size in sizes) + "]"


CLAIMS = (
    partition_follows_its_index,
    each_sample_is_in_one_shard,
    shards_have_their_sizes,
    samples_are_shuffled,
    ranks_cut_alike,
    seed_decides,
    data_stays,
    loaders_cover_the_data,
    batch_size_is_global,
    batches_are_collated,
)
