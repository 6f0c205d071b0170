"""Write the student edition: this repository without the solutions.

A solution stands in a student file, or in a code cell of a notebook, under a comment that sets the
task:

    ### TODO dp.1 (15 minutes): Draw an order of the sample numbers with random.Random(seed), and
    ### cut it into one list of numbers for each size.
    ### BEGIN SOLUTION dp.1
    order = list(range(len(data)))
    random.Random(seed).shuffle(order)
    ### END SOLUTION

In the student edition this becomes

    # TODO dp.1 (about 2 lines, 15 minutes): Draw an order of the sample numbers with …
    raise TodoError("dp.1")

and everything else is copied as it is, except what is for instructors only: ``figures/`` but for
the pages' pictures of the explorers, a Python file whose first line begins with ``### INSTRUCTORS
ONLY``, a Markdown file that begins with ``<!-- INSTRUCTORS ONLY -->``, and in others what stands
between that and ``<!-- END -->``. The edition's git ignores ``figures/``, where a student's own
pictures go.

Outputs of notebook cells that show a solution, what only a solution can compute, or a guess and its
answer, are taken out; the tag ``nbval-ignore-output`` tells the notebook test not to compare them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from labkit.course.notebooks import TAKEN_OUT
from labkit.todo import TASKS, task_file

REPOSITORY = Path(__file__).resolve().parents[2]
WIDTH = 120  # of the comment that sets a task
NOT_OURS = {
    ".git",
    ".venv",
    "__pycache__",
    ".ipynb_checkpoints",
    ".pytest_cache",
    ".ruff_cache",
    ".mypy_cache",
    "build",
}

# What instructors commit and students only make: added to the edition's .gitignore, so that git
# status stays clean when a notebook has saved its pictures.
NOT_COMMITTED = "figures/*\n!figures/explorers/\n"

INSTRUCTORS_ONLY = ("### INSTRUCTORS ONLY", "<!-- INSTRUCTORS ONLY -->")
_INSTRUCTORS_PART = re.compile(r"<!-- INSTRUCTORS ONLY -->.*?<!-- END -->\n*", re.DOTALL)
_LIKE_A_MARKER = re.compile(r"\s*#+\s*(begin|end)[\s_-]*solution", re.IGNORECASE)
_BEGIN = re.compile(r"(?P<indent>\s*)### BEGIN SOLUTION (?P<task>\S+)")
_END = re.compile(r"(?P<indent>\s*)### END SOLUTION")
_TODO = re.compile(r"\s*### TODO (?P<task>\S+) \((?P<minutes>\d+) minutes?\): (?P<what>.+)")
_SHOWS_A_SOLUTION = re.compile(r"^%%needs\b|\bcheck\(|\bgetsource\(|\blisting\(|\bguess\(", re.MULTILINE)


class MarkerError(ValueError):
    """Markers of a file that do not fit together.

    The message says in which file and line, and what was expected.
    """


def write_student_edition(directory: str | os.PathLike[str], repository: Path = REPOSITORY) -> list[str]:
    """Write the student edition of ``repository`` to ``directory``; return its tasks.

    The edition has the files git tracks; without git, all but caches and environments. Nothing is
    written before every file has been read and understood, and the directory appears all at once.

    Raises FileExistsError if the directory has something in it, ValueError if it is in the
    repository, and MarkerError for markers that do not fit together.
    """
    target = Path(directory).absolute()
    _check_target(target, repository)
    files = tracked_files(repository)
    rewritten: dict[str, str] = {}
    tasks: set[str] = set()
    files = [name for name in files if not _for_instructors_only(repository, name)]
    for name in files:
        text, found = _without_solutions(repository, name)
        if text is not None:
            rewritten[name] = text
        tasks |= found
    if not tasks:
        raise MarkerError(f"{repository} has no '### BEGIN SOLUTION' in any file: is it a student edition already?")
    _write(target, repository, files, rewritten)
    return sorted(tasks)


def is_student_edition(repository: Path = REPOSITORY) -> bool:
    """Return whether this is a student edition: no student file holds a solution."""
    files = {repository / "labkit" / task_file(task).name for task in TASKS}
    return not any("### BEGIN SOLUTION" in file.read_text(encoding="utf-8") for file in files)


def tracked_files(repository: Path) -> list[str]:
    """Return the files of the repository that belong to it, as paths from its root."""
    try:
        listing = subprocess.run(["git", "-C", str(repository), "ls-files", "-z"], capture_output=True, text=True)
        names = [name for name in listing.stdout.split("\0") if name]
    except FileNotFoundError:  # no git here
        names = []
    if not names:  # an archive, unpacked: everything that is not made by using it
        names = [file.relative_to(repository).as_posix() for file in _walk(repository)]
    return sorted(name for name in names if (repository / name).is_file() or (repository / name).is_symlink())


def _walk(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name in NOT_OURS or entry.name.endswith(".egg-info"):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry)
        else:
            yield entry


def _check_target(target: Path, repository: Path) -> None:
    if target.resolve().is_relative_to(repository.resolve()):
        raise ValueError(f"{target} is inside the repository {repository}: give a directory outside of it")
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} has something in it already: give a new directory, or empty this one first")
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file: give a new directory")


def _without_solutions(repository: Path, name: str) -> tuple[str | None, set[str]]:
    """Return the text of a file in the student edition and the tasks that it leaves to do.

    The text is None where the file stays as it is.
    """
    path = PurePosixPath(name)
    if path.suffix == ".ipynb":
        return student_notebook((repository / name).read_text(encoding="utf-8"), name)
    if path.suffix == ".py" and path.parent.name == "labkit":
        return student_source((repository / name).read_text(encoding="utf-8"), name)
    if name == ".gitignore":
        return (repository / name).read_text(encoding="utf-8") + NOT_COMMITTED, set()
    if path.suffix == ".md":
        return _INSTRUCTORS_PART.sub("", (repository / name).read_text(encoding="utf-8")), set()
    return None, set()


def _for_instructors_only(repository: Path, name: str) -> bool:
    if name.startswith("figures/") and not name.startswith("figures/explorers/"):
        return True  # what a student is to measure; README shows the explorers
    if not name.endswith((".py", ".md")):
        return False
    with (repository / name).open(encoding="utf-8") as text:
        return text.readline().startswith(INSTRUCTORS_ONLY)


def _write(target: Path, repository: Path, files: list[str], rewritten: dict[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        unfinished.chmod(0o755)
        for name in files:
            copy = unfinished / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, copy, follow_symlinks=False)
            if name in rewritten:
                copy.write_text(rewritten[name], encoding="utf-8")
        unfinished.rename(target)  # takes the place of an empty directory
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


# --- a source file --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """A solution: ``lines[start:end]``, and what replaces it.

    It goes from the comment that sets the task to the end marker.
    """

    task: str
    start: int
    end: int
    replacement: list[str]
    solution: list[str]


def student_source(text: str, name: str) -> tuple[str | None, set[str]]:
    """Return a Python file without its solutions (None if it has none), and their tasks.

    Raises MarkerError.
    """
    lines = text.split("\n")
    found = list(regions(lines, name))
    if not found:
        return None, set()
    result = "\n".join(_replace(lines, found))
    _check_result(result, name)
    return result, {region.task for region in found}


def regions(lines: list[str], name: str) -> Iterator[Region]:
    """Yield the solutions in a file or a cell, in order; ``name`` is for messages.

    Raises MarkerError.
    """
    begin: tuple[int, re.Match[str]] | None = None
    for number, line in enumerate(lines):
        if not _LIKE_A_MARKER.match(line):
            continue
        place = f"{name}, line {number + 1}"
        starts, ends = _BEGIN.fullmatch(line), _END.fullmatch(line)
        if not starts and not ends:
            raise MarkerError(
                f"{place}: {line.strip()!r} is not a marker. Write '### BEGIN SOLUTION task' or '### END SOLUTION'"
            )
        if starts and begin:
            raise MarkerError(f"{place}: a solution begins, but the one from line {begin[0] + 1} has not ended")
        if starts:
            begin = number, starts
        elif begin is None:
            raise MarkerError(f"{place}: a solution ends, but none has begun")
        else:
            yield _region(lines, begin[0], number, begin[1], name)
            begin = None
    if begin is not None:
        raise MarkerError(f"{name}, line {begin[0] + 1}: a solution begins and never ends: add '### END SOLUTION'")


def _region(lines: list[str], begin: int, end: int, marker: re.Match[str], name: str) -> Region:
    """Return the solution between two markers, with the comment above it that sets the task."""
    place, task, indent = f"{name}, line {begin + 1}", marker["task"], marker["indent"]
    if task not in TASKS:
        raise MarkerError(f"{place}: task {task!r} is unknown, expected one of: {', '.join(TASKS)} (labkit/todo.py)")
    solution = [line for line in lines[begin + 1 : end] if line.strip() and not line.lstrip().startswith("#")]
    if not solution:
        raise MarkerError(f"{place}: nothing stands between the markers")
    start = begin
    while start and lines[start - 1].lstrip().startswith("### ") and not _END.fullmatch(lines[start - 1]):
        start -= 1
    todo = _TODO.fullmatch(lines[start]) if start < begin else None
    if not todo or todo["task"] != task:
        raise MarkerError(f"{place}: what to do is missing. Write '### TODO {task} (10 minutes): …' right above")
    size = "1 line" if len(solution) == 1 else f"{len(solution)} lines"
    minutes = "1 minute" if todo["minutes"] == "1" else f"{todo['minutes']} minutes"
    what = " ".join([todo["what"], *(line.strip().removeprefix("### ") for line in lines[start + 1 : begin])])
    comment = textwrap.wrap(
        f"TODO {task} (about {size}, {minutes}): {what}",
        WIDTH - len(indent) - 2,
        break_long_words=False,
        break_on_hyphens=False,
    )
    replacement = [*(f"{indent}# {line}" for line in comment), f'{indent}raise TodoError("{task}")']
    return Region(task, start, end + 1, replacement, solution)


def _replace(lines: list[str], found: list[Region]) -> list[str]:
    result, position = [], 0
    for region in found:
        result += [*lines[position : region.start], *region.replacement]
        position = region.end
    return result + lines[position:]


def _check_result(source: str, name: str) -> None:
    """Raise MarkerError unless Python can read the student's file, and it knows TodoError."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise MarkerError(f"{name}: without its solutions it is not valid Python any more: {error}") from None
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    if "TodoError" not in imported:
        raise MarkerError(f"{name}: the student edition raises TodoError: add 'from labkit.todo import TodoError'")


