"""Ask for the reader's guess before a measurement, and say afterwards which term it forgot.

    hidden = guess("hidden", "Which fraction of the communication hides?", low=0, high=1)

shows a form and has no default. A cell that reveals the answer begins with ``%%needs guess.hidden``
and steps aside until the guess is given; "I don't know" is one. It is kept outside the notebook, so
running all cells again keeps it. In such a cell:

    hidden.feedback(0.72, as_if={"if messages were free": 1.0, "if nothing overlapped": 0.0})
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit import todo
from labkit.base.notebook import display, in_notebook, static
from labkit.guesses.calibration import all_guesses, calibration, draw_calibration, said_of_calibration, terms_left_out
from labkit.guesses.question import Question
from labkit.guesses.reader import Card, Guess

__all__ = ["Guess", "all_guesses", "calibration", "draw_calibration", "guess", "said_of_calibration", "terms_left_out"]


def guess(
    name: str,
    question: str,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    choices: Sequence[str] | None = None,
    ordered: bool = False,
) -> Guess:
    """Ask ``question``: show its form in the cell, and return what holds the guess.

    The guess is a number, in ``unit`` and from ``low`` to ``high`` where these are given, and a
    whole one if both are ints more than 1 apart. With ``choices`` it is one of these strings, and
    with ``ordered`` all of them in order, the smallest first. ``name`` is this question's name in
    the whole course: ``%%needs guess.name`` waits for it.

    Raises ValueError or TypeError for a question that cannot be asked.
    """
    made = Guess(Question(name, question, low, high, unit, tuple(choices or ()), ordered))
    todo.GUESSES[name] = made.missing
    if static():  # a stored notebook: the guess that ships
        display(Card(f"{question}\nThe guess on this page: {made.in_words()}"))
    elif in_notebook():
        from labkit.guesses.form import Form

        display(Form(made))
    return made
