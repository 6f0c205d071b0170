"""Look back on all guesses of the course: how far off, where, and are they getting better?

Factors compare numbers whatever they measure. A trend cannot use them: a range of an hour leaves
more room for a wrong guess than one from 1 to 4. So it compares each guess with random ones in the
same range.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
import re
import textwrap
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import MeasuredTable, fact, measured
from labkit.base.lab import lab
from labkit.base.measurement_html import Lines, style_measurements
from labkit.base.words import words
from labkit.draw.palette import INK, on_page
from labkit.draw.picture import attach, behind, house_style, new_axes, scaled
from labkit.guesses import store
from labkit.guesses.feedback import TERMS, amount
from labkit.stats import Interval, interval
from labkit.stats.comparison import MIN_REPEATS

LABEL_WIDTH = 62  # characters of a question in a line of the picture
FAR = 100.0  # a guess that is further off is drawn at the edge
OTHER = "something else"
DONT_KNOW = "I don't know"
_ASKS = re.compile(r"\bguess\(\s*\"(\w+)\"")
_COLUMNS = [
    "notebook",
    "question",
    "asked",
    "guess",
    "answer",
    "factor",
    "times off",
    "chance",
    "left out",
    "measured",
    "undecided",
]


def calibration() -> MeasuredTable:
    """Return every guess whose answer has been seen, in the order in which they were answered.

    ``question`` is its name, and ``asked`` its words.
    ``factor`` is guess ÷ answer of a number, and ``times off`` how many times too high or too low
    that is; both are NaN for choices, "I don't know", and where either number is 0.
    ``chance`` is the probability that a random number in the question's range comes at least as
    near to the answer; NaN for anything but numbers with a range. ``left out`` is the wrong model
    or the term that the guess may have come from, or "". ``measured`` tells an answer of this
    machine from one that is the same everywhere. Of an ``undecided`` guess the run could not tell
    whether it is the answer: it has neither factor nor chance.
    """
    notebooks = notebooks_that_ask()
    rows = [
        {
            "notebook": notebooks.get(name, ""),
            "question": name,
            "asked": (question := _question(name)).get("text", name),
            "guess": _in_words(facts["guess"], unit := question.get("unit", "")),
            "answer": _in_words(facts["answer"], unit),
            "factor": (factor := math.nan if facts.get("undecided") else _factor(facts["guess"], facts["answer"])),
            "times off": max(factor, 1 / factor),
            "chance": facts.get("chance"),
            "left out": facts.get("left_out", ""),
            "measured": facts.get("measured", True),
            "undecided": facts.get("undecided", False),
        }
        for name, facts in store.load().items()
        if {"guess", "answer"} <= facts.keys()
    ]
    return MeasuredTable(rows, columns=_COLUMNS).astype({"chance": float})


def notebooks_that_ask() -> dict[str, str]:
    """Return for each question, by name, the notebook of the lab that asks it."""
    asked_in: dict[str, str] = {}
    for path in sorted(lab().notebooks.glob("*.ipynb")):
        with contextlib.suppress(ValueError):  # half-saved: JupyterLab will say so
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
            asked_in |= dict.fromkeys(_ASKS.findall(code), path.stem)
    return asked_in


def _question(name: str) -> dict[str, Any]:
    """Return a question as ``questions.toml`` asks it; nothing where that has none of it."""
    try:
        return words("questions", name)
    except (FileNotFoundError, ValueError):
        return {}


class GuessesByNotebook:
    """A table for each notebook, to read: what was measured is marked, all else exact."""

    _HEADS = "", "your guess", "the answer", "how far off", "left out"

    def __init__(self, table: pd.DataFrame):
        self._of_notebook = {
            str(notebook) or "asked elsewhere": [_cells(row) for _, row in rows.iterrows()]
            for notebook, rows in table.groupby("notebook", sort=False)
        }

    def __repr__(self) -> str:
        lines = []
        for notebook, rows in self._of_notebook.items():
            lines += ["", notebook]
            for question, *facts in rows:
                named = zip(self._HEADS[1:], facts, strict=True)
                lines += [f"  {question}", "    " + " · ".join(f"{head}: {fact}" for head, fact in named if fact)]
        return "\n".join(lines[1:])

    def _repr_html_(self) -> str:
        parts = []
        for notebook, rows in self._of_notebook.items():
            heads = [notebook, *self._HEADS[1:]]
            body = "".join(f"<tr>{''.join(map(_left, row))}</tr>" for row in rows)
            parts.append(f"<table><tr>{''.join(_left(head, 'th') for head in heads)}</tr>{body}</table>")
        return style_measurements("".join(parts))


def _left(text: str, tag: str = "td") -> str:
    """Return a cell of a table: JupyterLab would set its text at the right."""
    shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return f'<{tag} style="text-align: left; vertical-align: top">{shown}</{tag}>'


def _cells(row: pd.Series) -> tuple[str, ...]:
    depends = [_how_far_off(row), row["left out"]]
    if row["measured"]:
        return row["asked"], row["guess"], *(fact(text, 0) if text else "" for text in (row["answer"], *depends))
    return row["asked"], row["guess"], row["answer"], *depends


def _how_far_off(row: pd.Series) -> str:
    if row["guess"] == DONT_KNOW:
        return ""
    if row["undecided"]:
        return "too close to call"
    if row["guess"] == row["answer"]:
        return "right"
    if row["times off"] == row["times off"]:
        return f"{amount(row['times off'])} times too {'low' if row['factor'] < 1 else 'high'}"
    return "wrong"


def all_guesses(table: pd.DataFrame) -> GuessesByNotebook:
    """Return :func:`calibration`'s table to read, notebook by notebook."""
    return GuessesByNotebook(table)


