"""The form of a question in a notebook: a slider and a box, or choices."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import DisplayHandle, display

from labkit.base.javascript import bundle
from labkit.base.widget_output import instead_of_widget, widget_view
from labkit.draw.palette import css_colours
from labkit.guesses.reader import Card, Guess

BROWSER = Path(__file__).parent / "browser"


def form_style(root: str) -> str:
    """Return the style sheet of forms, with the colours of both themes for elements of a class."""
    light, dark = map(css_colours, ("light", "dark"))
    colours = f'.{root} {{ {light} }}\n.{root}[data-theme="dark"] {{ {dark} }}\n'
    return colours + (BROWSER / "form.css").read_text(encoding="utf-8")


class Form(anywidget.AnyWidget):
    """What the browser shows of a guess: ``question`` is what is asked, ``state`` how it stands.

    The browser sets ``sent``: a number that grows, and the guess (null is "I don't know"). What
    the question does not take comes back as the state's ``fault``. After it comes a card with
    question and guess, for where there is no form: in a notebook opened without its kernel.
    """

    _esm, _css = bundle(BROWSER / "guess.js"), form_style("labkit-guess")
    question = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    sent: Any = traitlets.List().tag(sync=True)

    def __init__(self, guess: Guess):
        self._guess = guess
        self._card: DisplayHandle | None = None
        question = guess.question
        kind = {"whole": question.whole, "logarithmic": question.logarithmic}
        expected = "" if question.choices else question.expected()
        super().__init__(question=asdict(question) | kind | {"expected": expected})
        guess.watchers.append(self._tell)
        self._tell()

    def __repr__(self) -> str:
        how_to = "" if self._guess.given else " (run this cell, or give it with .give(…))"
        return f"{self._guess!r}{how_to}"

    def _ipython_display_(self) -> None:
        display(widget_view(self.model_id), raw=True)
        self._card = display(self._as_card(), raw=True, display_id=True)

    def _as_card(self) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": instead_of_widget(Card(repr(self))._repr_html_())}

    @traitlets.observe("sent")
    def _take(self, change: dict[str, Any]) -> None:
        try:
            self._guess.give(change["new"][1])
        except (OSError, ValueError) as error:
            self._tell(str(error))

    def _tell(self, fault: str = "") -> None:
        guess = self._guess
        self.state = {"given": guess.given, "guess": guess.in_words(), "final": guess.final, "fault": fault}
        if self._card:
            self._card.update(self._as_card(), raw=True)
