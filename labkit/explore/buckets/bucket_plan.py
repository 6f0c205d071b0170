"""Put gradients into buckets: by the reader's own rule (dp.6), or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.cost.ddp import check_buckets
from labkit.explore.buckets.gradients import MIB
from labkit.explore.explorer import sentence_of

ASSIGN, ONE_BUCKET, ONE_EACH = "by size (dp.6)", "one bucket", "one per parameter"
RULES = {ASSIGN: 25.0, ONE_BUCKET: 1e6, ONE_EACH: 1e-6}  # and a capacity in MiB that gives such buckets


class BucketPlan(NamedTuple):
    """Buckets, and a note on what is to be known of them: "" where they are as asked for."""

    buckets: Sequence[Sequence[int]]
    note: str = ""


def make_buckets(
    sizes_bytes: Sequence[int], rule: str = ASSIGN, cap_mb: float = RULES[ASSIGN], first_cap_mb: float | None = None
) -> BucketPlan:
    """Return buckets by a rule of RULES; ASSIGN is the reader's :func:`labkit.dp.assign_buckets`.

    Capacities are in MiB and mean something to ASSIGN alone. While dp.6 is to be written, or wrong,
    that gives one bucket, with a note that says why.
    """
    from labkit import dp
    from labkit.todo import TodoError

    one_bucket = [list(reversed(range(len(sizes_bytes))))]
    if rule != ASSIGN:
        return BucketPlan(one_bucket if rule == ONE_BUCKET else [[i] for i in one_bucket[0]])
    try:
        buckets = dp.assign_buckets(list(sizes_bytes), cap_mb * MIB, first_cap_mb and first_cap_mb * MIB)
        check_buckets(buckets, len(sizes_bytes))
    except TodoError as todo:
        return BucketPlan(one_bucket, f"{todo}: until then all gradients are in one bucket")
    except Exception as error:
        wrong = f"assign_buckets (dp.6) is not right yet: {sentence_of(error)}."
        return BucketPlan(one_bucket, f"{wrong} Until then there is one bucket.")
    return BucketPlan(buckets)