def said_of_calibration(table: pd.DataFrame) -> Lines:
    """Return a few lines: how far off, what was left out most often, and getting better or not.

    With few answers it is fewer lines, and with none it says so.
    """
    n_open = sum("answer" not in facts for facts in store.load().values() if "guess" in facts)
    waiting = f"Guesses whose answer you have not seen yet: {n_open}."
    times_off = table["times off"].dropna()
    if times_off.empty:
        return Lines(f"No number has been guessed and answered so far. {waiting}")
    n_factors, zeros = len(times_off), len(table.chance.dropna().index.difference(times_off.index))
    lines = [f"Numbers: {n_factors + zeros}, typically {measured(times_off.median(), 'times off')}."]
    if zeros:
        lines[0] += f" In {zeros} of them the guess or the answer is 0, so there is no factor."
    others = table[table.factor.isna() & table.chance.isna() & (table.guess != DONT_KNOW)]
    choices = others[~others.undecided]
    right = sum(choices.guess == choices.answer)
    lines.append(f"Choices: {len(choices)}, right: {measured(right, width=2)}.")
    if n_undecided := len(others) - len(choices):
        lines.append(f"Too close to call: {measured(n_undecided, width=2)}.")
    counts = terms_left_out(table)
    terms = counts[:-1]
    times = terms.guesses.max()
    most = "; ".join(terms.term[terms.guesses == times])
    if times:
        total, times = (measured(number, width=2) for number in (counts.guesses.sum(), times))
        lines.append(
            f"A wrong model or a forgotten term: {total}. Forgotten most often, {times} times: {fact(most, 58)}."
        )
    return Lines("\n".join([*lines, trend(table), *([waiting] if n_open else [])]))


def trend(table: pd.DataFrame) -> str:
    """Say whether the guesses got better: how often a random one would be as near, early and late.

    A half's median has a 95 % interval; where those of the two halves overlap, no trend is claimed.
    """
    chances = table.chance.dropna()
    half = len(chances) // 2
    if half < MIN_REPEATS:
        return f"Better or worse? That takes {2 * MIN_REPEATS} numbers."
    early, late = interval(chances.iloc[:half]), interval(chances.iloc[half:])
    word = "better" if late.high < early.low else "worse" if late.low > early.high else "no trend beyond the noise"
    shares = [Interval(*(100 * share for share in each)).text("%") for each in (early, late)]
    return (
        f"Random guesses that come as near as yours: {fact(shares[0], 20)} in the first half, {fact(shares[1], 20)} in "
        f"the second: {fact(word, 26)}."
    )


