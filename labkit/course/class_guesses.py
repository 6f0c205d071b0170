"""Show what a class guessed: a page with a histogram a question, and no names.

It is made from archives that were handed in ``--with-guesses``. The truth beside the guesses is
that of the stored notebooks, ``notebooks/guesses.json``.
"""

from __future__ import annotations

import html
import json
import math
import re
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.course.archive import GUESSES, QUESTIONS, read_members
from labkit.course.downloads import hand_ins
from labkit.draw.palette import css_colours
from labkit.guesses import store
from labkit.guesses.calibration import OTHER, notebooks_that_ask
from labkit.guesses.feedback import TERMS, amount
from labkit.guesses.question import Question
from labkit.stats import Interval

_BINS = 20  # of a histogram, or a bar for each whole number where there are not many more
_Facts = Mapping[str, Any]


class HistogramBar(NamedTuple):
    """A choice, or a range of numbers, and how many guessed it."""

    label: str
    n: int
    height: float  # of the highest, in percent
    right: bool = False  # the choice that the stored run found


class QuestionSummary(NamedTuple):
    """A question and what the class guessed; places are percents of the axis, from the left."""

    notebook: str
    text: Markup
    summary: str
    bars: list[HistogramBar]
    truth: str
    ticks: Sequence[tuple[float, str]] = ()  # none for choices, as are the next two
    at: float = 0.0
    between: tuple[float, float] = (0.0, 0.0)
    forgot: Sequence[tuple[str, str, int]] = ()  # a wrong model, the term that it forgets, and how many fell for it


def write_page(folder: Path, out: Path, say: Callable[[str], None] = print) -> bool:
    """Write the page of the archives in ``folder``; return whether all their guesses count.

    What does not count comes first: an archive without guesses or that cannot be read, guesses
    for what another edition asks, and those that the question does not allow.

    Raises ValueError, before anything is written, where no guess is left, or the lab has no stored
    answers; OSError where the folder cannot be read or the page not be written.
    """
    questions, truth = _questions(), _stored_answers()
    archives, _ = hand_ins(folder, out)
    if not archives:
        raise ValueError(f"there is no archive in {folder}: expected a folder of archives from labkit submit")
    by_archive, remarks = list[dict[str, _Facts]](), list[str]()
    for name, archive in archives:
        try:
            guesses, left_out = _read_guesses(archive, questions)
        except ValueError as error:
            remarks.append(str(error).replace(str(archive), name))
            continue
        by_archive += [guesses] if guesses else []
        for why, names in left_out.items():
            remarks.append(f"{name}: left out {', '.join(names)}: {why}")
    if not by_archive:
        raise ValueError(f"no archive in {folder} has guesses of this edition; {'; '.join(remarks)}")
    for remark in remarks:
        say(f"- {remark}")
    summaries = [
        _summarize(question, questions[name], [guesses[name] for guesses in by_archive if name in guesses], truth[name])
        for name, question in _in_order(questions)
        if name in truth and any(name in guesses for guesses in by_archive)
    ]
    write_atomically(out, _page(summaries, len(by_archive)).encode())
    return not remarks


def _questions() -> dict[str, _Facts]:
    return tomllib.loads((lab().folder / QUESTIONS).read_text(encoding="utf-8"))


def _stored_answers() -> dict[str, _Facts]:
    """Return the facts of the stored notebooks that have an answer, by question."""
    file = store.stored_file()
    if not file.is_file():
        raise ValueError(f"there is no {file}, which has the answers: run this in the repository with the solutions")
    known: dict[str, _Facts] = json.loads(file.read_text(encoding="utf-8"))
    return {name: facts for name, facts in known.items() if "answer" in facts}


def _in_order(questions: Mapping[str, _Facts]) -> Iterator[tuple[str, tuple[str, Question]]]:
    """Yield each question by name with the notebook that asks it, in the order of the notebooks."""
    for name, notebook in notebooks_that_ask().items():
        if name in questions:
            yield name, (notebook, _question(name, questions[name]))


def _question(name: str, entry: _Facts) -> Question:
    low, high = entry.get("low"), entry.get("high")
    return Question(name, entry["text"], low, high, entry.get("unit", ""), tuple(entry.get("choices", ())))


# --- what was handed in ---------------------------------------------------------------------------


def _read_guesses(archive: Path, questions: Mapping[str, _Facts]) -> tuple[dict[str, _Facts], dict[str, list[str]]]:
    """Return the guesses of an archive, and by the reason the names of those that do not count.

    Raises ValueError for an archive that cannot be read, or has no guesses.
    """
    found = read_members(archive, (GUESSES, QUESTIONS))
    if GUESSES not in found:
        raise ValueError(f"{archive} has no guesses: labkit submit --with-guesses packs them")
    try:
        known = json.loads(found[GUESSES])
        theirs = tomllib.loads(found.get(QUESTIONS, b"").decode())
        given = {name: facts for name, facts in known.items() if "guess" in facts}
        [facts["guess"] for facts in given.values()]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{archive} has guesses that cannot be read: {error}") from None
    ours, left_out = dict[str, _Facts](), dict[str, list[str]]()
    for name, facts in given.items():
        if name not in questions or not _asks_alike(theirs.get(name), questions[name]):
            left_out.setdefault("its edition asks something else there, or nothing", []).append(name)
        elif not _is_answer(name, facts, questions[name]):
            left_out.setdefault("the guess is not one that the question allows", []).append(name)
        else:
            ours[name] = facts
    return ours, left_out


