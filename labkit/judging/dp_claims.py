"""What must hold of dp.1, dp.2 and dp.4. Each claim is a function: its docstring says what must hold, and it gives None
where that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from labkit.judging import dp_probes as probes
from labkit.judging.evidence import Evidence, EvidenceMissing
from labkit.launch import launch

Claim = Callable[[Any], str | None]
TIMEOUT_S = 30.0  # an answer that is right takes a few seconds at most

# --- dp.1: shards ----------------------------------------------------------------------------------------------------


def gather_shards() -> Evidence:
    """Two ranks cut and load the same data sets; the first one's evidence, and the second one's cuts."""
    here, elsewhere = launch(probes.probe_shards, world_size=2, backend="gloo", init=False, timeout_s=TIMEOUT_S).values
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


# --- dp.2: processes -------------------------------------------------------------------------------------------------


def gather_processes() -> dict[str, Evidence]:
    """What run_processes did with ranks that work, with one that fails, and interrupted: each tried in a rank of its own."""
    runs = launch(probes.probe_processes, world_size=3, backend="gloo", init=False, timeout_s=TIMEOUT_S).values
    return {name: Evidence(run) for name, run in zip(("working", "failing", "interrupted"), runs, strict=True)}


def a_process_for_each_rank(runs: dict[str, Evidence]) -> str | None:
    """Each rank runs once, in a process of its own, and is told its rank, world size and backend."""
    run = runs["working"]
    run["outcome"]
    given = sorted(report["given"] for report in run["reports"])
    expected = [[rank, probes.RANKS, "gloo"] for rank in range(probes.RANKS)]
    if given != expected:
        return (
            f'run_processes(fn, {probes.RANKS}, "gloo") returned after fn was done for {len(given)} ranks {given}, expected '
            f"{expected}: start one process for each rank, and join all of them before returning"
        )
    if len({report["process"] for report in run["reports"]} | {run["own process"]}) <= probes.RANKS:
        return "two ranks ran in the same process: each needs one of its own"
    return None


def ranks_form_a_group(runs: dict[str, Evidence]) -> str | None:
    """setup makes one process group of all ranks, in which each has its rank."""
    reports = _reports(runs)
    for report in reports:
        if report["group"] != report["given"]:
            return (
                f"a rank told (rank, world size, backend) = {tuple(report['given'])} found itself {tuple(report['group'])} in "
                "the process group: pass on what setup is given"
            )
        if report["total"] != int("1" * probes.RANKS):
            return f"an all_reduce of 1, 10, 100 gave {report['total']}, expected 111: the ranks are not in one group"
    return None


def nothing_listens_to_others(runs: dict[str, Evidence]) -> str | None:
    """Nothing listens beyond this machine."""
    if any(report["open to others"] for report in _reports(runs)):
        return "a rank accepted connections from other machines: form the group through a loopback_store"
    return None


def no_process_is_left(runs: dict[str, Evidence]) -> str | None:
    """When run_processes is done, so are its processes."""
    _reports(runs)
    if left := runs["working"]["left"]:
        return f"{left} of {probes.RANKS} were still running: join every process"
    return None


def failure_is_raised(runs: dict[str, Evidence]) -> str | None:
    """A rank that fails makes run_processes raise."""
    try:
        runs["failing"]["outcome"]
    except Exception:
        return None
    return "a rank raised RuntimeError, and run_processes returned as if all were well: look at how each process ended"


def failure_ends_the_others(runs: dict[str, Evidence]) -> str | None:
    """A rank that fails ends the others, at once."""
    run = runs["failing"]
    if not run["started"]:
        raise EvidenceMissing("no rank had begun when run_processes returned: join the processes")
    if run["reports"]:
        return (
            "rank 1 failed, and rank 0 went on to its end all the same. Joined one after the other, rank 0 is waited for "
            "first: wait for whichever ends first (context.join does), then end the rest"
        )
    if run["left"]:
        return "rank 1 failed, and rank 0 was still running when run_processes was done: end it, and join it"
    return None


def an_interrupt_ends_the_ranks(runs: dict[str, Evidence]) -> str | None:
    """A keyboard interrupt ends the ranks."""
    run = runs["interrupted"]
    if not run["started"]:
        raise EvidenceMissing("no rank had begun when run_processes returned: join the processes")
    if run["left"]:
        return (
            "a keyboard interrupt while run_processes was waiting left the rank running: wait in a try block, and end "
            "and join every process in its finally block"
        )
    return None


def _reports(runs: dict[str, Evidence]) -> list[dict[str, Any]]:
    runs["working"]["outcome"]
    if not (reports := runs["working"]["reports"]):
        raise EvidenceMissing("no rank had come to its end when run_processes returned: join the processes")
    return reports


# --- dp.4: gradients -------------------------------------------------------------------------------------------------


def gather_gradients() -> list[dict[str, Any]]:
    """The gradients of a batch cut over three ranks, from each of them."""
    return launch(probes.probe_gradients, world_size=3, backend="gloo", timeout_s=TIMEOUT_S, threads=1).values


def mean_is_the_gradient_of_the_batch(ranks: list[dict[str, Any]]) -> str | None:
    """After it, every rank has the gradient of the whole batch, as a single process computes it."""
    whole = probes.small_model()
    probes.gradients(whole, slice(None))
    expected = {name: grad for name, grad in probes.gradients_by_name(whole).items() if grad is not None}
    wrong = [
        (rank, name)
        for rank, found in enumerate(ranks)
        for name, gradient in expected.items()
        if not _close(found["averaged"][name], gradient)
    ]
    if not wrong:
        return None
    rank, name = wrong[0]
    some = "" if len(wrong) == len(ranks) * len(expected) else "not all are wrong: go through every parameter. "
    return (
        f"on rank {rank}, the gradient of {name} {_compare(ranks, rank, name, expected[name])}. {some}".strip(". ")
        + "."
    )


def _compare(ranks: list[dict[str, Any]], rank: int, name: str, expected: Any) -> str:
    """In what way a gradient is wrong."""
    found, n = ranks[rank]["averaged"][name], len(ranks)
    if found is None:
        return "is gone (None): change it in place, or put the mean there"
    for other in range(n):
        if all(_close(each["averaged"][name], ranks[other]["own"][name]) for each in ranks):
            return f"is that of rank {other}'s shard, on every rank: take the mean over all ranks"
    if _close(found, ranks[rank]["own"][name]):
        return (
            "is still that of the rank's own shard: sum it over the ranks with all_reduce, then divide by their number"
        )
    if _close(found, expected * n):
        return f"is {n} times too large: it is the sum over {n} ranks, divide it by the world size"
    if _close(found, expected / n):
        return f"is {n} times too small: it is the mean divided by the world size once more"
    if _close(found, ranks[rank]["own"][name] / n):
        return f"is that of its own shard divided by {n}: sum over the ranks as well"
    return "is neither the mean over the ranks, nor their sum, nor its own: sum with all_reduce, divide by get_world_size()"


def all_ranks_agree(ranks: list[dict[str, Any]]) -> str | None:
    """After it, all ranks have the same gradients, to the last bit."""
    for name, gradient in ranks[0]["averaged"].items():
        for rank, found in enumerate(ranks):
            other = found["averaged"][name]
            if (other is None) != (gradient is None) or (gradient is not None and not bool((other == gradient).all())):
                return f"rank 0 and rank {rank} differ in the gradient of {name}: their models would drift apart"
    return None


def no_gradient_stays_none(ranks: list[dict[str, Any]]) -> str | None:
    """A parameter without a gradient, frozen or not used, stays without one."""
    for found in ranks:
        for name, own in found["own"].items():
            if own is None and found["averaged"][name] is not None:
                return f"{name} had no gradient and was given one, so an optimizer would change it: leave out grad None"
    return None


def weights_stay(ranks: list[dict[str, Any]]) -> str | None:
    """The parameters themselves stay as they are."""
    for name, weight in probes.small_model().state_dict().items():
        if any(not bool((found["weights"][name] == weight).all()) for found in ranks):
            return f"{name} has changed: average parameter.grad, not the parameter"
    return None


def _close(found: Any, expected: Any) -> bool:
    return found is not None and found.shape == expected.shape and bool(found.allclose(expected, rtol=1e-9, atol=1e-12))


# --- what check reads ------------------------------------------------------------------------------------------------

GATHER: dict[str, Callable[[], Any]] = {"dp.1": gather_shards, "dp.2": gather_processes, "dp.4": gather_gradients}

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "dp.1": (
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
    ),
    "dp.2": (
        a_process_for_each_rank,
        ranks_form_a_group,
        nothing_listens_to_others,
        no_process_is_left,
        failure_is_raised,
        failure_ends_the_others,
        an_interrupt_ends_the_ranks,
    ),
    "dp.4": (mean_is_the_gradient_of_the_batch, all_ranks_agree, no_gradient_stays_none, weights_stay),
}