# --- a notebook -----------------------------------------------------------------------------------


def student_notebook(text: str, name: str) -> tuple[str | None, set[str]]:
    """Return a notebook without its solutions and their outputs (or None), and their tasks.

    None stands for a notebook in which nothing changes.
    """
    notebook = json.loads(text)
    tasks: set[str] = set()
    sources = []
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        lines = "".join(cell["source"]).split("\n")
        found = list(regions(lines, f"{name}, cell {number}"))
        if found:
            cell["source"] = "\n".join(_replace(lines, found)).splitlines(keepends=True)
            tasks |= {region.task for region in found}
        source = "".join(cell["source"])
        sources.append(source)
        if found or _SHOWS_A_SOLUTION.search(source):
            _clear(cell)
    if tasks and not any(
        re.search(r"^from labkit\.todo import .*\bTodoError\b", source, re.MULTILINE) for source in sources
    ):
        raise MarkerError(
            f"{name}: the student edition raises TodoError: add 'from labkit.todo import TodoError' to a cell"
        )
    result = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    return (None if json.loads(text) == notebook else result), tasks


def _clear(cell: dict[str, Any]) -> None:
    """Take a cell's outputs out, and have the notebook test run the cell without comparing them."""
    if not cell.get("outputs"):
        return
    cell["outputs"], cell["execution_count"] = [], None
    tags = cell.setdefault("metadata", {}).setdefault("tags", [])
    if TAKEN_OUT not in tags:
        tags.append(TAKEN_OUT)
