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
- an ``answer`` in ``notebooks/questions.toml`` is encoded, so that nobody reads it by accident;
- ``figures/`` stays here but for README's pictures of the explorers, and the edition's git ignores
  what a student's own notebooks draw there;
- what is for instructors only stays here: a Python file whose first line begins with
  ``### INSTRUCTORS ONLY``, a Markdown file that begins with ``<!-- INSTRUCTORS ONLY -->``, and in
  other Markdown what stands between that and ``<!-- END -->``;
- two files beside this one are the edition's own: ``assistants.md``, what AI assistants may do, as
  ``AGENTS.md``, and ``classroom.yml``, which has GitHub run ``labkit check``, in place of this
  repository's workflows;
- what a course leaves out (``leave_out.py``) is out: notebooks, their words, tests of its tasks
  alone. A task that is left out is given: its solution stands there, without markers. All three
  student files stay, as other code imports each;
- ``README.md`` begins with the course's plan.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.base.course import FILE, Course, course, whole_lab
from labkit.base.files import check_new, new_folder
from labkit.base.lab import lab
from labkit.base.words import sealed
from labkit.course.leaks import alike
from labkit.course.leave_out import Kept, from_markdown, from_words, kept
from labkit.course.plan import plan
from labkit.course.tasks import PAGE, with_table
from labkit.guesses import store
from labkit.todo import TASKS, task_file

WIDTH = 120  # of the comment that sets a task
CACHES = {".pytest_cache", ".ruff_cache", ".mypy_cache", "__pycache__", ".ipynb_checkpoints"}
NOT_OURS = {".git", "build", *CACHES}

# What instructors commit and students only make: added to the edition's .gitignore, so that git
# status stays clean when a notebook has saved its pictures.
NOT_COMMITTED = "figures/*\n!figures/explorers/\n"

REWRITTEN = (".py", ".ipynb", ".md", ".toml", ".gitignore")
INSTRUCTORS_ONLY = ("### INSTRUCTORS ONLY", "<!-- INSTRUCTORS ONLY -->")
QUESTIONS = "notebooks/questions.toml"
STORED_GUESSES = f"notebooks/{store.FILE}"
NOT_FOR_STUDENTS = re.compile(rf"{re.escape(STORED_GUESSES)}$|figures/(?!explorers/)|\.github/")
ITS_OWN = {"AGENTS.md": "assistants.md", ".github/workflows/check.yml": "classroom.yml"}
_PAGE_MARKER = re.compile(r"<!--\s*(?:(?i:instructors?[\s_-]*only)|END)\s*-->")  # "end" is that of a course's mark
_INSTRUCTORS_PART = re.compile(r"<!-- INSTRUCTORS ONLY -->.*?<!-- END -->\n*", re.DOTALL)
_ANSWER = re.compile(r"^answer = .*$", re.MULTILINE)
_LIKE_A_MARKER = re.compile(r"\s*#+\s*(begin|end)[\s_-]*solution", re.IGNORECASE)
_BEGIN = re.compile(r"(?P<indent>\s*)### BEGIN SOLUTION (?P<task>\S+)")
_END = re.compile(r"(?P<indent>\s*)### END SOLUTION")
_TODO = re.compile(r"\s*### TODO (?P<task>\S+) \((?P<minutes>\d+) minutes?\): (?P<what>.+)")
_KNOWS_TODO_ERROR = re.compile(r"^from labkit\.todo import [\w\s,(]*\bTodoError\b", re.MULTILINE)


class MarkerError(ValueError):
    """Markers of a file that do not fit together.

    The message says in which file and line, and what was expected.
    """


class Edition(NamedTuple):
    """What a student edition has: tasks to do, and given ones with what they give away."""

    tasks: list[str]
    given: list[str]
    given_away: dict[str, list[str]]  # by a given task, those to do whose solution it shows


