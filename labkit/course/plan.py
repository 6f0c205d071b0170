"""Write a course's plan as a Markdown table: what each notebook asks, needs and takes, and by when.

Minutes to read are a notebook's words at 200 a minute, those to run were measured when it was
stored, and those to solve are its tasks' own. A task counts where it is first needed in its part.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from labkit.base.course import TASKS, Course, Part
from labkit.check import points_of, record
from labkit.course.leave_out import Kept, from_markdown, number

WORDS_PER_MINUTE = 200
RUN_MINUTES = "minutes.toml"  # in notebooks/: for how long each ran when it was stored
HEAD = ("part", "notebook", "its question", "needs", "minutes to read", "to run", "to solve", "points", "due")
_NEEDS = re.compile(r"^%%needs (.+)|\bcheck\(\"(.+?)\"", re.MULTILINE)
_LINK_TARGET = re.compile(r'\]\([^()\s]*(?: "[^"]*")?\)')
_QUESTION = re.compile(r"\*\*([^*]+\?)[^*]*\*\*")


class Row(NamedTuple):
    """A notebook in the plan, or the tasks of a part that none of its notebooks asks for."""

    notebook: str
    question: str
    needs: list[str]
    read: int
    run: int | None  # None where it was not measured
    tasks: list[str]  # that count here


def plan(taught: Course, lab: Path, keeps: Kept) -> str:
    """Return the plan of a course, for the notebooks of ``lab``: a title, and a table."""
    rows = [line for part in taught.parts for line in _of_part(taught, part, lab, keeps)]
    total = ["", "**together**", "", "", *(f"{sum(int(row[i] or 0) for row in rows)}" for i in (4, 5, 6))]
    total += [f"{sum(points_of(taught).values()):g}", ""]
    title = f"# {taught.title}\n\n" if taught.title else ""
    filled = [i for i in range(len(HEAD)) if any(row[i] for row in rows)]
    lines = [HEAD, ["---"] * len(HEAD), *rows, total]
    table = "".join(f"| {' | '.join(line[i] for i in filled)} |\n" for line in lines)
    return title + table


def _of_part(taught: Course, part: Part, lab: Path, keeps: Kept) -> Iterator[list[str]]:
    """Yield the cells of a part's rows; its name and its date stand in the first."""
    points, due = points_of(taught), f"{part.due:%A %Y-%m-%d %H:%M %Z}" if part.due else ""
    name = part.name
    for row in _rows(taught, part, lab, keeps):
        worth = sum(points[task] for task in row.tasks)
        solve = sum(record(task).minutes for task in row.tasks)
        cells = [row.notebook and f"`{row.notebook}`", row.question, ", ".join(row.needs), str(row.read or "")]
        cells += ["" if row.run is None else str(row.run), str(solve or ""), f"{worth:g}" if row.tasks else ""]
        yield [name, *cells, due]
        name = due = ""


def _rows(taught: Course, part: Part, lab: Path, keeps: Kept) -> Iterator[Row]:
    names = [each for each in keeps.notebooks if not taught.file or {each, number(each)} & {*part.notebooks}]
    left = list(part.points)
    for name in names:
        row = _row(lab / "notebooks", name, keeps)
        yield row._replace(tasks=[task for task in row.needs if task in left])
        left = [task for task in left if task not in row.needs]
    if left:
        yield Row("", "", left, 0, None, left)


def _row(folder: Path, name: str, keeps: Kept) -> Row:
    cells = json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    texts = [from_markdown(source, keeps, name) for kind, source in sources if kind == "markdown"]
    code = "\n".join(source for kind, source in sources if kind == "code")
    named = {each for found in _NEEDS.findall(code) for each in "".join(found).split()}
    n_words = sum(len(_LINK_TARGET.sub("]", text).split()) for text in texts)
    needs = [task for task in TASKS if task in named and task in keeps]
    return Row(
        name, question_in("".join(texts[:1])), needs, -(-n_words // WORDS_PER_MINUTE), run_minutes(folder).get(name), []
    )


def question_in(text: str) -> str:
    """Return the question that a notebook's first text asks in bold, or ""."""
    question = _QUESTION.search(text)
    return question[1] if question else ""


def run_minutes(folder: Path) -> dict[str, int]:
    """Return for how many minutes each notebook of a folder ran when it was stored."""
    file = folder / RUN_MINUTES
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
