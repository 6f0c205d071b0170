"""Say how far off a guess is, and which term it forgot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from labkit.guesses.question import Question

CLOSE_FACTOR = 1.25  # by factors: so far off counts as close
CLOSE_SHARE = 0.1  # else: such a share of what can be chosen, or of the answer
NEAR_FACTOR, NEAR_SHARE = 1.6, 0.2  # so near is a guess to a wrong model that it may have come from


class Told(NamedTuple):
    """A sentence or two for the reader, and for calibration what was left out, or ""."""

    text: str
    left_out: str


def of_number(
    question: Question,
    guess: float | None,
    answer: float,
    as_if: Mapping[str, float],
    terms: Mapping[str, float],
) -> Told:
    """Compare a guessed number, None for "I don't know", with the answer.

    ``as_if`` has wrong models, by a clause such as ``"if messages were free"``: what the answer
    would be. ``terms`` is what the answer is made of, by name, in its unit. The feedback names the
    wrong model, or the term to leave out, that comes nearest to the guess; where none is near, the
    largest term, or what the models would give.
    """
    largest = max(terms, key=lambda name: abs(terms[name]), default="")
    unit = question.unit
    if guess is None:
        reason = _of_largest(terms, largest, answer, unit) if terms else _to_compare(as_if, unit)
        return Told(f"It is {amount(answer, unit)}. {reason}", "")
    head = f"It is {amount(answer, unit)}: {_off(question, guess, answer)}."
    if _is_close(question, guess, answer):
        return Told(f"{head} {_of_largest(terms, largest, answer, unit) if terms else _to_compare(as_if, unit)}", "")
    without = {name: answer - term for name, term in terms.items() if term}
    nearest = min([*as_if.items(), *without.items()], key=lambda each: _distance(question, guess, each[1]))
    if _is_told_by(question, guess, answer, nearest[1]):
        name, value = nearest
        if name in as_if:
            near = abs(guess - value) > 0.02 * abs(value)
            what = f"Your guess is near {amount(value, unit)}, which" if near else "Your guess is what"
            return Told(f"{head} {what} it would be {name}.", name)
        return Told(f"{head} What your guess leaves out is {name}: {_share(terms[name], answer, unit)}.", name)
    if terms:
        return Told(f"{head} {_of_largest(terms, largest, answer, unit)}", "")
    return Told(f"{head} {_to_compare(as_if, unit)}", "")


def of_choice(guess: str | None, answer: str, as_if: Mapping[str, str]) -> Told:
    """Compare a choice with the answer; ``as_if`` says what speaks for or against each choice."""
    reason = f" {as_if[answer]}" if as_if.get(answer) else ""
    if guess == answer:
        return Told(f"It is.{reason}", "")
    yours = f" Your choice, “{guess}”: {as_if[guess]}" if guess is not None and as_if[guess] not in reason else ""
    return Told(f"It is “{answer}”.{reason}{yours}", "")


def of_order(
    guess: Sequence[str] | None, answer: Mapping[str, float], as_if: Mapping[str, Sequence[str]], unit: str = ""
) -> Told:
    """Compare an order, the smallest first, with the numbers that decide it."""
    right = _ranked(answer, unit)
    if guess is None:
        return Told(f"It is {right}.", "")
    wrong = [(a, b) for a, b in combinations(guess, 2) if answer[a] > answer[b] * (1 + 1e-9)]
    if not wrong:
        return Told(f"It is: {right}.", "")
    first, second = max(wrong, key=lambda pair: answer[pair[0]] - answer[pair[1]])
    head = f"It is {right}. You put {first} before {second}."
    inversions = {clause: _inversions(guess, order) for clause, order in as_if.items()}
    nearest = min(inversions, key=inversions.__getitem__, default="")
    if nearest and inversions[nearest] < len(wrong):
        return Told(f"{head} That would be so {nearest}.", nearest)
    return Told(head, "")


def _ranked(answer: Mapping[str, float], unit: str) -> str:
    """Return the choices with their numbers, the smallest first: ``a 1 < b 2 = c 2``."""
    order = sorted(answer, key=answer.__getitem__)
    signs = ["", *(" < " if answer[b] > answer[a] * (1 + 1e-9) else " = " for a, b in pairwise(order))]
    return "".join(f"{sign}{name} {amount(answer[name], unit)}" for sign, name in zip(signs, order, strict=True))


def amount(value: float, unit: str = "") -> str:
    """Return a number as it stands in a sentence: ``5.3 ms``, ``3,072``."""
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number}{unit if unit == '%' else unit and ' ' + unit}"


def _off(question: Question, guess: float, answer: float) -> str:
    side = "low" if guess < answer else "high"
    if guess == answer:
        return "just what you said"
    if question.by_factors and guess > 0 and answer > 0:
        ratio = max(guess / answer, answer / guess)
        return f"{_two_digits(ratio)} times too {side}" if ratio >= CLOSE_FACTOR else "close"
    if _is_close(question, guess, answer):
        return "close"
    return f"you are {amount(abs(guess - answer), question.unit)} too {side}"


def _is_told_by(question: Question, guess: float, answer: float, model: float) -> bool:
    """Return whether a wrong model is near the guess, and clearly nearer than the answer."""
    distance = _distance(question, guess, model)
    if question.by_factors and guess > 0:
        near = math.log(NEAR_FACTOR)
    else:
        near = NEAR_SHARE * (question.spread if math.isfinite(question.spread) else max(abs(answer), abs(model)))
    return distance <= near and distance < _distance(question, guess, answer) / 2


def _two_digits(ratio: float) -> str:
    rounded = float(f"{ratio:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def _is_close(question: Question, guess: float, answer: float) -> bool:
    if question.by_factors and guess > 0 and answer > 0:
        return max(guess / answer, answer / guess) < CLOSE_FACTOR
    scale = question.spread if math.isfinite(question.spread) else abs(answer)
    return abs(guess - answer) <= CLOSE_SHARE * scale


def _distance(question: Question, guess: float, value: float) -> float:
    if question.by_factors and guess > 0:
        return abs(math.log(guess / value)) if value > 0 else math.inf
    return abs(guess - value)


def _share(term: float, answer: float, unit: str) -> str:
    if term < 0:
        return f"it takes off {amount(-term, unit)}"
    return f"{amount(term)} of {amount(answer, unit)}"


def _of_largest(terms: Mapping[str, float], name: str, answer: float, unit: str) -> str:
    return f"The largest part is {name}: {_share(terms[name], answer, unit)}."


def _to_compare(as_if: Mapping[str, float], unit: str) -> str:
    *models, last = [f"{amount(value, unit)} {clause}" for clause, value in as_if.items()]
    return f"It would be {', '.join(models)}{', and ' if models else ''}{last}."


def _inversions(guess: Sequence[str], order: Sequence[str]) -> int:
    place = {name: i for i, name in enumerate(order)}
    return sum(place[a] > place[b] for a, b in combinations(guess, 2))
