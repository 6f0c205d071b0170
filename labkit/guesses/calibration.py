"""Look back on all guesses of the course: how far off, where, and are they getting better?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from labkit.base.formats import MeasuredTable, fact, measured
from labkit.draw.picture import attach, house_style, new_axes
from labkit.guesses import store
from labkit.guesses.feedback import TERMS

FAR = 100.0  # a guess that is further off is drawn at the edge
ANSWER_WIDTH, LEFT_OUT_WIDTH = 52, 72  # as text, so that a table is as wide whatever was answered
_COLUMNS = ["notebook", "question", "guess", "answer", "factor", "times off", "left out"]


def calibration() -> MeasuredTable:
    """Return every guess whose answer has been seen, in the order in which they were answered.

    Columns: notebook, question, guess, answer, factor, times off, left out. ``factor`` is guess ÷
    answer of a number, and ``times off`` how many times too high or too low that is; both are NaN
    for choices, orders and "I don't know". ``left out`` is the wrong model or the term that the
    guess came nearest to, or "".
    """
    shipped = store.read(store.shipped_file())
    rows = [
        {
            "notebook": shipped.get(name, {}).get("notebook", ""),
            "question": name,
            "guess": _in_words(facts["guess"]),
            "answer": fact(_in_words(facts["answer"]), ANSWER_WIDTH),
            "factor": (factor := _factor(facts["guess"], facts["answer"])),
            "times off": max(factor, 1 / factor),
            "left out": fact(facts.get("left_out", ""), LEFT_OUT_WIDTH),
        }
        for name, facts in store.load().items()
        if {"guess", "answer"} <= facts.keys()
    ]
    return MeasuredTable(rows, columns=_COLUMNS)


def said_of_calibration(table: pd.DataFrame) -> str:
    """Return three lines: how far off, what was left out most often, and getting better or not."""
    times_off = table["times off"].dropna()
    if len(times_off) < 4:
        return f"{len(table)} answers so far: come back when you have four numbers."
    lines = [f"Numbers: {len(times_off)}, typically {measured(times_off.median(), 'times off')}."]
    choices = table[table.factor.isna() & (table.guess != "I don't know")]
    right = sum(choices.guess.map(lambda guess: fact(guess, ANSWER_WIDTH)) == choices.answer)
    lines.append(f"Choices and orders: {len(choices)}, right: {measured(right, width=2)}.")
    counts = terms_left_out(table)[:-1].sort_values("guesses", ascending=False, kind="stable")
    most, times = counts.iloc[0]
    if times:
        lines.append(f"Left out most often: {fact(most, 34)}, {measured(times, 'times', 2)}.")
    early, late = times_off.iloc[: len(times_off) // 2].median(), times_off.iloc[len(times_off) // 2 :].median()
    word = "better" if late < early / 1.1 else "worse" if late > 1.1 * early else "neither better nor worse"
    lines.append(
        f"First half {measured(early, 'times off')}, second half {measured(late, 'times off')}: {fact(word, 26)}."
    )
    return "\n".join(lines)


def terms_left_out(table: pd.DataFrame) -> MeasuredTable:
    """Return how often each of TERMS was left out, and anything else: columns term, guesses."""
    known = store.load()
    answered = [known[name] for name in table.question]
    counts = Counter(facts.get("term", "") for facts in answered if facts.get("left_out"))
    named = {said: counts.pop(term, 0) for term, said in TERMS.items()}
    named["anything else"] = counts.total()
    return MeasuredTable({"term": named.keys(), "guesses": map(float, named.values())})


def draw_calibration(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw guess ÷ answer of each number, the first on top; 1 is a guess that came true.

    Raises ValueError where there is no number to draw.
    """
    numbers = table.dropna(subset="factor")
    if numbers.empty:
        raise ValueError("draw_calibration(table): no number has been guessed and answered yet")
    with house_style():
        ax = ax or new_axes(7.0, 0.9 + 0.2 * len(numbers))
        places = range(len(numbers))
        ax.axvspan(0.5, 2, color="#009E73", alpha=0.15, linewidth=0, label="within a factor of two")
        ax.axvline(1, color="#222222", linewidth=1, label="the answer")
        shown = numbers.factor.clip(1 / FAR, FAR)
        ax.hlines(places, 1, shown, color="#999999", linewidth=1)
        ax.plot(shown, places, "*", color="#777777", markersize=9, label="your guess")
        ax.set_xscale("log")
        ax.set_xlim(0.7 / FAR, 1.4 * FAR)
        ax.set_xticks([0.01, 0.1, 0.5, 1, 2, 10, 100], labels=["1/100", "1/10", "1/2", "1", "2", "10", "100"])
        names = numbers.notebook.str.partition("_")[0] + " · " + numbers.question
        ax.set_yticks(places, labels=names)
        ax.invert_yaxis()
        ax.set_xlabel("guess ÷ answer")
        ax.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
    attach(ax, numbers[["notebook", "question", "factor"]])
    return ax


def _in_words(value: Any) -> str:
    if value is None:
        return "I don't know"
    if isinstance(value, Mapping):
        return ", then ".join(sorted(value, key=value.__getitem__))
    if isinstance(value, list | tuple):
        return ", then ".join(value)
    return value if isinstance(value, str) else f"{value:.4g}"


def _factor(guess: Any, answer: Any) -> float:
    """Return guess ÷ answer of two numbers, at most FAR² either way; NaN for anything else."""
    if not isinstance(guess, int | float) or not isinstance(answer, int | float):
        return math.nan
    if guess == answer:
        return 1.0
    if guess <= 0 or answer <= 0:  # no ratio: as far off as can be drawn
        return 1 / FAR**2 if guess < answer else FAR**2
    return min(max(guess / answer, 1 / FAR**2), FAR**2)
