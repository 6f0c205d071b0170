"""Read ``course.toml``: what a course is, part by part.

    title = "Data parallelism and pipelines"
    layout = "labkit"                       # of the archive: labkit submit --layout
    languages = ["de", "en"]                # of the sentences to translate
    given = ["dp.2"]                        # more tasks that students find filled in

    [[parts]]
    name = "Data parallelism"
    notebooks = ["00", "01", "03"]
    tasks = ["dp.1", "dp.4"]                # or with points: {"dp.1" = 20, "dp.4" = 10}
    due = 2027-02-28T23:59:59-05:00         # with its time zone

A lab's own is ``course.toml`` in its folder. Without one, a course is the whole lab. Only ``title``
and ``parts`` are required, and of a part its ``name``.
"""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.lab import lab
from labkit.base.texts import listed

FILE = "course.toml"
_CHECKS = Path(__file__).parents[1] / "check"

# The tasks of the lab in order: each has a file of claims, such as check/dp_1.py.
TASKS = tuple(
    f"{group}.{number}"
    for group in ("dp", "pipe", "shard")
    for number in sorted(int(file.stem.rpartition("_")[2]) for file in _CHECKS.glob(f"{group}_[0-9]*.py"))
)
_KEYS = ("title", "layout", "languages", "given", "parts")
_KEYS_OF_PART = ("name", "notebooks", "tasks", "due")


class CourseError(ValueError):
    """A course file that cannot be used: where, what was expected, and what to do."""


class Part(NamedTuple):
    """A part of a course: its notebooks and tasks, each with its points, and when it is due.

    Points are None where the course leaves them to the task's record.
    """

    name: str
    notebooks: tuple[str, ...]  # as the file has them: numbers, or names
    points: Mapping[str, float | None]
    due: datetime.datetime | None = None


class Course(NamedTuple):
    """What is taught. ``file`` is None for the whole lab, which has no title."""

    title: str
    parts: tuple[Part, ...]
    layout: str = "labkit"
    languages: tuple[str, str] = ("de", "en")
    also_given: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def points(self) -> dict[str, float | None]:
        """The tasks to do in order, each with its points: None where its record has them."""
        return {task: worth for part in self.parts for task, worth in part.points.items()}

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.points)

    @property
    def student_files(self) -> tuple[str, ...]:
        """The files to hand in, such as ``labkit/dp.py``: those with a task to do."""
        groups = {task.partition(".")[0] for task in self.points}
        return tuple(f"labkit/{group}.py" for group in dict.fromkeys(_group(t) for t in TASKS) if group in groups)

    def gives(self, task: str) -> bool:
        """Return whether students find the task filled in, and it is not graded."""
        return task not in self.points


def course(file: Path | None = None) -> Course:
    """Return the course in ``file``, by default in the lab's own; without one, the whole lab.

    Raises CourseError, a sentence, for a file that cannot be used.
    """
    own = lab().folder / FILE
    if file is None and not own.is_file():
        return whole_lab()
    file = file or own
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CourseError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CourseError(f"{file} is not TOML: {error}") from None
    try:
        return _course(table)._replace(file=file)
    except CourseError as error:
        raise CourseError(f"{file}: {error}") from None


def whole_lab() -> Course:
    """Return the course that there is without a file: every task, and every notebook."""
    return Course("", (Part("", (), dict.fromkeys(TASKS)),))


def _course(table: Mapping[str, Any]) -> Course:
    _check_keys(table, _KEYS, "the file")
    parts = table.get("parts")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise CourseError("it has no parts: begin each with a line [[parts]]")
    languages = table.get("languages", ["de", "en"])
    if not (isinstance(languages, list) and len({*map(str, languages)}) == len(languages) == 2):
        raise CourseError(f'languages is {languages!r}, expected two, such as ["sv", "en"]')
    if wrong := [each for each in languages if not re.fullmatch("[A-Za-z_-]+", str(each))]:
        raise CourseError(f'there is no language {wrong[0]!r}, expected a code such as "sv"')
    found = Course(
        _text(table, "title", "the course"),
        tuple(_part(part, number) for number, part in enumerate(parts, 1)),
        _text(table, "layout", "the course") if "layout" in table else "labkit",
        (languages[0], languages[1]),
        _names(table, "given", "the course"),
    )
    _check_tasks(found)
    return found


def _part(table: Mapping[str, Any], number: int) -> Part:
    name = _text(table, "name", f"part {number}")
    _check_keys(table, _KEYS_OF_PART, f"part {name!r}")
    points, due = table.get("tasks", []), table.get("due")
    if not isinstance(points, dict):
        points = dict.fromkeys(_names(table, "tasks", f"part {name!r}"))
    for task, worth in points.items():
        if worth is not None and (type(worth) not in (int, float) or not 0 <= worth < math.inf):
            raise CourseError(f"{task} is worth {worth!r}, expected a number, 0 or more")
    if due is not None and (not isinstance(due, datetime.datetime) or due.tzinfo is None):
        expected = "expected a date and time with its time zone, such as 2027-02-28T23:59:59-05:00"
        raise CourseError(f"part {name!r} is due {due}, {expected}")
    return Part(name, _names(table, "notebooks", f"part {name!r}"), points, due)


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := [key for key in table if key not in known]:
        raise CourseError(f"{where} has {unknown[0]!r}, expected some of: {', '.join(known)}")


def _text(table: Mapping[str, Any], key: str, of: str) -> str:
    found = table.get(key)
    if not isinstance(found, str) or not found.strip():
        raise CourseError(f'{of} has no {key}: write {key} = "…"' if found is None else f"{key} is {found!r}")
    return found.strip()


def _names(table: Mapping[str, Any], key: str, of: str) -> tuple[str, ...]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CourseError(f'{key} of {of} is {found!r}, expected a list of names in quotes, such as ["…", "…"]')
    return tuple(found)


def _check_tasks(found: Course) -> None:
    """Refuse tasks and notebooks that stand in two places, tasks that are not there, and none."""
    places = [(task, f"in part {part.name!r}") for part in found.parts for task in part.points]
    places += [(task, "given") for task in found.also_given]
    for names in (places, [(each, f"in part {part.name!r}") for part in found.parts for each in part.notebooks]):
        where: dict[str, str] = {}
        for name, place in names:
            if name in where:
                raise CourseError(f"{name} is {listed([where[name], place])}: leave it in one of them")
            where[name] = place
    if unknown := [task for task, _ in places if task not in TASKS]:
        raise CourseError(f"there is no task {unknown[0]!r}, expected some of: {', '.join(TASKS)}")
    if not found.points:
        raise CourseError('no part has a task: write tasks = ["dp.1"], or the like')


def _group(task: str) -> str:
    return task.partition(".")[0]
