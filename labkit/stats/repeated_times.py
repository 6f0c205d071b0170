"""Hold the seconds of each repeat of several ways, and compare two of them pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from labkit.base.formats import MeasuredTable
from labkit.stats.comparison import Interval, Verdict, interval, verdict


class RepeatedTimes(MeasuredTable):
    """Seconds: a row per repeat and a column per way. Repeats in one row ran next to each other.

        times.verdict("overlap", "buckets")   # overlap, compared with buckets: 1.29 times as fast …
        times.ratio("overlap", "buckets")     # how many times as long it takes

    What compares two ways takes the median over rows and its :func:`interval`, so what slows both
    down drops out; fewer than six rows are refused.
    """

    @property
    def _constructor(self) -> Callable[..., RepeatedTimes]:
        return RepeatedTimes

    def ratio(self, a: Hashable, b: Hashable) -> Interval:
        """Return how many times as long as ``b`` takes ``a``."""
        return interval(self[a] / self[b])

    def as_fast(self) -> list[Hashable]:
        """Return the fastest way, by the median, and after it those within noise of it."""
        fastest, *others = self.median().sort_values().index
        return [fastest, *(way for way in others if self.verdict(way, fastest).is_noise)]

    def fastest(self) -> Interval:
        """Return the fastest of ways that are numbers, between the ends of :meth:`as_fast`."""
        numbers = [float(str(way)) for way in self.as_fast()]
        return Interval(numbers[0], min(numbers), max(numbers))

    def verdict(self, a: Hashable, b: Hashable, names: tuple[str, str] | None = None) -> Verdict:
        """Say how many times as fast as ``b`` is ``a``: see :func:`labkit.stats.verdict`.

        ``names`` are what the sentence calls them, where a column's name differs between machines.
        """
        name_a, name_b = names or (str(a), str(b))
        return verdict(name_a, self[a], name_b, self[b])
