"""dp.6: how assign_buckets puts parameters into buckets."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from labkit.check.harness import Task


class Case(NamedTuple):
    """What assign_buckets is called with. Numbers are small, so that a finding can be followed by hand."""

    sizes: list[int]
    cap: float
    first_cap: float | None = None

    def __str__(self) -> str:
        first = "" if self.first_cap is None else f", first_cap_bytes={self.first_cap}"
        return f"assign_buckets({self.sizes}, {self.cap}{first})"

    def observe(self) -> Any:
        from labkit import dp

        sizes = list(self.sizes)
        options = {} if self.first_cap is None else {"first_cap_bytes": self.first_cap}
        return dp.assign_buckets(sizes, self.cap, **options), sizes

    def total(self, bucket: list[int]) -> int:
        """Return the bytes of a bucket; what is no parameter has none."""
        return sum(self.sizes[index] for index in bucket if 0 <= index < len(self.sizes))


def _random_cases(count: int) -> list[Case]:
    draw = random.Random(6)
    sizes = [[draw.choice((0, 1, 2, 3, 4, 5, 6, 50)) for _ in range(draw.randint(1, 9))] for _ in range(count)]
    return [Case(each, draw.randint(1, 12), draw.choice((None, draw.randint(1, 12)))) for each in sizes]


CASES = [
    Case([4, 4, 4, 4], 8),
    Case([2, 3, 4, 5], 6),
    Case([5, 5, 5], 1),
    Case([1, 90, 1, 1], 4),
    Case([0, 3, 0, 3, 0], 3),
    Case([3, 3], 100),
    Case([1, 1, 1, 1, 1], 2.5),
    Case([], 4),
    Case([4, 4, 4, 4, 4], 8, 4),
    Case([1, 1, 1, 1, 1, 1, 1, 1], 4, 2),
    Case([1, 1, 1, 1, 1, 1, 1], 2, 5),
    Case([], 4, 2),
    *_random_cases(40),
]
ONE_CAP = [case for case in CASES if case.first_cap is None]
FIRST_CAP = [case for case in CASES if case.first_cap is not None]
TASK = Task(given=["_check_capacities", "_check_capacity"])


@TASK.claim(CASES)
def each_parameter_is_in_one_bucket(case: Case, seen: Any) -> str | None:
    """Every parameter is in exactly one bucket."""
    buckets, _ = seen
    if not _are_lists(buckets):
        return f"it gave {buckets!r}, expected a list of buckets, each a list of parameter numbers"
    indices = [index for bucket in buckets for index in bucket]
    wanted = range(len(case.sizes))
    if lost := sorted(set(wanted) - set(indices)):
        return f"it gave {buckets}: parameter {lost[0]} is in no bucket. Do not forget the last bucket that is open"
    if twice := [index for index in wanted if indices.count(index) > 1]:
        return f"it gave {buckets}: parameter {twice[0]} is there twice. A parameter is never split over buckets"
    if strange := sorted(set(indices) - set(wanted)):
        return f"it gave {buckets}: there is no parameter {strange[0]}. Parameters are counted from 0"
    return None


def _are_lists(buckets: Any) -> bool:
    return isinstance(buckets, list) and all(
        isinstance(bucket, list) and all(isinstance(index, int) for index in bucket) for bucket in buckets
    )


COMPLETE = [each_parameter_is_in_one_bucket]


@TASK.claim(CASES, after=COMPLETE)
def from_the_last_to_the_first(case: Case, seen: Any) -> str | None:
    """Parameters come from the last to the first, from bucket to bucket and within each."""
    buckets, _ = seen
    indices = [index for bucket in buckets for index in bucket]
    if indices == sorted(indices, reverse=True):
        return None
    return (
        f"it gave {buckets}, expected numbers that go down, because the backward pass makes the gradients of the last "
        "parameters first"
    )


@TASK.claim(ONE_CAP, after=COMPLETE)
def a_bucket_closes_only_once_full(case: Case, seen: Any) -> str | None:
    """A bucket takes parameters until it has reached the capacity, even if the last one takes it beyond."""
    buckets, _ = seen
    for number, bucket in enumerate(buckets[:-1]):
        if bucket and (total := case.total(bucket)) < case.cap:
            return (
                f"it gave {buckets}: bucket {number} was closed at {total} bytes, before it had reached {case.cap}. It still "
                "takes the next parameter, as it is, and is closed after that"
            )
    return None


@TASK.claim(CASES, after=COMPLETE)
def a_full_bucket_takes_no_more(case: Case, seen: Any) -> str | None:
    """A bucket that has reached the capacity takes no more, and there is no bucket without a parameter."""
    buckets, _ = seen
    for number, bucket in enumerate(buckets):
        if not bucket:
            return f"it gave {buckets}: bucket {number} is empty. Open a bucket when there is a parameter for it"
        if case.first_cap is None and case.total(bucket[:-1]) >= case.cap:
            return (
                f"it gave {buckets}: bucket {number} had reached {case.cap} bytes before it took parameter {bucket[-1]}. "
                "Close a bucket as soon as its bytes are the capacity or more"
            )
    return None


@TASK.claim(FIRST_CAP, after=[*COMPLETE, a_bucket_closes_only_once_full, a_full_bucket_takes_no_more])
def first_cap_is_for_the_first(case: Case, seen: Any) -> str | None:
    """first_cap_bytes, if given, is the capacity of the first bucket, and of no other."""
    buckets, _ = seen
    for number, bucket in enumerate(buckets):
        cap = case.cap if number else case.first_cap or case.cap
        total, before = case.total(bucket), case.total(bucket[:-1])
        if before >= cap or (total < cap and number < len(buckets) - 1):
            return f"it gave {buckets}: bucket {number} has {total} bytes, and its capacity is {cap}"
    return None


@TASK.claim(CASES)
def sizes_stay(case: Case, seen: Any) -> str | None:
    """The list of sizes stays as it is."""
    _, afterwards = seen
    if afterwards == case.sizes:
        return None
    return f"it left the list as {afterwards}. Go through it backwards without changing it: it is the caller's"


@TASK.claim([case for case in CASES if case.sizes], after=COMPLETE)
def as_torch_does(case: Case, seen: Any) -> str | None:
    """The buckets are those of torch's DistributedDataParallel."""
    buckets, _ = seen
    expected = _by_torch(case)
    return None if buckets == expected else f"it gave {buckets}, torch gives {expected}"


def _by_torch(case: Case) -> list[list[int]]:
    """Return torch's own assignment of parameters of one byte an element, in the order of the backward pass."""
    import torch
    import torch.distributed as dist

    order = list(reversed(range(len(case.sizes))))
    tensors = [torch.empty(case.sizes[index], dtype=torch.uint8, device="meta") for index in order]
    caps = [cap for cap in (case.first_cap, case.cap) if cap is not None]
    limits = [-int(-cap // 1) for cap in caps]  # whole sizes reach a capacity when they reach it rounded up
    return dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(order), order)[0]
