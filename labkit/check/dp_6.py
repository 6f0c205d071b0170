"""dp.6: how assign_buckets puts parameters into buckets."""

from __future__ import annotations

import math
import random
from itertools import chain
from typing import Any, NamedTuple

from labkit.check.harness import Finding, Task


class Case(NamedTuple):
    """What assign_buckets is called with: small numbers, to be followed by hand."""

    sizes: list[int]
    cap: float
    first_cap: float | None = None

    def __str__(self) -> str:
        first = f", first_cap_bytes={self.first_cap}" if self.first_cap else ""
        return f"assign_buckets({self.sizes}, {self.cap}{first})"

    def observe(self) -> Any:
        from labkit import dp

        return dp.assign_buckets(self.sizes, self.cap, first_cap_bytes=self.first_cap), self.sizes

    def expected(self) -> list[list[int]]:
        """Return torch's own buckets, for parameters of one byte an element."""
        import torch
        import torch.distributed as dist

        tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in reversed(self.sizes)]
        order = list(reversed(range(len(tensors))))
        caps = [math.ceil(cap) for cap in (self.first_cap, self.cap) if cap]  # torch takes whole ones
        if not order:
            return []
        return dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(order), order)[0]


def drawn(draw: random.Random) -> list[Case]:
    """Return forty lists of sizes, from empty to more than a bucket holds."""
    sizes = [[draw.choice((0, 1, 2, 3, 4, 5, 6, 50)) for _ in range(draw.randint(1, 9))] for _ in range(40)]
    return [Case(each, draw.randint(1, 12), draw.choice((None, draw.randint(1, 12)))) for each in sizes]


FIRST = [Case([4, 4, 4, 4], 8), Case([2, 3, 4, 5], 6), Case([1, 1, 1, 1, 1], 2.5), Case([], 4)]
CASES: list[Any] = [*FIRST, Case([4, 4, 4, 4, 4], 8, first_cap=4), drawn]
TASK = Task(
    writes="assign_buckets",
    minutes=15,
    points=10,
    notebooks="04, 05",
    given=["_check_capacities", "_check_capacity"],
    hints=(
        """Which gradient is ready first in a backward pass, that of the first layer or that of the last? And
when a parameter does not fit any more, does the rule leave it out?""",
        """Go through the parameter numbers from the last to the first, with one open bucket. Keep in mind how
much room that has left; a parameter goes in whole, even if the room ends up below zero.""",
        """Ask whether the open bucket is full before you put a parameter in, and not after: then a bucket is
opened only when something goes into it, and none stays empty. A bucket that is exactly full is
closed. The capacity for the first bucket is for that one alone, and it may be missing.""",
    ),
)


@TASK.claim(CASES)
def each_parameter_is_in_one_bucket(case: Case, seen: Any) -> Finding:
    """Every parameter is in exactly one bucket."""
    buckets, _ = seen
    if not (isinstance(buckets, list) and all(isinstance(bucket, list) for bucket in buckets)):
        return f"it gave {buckets!r}, expected a list of buckets, each a list of parameter numbers"
    given, wanted = list(chain(*buckets)), range(len(case.sizes))
    if strange := [number for number in given if not isinstance(number, int) or number not in wanted]:
        return f"it gave {buckets}: there is no parameter {strange[0]!r}. List numbers, from 0"
    if lost := set(wanted) - set(given):
        return f"it gave {buckets}: parameter {min(lost)} is in no bucket. Forgot the last bucket?"
    if twice := [number for number in wanted if given.count(number) > 1]:
        return f"it gave {buckets}: parameter {twice[0]} is there twice. No parameter is split"


@TASK.claim(CASES, core=True)
def buckets_are_torchs(case: Case, seen: Any) -> Finding:
    """Buckets are filled from the last parameter to the first, each up to its capacity, as by
    torch."""
    (buckets, _), expected = seen, case.expected()
    gave = f"it gave {buckets}, torch gives {expected}"
    if list(chain(*buckets)) != list(chain(*expected)):
        return f"{gave}: numbers go down, as backward makes the last parameters' gradients first"
    if [] in buckets:
        return f"{gave}: bucket {buckets.index([])} is empty, and has no gradient to wait for"
    for k, (bucket, right) in enumerate(zip(buckets, expected, strict=False)):
        if bucket != right:
            cap = case.cap if k or not case.first_cap else case.first_cap
            whose = " (first_cap_bytes is for the first bucket alone)" if case.first_cap else ""
            fault = f"took parameter {bucket[-1]} after" if len(bucket) > len(right) else "was closed before"
            rule = "A bucket takes whole parameters until it has reached its capacity"
            return f"{gave}: bucket {k} {fault} it had reached {cap} bytes{whose}. {rule}"


@TASK.claim(CASES)
def sizes_stay(case: Case, seen: Any) -> Finding:
    """The list of sizes stays as it is."""
    _, afterwards = seen
    return afterwards != case.sizes and f"it left the list as {afterwards}. Do not change it"
