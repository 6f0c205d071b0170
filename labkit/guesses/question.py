"""Define what a reader is asked, and which guesses a question takes."""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass
from typing import Any

from labkit.base.checks import is_whole
from labkit.base.units import UNITS

LOGARITHMIC = 30  # from this ratio of high to low on a slider goes by factors


@dataclass(frozen=True)
class Question:
    """A question whose guess is a number or one of some choices.

    ``low`` and ``high`` bound a number, None where there is no bound; it is a whole one where both
    are ints more than 1 apart. ``choices`` are strings.

    Raises ValueError or TypeError for what cannot be asked.
    """

    name: str
    text: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"guess: name is {self.name!r}, expected small letters, digits and _, such as 'hidden'")
        if not isinstance(self.text, str) or not self.text.strip():
            raise ValueError(f"guess {self.name}: question is {self.text!r}, expected a sentence")
        if self.choices:
            _check_choices(self)
        else:
            _check_bounds(self)

    @property
    def whole(self) -> bool:
        """Whether the guess is a whole number."""
        return self.low is not None and self.high is not None and is_whole(self.low + self.high) and self.spread > 1

    @property
    def spread(self) -> float:
        """How far the bounds are apart; infinite where one is missing."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    @property
    def by_factors(self) -> bool:
        """Whether two guesses are compared by their ratio: bounds above 0, or no lower one."""
        return not self.choices and (self.low is None or self.low > 0)

    @property
    def logarithmic(self) -> bool:
        """Whether a slider for this question goes by factors."""
        return bool(self.low and self.high and self.low > 0 and self.high / self.low >= LOGARITHMIC)

    def chance(self, guess: Any, answer: Any) -> float | None:
        """Return how likely a random number is at least as near to the answer as ``guess``.

        Random numbers are spread as the slider is, from ``low`` to ``high``. None for "I don't
        know", for choices, and where a bound is missing.
        """
        if guess is None or self.choices or self.low is None or self.high is None:
            return None
        if self.logarithmic and answer <= 0:
            return 1.0
        if self.whole and not self.logarithmic:
            possible = range(int(self.low), int(self.high) + 1)
            return sum(abs(each - answer) <= abs(guess - answer) for each in possible) / len(possible)
        scale = math.log if self.logarithmic else float
        low, high, mine, right = map(scale, (self.low, self.high, guess, answer))
        nearer = min(high, right + abs(mine - right)) - max(low, right - abs(mine - right))
        return nearer / (high - low)

    def accept(self, value: Any) -> Any:
        """Return ``value`` as a guess of this question: int, float or str.

        Raises ValueError that says what is expected.
        """
        if not self.choices:
            return self._accept_number(value)
        if value not in self.choices:
            raise ValueError(f"guess {self.name}: {value!r}, expected one of {', '.join(self.choices)}")
        return value

    def _accept_number(self, value: Any) -> int | float:
        expected = f"guess {self.name}: {value!r}, expected {self.expected()}"
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+,\d{3}", value):
            raise ValueError(f"{expected}. Do you mean {value.replace(',', '.')}, or {value.replace(',', '')}?")
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError(expected)
        number = float(value)
        if not self._is_within(number):
            raise ValueError(expected + self._in_another_unit(number))
        if self.whole and number != int(number):
            raise ValueError(expected)
        return int(number) if self.whole else number

    def _is_within(self, number: float) -> bool:
        low, high = (number if bound is None else bound for bound in (self.low, self.high))
        return low <= number <= high

    def _in_another_unit(self, number: float) -> str:
        """Return in which unit a number would be possible, as a question, or ""."""
        sizes = next((sizes for sizes in UNITS if self.unit in sizes), {})
        for unit, size in sizes.items():
            if self._is_within(converted := number * size / sizes[self.unit]):
                return f". Do you mean {plain(number)} {unit}? That is {plain(converted)} {self.unit}"
        return ""

    def expected(self) -> str:
        """Return in words which number is expected: ``a whole number from 1 to 30``."""
        kind = "a whole number" if self.whole else "a number"
        at_least = "" if self.low is None else f" from {plain(self.low)}"
        at_most = "" if self.high is None else f" {'to' if at_least else 'up to'} {plain(self.high)}"
        return f"{kind}{at_least}{at_most}{self.unit and ' ' + self.unit}"


def plain(number: float) -> str:
    """Return a number as one writes it, without an exponent: ``4,194,304``, ``0.00002``."""
    if number == round(number):
        return f"{number:,.0f}"
    digits = max(0, 3 - math.floor(math.log10(abs(number))))
    return f"{number:,.{digits}f}".rstrip("0").rstrip(".")


def _check_bounds(question: Question) -> None:
    for side, bound in (("low", question.low), ("high", question.high)):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, numbers.Real)):
            raise TypeError(f"guess {question.name}: {side} is {bound!r}, expected a number")
        if bound is not None and not math.isfinite(bound):
            raise ValueError(f"guess {question.name}: {side} is {bound!r}, expected a finite number")
    if question.spread <= 0:
        raise ValueError(
            f"guess {question.name}: low is {question.low!r} and high {question.high!r}: expected low < high"
        )


def _check_choices(question: Question) -> None:
    name, choices = question.name, question.choices
    if question.low is not None or question.high is not None or question.unit:
        raise ValueError(f"guess {name}: low, high and unit are for numbers, and choices are given: leave them out")
    if len(choices) < 2 or not all(isinstance(each, str) and each for each in choices):
        raise ValueError(f"guess {name}: choices are {choices!r}, expected two or more strings")
    if len(set(choices)) < len(choices):
        raise ValueError(f"guess {name}: choices {choices!r} has one of them twice")
