"""What runs in a rank to judge dp.6: the student's assign_buckets on many lists of sizes."""

from __future__ import annotations

import functools
import random
from typing import Any, NamedTuple

from labkit.judging.evidence import DP, attempt


class Case(NamedTuple):
    """What assign_buckets is called with. Numbers are small, so that a finding can be followed by hand."""

    sizes: list[int]
    cap: float
    first_cap: float | None

    def __str__(self) -> str:
        first = "" if self.first_cap is None else f", first_cap_bytes={self.first_cap}"
        return f"assign_buckets({self.sizes}, {self.cap}{first})"


BY_HAND = [
    Case([4, 4, 4, 4], 8, None),
    Case([2, 3, 4, 5], 6, None),
    Case([5, 5, 5], 1, None),
    Case([1, 90, 1, 1], 4, None),
    Case([0, 3, 0, 3, 0], 3, None),
    Case([3, 3], 100, None),
    Case([1, 1, 1, 1, 1], 2.5, None),
    Case([], 4, None),
    Case([4, 4, 4, 4, 4], 8, 4),
    Case([1, 1, 1, 1, 1, 1, 1, 1], 4, 2),
    Case([1, 1, 1, 1, 1, 1, 1], 2, 5),
    Case([], 4, 2),
]


def cases() -> list[Case]:
    """The cases made by hand, and random ones, the same each time."""
    draw = random.Random(6)
    made = []
    for _ in range(300):
        sizes = [draw.choice((0, 1, 2, 3, 4, 5, 6, 50)) for _ in range(draw.randint(1, 9))]
        made.append(Case(sizes, draw.randint(1, 12), draw.choice((None, draw.randint(1, 12)))))
    return BY_HAND + made


def probe_buckets() -> list[Any]:
    """For each case: the buckets, and the sizes as they are afterwards; the Failure of the call; or, if it gave no
    buckets, what it gave, in words."""
    from labkit import dp

    def assigned(case: Case) -> Any:
        sizes = list(case.sizes)
        options = {} if case.first_cap is None else {"first_cap_bytes": case.first_cap}
        buckets = dp.assign_buckets(sizes, case.cap, **options)
        try:
            return [[int(index) for index in bucket] for bucket in buckets], sizes
        except TypeError:
            return f"{case} gave {buckets!r}, expected a list of buckets, each a list of parameter numbers"

    return [attempt(functools.partial(assigned, case), DP) for case in cases()]
