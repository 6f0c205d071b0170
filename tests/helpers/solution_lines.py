### INSTRUCTORS ONLY: this file reads solutions, so it is not in the student edition
"""Look for the lines of solutions in the files of a folder."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from labkit.course import student
from labkit.course.leaks import normalised, pieces
from labkit.todo import TASKS, task_file

ROOT = Path(__file__).parents[2]
STUDENT_FILES = sorted({f"labkit/{task_file(task).name}" for task in TASKS})


def solutions() -> dict[tuple[str, ...], str]:
    """Return what tells each solution from other code, with its task."""
    found = {}
    for name in STUDENT_FILES:
        lines = (ROOT / name).read_text().split("\n")
        for region in student.regions(lines, name):
            solution = normalised(lines[region.start : region.end])
            pieces_of_it = list(pieces(solution)) if len(solution) > 1 else [tuple(solution)]
            assert pieces_of_it, f"{region.task}: nothing in it can be told from other code"
            found |= dict.fromkeys(pieces_of_it, region.task)
    return found


def texts(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield files with their lines: of a notebook its cells', of a page what it shows."""
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".ipynb":
            cells = json.loads(file.read_text())["cells"]
            yield file.relative_to(folder).as_posix(), "\n".join("".join(cell["source"]) for cell in cells).split("\n")
        elif file.suffix == ".html":
            shown = html.unescape(re.sub(r"<[^>]+>", "", file.read_text()))
            yield file.relative_to(folder).as_posix(), shown.split("\n")
        elif file.is_file() and file.suffix not in (".png", ".pyc", ".deflated"):
            yield file.relative_to(folder).as_posix(), file.read_text().splitlines()


def leaks(folder: Path) -> set[tuple[str, str]]:
    """Return file and task where a solution's lines stand in a folder, whatever its names are."""
    known = solutions()
    return {
        (name, known[piece]) for name, lines in texts(folder) for piece in pieces(normalised(lines)) if piece in known
    }
