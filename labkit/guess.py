"""Ask for the reader's guess before a measurement, and say afterwards which term it forgot.

    hidden = guess("hidden")

shows a form and has no default; the words are in ``notebooks/questions.toml``. A cell that reveals
the answer begins with ``%%needs guess.hidden`` and steps aside until the guess is given; "I don't
know" is one. It is kept outside the notebook, so running all cells again keeps it. In such a cell:

    reveal(hidden, 0.72)

:func:`conclude` says what a run decides, and :func:`show` shows figures and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from labkit import todo
from labkit.base.notebook import display, in_notebook, static
from labkit.base.units import size_of
from labkit.base.words import fields_of, words
from labkit.draw.figures import show
from labkit.guesses.calibration import all_guesses, calibration, draw_calibration, said_of_calibration
from labkit.guesses.question import Question
from labkit.guesses.reader import Card, Guess
from labkit.stats import Interval, conclusion, interval

__all__ = [
    "Guess",
    "all_guesses",
    "calibration",
    "conclude",
    "draw_calibration",
    "guess",
    "reveal",
    "said_of_calibration",
    "show",
]


def guess(
    name: str,
    question: str | None = None,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    choices: Sequence[str] | None = None,
) -> Guess:
    """Ask a question: show its form in the cell, and return what holds the guess.

    With a ``name`` alone the question is the one of that name in ``notebooks/questions.toml``, with
    ``choices`` where these are computed. The guess is a number, in ``unit`` and from ``low`` to
    ``high`` where these are given, and a whole one if both are ints more than 1 apart. With
    ``choices`` it is one of these strings. ``name`` is this question's name in the whole course:
    ``%%needs guess.name`` waits for it.

    Raises ValueError or TypeError for a question that cannot be asked.
    """
    if question is None:
        entry = words("questions", name)
        question, low, high = (entry.get(key) for key in ("text", "low", "high"))
        unit = entry.get("unit", "")
        choices = choices or [*entry.get("choices", ())]
    made = Guess(Question(name, question or "", low, high, unit, tuple(choices or ())))
    todo.GUESSES[name] = made.missing
    if static():  # a stored notebook: the guess that ships
        display(Card(f"{question}\nThe guess on this page: {made.in_words()}"))
    elif in_notebook():
        from labkit.guesses.form import Form

        display(Form(made))
    return made


def reveal(guess: Guess, measured: Any = None, **numbers: Any) -> None:
    """Show how far off the guess is, and which term it forgot; from now on it is final.

        reveal(one_by_one, wait_s, sent=0.028, latencies=0.005, calls=0.019, free_calls=0.033)

    ``measured`` is the answer: a number, an :class:`Interval`, repeats (their median and interval),
    or one of the question's choices; without it, the ``answer`` that ``questions.toml`` has, which
    no run could change. That file also has the words: ``wrong`` models, ``parts`` that the answer
    is made of, and of each choice what speaks for it or against it. A keyword gives what the answer
    would be under a wrong model, or how large a part is, by its key there; a number that no run
    changes stands there too, in the question's unit: ``would_be``. Any other keyword fills a
    ``{field}`` in those words. Numbers are in seconds, in bytes, or else in the question's unit. An
    answer that is not a measurement is ``exact`` there.

    Raises TypeError for a keyword that is missing or has no place, and what
    :meth:`Guess.feedback` raises.
    """
    question = guess.question
    entry = words("questions", question.name)
    wrong, parts = entry.get("wrong", {}), entry.get("parts", {})
    unit = size_of(question.unit)
    always = {key: each["would_be"] * unit for key, each in (wrong | parts).items() if "would_be" in each}
    known, fields = {*wrong, *parts} - {*always}, {*fields_of(entry)}
    if not known <= numbers.keys() <= known | fields:
        expected = ", ".join([*(key for key in (*wrong, *parts) if key in known), *sorted(fields)]) or "none"
        raise TypeError(f"reveal({question.name}): got {', '.join(numbers) or 'no keywords'}, expected {expected}")
    numbers |= always
    is_measured = measured is not None and not entry.get("exact", False)
    measured = entry["answer"] if measured is None else measured
    if question.choices:
        reasons = {choice: reason.format(**numbers) for choice, reason in entry["choices"].items()}
        guess.feedback(measured, reasons, measured=is_measured)
        return
    as_if, terms = (
        {each["phrase"].format(**numbers): (numbers[key] / unit, each.get("forgets", "")) for key, each in of.items()}
        for of in (wrong, parts)
    )
    guess.feedback(_in_unit(measured, unit), as_if, terms, measured=is_measured)


def _in_unit(answer: Any, unit: float) -> Any:
    """Return an answer in a unit: repeats as their interval, a whole number whole."""
    found = interval(answer) if hasattr(answer, "__len__") and not isinstance(answer, Interval) else answer
    if isinstance(found, Interval):
        return Interval(*(each / unit for each in found))
    return found if unit == 1 else found / unit


def conclude(name: str, found: Interval | Iterable[float], than: float = 1.0, **numbers: Any) -> None:
    """Show the sentence of ``notebooks/conclusions.toml`` that a run decides.

        conclude("overlap_gains", turns.step_s.ratio("buckets", "overlap"))

    Which one, and what is raised: see :func:`labkit.stats.conclusion`.
    """
    display(conclusion(name, found, than, **numbers))