def write_student_edition(
    directory: str | os.PathLike[str], repository: Path | None = None, taught: Course | None = None
) -> Edition:
    """Write the student edition of ``repository``, this lab, for a course, by default its own.

    The edition has the files git tracks; without git, all but caches and environments. Nothing is
    written before every file has been read and understood, and the directory appears all at once.

    Raises FileExistsError if the directory has something in it, ValueError if it is in the
    repository or that is not one, or for a course that cannot be, and MarkerError for markers that
    do not fit together.
    """
    target, repository = Path(directory).absolute(), repository or lab().folder
    own = repository / FILE
    taught = taught or (course(own) if own.is_file() else whole_lab())
    _check_target(target, repository)
    names = tracked_files(repository)
    keeps = kept(taught, [Path(name).stem for name in names if re.fullmatch(r"notebooks/[^/]+\.ipynb", name)])
    texts: dict[str, str | None] = {}  # of the edition's files; None where a file is copied as it is
    shown: list[Region] = []
    for name in names:
        text = (repository / name).read_text(encoding="utf-8") if name.endswith(REWRITTEN) else ""
        if _stays_here(name, text, keeps) or (taught.file and name.startswith("courses/")):
            continue
        for_students, found = _for_students(text, name, keeps)
        texts[name] = for_students if for_students != text else None
        shown += found
    edition = _edition(shown, taught)
    if not edition.tasks:
        raise MarkerError(f"{repository} has no '### BEGIN SOLUTION' in any file: is it a student edition already?")
    if missing := [task for task in taught.tasks if taught.file and task not in edition.tasks]:
        raise ValueError(f"{taught.file}: no file has a '### BEGIN SOLUTION {missing[0]}': leave that task out")
    _write(target, repository, {**texts, **_about(taught, texts, repository, keeps)})
    return edition


def _stays_here(name: str, text: str, keeps: Kept) -> bool:
    """Return whether a file is for instructors, to be guessed or measured, or left out."""
    if NOT_FOR_STUDENTS.match(name) or text.startswith(INSTRUCTORS_ONLY):
        return True
    if re.fullmatch(r"notebooks/[^/]+\.ipynb", name):
        return Path(name).stem not in keeps
    needed = re.findall(r"^pytestmark = task\(([^)]*)\)", text, re.MULTILINE) or re.findall(r"\btask\(([^)]*)\)", text)
    marked = set(re.findall(r'"([a-z]+\.\d+)"', " ".join(needed)))
    return name.startswith("tests/") and bool(marked) and marked.isdisjoint(keeps.tasks)


def _edition(shown: Sequence[Region], taught: Course) -> Edition:
    """Return which solutions are to do, which are given, and what those give away."""
    tasks = sorted({region.task for region in shown if not taught.gives(region.task)})
    given = sorted({region.task for region in shown} - set(tasks))
    solutions = {task: [line for region in shown if region.task == task for line in region.solution] for task in TASKS}
    away = {task: [other for other in tasks if alike(solutions[task], solutions[other])] for task in given}
    return Edition(tasks, given, {task: others for task, others in away.items() if others})


def _about(taught: Course, texts: dict[str, str | None], repository: Path, keeps: Kept) -> dict[str, str]:
    """Return AGENTS.md, and what says what the course is: course.toml, README.md with the plan."""
    own = {name: Path(__file__).with_name(source) for name, source in ITS_OWN.items()}
    about = {name: file.read_text(encoding="utf-8") for name, file in own.items()}
    about = {name: from_markdown(text, keeps, name) if name.endswith(".md") else text for name, text in about.items()}
    about |= {FILE: taught.file.read_text(encoding="utf-8")} if taught.file else {}
    if "README.md" in texts:
        text = texts["README.md"] or (repository / "README.md").read_text(encoding="utf-8")
        about["README.md"] = f"{plan(taught, repository, keeps)}\n{text}"
    return about


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
        if entry.name in NOT_OURS or entry.name.startswith(".venv") or entry.name.endswith(".egg-info"):
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
    check_new(target)


