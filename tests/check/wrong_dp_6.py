### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.6; test_answers.py says how they are written."""

from __future__ import annotations

from labkit.check import dp_6 as claims

ANEW = """        if not buckets:
            room = cap_bytes if first_cap_bytes is None else first_cap_bytes
            buckets.append([])
        elif buckets[-1] and room < sizes_bytes[index]:
            room = cap_bytes
            buckets.append([])
"""
OPEN = """        if room <= 0:
            room = cap_bytes if buckets or first_cap_bytes is None else first_cap_bytes
            buckets.append([])
"""
TAKE = "        buckets[-1].append(index)\n        room -= sizes_bytes[index]\n"
EMPTIES_THE_LIST = "    for index in reversed(range(len(sizes_bytes))):\n"
BY_SLICES = """
def assign_buckets(sizes_bytes, cap_bytes, first_cap_bytes=None):
    buckets, end, cap = [], len(sizes_bytes), first_cap_bytes or cap_bytes
    while end > 0:
        starts = [start for start in range(end) if sum(sizes_bytes[start:end]) >= cap]
        start = max(starts, default=0)
        buckets.append(list(range(start, end))[::-1])
        end, cap = start, cap_bytes
    return buckets
"""

BY_CLAIM = {
    claims.each_parameter_is_in_one_bucket: {
        "forgets the bucket that is open": (
            "is in no bucket. Do not forget the last bucket",
            ("return buckets", "return buckets if room <= 0 else buckets[:-1]"),
        ),
        "splits what is too large": (
            "parameter 0 is there twice. A parameter is never split",
            (TAKE, TAKE + "        if sizes_bytes[index] > cap_bytes:\n            buckets.append([index])\n"),
        ),
        "counts from 1": ("parameter 0 is in no bucket", ("append(index)", "append(index + 1)")),
        "gives nothing": ("assign_buckets([4, 4, 4, 4], 8): it gave None, expected", ("return buckets", "return None")),
        "gives numbers, not lists": ("it gave [3, 2, 1, 0], expected a", ("return buckets", "return sum(buckets, [])")),
    },
    claims.from_the_last_to_the_first: {
        "from the first to the last": (
            "gave [[0, 1], [2, 3]], expected numbers that go down",
            ("in reversed(range(len(sizes_bytes)))", "in range(len(sizes_bytes))"),
        ),
        "ascending within a bucket": ("gave [[2, 3], [0, 1]], expected numbers", ("append(index)", "insert(0, index)")),
    },
    claims.a_bucket_closes_only_once_full: {
        "closes before it would be too full": ("bucket 0 was closed at 5 bytes, before it had reached 6", (OPEN, ANEW)),
    },
    claims.a_full_bucket_takes_no_more: {
        "closes once it is beyond": (
            "8 bytes before it took parameter 1",
            ("if room <= 0", "if not buckets or room < 0"),
        ),
        "opens a bucket for nothing": (
            "bucket 2 is empty",
            ("return buckets", "return buckets + ([[]] if room <= 0 else [])"),
        ),
    },
    claims.first_cap_is_for_the_first: {
        "first capacity for all": (
            "bucket 1 has 4 bytes, and its capacity is 8",
            ("if buckets or first_cap_bytes", "if first_cap_bytes"),
        ),
        "no first capacity": (
            "bucket 0 has 8 bytes, and its capacity is 4",
            ("cap_bytes if buckets or first_cap_bytes is None else first_cap_bytes", "cap_bytes"),
        ),
    },
    claims.sizes_stay: {
        "empties the list": ("left the list as []. Go", ("room -= sizes_bytes[index]", "room -= sizes_bytes.pop()")),
    },
    claims.as_torch_does: {
        "a capacity in whole bytes": (
            "2.5): it gave [[4, 3], [2, 1], [0]], torch gives [[4, 3, 2], [1, 0]]",
            ("room = cap_bytes if", "room = int(cap_bytes) if"),
        ),
    },
    None: {
        "raises where there is nothing": (
            "assign_buckets([], 4): it raised IndexError: list index out of range (labkit/dp.py, line ",
            ("return buckets", "return buckets if buckets[-1] else []"),
        ),
    },
}
WRONG = {name: (claim, *rest) for claim, answers in BY_CLAIM.items() for name, rest in answers.items()}
FOLLOWS = ["gives nothing", "forgets the bucket that is open"]  # so what follows from it is not tried
OTHER_CAUSE: dict[str, tuple[str, ...]] = {}  # advice that must not be given
RIGHT = {"by slices": BY_SLICES}
