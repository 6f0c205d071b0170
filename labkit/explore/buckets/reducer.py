"""Work out one backward pass with buckets: what DDP's Reducer does, step by step, and its price.

    reduction = predict(predicted_gradients("gpt2"), buckets, 8, Link(50e-6, 12.5e9))
    reduction.exposed_s, reduction.hidden_share    # what overlap does not hide, and what it does
    reduction.moments()[0].text                    # 'The hook of transformer.ln_f.bias fires: …'

The same class holds a measured pass. Nothing is drawn and nothing is sent here.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from labkit.cost import Link
from labkit.cost.ddp import all_reduce_times, check_buckets
from labkit.explore.buckets.gradients import Gradients
from labkit.trace import event_table

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20
_DONE, _READY, _SENT = range(3)  # at one time what ends comes first, then what is ready, then what starts


class Span(NamedTuple):
    """From when to when, in seconds from the start of backward."""

    start_s: float
    end_s: float


class Moment(NamedTuple):
    """Something the Reducer does at a time, in words; ``bucket`` is the one it is about."""

    time_s: float
    text: str
    bucket: int


class Progress(NamedTuple):
    """How far a pass is at some time.

    ``ready`` gradients of ``ready_bytes`` are there; buckets are ``in_flight``; full and
    ``waiting`` for the link or an earlier bucket; and ``done``.
    """

    ready: int
    ready_bytes: int
    in_flight: list[int]
    waiting: list[int]
    done: list[int]


@dataclass(frozen=True)
class Reduction:
    """One backward pass, and the all_reduces of its buckets meanwhile and after it.

    ``buckets`` are lists of parameter indices, in the order of sending, and ``all_reduces`` when
    each was on its way. ``end_s`` is when all gradients are means. ``measured`` says that this did
    happen, and ``note`` what was not real then.
    """

    gradients: Gradients
    buckets: Sequence[Sequence[int]]
    all_reduces: Sequence[Span]
    end_s: float
    measured: bool = False
    note: str = ""

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
    def bucket_of(self) -> list[int]:
        """Return the bucket of each parameter."""
        bucket_of = [0] * len(self.gradients.names)
        for k, bucket in enumerate(self.buckets):
            for i in bucket:
                bucket_of[i] = k
        return bucket_of

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

    def at(self, time_s: float) -> Progress:
        """Return what is ready, on its way, waiting and done at ``time_s``."""
        n_ready = bisect.bisect_right([self.gradients.ready_s[i] for i in self.order], time_s)
        numbers = range(len(self.buckets))
        begun = [k for k in numbers if self.all_reduces[k].start_s <= time_s]
        done = [k for k in begun if self.all_reduces[k].end_s <= time_s]
        return Progress(
            n_ready,
            sum(self.gradients.sizes_bytes[i] for i in self.order[:n_ready]),
            [k for k in begun if k not in done],
            [k for k in numbers if self.full_s[k] <= time_s and k not in begun],
            done,
        )

    def computing(self) -> list[Span]:
        """Return the part of backward that ends with each gradient, by parameter index."""
        spans, before = [Span(0.0, 0.0)] * len(self.order), 0.0
        for i in self.order:
            spans[i] = Span(before, self.gradients.ready_s[i])
            before = self.gradients.ready_s[i]
        return spans

    # --- as an event table, and in words ---

    def events(self) -> pd.DataFrame:
        """Return the pass as an event table: a row per gradient, one for the wait, one per bucket.

        The ``bucket`` of a gradient is the one that it goes into.
        """
        gradients, computing = self.gradients, self.computing()
        rows: list[tuple[object, ...]] = [
            (0, "compute", "backward", *[None] * 3, self.bucket_of[i], gradients.sizes_bytes[i], *computing[i])
            for i in self.order
        ]
        if self.exposed_s:
            rows.append((0, "compute", "wait", *[None] * 5, self.backward_s, self.end_s))
        rows += [
            (0, "comm", "all_reduce", *[None] * 3, k, n_bytes, *span)
            for k, (n_bytes, span) in enumerate(zip(self.bucket_bytes, self.all_reduces, strict=True))
        ]
        return event_table(rows, measured=self.measured, emulated=self.note)

    def moments(self) -> list[Moment]:
        """Return what the Reducer does, in order: hook, ready, bucket full, all_reduce, done."""
        return self._moments

    @functools.cached_property
    def _moments(self) -> list[Moment]:
        found: list[tuple[float, int, int, Moment]] = []
        held_bytes = [0] * len(self.buckets)
        for n_ready, i in enumerate(self.order, start=1):
            k, ready = self.bucket_of[i], self.gradients.ready_s[i]
            held_bytes[k] += self.gradients.sizes_bytes[i]
            text = " ".join([self._ready_text(n_ready, i), self._filled_text(k, held_bytes[k])])
            text += " Backward is over." if n_ready == len(self.order) else ""
            found.append((ready, _READY, n_ready, Moment(ready, text, k)))
        for k, (start, end) in enumerate(self.all_reduces):
            if start > self.full_s[k]:
                found.append((start, _SENT, k, Moment(start, self._sent_text(k), k)))
            found.append((end, _DONE if end > start else _SENT, k, Moment(end, self._done_text(k), k)))
        return [moment for *_, moment in sorted(found, key=lambda one: one[:3])]

    def _ready_text(self, n_ready: int, i: int) -> str:
        name, n = self.gradients.names[i], len(self.order)
        return f"The hook of {name} fires: its gradient is ready, {n_ready} of {n}."

    def _filled_text(self, k: int, held_bytes: int) -> str:
        if held_bytes < self.bucket_bytes[k]:
            return f"Bucket {k} has {held_bytes / MIB:.2f} of {self.bucket_bytes[k] / MIB:.2f} MiB."
        text = f"Bucket {k} is full with {self.bucket_bytes[k] / MIB:.2f} MiB:"
        if self.all_reduces[k].start_s <= self.full_s[k]:
            return f"{text} all_reduce {k} starts."
        if k and self.full_s[k - 1] > self.full_s[k]:
            return f"{text} it waits for bucket {k - 1}, as every rank sends in the same order."
        if k and self.all_reduces[k - 1].end_s > self.full_s[k]:
            return f"{text} it waits, as the link is busy with bucket {k - 1}."
        return f"{text} it is handed over."

    def _sent_text(self, k: int) -> str:
        return f"all_reduce {k} starts, {_ms(self.all_reduces[k].start_s - self.full_s[k])} after bucket {k} was full."

    def _done_text(self, k: int) -> str:
        n = len(self.buckets[k])
        means = "1 gradient is a mean" if n == 1 else f"{n} gradients are means"
        text = f"all_reduce {k} is done: {means} over all ranks."
        if k < len(self.buckets) - 1:
            return text
        if not self.exposed_s:
            return text + " It is over before backward is: no communication is exposed."
        return text + f" It is the last one: {_ms(self.exposed_s)} of communication were exposed after backward."


def predict(gradients: Gradients, buckets: Sequence[Sequence[int]], world_size: int, link: Link) -> Reduction:
    """Return the pass as :func:`labkit.cost.ddp_timeline` has it: one channel, in bucket order.

    Raises ValueError and TypeError for buckets that are no partition of the parameters, as that
    does.
    """
    check_buckets(buckets, len(gradients.names))
    full_s, sizes = _full_s(gradients, buckets), _bucket_bytes(gradients, buckets)
    times = [Span(*pair) for pair in all_reduce_times(full_s, sizes, world_size, link)]
    return Reduction(gradients, buckets, times, max(gradients.backward_s, times[-1].end_s))


def best_cap(
    gradients: Gradients,
    plans: Mapping[float, Sequence[Sequence[int]]],
    world_size: int,
    link: Link,
) -> float:
    """Return the capacity whose buckets give the shortest pass; of equals the largest.

    ``plans`` has the buckets of each capacity.
    """

    def total_s(cap: float) -> float:
        buckets = plans[cap]
        times = all_reduce_times(_full_s(gradients, buckets), _bucket_bytes(gradients, buckets), world_size, link)
        return max(gradients.backward_s, times[-1][1])

    return min(sorted(plans, reverse=True), key=lambda cap: round(total_s(cap), 12))


def _full_s(gradients: Gradients, buckets: Sequence[Sequence[int]]) -> list[float]:
    return [max(gradients.ready_s[i] for i in bucket) for bucket in buckets]


def _bucket_bytes(gradients: Gradients, buckets: Sequence[Sequence[int]]) -> list[int]:
    return [sum(gradients.sizes_bytes[i] for i in bucket) for bucket in buckets]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


# --- buckets: the reader's own rule, or none ------------------------------------------------------

ASSIGN, ONE_BUCKET, ONE_EACH = "by size (dp.6)", "one bucket", "one per parameter"
RULES = (ASSIGN, ONE_BUCKET, ONE_EACH)


class Plan(NamedTuple):
    """Buckets, and a note on what is to be known of them: "" where they are as asked for."""

    buckets: list[list[int]]
    note: str = ""


def make_buckets(
    sizes_bytes: Sequence[int], rule: str = ASSIGN, cap_mb: float = 25.0, first_cap_mb: float | None = None
) -> Plan:
    """Return buckets by a rule of RULES; ASSIGN is the reader's :func:`labkit.dp.assign_buckets`.

    Capacities are in MiB and mean something to ASSIGN alone. While dp.6 is to be written, that
    gives one bucket, with a note that says so.

    Raises what the reader's function raises, ValueError where what it returns is no partition of
    the parameters, and for an unknown rule.
    """
    n = len(sizes_bytes)
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}, expected one of {', '.join(RULES)}")
    if rule == ONE_EACH:
        return Plan([[i] for i in reversed(range(n))])
    if rule == ONE_BUCKET:
        return Plan([list(reversed(range(n)))])
    from labkit.dp import assign_buckets
    from labkit.todo import TodoError

    first = None if first_cap_mb is None else first_cap_mb * MIB
    try:
        buckets = assign_buckets(list(sizes_bytes), cap_mb * MIB, first)
    except TodoError as todo:
        return Plan(
            make_buckets(sizes_bytes, ONE_BUCKET).buckets, f"{todo}: until then all gradients are in one bucket"
        )
    check_buckets(buckets, n)
    return Plan(buckets)
