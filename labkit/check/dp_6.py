"""dp.6: how assign_buckets puts parameters into buckets."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from labkit.check.harness import Task


class Case(NamedTuple):
    """What assign_buckets is called with.

    Numbers are small, so that a finding can be followed by hand.
    """

    sizes: list[int]
    cap: float
    first_cap: float | None = None

    def __str__(self) -> str:
        first = "" if self.first_cap is None else f", first_cap_bytes={self.first_cap}"
        return f"assign_buckets({self.sizes}, {self.cap}{first})"

    def observe(self) -> Any:
        from labkit import dp

        return dp.assign_buckets(self.sizes, self.cap, first_cap_bytes=self.first_cap), self.sizes

    def expected(self) -> list[list[int]]:
        """Return torch's own buckets, for parameters of one byte an element in the order of the
        backward pass."""
        import torch
        import torch.distributed as dist

        order = list(reversed(range(len(self.sizes))))
        tensors = [torch.empty(self.sizes[index], dtype=torch.uint8, device="meta") for index in order]
        caps = [cap for cap in (self.first_cap, self.cap) if cap is not None]
        limits = [-int(-cap // 1) for cap in caps]  # whole sizes reach a capacity when they reach it rounded up
        return dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(order), order)[0] if order else []


DRAW = random.Random(6)
SIZES = [[DRAW.choice((0, 1, 2, 3, 4, 5, 6, 50)) for _ in range(DRAW.randint(1, 9))] for _ in range(40)]
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
    *[Case(sizes, DRAW.randint(1, 12), DRAW.choice((None, DRAW.randint(1, 12)))) for sizes in SIZES],
]
TASK = Task(given=["_check_capacities", "_check_capacity"])


@TASK.claim(CASES)
def each_parameter_is_in_one_bucket(case: Case, seen: Any) -> Any:
    """Every parameter is in exactly one bucket."""
    buckets, _ = seen
    wanted = range(len(case.sizes))
    if not (isinstance(buckets, list) and all(isinstance(bucket, list) for bucket in buckets)):
        return f"it gave {buckets!r}, expected a list of buckets, each a list of parameter numbers"
    indices = [index for bucket in buckets for index in bucket]
    if strange := [index for index in indices if not isinstance(index, int) or index not in wanted]:
        return f"it gave {buckets}: there is no parameter {strange[0]!r}. Parameters are counted from 0"
    if lost := sorted(set(wanted) - set(indices)):
        return f"it gave {buckets}: parameter {lost[0]} is in no bucket. Do not forget the last bucket that is open"
    if twice := [index for index in wanted if indices.count(index) > 1]:
        return f"it gave {buckets}: parameter {twice[0]} is there twice. A parameter is never split over buckets"


@TASK.claim(CASES, after=[each_parameter_is_in_one_bucket])
def buckets_are_torchs(case: Case, seen: Any) -> Any:
    """Buckets are filled from the last parameter to the first, each up to its capacity, as by
    torch."""
    (buckets, _), expected = seen, case.expected()
    if buckets != expected:
        return f"it gave {buckets}, torch gives {expected}: {_compare(case, buckets, expected)}"


def _compare(case: Case, buckets: list[list[int]], expected: list[list[int]]) -> str:
    """Return in what way buckets that hold each parameter once are wrong."""
    indices = [index for bucket in buckets for index in bucket]
    if indices != sorted(indices, reverse=True):
        return "numbers go down, because the backward pass makes the gradients of the last parameters first"
    if [] in buckets:
        return f"bucket {buckets.index([])} is empty. Open a bucket when there is a parameter for it"
    number = next(number for number, bucket in enumerate(buckets) if bucket != expected[number])
    cap = case.first_cap if case.first_cap and number == 0 else case.cap
    whose = "" if case.first_cap is None else " (first_cap_bytes is for the first bucket, and for no other)"
    if len(buckets[number]) > len(expected[number]):
        took = f"bucket {number} had reached {cap} bytes{whose} before it took parameter {buckets[number][-1]}"
        return f"{took}. Close a bucket as soon as its bytes are the capacity or more"
    total = sum(case.sizes[index] for index in buckets[number])
    closed = f"bucket {number} was closed at {total} bytes, before it had reached {cap}{whose}"
    return f"{closed}. It still takes the next parameter, as it is, and is closed after that"


@TASK.claim(CASES)
def sizes_stay(case: Case, seen: Any) -> Any:
    """The list of sizes stays as it is."""
    _, afterwards = seen
    if afterwards != case.sizes:
        return f"it left the list as {afterwards}. Go through it backwards without changing it: it is the caller's"
