"""What must hold of dp.6, the buckets. Each claim is a function: its docstring says what must hold, and it gives None where
that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.judging import buckets_probes as probes
from labkit.judging.evidence import EvidenceMissing, Failure, NotTried
from labkit.judging.in_ranks import try_in_ranks


def gather() -> list[Any]:
    """For each case the buckets that the answer gave, and the sizes as they were afterwards."""
    (found,) = try_in_ranks(probes.probe_buckets, world_size=1, init=False)
    return found


def each_parameter_is_in_one_bucket(found: list[Any]) -> str | None:
    """Every parameter is in exactly one bucket."""
    if no_buckets := next((got for got in found if isinstance(got, str)), None):
        return no_buckets
    for case, buckets in _tried(found):
        indices = [index for bucket in buckets for index in bucket]
        wanted = range(len(case.sizes))
        if lost := sorted(set(wanted) - set(indices)):
            return (
                f"{case} gave {buckets}: {_number(lost[0])} is in no bucket. Do not forget the last bucket that is open"
            )
        if twice := [index for index in wanted if indices.count(index) > 1]:
            return f"{case} gave {buckets}: {_number(twice[0])} is there twice. A parameter is never split over buckets"
        if strange := sorted(set(indices) - set(wanted)):
            return f"{case} gave {buckets}: there is no {_number(strange[0])}. Parameters are counted from 0"
    return None


def from_the_last_to_the_first(found: list[Any]) -> str | None:
    """Parameters come from the last to the first, from bucket to bucket and within each."""
    for case, buckets in _tried(found):
        indices = [index for bucket in buckets for index in bucket]
        if indices != sorted(indices, reverse=True):
            return (
                f"{case} gave {buckets}: expected numbers that go down, because the backward pass makes the gradients of the "
                "last parameters first"
            )
    return None


def a_bucket_closes_only_once_full(found: list[Any]) -> str | None:
    """A bucket takes parameters until it has reached the capacity, even if the last one takes it beyond."""
    for case, buckets in _tried(found):
        for number, bucket in enumerate(buckets[:-1]):
            if case.first_cap is None and bucket and _total(case, bucket) < case.cap:
                return (
                    f"{case} gave {buckets}: bucket {number} was closed at {_total(case, bucket)} bytes, before it had reached "
                    f"{case.cap}. It still takes the next parameter, as it is, and is closed after that"
                )
    return None


def a_full_bucket_takes_no_more(found: list[Any]) -> str | None:
    """A bucket that has reached the capacity takes no more, and there is no bucket without a parameter."""
    for case, buckets in _tried(found):
        for number, bucket in enumerate(buckets):
            if not bucket:
                return (
                    f"{case} gave {buckets}: bucket {number} is empty. Open a bucket when there is a parameter for it"
                )
            if case.first_cap is None and _total(case, bucket[:-1]) >= case.cap:
                return (
                    f"{case} gave {buckets}: bucket {number} had reached {case.cap} bytes before it took {_number(bucket[-1])}. "
                    "Close a bucket as soon as its bytes are the capacity or more"
                )
    return None


def first_cap_is_for_the_first(found: list[Any]) -> str | None:
    """first_cap_bytes, if given, is the capacity of the first bucket, and of no other."""
    for case, buckets in _tried(found):
        if case.first_cap is None:
            continue
        for number, bucket in enumerate(buckets):
            cap = case.cap if number else case.first_cap
            total, before = _total(case, bucket), _total(case, bucket[:-1])
            if before >= cap or (total < cap and number < len(buckets) - 1):
                return f"{case} gave {buckets}: bucket {number} has {total} bytes, and its capacity is {cap}"
    return None


def sizes_stay(found: list[Any]) -> str | None:
    """The list of sizes stays as it is."""
    list(_tried(found))
    for case, (_, afterwards) in zip(probes.cases(), found, strict=True):
        if afterwards != case.sizes:
            return (
                f"{case} left the list as {afterwards}. Go through it backwards without changing it: it is the caller's"
            )
    return None


def as_torch_does(found: list[Any]) -> str | None:
    """The buckets are those of torch's DistributedDataParallel."""
    for case, buckets in _tried(found):
        if case.sizes and buckets != (expected := _by_torch(case)):
            return f"{case} gave {buckets}, torch gives {expected}"
    return None


def _by_torch(case: probes.Case) -> list[list[int]]:
    """torch's own assignment of parameters of one byte an element, in the order of the backward pass."""
    import torch
    import torch.distributed as dist

    order = list(reversed(range(len(case.sizes))))
    tensors = [torch.empty(case.sizes[index], dtype=torch.uint8, device="meta") for index in order]
    whole = [limit for limit in (case.first_cap, case.cap) if limit is not None]
    limits = [
        -int(-limit // 1) for limit in whole
    ]  # sizes are whole, so they reach a capacity when they reach it rounded up
    return dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(order), order)[0]


def _tried(found: list[Any]) -> Iterator[tuple[probes.Case, list[list[int]]]]:
    for case, got in zip(probes.cases(), found, strict=True):
        if isinstance(got, Failure):
            raise EvidenceMissing(got.what)
        if isinstance(got, str):
            raise NotTried("not tried, because assign_buckets does not give a list of buckets yet")
        yield case, got[0]


def _total(case: probes.Case, bucket: list[int]) -> int:
    """The bytes of a bucket; what is no parameter has none."""
    return sum(case.sizes[index] for index in bucket if 0 <= index < len(case.sizes))


def _number(index: int) -> str:
    return f"parameter {index}"


CLAIMS = (
    each_parameter_is_in_one_bucket,
    from_the_last_to_the_first,
    a_bucket_closes_only_once_full,
    a_full_bucket_takes_no_more,
    first_cap_is_for_the_first,
    sizes_stay,
    as_torch_does,
)
