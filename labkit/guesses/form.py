"""The form of a question in a notebook: a slider and a box, choices, or an order to click."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from labkit.guesses.reader import Guess

_HERE = Path(__file__).parent


class Form(anywidget.AnyWidget):
    """What the browser shows of a guess: ``question`` is what is asked, ``state`` how it stands.

    The browser sets ``sent``: a number that grows, and the guess (null is "I don't know"). What
    the question does not take comes back as the state's ``fault``.
    """

    _esm = _HERE / "form.js"
    _css = _HERE / "form.css"
    question = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    sent: Any = traitlets.List().tag(sync=True)

    def __init__(self, guess: Guess):
        self._guess = guess
        question = guess.question
        kind = {"whole": question.whole, "logarithmic": question.logarithmic}
        expected = "" if question.choices else question.expected()
        super().__init__(question=asdict(question) | kind | {"expected": expected})
        guess.watchers.append(self._tell)
        self._tell()

    def __repr__(self) -> str:
        return f"{self._guess!r}\n(In a notebook without forms: give it with .give(…))"

    @traitlets.observe("sent")
    def _take(self, change: dict[str, Any]) -> None:
        try:
            self._guess.give(change["new"][1])
        except (OSError, ValueError) as error:
            self._tell(str(error))

    def _tell(self, fault: str = "") -> None:
        guess = self._guess
        self.state = {"given": guess.given, "said": guess.in_words(), "final": guess.final, "fault": fault}