def _for_students(text: str, name: str, keeps: Kept) -> tuple[str, list[Region]]:
    """Return the text of a file in the student edition, and the solutions that stood there."""
    if name.endswith(".ipynb"):
        return student_notebook(text, name, keeps)
    if name.endswith(".py") and Path(name).parent.name == "labkit":
        return student_source(text, name, keeps)
    if name.endswith(".md"):
        _check_page(text, name)
        text = from_markdown(_INSTRUCTORS_PART.sub("", text), keeps, name)
        return with_table(text, keeps) if name == PAGE else text, []
    if re.fullmatch(r"notebooks/\w+\.toml", name):
        text = from_words(text, keeps)
        if name == QUESTIONS:
            text = _ANSWER.sub(lambda found: f'answer = "{sealed(tomllib.loads(found[0])["answer"])}"', text)
        return text, []
    return text + NOT_COMMITTED if name == ".gitignore" else text, []


def _check_page(text: str, name: str) -> None:
    """Raise MarkerError for a page whose parts for instructors do not begin and end in turn."""
    began = 0  # the line in which a part begins
    for number, line in enumerate(text.split("\n"), 1):
        for marker in _PAGE_MARKER.findall(line):
            expected = "<!-- END -->" if began else INSTRUCTORS_ONLY[1]
            if marker != expected:
                raise MarkerError(f"{name}, line {number}: there stands {marker!r}, expected {expected!r}")
            began = 0 if began else number
    if began:
        raise MarkerError(f"{name}, line {began}: a part for instructors begins and never ends: add '<!-- END -->'")


def _write(target: Path, repository: Path, texts: dict[str, str | None]) -> None:
    with new_folder(target) as folder:
        for name, text in texts.items():
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (repository / name).exists():
                shutil.copy2(repository / name, copy, follow_symlinks=False)
            if text is not None:
                copy.write_text(text, encoding="utf-8")


# --- a source file --------------------------------------------------------------------------------


class Region(NamedTuple):
    """A solution with the comment that sets its task, ``lines[start:end]``; and its replacement."""

    task: str
    start: int
    end: int
    solution: list[str]
    replacement: list[str]


def student_source(text: str, name: str, keeps: Kept) -> tuple[str, list[Region]]:
    """Return a Python file without solutions to do, and all its solutions. Raises MarkerError."""
    lines, found = student_lines(text.split("\n"), name, keeps)
    source = "\n".join(lines)
    if any(region.task in keeps for region in found):
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise MarkerError(f"{name}: without its solutions it is not valid Python any more: {error}") from None
        _check_import(source, name)
    return source, found


def _check_import(source: str, name: str, where: str = "") -> None:
    if not _KNOWS_TODO_ERROR.search(source):
        missing = f"add 'from labkit.todo import TodoError'{where}"
        raise MarkerError(f"{name}: the student edition raises TodoError: {missing}")


def student_lines(lines: list[str], name: str, keeps: Kept) -> tuple[list[str], list[Region]]:
    """Return the lines of a file or a cell without the solutions to do, and all its solutions.

    One of a task that is left out stands there without its markers. ``name`` is for messages.
    Raises MarkerError.
    """
    result, found = list(lines), list(regions(lines, name))
    for region in reversed(found):
        result[region.start : region.end] = region.replacement if region.task in keeps else region.solution
    return result, found


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
    return Region(task, start, end + 1, lines[begin + 1 : end], replacement)


# --- a notebook -----------------------------------------------------------------------------------


def student_notebook(text: str, name: str, keeps: Kept) -> tuple[str, list[Region]]:
    """Return a notebook without solutions to do and outputs, and all its solutions."""
    notebook = json.loads(text)
    shown: list[Region] = []
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code":
            lines, found = student_lines("".join(cell["source"]).split("\n"), f"{name}, cell {number}", keeps)
            shown += found
            cell["source"] = "\n".join(lines).splitlines(keepends=True)
            cell["outputs"], cell["execution_count"] = [], None
        elif cell["cell_type"] == "markdown":
            text = from_markdown("".join(cell["source"]), keeps, f"{name}, cell {number}")
            cell["source"] = text.splitlines(keepends=True)
    if any(region.task in keeps for region in shown):
        _check_import("\n".join("".join(cell["source"]) for cell in code), name, " to a cell")
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", shown