def _asks_alike(other: Any, entry: _Facts) -> bool:
    """Return whether another edition's question, if it has one, is that of this edition."""
    return isinstance(other, dict) and all(
        [*other.get(key, ())] == [*entry.get(key, ())] if key == "choices" else other.get(key) == entry.get(key)
        for key in ("text", "low", "high", "unit", "choices")
    )


def _is_answer(name: str, facts: _Facts, entry: _Facts) -> bool:
    try:
        return facts["guess"] is None or _question(name, entry).accept(facts["guess"]) is not None
    except (ValueError, TypeError):
        return False


# --- what a question shows ------------------------------------------------------------------------


def _summarize(asks: tuple[str, Question], entry: _Facts, guesses: Sequence[_Facts], truth: _Facts) -> QuestionSummary:
    notebook, question = asks
    given = [facts["guess"] for facts in guesses if facts["guess"] is not None]
    summary = f"{len(given)} {'guess' if len(given) == 1 else 'guesses'}"
    if unsure := len(guesses) - len(given):
        summary += f", {unsure} “I don't know”"
    text = Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(question.text)))
    answer = truth["answer"]
    if question.choices:
        counts = Counter(given)
        heights = [(choice, counts[choice], choice == answer) for choice in question.choices]
        max_count = max([1, *counts.values()])
        bars = [HistogramBar(choice, n, 100 * n / max_count, right) for choice, n, right in heights]
        return QuestionSummary(notebook, text, f"{summary}, {counts[answer]} of them right", bars, answer)
    found = Interval(answer, *(truth.get("between") or (answer, answer)))
    axis = _Axis.of(question, found)
    if given:
        summary += f", median {amount(statistics.median(given), question.unit)}"
    between = found.text(question.unit).replace(" %", "%").replace(" ×", "×") if found.low < found.high else ""
    low, high = axis.place(found.low), axis.place(found.high)
    return QuestionSummary(
        notebook,
        text,
        summary,
        axis.bars(given, question.unit),
        between or amount(answer, question.unit),
        axis.ticks(),
        axis.place(found.median),
        (low, high - low),
        [*_forgot(entry, guesses)],
    )


class _Axis(NamedTuple):
    """From where to where guesses go, in how many bars."""

    low: float
    high: float
    n_bins: int
    logarithmic: bool
    whole: bool  # a bar is one number

    @classmethod
    def of(cls, question: Question, truth: Interval) -> _Axis:
        low, high = float(question.low or 0.0), float(question.high or 0.0)
        if question.whole and not question.logarithmic and high - low <= 1.3 * _BINS:
            return cls(low - 0.5, high + 0.5, round(high - low) + 1, False, True)
        low, high = (min(low, truth.low) if truth.low > 0 or not question.logarithmic else low), max(high, truth.high)
        return cls(low, high, _BINS, question.logarithmic, False)

    def place(self, value: float) -> float:
        """Return where a number stands, in percent."""
        scale: Callable[[float], float] = math.log if self.logarithmic else float
        low, high = scale(self.low), scale(self.high)
        return 100 * (scale(min(max(value, self.low), self.high)) - low) / (high - low)

    def edge(self, i: int) -> float:
        share = i / self.n_bins
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (self.high - self.low) * share

    def bars(self, guesses: Sequence[float], unit: str) -> list[HistogramBar]:
        counts = Counter(min(self.n_bins - 1, int(self.n_bins * self.place(guess) / 100 + 1e-9)) for guess in guesses)
        max_count = max([1, *counts.values()])
        return [HistogramBar(self._label(i, unit), counts[i], 100 * counts[i] / max_count) for i in range(self.n_bins)]

    def _label(self, i: int, unit: str) -> str:
        if self.whole:
            return amount(self.edge(i) + 0.5, unit)
        return f"{amount(self.edge(i), unit)} to {amount(self.edge(i + 1), unit)}"

    def ticks(self) -> list[tuple[float, str]]:
        values = [*map(float, MaxNLocator(6, integer=self.whole).tick_values(self.low, self.high))]
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            powers = range(first, last + 1, 1 + (last - first) // 6)
            steps = (1, 2, 5) if last - first < 3 else (1,)
            values = [step * 10.0**power for power in powers for step in steps]
        slack = 1e-9 * self.high
        within = (value for value in values if self.low - slack <= value <= self.high + slack)
        return [(self.place(value), amount(value)) for value in within]


def _forgot(entry: _Facts, guesses: Sequence[_Facts]) -> Iterator[tuple[str, str, int]]:
    """Yield the wrong models and parts that guesses left out: in words, the term, how many."""
    left_out = [str(facts.get("left_out", "")) for facts in guesses]
    for each in [*entry.get("wrong", {}).values(), *entry.get("parts", {}).values()]:
        phrase = re.sub(r"\\\{.*?\\\}", ".+", re.escape(each["phrase"]))  # numbers in it are each student's own
        if n := sum(re.fullmatch(phrase, text) is not None for text in left_out):
            yield each["phrase"], each.get("forgets", ""), n


# --- the page -------------------------------------------------------------------------------------


def _page(summaries: Sequence[QuestionSummary], n_archives: int) -> str:
    counts: Counter[str] = Counter()
    for question in summaries:
        for _, term, n in question.forgot:
            counts[term] += n
    terms = [(words, counts[term]) for term, words in TERMS.items()] + [(OTHER, counts[""])]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    colours = {theme: css_colours(theme) for theme in ("light", "dark")}
    return environment.get_template("guesses.html.jinja").render(
        summaries=summaries, n_archives=n_archives, terms=terms, colours=colours
    )
