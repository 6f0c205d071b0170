"""Say how far off a guess is, and which term it forgot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from labkit.guesses.question import Question
from labkit.stats import Interval

# As near is close: a guess to the answer, or to a wrong model that it may have come from.
CLOSE_FACTOR = 1.25  # by factors
CLOSE_SHARE = 0.1  # else: of what can be chosen, or of the larger number
TERMS = {  # that guesses forget again and again, by the word that a notebook uses
    "latency": "messages and their latency",
    "host": "host cost, what a call costs its rank",
    "overlap": "what goes on at the same time",
    "bytes": "bytes, and who keeps or sends them",
}


class Feedback(NamedTuple):
    """A sentence or two for the reader, and for calibration what was left out and its term.

    Both are ``""`` where nothing was left out; ``term`` is one of TERMS.
    """

    text: str
    left_out: str = ""
    term: str = ""


class Quantity(NamedTuple):
    """What the answer would be under a wrong model, or a part of the answer, and its term."""

    value: float
    term: str = ""

    @classmethod
    def of(cls, given: Any) -> Quantity:
        """Return the quantity of a number, or of a number with one of TERMS.

        Raises ValueError for another term.
        """
        value, term = given if isinstance(given, tuple) else (given, "")
        if term not in {"", *TERMS}:
            raise ValueError(f"feedback: term is {term!r}, expected one of {', '.join(TERMS)}")
        return cls(float(value), term)


def on_number(
    question: Question,
    guess: float | None,
    found: float | Interval,
    as_if: Mapping[str, Quantity],
    terms: Mapping[str, Quantity],
) -> Feedback:
    """Compare a guessed number, None for "I don't know", with the answer that was ``found``.

    Of an interval, the median is the answer; what lies inside, guess or model, is not told from it.
    ``as_if`` has wrong models, by a clause such as ``"if messages were free"``: what the answer
    would be. ``terms`` is what the answer is made of, by name, in its unit. The feedback names the
    wrong model, or the term to leave out, that the guess is near to, and clearly nearer than to any
    other and to the answer. Where there is none, it names the largest term, or what the models
    would give.
    """
    unit = question.unit
    answer, low, high = found if isinstance(found, Interval) else (found, math.nan, math.nan)
    explanation = _largest_part(terms, answer, unit) if terms else _of_models(as_if, unit)
    it_is = f"It is {found.text(unit) if isinstance(found, Interval) else amount(answer, unit)}"
    if guess is None:
        return Feedback(f"{it_is}. {explanation}")
    if low <= guess <= high:
        return Feedback(f"{it_is}: this run cannot tell your guess from that. {explanation}")
    head = f"{it_is}: {_off(question, guess, answer)}."
    without = {name: part._replace(value=answer - part.value) for name, part in terms.items() if part.value}
    models = {name: model for name, model in {**as_if, **without}.items() if not low <= model.value <= high}
    nearest = _origin(question, guess, answer, models)
    if not nearest:
        return Feedback(f"{head} {explanation}")
    value, term = models[nearest]
    if nearest in without:
        share = _share(terms[nearest].value, answer, unit)
        return Feedback(f"{head} What your guess leaves out is {nearest}: {share}.", nearest, term)
    near = abs(guess - value) > 0.02 * abs(value)
    what = f"Your guess is near {amount(value, unit)}, which" if near else "Your guess is what"
    return Feedback(f"{head} {what} it would be {nearest}.", nearest, term)


def on_choice(guess: str | None, answer: str, as_if: Mapping[str, str]) -> Feedback:
    """Compare a choice with the answer; ``as_if`` says what speaks for or against each choice."""
    reason = f" {as_if[answer]}" if as_if.get(answer) else ""
    if guess == answer:
        return Feedback(f"It is.{reason}")
    yours = f" Your choice, “{guess}”: {as_if[guess]}" if guess is not None and as_if[guess] not in reason else ""
    return Feedback(f"It is “{answer}”.{reason}{yours}")


def amount(value: float, unit: str = "") -> str:
    """Return a number as it stands in a sentence: ``5.3 ms``, ``3,072``, ``1 row``."""
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if number == "1" and unit != "times" and re.fullmatch(r"[a-z]{3,}s", unit):
        unit = unit.removesuffix("s")
    return f"{number}{unit if unit in ('%', '×') else unit and ' ' + unit}"


def difference(value: float, unit: str) -> str:
    """Return how far two numbers are apart: of percentages, in percentage points."""
    return amount(value, "percentage points" if unit == "%" else unit)


def _off(question: Question, guess: float, answer: float) -> str:
    if guess == answer:
        return "just what you said"
    if _is_close(question, guess, answer):
        return "close"
    side = "low" if guess < answer else "high"
    if ratio := _ratio(question, guess, answer):
        rounded = float(f"{ratio:.2g}")
        return f"{rounded:{',.0f' if rounded >= 10 else 'g'}} times too {side}"
    return f"you are {difference(abs(guess - answer), question.unit)} too {side}"


def _ratio(question: Question, guess: float, answer: float) -> float | None:
    """Return by which factor a guess is off, or None where factors do not tell."""
    return max(guess / answer, answer / guess) if question.by_factors and guess > 0 and answer > 0 else None


def _is_close(question: Question, guess: float, value: float) -> bool:
    if ratio := _ratio(question, guess, value):
        return ratio < CLOSE_FACTOR
    scale = question.spread if math.isfinite(question.spread) else max(abs(guess), abs(value))
    return abs(guess - value) <= CLOSE_SHARE * scale


def _origin(question: Question, guess: float, answer: float, models: Mapping[str, Quantity]) -> str:
    """Return the wrong model that a guess is clearly near to, as if it came from it, or ""."""
    distances = {name: _distance(question, guess, value) for name, (value, _) in models.items()}
    nearest, *others = sorted(distances, key=distances.__getitem__) or [""]
    if not nearest or _is_close(question, guess, answer) or not _is_close(question, guess, models[nearest].value):
        return ""
    rivals = [_distance(question, guess, answer), *(distances[name] for name in others)]
    return nearest if 2 * distances[nearest] < min(rivals) else ""


def _distance(question: Question, guess: float, value: float) -> float:
    if question.by_factors and guess > 0:
        return abs(math.log(guess / value)) if value > 0 else math.inf
    return abs(guess - value)


def _share(term: float, answer: float, unit: str) -> str:
    if term < 0:
        return f"it takes off {difference(-term, unit)}"
    return f"{amount(term)} of {amount(answer, unit)}"


def _largest_part(terms: Mapping[str, Quantity], answer: float, unit: str) -> str:
    name = max(terms, key=lambda name: abs(terms[name].value))
    share, rest = _share(terms[name].value, answer, unit), answer - sum(part.value for part in terms.values())
    if rest > abs(terms[name].value):
        return f"Of the parts named here, which leave out {difference(rest, unit)}, the largest is {name}: {share}."
    return f"The largest part is {name}: {share}."


def _of_models(as_if: Mapping[str, Quantity], unit: str) -> str:
    first_two = [f"{amount(value, unit)} {clause}" for clause, (value, _) in [*as_if.items()][:2]]
    return f"It would be {', and '.join(first_two)}."
