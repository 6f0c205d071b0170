"""Work out one backward pass with buckets: what DDP's Reducer does, step by step, and its price.

    reduction = predict(predicted_gradients("gpt2"), buckets, 8, Link(50e-6, 12.5e9))
    reduction.exposed_s, reduction.hidden_share    # what overlap does not hide, and what it does
    reduction.filled(0)                            # 'Bucket 0 is full with 1.00 MiB: …'

Nothing is drawn and nothing is sent here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

from labkit.base.units import MIB
from labkit.cost import Link
from labkit.cost.ddp import all_reduce_times, check_buckets
from labkit.explore.buckets.gradients import Gradients
from labkit.explore.explorer import sentence_of
from labkit.todo import TodoError

Buckets = Sequence[Sequence[int]]  # of parameter indices, in the order of sending
ASSIGN, ONE_BUCKET, ONE_EACH = RULES = ("by size (dp.6)", "one bucket", "one per parameter")


def make_buckets(
    sizes_bytes: Sequence[int], rule: str = ASSIGN, cap_mb: float = 25.0, first_cap_mb: float | None = None
) -> tuple[Buckets, str]:
    """Return buckets by a rule of RULES, and what is wrong with them, "" if nothing is.

    ASSIGN is the reader's :func:`labkit.dp.assign_buckets`; capacities, in MiB, are for it alone.
    While dp.6 is a TODO, or wrong, there is one bucket.
    """
    from labkit import dp

    one_bucket = [list(reversed(range(len(sizes_bytes))))]
    if rule != ASSIGN:
        return (one_bucket if rule == ONE_BUCKET else [[i] for i in one_bucket[0]]), ""
    try:
        buckets = dp.assign_buckets(list(sizes_bytes), cap_mb * MIB, first_cap_mb and first_cap_mb * MIB)
        check_buckets(buckets, len(sizes_bytes))
    except TodoError as todo:
        return one_bucket, f"{todo}: until then all gradients are in one bucket"
    except Exception as error:
        wrong = f"assign_buckets (dp.6) is not right yet: {sentence_of(error)}."
        return one_bucket, f"{wrong} Until then there is one bucket."
    return buckets, ""


class Span(NamedTuple):
    """From when to when, in seconds from the start of backward."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Reduction:
    """One backward pass, and the all_reduces of its buckets meanwhile and after it.

    ``all_reduces`` says when each bucket was on its way, ``end_s`` when all gradients are averaged.
    """

    gradients: Gradients
    buckets: Buckets
    all_reduces: Sequence[Span]
    end_s: float

    # --- numbers ---

    @property
    def backward_s(self) -> float:
        return self.gradients.backward_s

    @property
    def communication_s(self) -> float:
        """Return how long the link is busy."""
        return sum(span.end_s - span.start_s for span in self.all_reduces)

    @property
    def exposed_s(self) -> float:
        """Return how long the rank waits for messages once backward is over."""
        return max(0.0, self.end_s - self.backward_s)

    @property
    def hidden_share(self) -> float | None:
        """Return the share of communication that hides behind backward; None without any."""
        sent_s = self.communication_s
        return max(0.0, 1 - self.exposed_s / sent_s) if sent_s else None

    @functools.cached_property
    def bucket_of(self) -> dict[int, int]:
        """Return the bucket of each parameter."""
        return {i: k for k, bucket in enumerate(self.buckets) for i in bucket}

    @functools.cached_property
    def full_s(self) -> list[float]:
        """Return when each bucket has its last gradient."""
        return _full_s(self.gradients, self.buckets)

    @functools.cached_property
    def bucket_bytes(self) -> list[int]:
        return _bucket_bytes(self.gradients, self.buckets)

    @functools.cached_property
    def order(self) -> list[int]:
        """Return the parameters in the order in which their gradients are ready."""
        return self.gradients.order()

    @functools.cached_property
    def computing(self) -> dict[int, Span]:
        """Return the part of backward that ends with the gradient of each parameter."""
        ends_s = [self.gradients.ready_s[i] for i in self.order]
        return {i: Span(*span) for i, span in zip(self.order, zip([0.0, *ends_s], ends_s, strict=False), strict=True)}

    def sent(self) -> Iterator[tuple[int, float, Span]]:
        """Yield each bucket's number, when it was full, and when it was on its way."""
        return zip(range(len(self.buckets)), self.full_s, self.all_reduces, strict=True)

    # --- in words ---

    def filled(self, k: int) -> str:
        """Say what happens to bucket k once it is full."""
        text = f"Bucket {k} is full with {self.bucket_bytes[k] / MIB:.2f} MiB:"
        if self.all_reduces[k].start_s <= self.full_s[k]:
            return f"{text} all_reduce {k} starts."
        if self.full_s[k - 1] > self.full_s[k]:
            return f"{text} it waits for bucket {k - 1}, as every rank sends in the same order."
        return f"{text} it waits, as the link is busy with bucket {k - 1}."

    def done(self, k: int) -> str:
        """Say what it means that the all_reduce of bucket k is done."""
        n = len(self.buckets[k])
        averaged = "1 gradient is" if n == 1 else f"{n} gradients are"
        text = f"all_reduce {k} is done: {averaged} averaged over all ranks."
        if k < len(self.buckets) - 1:
            return text
        if not self.exposed_s:
            return text + " It is over before backward is: no communication is exposed."
        return text + f" It is the last one: {_ms(self.exposed_s)} of communication were exposed after backward."


def predict(gradients: Gradients, buckets: Buckets, world_size: int, link: Link) -> Reduction:
    """Return the pass as :func:`labkit.cost.ddp_timeline` has it: one channel, in bucket order."""
    times = all_reduce_times(_full_s(gradients, buckets), _bucket_bytes(gradients, buckets), world_size, link)
    return Reduction(gradients, buckets, list(starmap(Span, times)), max(gradients.backward_s, times[-1][1]))


def best_cap(passes: Mapping[float, Reduction]) -> float:
    """Return the capacity with the shortest pass; of equals the largest."""
    ends_s = {cap: round(one.end_s, 12) for cap, one in passes.items()}
    return max(cap for cap, end_s in ends_s.items() if end_s == min(ends_s.values()))


def _full_s(gradients: Gradients, buckets: Buckets) -> list[float]:
    return [max(gradients.ready_s[i] for i in bucket) for bucket in buckets]


def _bucket_bytes(gradients: Gradients, buckets: Buckets) -> list[int]:
    return [sum(gradients.sizes_bytes[i] for i in bucket) for bucket in buckets]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
