"""Leave out of a text what a course leaves out: sentences, rows of tables, a notebook's words.

A sentence on a notebook or a task that a course may leave out stands between marks, in Markdown and
in the texts of notebooks:

    Each rank waits. <!-- if 04 -->Could it compute meanwhile? `04_overlap`.<!-- end -->
    <!-- if dp.7 06 -->
    A paragraph that takes a task to do and a notebook.
    <!-- end -->

Rows of tables that begin with a notebook or a task need no mark, nor do the words of notebooks in
``questions.toml`` and the like, which stand under a heading such as ``# --- 04_overlap ---``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from labkit.base.course import TASKS, Course, CourseError

_MARK = re.compile(r"<!-- if (?P<names>[^>]+?) -->(?P<own>\n?)(?P<text>.*?)<!-- end -->(?P<after>\n?)", re.DOTALL)
_LIKE_A_MARK = re.compile(r"<!--\s*(?:if\b.*?|end\s*--)>")
_ROW = re.compile(r"^\| *`?(?P<name>\d\d_\w+|[a-z]+\.\d+)`? *\|.*\n", re.MULTILINE)
_LINE = re.compile(r"^(?P<name>\d\d_\w+) = .*\n", re.MULTILINE)
_HEADING = re.compile(r"^# --- (?P<name>\d\d_\w+) -*\n", re.MULTILINE)


class Kept(NamedTuple):
    """What a course keeps, by name: of all notebooks some, and the tasks that are to do."""

    all_notebooks: tuple[str, ...]
    notebooks: tuple[str, ...]
    tasks: tuple[str, ...]

    def __contains__(self, name: object) -> bool:
        return name in (*self.tasks, *self.notebooks, *map(number, self.notebooks))

    def knows(self, name: str) -> bool:
        """Return whether there is such a task or notebook in the whole lab."""
        return name in (*TASKS, *self.all_notebooks, *map(number, self.all_notebooks))


def number(notebook: str) -> str:
    """Return ``"04"`` of ``"04_overlap"``."""
    return notebook.partition("_")[0]


def kept(taught: Course, notebooks: Sequence[str]) -> Kept:
    """Return what a course keeps of a lab's notebooks, given by name, in the order of its parts.

    Raises CourseError for a notebook that is not there, and where no part has one.
    """
    if not taught.file:
        return Kept(tuple(notebooks), tuple(notebooks), taught.tasks)
    found = []
    for name in (each for part in taught.parts for each in part.notebooks):
        matching = [each for each in notebooks if name in (each, number(each))]
        if len(matching) != 1:
            raise CourseError(f"{taught.file}: there is no notebook {name!r}, expected some of: {', '.join(notebooks)}")
        if matching[0] in found:
            raise CourseError(f"{taught.file}: {matching[0]} is there twice: leave it in one part")
        found += matching
    if not found:
        raise CourseError(f"{taught.file}: no part has a notebook: name those that students get")
    return Kept(tuple(notebooks), tuple(found), taught.tasks)


def from_markdown(text: str, keeps: Kept, name: str) -> str:
    """Return a Markdown text of the file ``name`` without what is left out, and without marks.

    Raises ValueError for marks that do not fit together, or name nothing that there is.
    """

    def chosen(found: re.Match[str]) -> str:
        names = found["names"].split()
        if unknown := [each for each in names if not (each[:2].isdigit() or keeps.knows(each))]:
            raise ValueError(f"{name}: <!-- if {found['names']} -->: there is no task or number {unknown[0]!r}")
        own_lines = found["own"] and found["after"]
        shown = found["text"] if all(each in keeps for each in names) else ""
        return shown if own_lines else found["own"] * bool(shown) + shown + found["after"]

    text = _MARK.sub(chosen, text)
    if left := _LIKE_A_MARK.search(text):
        raise ValueError(f"{name}: {left[0]} has no partner: write <!-- if 04 -->…<!-- end -->, none in another")
    return _ROW.sub(lambda row: "" if keeps.knows(row["name"]) and row["name"] not in keeps else row[0], text)


def from_words(text: str, keeps: Kept) -> str:
    """Return a file of words, such as questions.toml, without those of notebooks left out."""
    text = _LINE.sub(lambda line: line[0] if line["name"] in keeps else "", text)
    pieces = _HEADING.split(text)
    headings = [found[0] for found in _HEADING.finditer(text)]
    sections: Iterable[tuple[str, str, str]] = zip(headings, pieces[1::2], pieces[2::2], strict=True)
    return pieces[0] + "".join(head + body for head, notebook, body in sections if notebook in keeps)
