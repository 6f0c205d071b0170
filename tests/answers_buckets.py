### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to dp.6, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import buckets_claims as claims


def assignment(body: str) -> str:
    """assign_buckets that fills the open bucket, whose bytes are the total; the body is what it does for each index."""
    return f"""
def assign_buckets(sizes_bytes, cap_bytes, first_cap_bytes=None):
    cap = cap_bytes if first_cap_bytes is None else first_cap_bytes
    buckets, bucket, total = [], [], 0
    {body.strip()}
"""


TAKE = "bucket.append(i); total += sizes_bytes[i]"
CLOSE = "buckets.append(bucket); bucket, total, cap = [], 0, cap_bytes"
BACKWARDS = "for i in reversed(range(len(sizes_bytes))):"
LAST = "return buckets + ([bucket] if bucket else [])"
RIGHT_BODY = f"""
    {BACKWARDS}
        {TAKE}
        if total >= cap:
            {CLOSE}
    {LAST}
"""
ANEW = f"""
    {BACKWARDS}
        if bucket and total + sizes_bytes[i] > cap:
            {CLOSE}
        {TAKE}
    {LAST}
"""
SPLITS = f"""
    {BACKWARDS}
        for _ in range(2 if sizes_bytes[i] > cap else 1):
            {TAKE}
            if total >= cap:
                {CLOSE}
    {LAST}
"""
EMPTIES_THE_LIST = f"""
    while sizes_bytes:
        bucket.append(len(sizes_bytes) - 1); total += sizes_bytes.pop()
        if total >= cap:
            {CLOSE}
    {LAST}
"""
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

WRONG = {
    "forgets the bucket that is open": (
        claims.each_parameter_is_in_one_bucket,
        assignment(RIGHT_BODY.replace(LAST, "return buckets")),
        "is in no bucket. Do not forget the last bucket",
    ),
    "splits what is too large": (
        claims.each_parameter_is_in_one_bucket,
        assignment(SPLITS),
        "parameter 0 is there twice. A parameter is never split",
    ),
    "counts from 1": (
        claims.each_parameter_is_in_one_bucket,
        assignment(RIGHT_BODY.replace("bucket.append(i)", "bucket.append(i + 1)")),
        "parameter 0 is in no bucket",
    ),
    "from the first to the last": (
        claims.from_the_last_to_the_first,
        assignment(RIGHT_BODY.replace(BACKWARDS, "for i in range(len(sizes_bytes)):")),
        "gave [[0, 1], [2, 3]]: expected numbers that go down",
    ),
    "ascending within a bucket": (
        claims.from_the_last_to_the_first,
        assignment(RIGHT_BODY.replace(TAKE, "bucket.insert(0, i); total += sizes_bytes[i]")),
        "gave [[2, 3], [0, 1]]: expected numbers that go down",
    ),
    "closes before it would be too full": (
        claims.a_bucket_closes_only_once_full,
        assignment(ANEW),
        "bucket 0 was closed at 5 bytes, before it had reached 6",
    ),
    "closes once it is beyond": (
        claims.a_full_bucket_takes_no_more,
        assignment(RIGHT_BODY.replace(">=", ">")),
        "bucket 0 had reached 8 bytes before it took parameter 1",
    ),
    "opens a bucket for nothing": (
        claims.a_full_bucket_takes_no_more,
        assignment(RIGHT_BODY.replace(LAST, "return buckets + [bucket]")),
        "bucket 2 is empty",
    ),
    "first capacity for all": (
        claims.first_cap_is_for_the_first,
        assignment(RIGHT_BODY.replace(", cap = [], 0, cap_bytes", " = [], 0")),
        "bucket 1 has 4 bytes, and its capacity is 8",
    ),
    "no first capacity": (
        claims.first_cap_is_for_the_first,
        assignment("cap = cap_bytes" + RIGHT_BODY),
        "bucket 0 has 8 bytes, and its capacity is 4",
    ),
    "empties the list": (
        claims.sizes_stay,
        assignment(EMPTIES_THE_LIST),
        "left the list as []. Go through it backwards without changing it",
    ),
    "a capacity in whole bytes": (
        claims.as_torch_does,
        assignment("cap_bytes = int(cap_bytes); cap = int(cap)" + RIGHT_BODY),
        "2.5) gave [[4, 3], [2, 1], [0]], torch gives [[4, 3, 2], [1, 0]]",
    ),
    "gives nothing": (
        claims.each_parameter_is_in_one_bucket,
        assignment(RIGHT_BODY.replace(LAST, "")),
        "assign_buckets([4, 4, 4, 4], 8) gave None, expected a list of buckets",
    ),
}
RIGHT = {"by slices": BY_SLICES}
