"""Hold what one rank of a board does and keeps, and find where one op more fits in."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from labkit.schedule import Op

FREEING = "BW"


class Bar(NamedTuple):
    """An op with its times, in seconds; or the activation of a forward, while it is kept."""

    start_s: float
    end_s: float
    op: Op


@dataclass(frozen=True, eq=False)
class Row:
    """The bars of one rank in order of their start; it may keep ``cap`` activations."""

    bars: tuple[Bar, ...] = ()
    cap: float = math.inf

    def with_bar(self, bar: Bar) -> Row:
        at = bisect(self.bars, bar)
        return Row((*self.bars[:at], bar, *self.bars[at:]), self.cap)

    def without(self, op: Op) -> Row:
        return Row(tuple(bar for bar in self.bars if bar.op != op), self.cap)

    # --- time -------------------------------------------------------------------------------------

    def busy(self, start_s: float, end_s: float) -> Bar | None:
        """Return the first bar between the two times, None if the rank is idle there."""
        return next((bar for bar in self.bars if bar.start_s < end_s and start_s < bar.end_s), None)

    def gap(self, at_s: float, duration_s: float) -> float:
        """Return the first time from ``at_s`` on at which the rank is idle so long."""
        for bar in self.bars:
            if bar.end_s > at_s:
                if bar.start_s - at_s >= duration_s:
                    break
                at_s = bar.end_s
        return at_s

    @cached_property
    def end_s(self) -> float:
        """When the last op of the rank ends."""
        return max((bar.end_s for bar in self.bars), default=0.0)

    @property
    def span_s(self) -> float:
        """How long it is from the start of the first op to the end of the last one."""
        return self.end_s - self.bars[0].start_s if self.bars else 0.0

    @property
    def busy_s(self) -> float:
        """How long the ops of the rank take together."""
        return sum(bar.end_s - bar.start_s for bar in self.bars)

    def overlaps(self) -> Iterator[tuple[Bar, Bar]]:
        """Yield each bar that begins before the one before it has ended, after that one."""
        return ((one, other) for one, other in pairwise(self.bars) if other.start_s < one.end_s)

    # --- memory -----------------------------------------------------------------------------------

    @cached_property
    def kept(self) -> list[Bar]:
        """The activations that the rank keeps, to no end where nothing frees one."""
        ends = {(bar.op.stage, bar.op.micro_batch): bar.end_s for bar in self.bars if bar.op.kind in FREEING}
        return [
            Bar(bar.start_s, ends.get((bar.op.stage, bar.op.micro_batch), math.inf), bar.op)
            for bar in self.bars
            if bar.op.kind == "F"
        ]

    @cached_property
    def counts(self) -> list[tuple[float, int]]:
        """From which time on the rank keeps how many activations; what is freed goes first."""
        freed = [(kept.end_s, -1) for kept in self.kept if kept.end_s < math.inf]
        changes = sorted(freed + [(kept.start_s, 1) for kept in self.kept])
        counts, count = [], 0
        for time_s, change in changes:
            count += change
            counts.append((time_s, count))
        return counts

    @property
    def peak(self) -> int:
        return max((count for _, count in self.counts), default=0)

    def room_from(self, until_s: float = math.inf) -> float:
        """Return from when on one activation more may be kept until ``until_s``, inf for never."""
        room_s = max((end_s for start_s, end_s in self._full() if start_s < until_s), default=0.0)
        return room_s if room_s < until_s else math.inf

    def full_from(self, start_s: float, until_s: float = math.inf) -> float | None:
        """Return the first time between the two at which no activation more may be kept."""
        full = (max(one_s, start_s) for one_s, other_s in self._full() if one_s < until_s and start_s < other_s)
        return next(full, None)

    def _full(self) -> Iterator[tuple[float, float]]:
        """Yield from when until when the rank keeps all that it may."""
        for (time_s, count), (next_s, _) in pairwise([*self.counts, (math.inf, 0)]):
            if count >= self.cap and time_s < next_s:
                yield time_s, next_s

    def kept_at(self, time_s: float) -> list[Bar]:
        return [kept for kept in self.kept if kept.start_s <= time_s < kept.end_s]
