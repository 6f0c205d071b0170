"""Compare two ways by repeats that took turns: in a sentence whose words come from the data.

From the spans of a run:

    seconds = repeats(events, by="name")
    verdict("threads", seconds["threads"], "one after the other", seconds["sequential"])
    # threads, compared with one after the other: 1.40 (1.31 to 1.47) times as fast (median of …)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from labkit.base.measurement_html import Lines

MIN_REPEATS = 6  # with fewer, not even the interval from the least to the greatest is sure enough
WITHIN_NOISE = "within noise"
_SURE = 0.95


class Interval(NamedTuple):
    """A median and the interval that it is in with at least 95 % confidence."""

    median: float
    low: float
    high: float

    def text(self, unit: str = "") -> str:
        """Return it as ``1.40 (1.31 to 1.47) s``, with as many digits as the interval bears.

        Whole numbers stay whole, and no end is rounded to less than two digits of its own. Where
        the ends are one value it is that: ``6``.
        """
        digits = _decimals(*self)
        median, low, high = (f"{value:.{digits}f}" for value in self)
        ends = f" ({low} to {high})" if self.low < self.high else ""
        return f"{median}{ends}{unit and ' ' + unit}"

    def side_of(self, value: float) -> str:
        """Return where a value, such as a prediction, lies."""
        return "below the interval" if value < self.low else "above the interval" if value > self.high else "inside"


def _decimals(median: float, low: float, high: float) -> int:
    """Return how many decimals show two digits of the width and of the smaller end.

    But at most four of the median, and none of whole numbers.
    """
    if all(value == round(value) for value in (median, low, high)):
        return 0
    smallest = min((abs(end) for end in (low, high) if end), default=0.0)
    fitting = [1 - math.floor(math.log10(size)) for size in (high - low, smallest) if size]
    max_decimals = 3 - math.floor(math.log10(abs(median))) if median else 3
    return max(0, min(max(fitting), max_decimals)) if high > low else max(0, max_decimals)


def interval(values: Iterable[float]) -> Interval:
    """Return the median, and an interval for the true one that needs no normal distribution.

    Each value lies below the true median with probability 1/2, so counting those that do is
    tossing n coins. The interval from the k-th smallest to the k-th greatest value misses the
    median only if fewer than k coins fall on one side. ``k`` is the greatest that keeps at least
    95 %: with 10 values it goes from the second to the ninth, which is right in 97.9 %. The values
    must not depend on each other. The interval need not be symmetric (Conover, Practical
    Nonparametric Statistics, section 3.2; Le Boudec, Performance Evaluation, section 2.2).

    Raises ValueError for fewer than six values, or one that is not a finite number.
    """
    ordered = sorted(float(value) for value in values)
    n = len(ordered)
    if n < MIN_REPEATS:
        raise ValueError(f"interval: got {n} values, expected at least {MIN_REPEATS}: repeat the measurement")
    if not all(math.isfinite(value) for value in ordered):
        raise ValueError("interval: a value is not a finite number: leave out what was not measured")
    k = max(k for k in range(1, n // 2 + 1) if 1 - 2 * _at_most(k - 1, n) >= _SURE)
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k])


def _at_most(k: int, n: int) -> float:
    """Return the probability of at most ``k`` heads in ``n`` throws of a coin."""
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


class Verdict(Lines):
    """A sentence that compares two ways, as :func:`verdict` makes it.

    ``word`` is ``"faster"``, ``"slower"`` or ``"within noise"``, of the first way; ``interval`` is
    how many times as fast it is, above 1 where it is faster.
    """

    def __init__(self, text: str, word: str, interval: Interval):
        super().__init__(text)
        self.word, self.interval = word, interval

    @property
    def is_noise(self) -> bool:
        """Whether the run cannot tell the two ways apart."""
        return self.word == WITHIN_NOISE


def verdict(name_a: str, a_s: Iterable[float], name_b: str, b_s: Iterable[float]) -> Verdict:
    """Say how many times as fast as b is a, or that the difference is within noise.

    ``a_s[i]`` and ``b_s[i]`` are seconds of two runs next to each other, as when the ways take
    turns: each pair gives a ratio, so what slows both down drops out. The ratio's median and its
    :func:`interval` make the sentence. It says "within noise" where 1 lies in the interval, "times
    as fast" where a is faster, and "times as long" where a is slower.

    Raises ValueError for lists of different lengths, fewer than six pairs, and times of 0 or less.
    """
    from labkit.base.formats import fact  # here, because it loads pandas

    a_s, b_s = list(a_s), list(b_s)
    if len(a_s) != len(b_s):
        raise ValueError(
            f"verdict: {len(a_s)} times of {name_a} and {len(b_s)} of {name_b}, expected pairs: let them take turns"
        )
    if not all(time > 0 for time in (*a_s, *b_s)):
        raise ValueError("verdict: a time is not positive: leave out the pairs that were not measured")
    speed = interval(b / a for a, b in zip(a_s, b_s, strict=True))
    if speed.low > 1:
        word, found = "faster", speed.text("times as fast")
    elif speed.high < 1:
        longer = interval(a / b for a, b in zip(a_s, b_s, strict=True))
        word, found = "slower", longer.text("times as long")
    else:
        word, found = WITHIN_NOISE, f"within noise, {speed.text('times as fast')}"
    note = f"median of {len(a_s)} pairs and its 95 % interval"
    return Verdict(f"{name_a}, compared with {name_b}: {fact(found)} ({note})", word, speed)
