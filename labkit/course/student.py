"""Write the student edition: this repository without the solutions.

A solution stands in a student file, or in a code cell of a notebook, under a comment that sets the
task:

    ### TODO dp.9 (2 minutes): Return the largest gradient of this rank,
    ### or 0 if there is none.
    ### BEGIN SOLUTION dp.9
    return max((parameter.grad.abs().max() for parameter in parameters), default=0)
    ### END SOLUTION

In the student edition this becomes

    # TODO dp.9 (about 1 line, 2 minutes): Return the largest gradient of this rank, or 0 if …
    raise TodoError("dp.9")

Everything else is copied as it is, except that

- notebooks have no outputs, and the guesses and answers of the stored ones stay here;
- ``figures/`` stays here but for README's pictures of the explorers, and the edition's git ignores
  what a student's own notebooks draw there;
- what is for instructors only stays here: a Python file whose first line begins with
  ``### INSTRUCTORS ONLY``, a Markdown file that begins with ``<!-- INSTRUCTORS ONLY -->``, and in
  other Markdown what stands between that and ``<!-- END -->``;
- the page ``assistants.md``, beside this file, is in its root as ``AGENTS.md``: what AI assistants
  may do.
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
from pathlib import Path
from typing import NamedTuple

from labkit.base.lab import lab
from labkit.guesses import store
from labkit.todo import TASKS, task_file

WIDTH = 120  # of the comment that sets a task
CACHES = {".pytest_cache", ".ruff_cache", ".mypy_cache", "__pycache__", ".ipynb_checkpoints"}
NOT_OURS = {".git", ".venv", "build", *CACHES}

# What instructors commit and students only make: added to the edition's .gitignore, so that git
# status stays clean when a notebook has saved its pictures.
NOT_COMMITTED = "figures/*\n!figures/explorers/\n"

REWRITTEN = (".py", ".ipynb", ".md", ".gitignore")
INSTRUCTORS_ONLY = ("### INSTRUCTORS ONLY", "<!-- INSTRUCTORS ONLY -->")
STORED_GUESSES = f"notebooks/{store.FILE}"
ASSISTANTS = Path(__file__).with_name("assistants.md")
_INSTRUCTORS_PART = re.compile(r"<!-- INSTRUCTORS ONLY -->.*?<!-- END -->\n*", re.DOTALL)
_LIKE_A_MARKER = re.compile(r"\s*#+\s*(begin|end)[\s_-]*solution", re.IGNORECASE)
_BEGIN = re.compile(r"(?P<indent>\s*)### BEGIN SOLUTION (?P<task>\S+)")
_END = re.compile(r"(?P<indent>\s*)### END SOLUTION")
_TODO = re.compile(r"\s*### TODO (?P<task>\S+) \((?P<minutes>\d+) minutes?\): (?P<what>.+)")
_KNOWS_TODO_ERROR = re.compile(r"^from labkit\.todo import [\w\s,(]*\bTodoError\b", re.MULTILINE)


class MarkerError(ValueError):
    """Markers of a file that do not fit together.

    The message says in which file and line, and what was expected.
    """


def write_student_edition(directory: str | os.PathLike[str], repository: Path | None = None) -> list[str]:
    """Write the student edition of ``repository``, this lab, to ``directory``; return its tasks.

    The edition has the files git tracks; without git, all but caches and environments. Nothing is
    written before every file has been read and understood, and the directory appears all at once.

    Raises FileExistsError if the directory has something in it, ValueError if it is in the
    repository or that is not one, and MarkerError for markers that do not fit together.
    """
    target, repository = Path(directory).absolute(), repository or lab().folder
    _check_target(target, repository)
    texts: dict[str, str | None] = {}  # of the edition's files; None where a file is copied as it is
    tasks: set[str] = set()
    for name in tracked_files(repository):
        if name == STORED_GUESSES or re.match("figures/(?!explorers/)", name):
            continue  # what a student is to guess and to measure
        text = (repository / name).read_text(encoding="utf-8") if name.endswith(REWRITTEN) else ""
        if not text.startswith(INSTRUCTORS_ONLY):
            for_students, found = _without_solutions(text, name)
            texts[name] = for_students if for_students != text else None
            tasks |= found
    if not tasks:
        raise MarkerError(f"{repository} has no '### BEGIN SOLUTION' in any file: is it a student edition already?")
    _write(target, repository, texts)
    return sorted(tasks)


def is_student_edition(repository: Path | None = None) -> bool:
    """Return whether this is a student edition: no student file holds a solution."""
    package = repository / "labkit" if repository else lab().package
    files = {package / task_file(task).name for task in TASKS}
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
    if not (repository / "notebooks").is_dir():
        raise ValueError(f"labkit is imported from {repository}, which is not its repository: install it from there")
    if target.resolve().is_relative_to(repository.resolve()):
        raise ValueError(f"{target} is inside the repository {repository}: give a directory outside of it")
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty: give a new directory, or empty this one first")
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file: give a new directory")


def _without_solutions(text: str, name: str) -> tuple[str, set[str]]:
    """Return the text of a file in the student edition, and the tasks that it leaves to do."""
    if name.endswith(".ipynb"):
        return student_notebook(text, name)
    if name.endswith(".py") and Path(name).parent.name == "labkit":
        return student_source(text, name)
    if name.endswith(".md"):
        return _INSTRUCTORS_PART.sub("", text), set()
    return text + NOT_COMMITTED if name == ".gitignore" else text, set()


def _write(target: Path, repository: Path, texts: dict[str, str | None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        unfinished.chmod(0o755)
        for name, text in texts.items():
            copy = unfinished / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, copy, follow_symlinks=False)
            if text is not None:
                copy.write_text(text, encoding="utf-8")
        shutil.copy(ASSISTANTS, unfinished / "AGENTS.md")
        unfinished.rename(target)  # takes the place of an empty directory
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


# --- a source file --------------------------------------------------------------------------------


class Region(NamedTuple):
    """A solution with the comment that sets its task, ``lines[start:end]``; and its replacement."""

    task: str
    start: int
    end: int
    replacement: list[str]


def student_source(text: str, name: str) -> tuple[str, set[str]]:
    """Return a Python file without its solutions, and their tasks. Raises MarkerError."""
    lines, tasks = student_lines(text.split("\n"), name)
    source = "\n".join(lines)
    if tasks:
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise MarkerError(f"{name}: without its solutions it is not valid Python any more: {error}") from None
        _check_import(source, name)
    return source, tasks


def _check_import(source: str, name: str, where: str = "") -> None:
    if not _KNOWS_TODO_ERROR.search(source):
        missing = f"add 'from labkit.todo import TodoError'{where}"
        raise MarkerError(f"{name}: the student edition raises TodoError: {missing}")


def student_lines(lines: list[str], name: str) -> tuple[list[str], set[str]]:
    """Return the lines of a file or a cell without its solutions, and their tasks.

    ``name`` is for messages. Raises MarkerError.
    """
    result, found = list(lines), list(regions(lines, name))
    for region in reversed(found):
        result[region.start : region.end] = region.replacement
    return result, {region.task for region in found}


def regions(lines: list[str], name: str) -> Iterator[Region]:
    """Yield the solutions in a file or a cell, in order. Raises MarkerError."""
    begin: tuple[int, re.Match[str]] | None = None
    for number, line in enumerate(lines):
        if not _LIKE_A_MARKER.match(line):
            continue
        place = f"{name}, line {number + 1}"
        starts, ends = _BEGIN.fullmatch(line), _END.fullmatch(line)
        if not starts and not ends:
            expected = "Write '### BEGIN SOLUTION task' or '### END SOLUTION'"
            raise MarkerError(f"{place}: {line.strip()!r} is not a marker. {expected}")
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
    todo_text = f"TODO {task} (about {size}, {minutes}): {what}"
    comment = textwrap.wrap(todo_text, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
    replacement = [*(f"{indent}# {line}" for line in comment), f'{indent}raise TodoError("{task}")']
    return Region(task, start, end + 1, replacement)


# --- a notebook -----------------------------------------------------------------------------------


def student_notebook(text: str, name: str) -> tuple[str, set[str]]:
    """Return a notebook without solutions and outputs, and the tasks that it leaves to do."""
    notebook = json.loads(text)
    tasks: set[str] = set()
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code":
            lines, found = student_lines("".join(cell["source"]).split("\n"), f"{name}, cell {number}")
            tasks |= found
            cell["source"] = "\n".join(lines).splitlines(keepends=True)
            cell["outputs"], cell["execution_count"] = [], None
    if tasks:
        _check_import("\n".join("".join(cell["source"]) for cell in code), name, " to a cell")
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", tasks
