"""What must hold of dp.3 and dp.4, two ways to average gradients. Each claim is a function: its docstring says what must
hold, and it gives None where that holds, else what is wrong and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.judging import gradients_probes as probes
from labkit.judging.evidence import Evidence
from labkit.judging.in_ranks import try_in_ranks

WORLD_SIZE = 3


@dataclass(frozen=True)
class Averaged:
    """What became of the gradients on each rank, in rank order, and ``way``: how they should be averaged, in words."""

    ranks: list[Evidence]
    way: str


def gather_by_all_reduce() -> Averaged:
    """The gradients of a batch cut over three ranks, from each of them, after average_gradients."""
    ranks = try_in_ranks(probes.probe_average_gradients, world_size=WORLD_SIZE)
    return Averaged(list(map(Evidence, ranks)), "sum with all_reduce, divide by get_world_size()")


def gather_through_rank_0() -> Averaged:
    """The same after gather_scatter_gradients, and what was called."""
    ranks = try_in_ranks(probes.probe_gather_scatter, world_size=WORLD_SIZE)
    way = "gather on rank 0, take the mean there, scatter it, and put what arrives into the gradient"
    return Averaged(list(map(Evidence, ranks)), way)


# --- either way ------------------------------------------------------------------------------------------------------


def mean_is_the_gradient_of_the_batch(averaged: Averaged) -> str | None:
    """After it, every rank has the gradient of the whole batch, as a single process computes it."""
    expected = _whole_batch()
    wrong = [
        (rank, name)
        for rank, found in enumerate(averaged.ranks)
        for name, gradient in expected.items()
        if not _close(found["averaged"][name], gradient)
    ]
    if not wrong:
        return None
    rank, name = wrong[0]
    some = (
        "" if len(wrong) == WORLD_SIZE * len(expected) else ". Not all are wrong: go through every parameter and rank"
    )
    return f"on rank {rank}, the gradient of {name} {_compare(averaged, rank, name, expected[name])}{some}"


def _whole_batch() -> dict[str, Any]:
    """The gradients of the whole batch in one process, of the parameters that have one."""
    model = probes.small_model()
    probes.gradients(model, slice(None))
    return {name: gradient for name, gradient in probes.gradients_by_name(model).items() if gradient is not None}


def _compare(averaged: Averaged, rank: int, name: str, expected: Any) -> str:
    """In what way a gradient is wrong."""
    ranks, n = averaged.ranks, WORLD_SIZE
    found, own = ranks[rank]["averaged"][name], ranks[rank]["own"][name]
    if found is None:
        return "is gone (None): change it in place, or put the mean there"
    for other in range(n):
        if all(_close(each["averaged"][name], ranks[other]["own"][name]) for each in ranks):
            return f"is that of rank {other}'s shard, on every rank: take the mean over all ranks"
    if _close(found, own):
        return f"is still that of the rank's own shard: {averaged.way}"
    if _close(found, expected * n):
        return f"is {n} times too large: it is the sum over {n} ranks, divide it by the world size"
    if _close(found, expected / n):
        return f"is {n} times too small: it is the mean divided by the world size once more"
    if _close(found, own / n):
        return f"is that of its own shard divided by {n}: sum over the ranks as well"
    return f"is neither the mean over the ranks, nor their sum, nor its own: {averaged.way}"


def all_ranks_agree(averaged: Averaged) -> str | None:
    """After it, all ranks have the same gradients, to the last bit."""
    for name, gradient in averaged.ranks[0]["averaged"].items():
        for rank, found in enumerate(averaged.ranks):
            other = found["averaged"][name]
            if (other is None) != (gradient is None) or (gradient is not None and not bool((other == gradient).all())):
                return f"rank 0 and rank {rank} differ in the gradient of {name}: their models would drift apart"
    return None


def no_gradient_stays_none(averaged: Averaged) -> str | None:
    """A parameter without a gradient, frozen or not used, stays without one."""
    for found in averaged.ranks:
        for name, own in found["own"].items():
            if own is None and found["averaged"][name] is not None:
                return f"{name} had no gradient and was given one, so an optimizer would change it: leave out grad None"
    return None


def weights_stay(averaged: Averaged) -> str | None:
    """The parameters themselves stay as they are."""
    for name, weight in probes.small_model().state_dict().items():
        if any(not bool((found["weights"][name] == weight).all()) for found in averaged.ranks):
            return f"{name} has changed: average parameter.grad, not the parameter"
    return None


def a_group_averages_among_its_ranks(averaged: Averaged) -> str | None:
    """With a process_group, its ranks average among themselves."""
    for rank, found in enumerate(averaged.ranks):
        if "in groups" not in found:
            continue
        members = averaged.ranks[:2] if rank < 2 else [found]
        for name, own in found["own"].items():
            if own is not None and not _close(
                found["in groups"][name], sum(m["own"][name] for m in members) / len(members)
            ):
                return (
                    f"on rank {rank}, whose group has {len(members)} of {WORLD_SIZE} ranks, the gradient of {name} is not the "
                    "mean over these: all_reduce and get_world_size both take group=process_group"
                )
    return None


def _close(found: Any, expected: Any) -> bool:
    return found is not None and found.shape == expected.shape and bool(found.allclose(expected, rtol=1e-9, atol=1e-12))


# --- through rank 0 --------------------------------------------------------------------------------------------------


def everything_goes_through_rank_0(averaged: Averaged) -> str | None:
    """Gradients are gathered by rank 0 and scattered by rank 0, by no other operation and no other rank."""
    for rank, found in enumerate(averaged.ranks):
        called = {name for name, _, _ in found["calls"]}
        if others := sorted(called - {"gather", "scatter"}):
            return f"rank {rank} called {' and '.join(others)}: {averaged.way}. The other ways are other tasks"
        if missing := [name for name in ("gather", "scatter") if name not in called]:
            return f"rank {rank} did not call dist.{' or dist.'.join(missing)}: {averaged.way}"
        if roots := sorted({root for _, _, root in found["calls"]} - {0}):
            return f"rank {rank} gathered on or scattered from rank {roots[0]}: let rank 0 do both"
    return None


def each_gradient_travels_once(averaged: Averaged) -> str | None:
    """Each rank gives rank 0 its gradients once, and takes as much back."""
    for rank, found in enumerate(averaged.ranks):
        expected = sum(gradient.nbytes for gradient in found["own"].values() if gradient is not None)
        for name, what in (("gather", "gave {} bytes to gather"), ("scatter", "took {} bytes from scatter")):
            total = sum(n_bytes for called, n_bytes, _ in found["calls"] if called == name)
            if total != expected:
                return (
                    f"rank {rank} {what.format(total)}, and its gradients have {expected} bytes. Average on rank 0, so that "
                    "each gradient goes there once and its mean comes back once"
                )
    return None


def any_strides_do(averaged: Averaged) -> str | None:
    """A gradient that is not contiguous is averaged as well."""
    expected = _whole_batch()
    for rank, found in enumerate(averaged.ranks):
        for name, gradient in expected.items():
            if not _close(found["transposed"][name], gradient):
                return (
                    f"on rank {rank}, the gradient of {name} is wrong if it lies transposed in memory. Communicate "
                    "gradient.contiguous(), which may be a copy, and copy what arrives back into the gradient"
                )
    return None


# --- what check reads ------------------------------------------------------------------------------------------------

EITHER_WAY = (mean_is_the_gradient_of_the_batch, all_ranks_agree, no_gradient_stays_none, weights_stay)
BY_ALL_REDUCE = (*EITHER_WAY, a_group_averages_among_its_ranks)
THROUGH_RANK_0 = (*EITHER_WAY, everything_goes_through_rank_0, each_gradient_travels_once, any_strides_do)