def terms_left_out(table: pd.DataFrame) -> MeasuredTable:
    """Return how often each of TERMS was left out, and something else: columns term, guesses."""
    known = store.load()
    answered = [known[name] for name in table.question]
    counts = Counter(facts.get("term", "") for facts in answered if facts.get("left_out"))
    named = {name: counts.pop(term, 0) for term, name in TERMS.items()}
    named[OTHER] = counts.total()
    return MeasuredTable({"term": named.keys(), "guesses": map(float, named.values())})


def draw_calibration(table: pd.DataFrame) -> Axes:
    """Draw guess ÷ answer of the eight numbers furthest off, the first on top; 1 came true.

    Raises ValueError where there is no number to draw.
    """
    numbers = table.dropna(subset="factor")
    if numbers.empty:
        raise ValueError("draw_calibration(table): no number has been guessed and answered yet")
    numbers = numbers.nlargest(8, "times off")
    names = numbers.notebook.str.partition("_")[0] + " · " + numbers.asked.str.replace("`", "")
    names = names.str.removeprefix(" · ")  # no notebook asks it any more
    labels = [textwrap.fill(name, LABEL_WIDTH) for name in names]
    heights = np.array([label.count("\n") + 1.8 for label in labels])  # in lines of text
    places = heights.cumsum() - heights / 2
    with house_style():
        ax = new_axes(10.0, 1.0 + scaled(0.14) * heights.sum())
        ax.axvspan(0.5, 2, color="#009E73", alpha=0.15, linewidth=0, label="within a factor of two")
        ax.axvline(1, color=on_page(INK), linewidth=1, label="the answer")
        shown = numbers.factor.clip(1 / FAR, FAR)
        ax.hlines(places, 1, shown, color="#999999", linewidth=1)
        ax.plot(shown, places, "*", color="#777777", markersize=9, label="your guess")
        ax.set_xscale("log")
        ax.set_xlim(0.7 / FAR, 1.4 * FAR)
        ax.set_xticks([0.01, 0.1, 0.5, 1, 2, 10, 100], labels=["1/100", "1/10", "1/2", "1", "2", "10", "100"])
        for place, factor in zip(places, numbers.factor, strict=True):
            if not 1 / FAR <= factor <= FAR:  # its star is at the edge, so say where it would be
                far = f"{factor:,.0f}" if factor > 1 else f"1/{1 / factor:,.0f}"
                look: dict[str, Any] = {"ha": "right" if factor > 1 else "left", "va": "center", "fontsize": scaled(8)}
                ax.text(
                    (FAR if factor > 1 else 1 / FAR) * (0.8 if factor > 1 else 1.25), place, far, bbox=behind(), **look
                )
        ax.set_yticks(places, labels=labels)
        _set_left(ax)
        ax.set_ylim(heights.sum(), 0)
        ax.set_xlabel("guess ÷ answer")
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.005), ncols=3, borderaxespad=0.0)
    attach(ax, numbers[["notebook", "question", "factor"]])
    return ax


def _set_left(ax: Axes) -> None:
    """Have the labels of the y axis begin below each other, at their left."""
    figure, labels = ax.figure, ax.get_yticklabels()
    widest = max(label.get_window_extent().width for label in labels)
    ax.tick_params(axis="y", pad=72 * widest / figure.dpi + 4)  # points
    for label in labels:
        label.set_horizontalalignment("left")


def _in_words(value: Any, unit: str) -> str:
    if value is None:
        return DONT_KNOW
    return value if isinstance(value, str) else amount(value, unit)


def _factor(guess: Any, answer: Any) -> float:
    """Return guess ÷ answer of two numbers; NaN for anything else, and where there is no ratio."""
    numbers = isinstance(guess, int | float) and isinstance(answer, int | float)
    return guess / answer if numbers and guess > 0 and answer > 0 else math.nan
