"""The reader's guess of a question, which a file keeps, and the card that shows it on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from labkit.base.formats import fact
from labkit.base.measurement_html import Lines, as_html
from labkit.base.notebook import display, static
from labkit.base.units import size_of
from labkit.guesses import feedback, store
from labkit.guesses.feedback import Feedback, Quantity
from labkit.guesses.question import Question
from labkit.stats import Interval


class Card(Lines):
    """Lines with a bar at their left.

    In HTML a sentence measured as a whole has no mark, and what stands in backticks is code.
    """

    def _repr_html_(self) -> str:
        lines = re.sub(r' style="[^"]*"', "", as_html(self.text)).replace("\n", "<br>")
        lines = re.sub(r"`([^`]+)`", r"<code>\1</code>", lines)
        return f'<div style="border-left: 4px solid #777777; padding: 0.3em 0.9em">{lines}</div>'


class Guess:
    """A question and the reader's guess: ``value``, once it is ``given``.

    ``value`` is a float, an int or a string; None until it is given, and for "I don't know". It is
    final once its answer has been seen.
    """

    def __init__(self, question: Question):
        self.question = question
        self.watchers: list[Callable[[], None]] = []  # called after each change: the form on the page

    @property
    def value(self) -> Any:
        kept = self._known().get("guess")
        try:
            return None if kept is None else self.question.accept(kept)
        except ValueError:  # the question has changed since
            return None

    @property
    def number(self) -> float:
        """The guess in seconds, bytes, or the unit of its question; NaN where there is no number.

        So a cell computes with it: ``guess=ratio.number * ring_s``.
        """
        return math.nan if self.value is None else self.value * size_of(self.question.unit)

    @property
    def given(self) -> bool:
        """Whether the reader has guessed, or said that they do not know."""
        known = self._known()
        return "guess" in known and (known["guess"] is None or self.value is not None)

    def missing(self) -> str | None:
        """Return what ``%%needs`` prints while the guess is not given, else None."""
        name = self.question.name
        return None if self.given else f'GUESS {name}: give your guess first ("I don\'t know" is one)'

    @property
    def final(self) -> bool:
        """Whether the answer has been seen."""
        return self.given and "answer" in self._known() and not static()

    def give(self, value: Any) -> None:
        """Give the guess, as the form does; None is "I don't know".

        Raises ValueError for what the question does not take, and once the guess is final.
        """
        if self.final:
            raise ValueError(
                f"guess {self.question.name} is final, as you have seen the answer: "
                f"{self.in_words()}. To start over: .forget()"
            )
        self._keep(guess=None if value is None else self.question.accept(value))

    def forget(self) -> None:
        """Take the guess back, and what was its answer."""
        store.forget(self.question.name)
        self._changed()

    def in_words(self) -> str:
        """Return the guess in words: ``0.5``, ``GPipe``, ``I don't know``."""
        value = self.value
        if value is None:
            return "I don't know" if self.given else "no guess yet"
        return value if isinstance(value, str) else feedback.amount(value, self.question.unit)

    def feedback(
        self,
        answer: Any,
        as_if: Mapping[str, Any] | None = None,
        terms: Mapping[str, Any] | None = None,
        measured: bool = True,
    ) -> None:
        """Show how far off the guess is and which term it forgot; from now on it is final.

        So is the answer that is kept: an experiment after it shows its own, and leaves that one.
        The answer of a number may be an Interval; a guess inside it is not told from it, and the
        calibration does not count it as wrong.
        ``as_if`` holds wrong models by a clause, ``{"if messages were free": 0.1}``,
        and ``terms`` the parts of the answer, ``{"the latency of 52 messages": 5.2}``; at least one
        of them is needed. Either may name the term that such a guess forgets, for the calibration:
        ``{"if messages were free": (0.1, "latency")}``, one of "latency", "host", "overlap" and
        "bytes". For a choice, ``as_if`` says of every choice what speaks for it or against it.
        With ``measured`` the answer comes from this machine, so no test compares it.

        Raises ValueError if feedback could be nothing but right or wrong, and for another term.
        """
        text, left_out, term = self._compare(answer, as_if or {}, terms or {})
        undecided, between = False, None
        if isinstance(answer, Interval):
            between = [_plain(answer.low), _plain(answer.high)]
            undecided = self.value is not None and answer.side_of(self.value) == "inside"
            answer = answer.median
        chance = None if undecided else self.question.chance(self.value, answer)
        facts = {"answer": _plain(answer), "between": between, "measured": measured, "undecided": undecided}
        if not self.final:  # an experiment after the answer leaves it as it was
            self._keep(**facts, left_out=left_out, term=term, chance=chance and round(chance, 4))
        display(Card(f"You said: {self.in_words()}. {fact(text, width=0) if measured else text}"))

    def _compare(self, answer: Any, as_if: Mapping[str, Any], terms: Mapping[str, Any]) -> Feedback:
        question = self.question
        if not question.choices:
            if not as_if and not terms:
                raise ValueError(f"guess {question.name}: feedback needs as_if or terms, to name what a guess forgot")
            models, parts = ({name: Quantity.of(each) for name, each in given.items()} for given in (as_if, terms))
            found = answer if isinstance(answer, Interval) else float(answer)
            return feedback.on_number(question, self.value, found, models, parts)
        expected = set(as_if) | {answer}
        if expected != set(question.choices):
            raise ValueError(
                f"guess {question.name}: feedback covers {', '.join(sorted(expected))}, expected all of "
                f"{', '.join(sorted(question.choices))}"
            )
        return feedback.on_choice(self.value, answer, as_if)

    def _keep(self, **facts: Any) -> None:
        store.keep(self.question.name, **facts)
        self._changed()

    def _changed(self) -> None:
        for watcher in self.watchers:
            watcher()

    def _known(self) -> dict[str, Any]:
        return store.load().get(self.question.name, {})

    def __repr__(self) -> str:
        return f"{self.question.text}\nYour guess: {self.in_words()}"


def _plain(answer: Any) -> Any:
    """Return an answer as JSON has it, a measured one to four digits."""
    return answer if isinstance(answer, str | int) else float(f"{answer:.4g}")
