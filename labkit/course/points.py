"""Count points: what a task is worth, what of an answer holds, and what late days cost."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from labkit.base.files import write_atomically
from labkit.check import CheckResult, record
from labkit.todo import TASKS

DAY = datetime.timedelta(days=1)


class Points(NamedTuple):
    """What each task is worth, and what late days cost: see docs/instructor.md."""

    of: Mapping[str, float]
    due: datetime.datetime | None = None
    free_days: int = 0
    per_day: float = 0.0


def read_points(file: Path | None = None) -> Points:
    """Return a table of points, by default that of the tasks' records.

    Raises ValueError, with the place, for one that cannot be used.
    """
    if file is None:
        return Points({task: record(task).points for task in TASKS})
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    points, late = table.get("points", {}), table.get("late", {})
    for task, worth in points.items():
        if task not in TASKS:
            raise ValueError(f"{file}: there is no task {task!r}, expected some of: {', '.join(TASKS)}")
        if type(worth) not in (int, float) or not 0 <= worth < math.inf:
            raise ValueError(f"{file}: {task} is worth {worth!r}, expected a number, 0 or more")
    if not points:
        raise ValueError(f'{file} has no [points]: give each task to be graded a line such as "dp.1" = 10')
    due, free_days, per_day = late.get("due"), late.get("free_days", 0), late.get("per_day", 0.0)
    if due is not None and not isinstance(due, datetime.datetime):
        raise ValueError(f"{file}: due is {due!r}, expected a date and time such as 2027-02-28T23:59:59-05:00")
    if type(free_days) is not int or type(per_day) not in (int, float) or not 0 <= per_day <= 1 or free_days < 0:
        raise ValueError(f"{file}: expected free_days as a whole number, and per_day as a fraction from 0 to 1")
    return Points(points, due.astimezone() if due else None, free_days, per_day)


def late_days(packed: str, points: Points) -> int:
    """Return how many days after the deadline an archive was packed; a day that has begun counts.

    0 where there is no deadline, or no date that can be read.
    """
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if points.due:
            late = datetime.datetime.fromisoformat(packed).astimezone() - points.due
            return max(0, math.ceil(late / DAY))
    return 0


@dataclass
class Grade:
    """What was found of an archive: ``error`` if it cannot be read, else results and remarks."""

    name: str
    key: str = ""  # of what was judged, by what
    packed: str = ""
    error: str = ""
    results: list[CheckResult] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def result(self, task: str) -> CheckResult:
        """Return what was found of a task."""
        nothing = CheckResult(task, untried=tuple(record(task).claims), fault=self.error)
        return next((result for result in self.results if result.task == task), nothing)

    @property
    def seconds(self) -> float:
        """Return how long its checks took."""
        return round(sum(result.seconds for result in self.results), 2)

    def points(self, task: str, points: Points) -> float:
        """Return the points of a task in that table."""
        return replace(self.result(task), worth=points.of[task]).points

    def total(self, points: Points) -> float:
        """Return the points of all tasks, less what late days cost."""
        costly = max(0, late_days(self.packed, points) - points.free_days)
        whole = sum(self.points(task, points) for task in points.of)
        return round(whole * max(0.0, 1 - costly * points.per_day), 2)

    def save(self, folder: Path) -> None:
        """Write it into a folder, for :meth:`load`."""
        write_atomically(folder / f"{self.name}.json", json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, file: Path) -> Grade | None:
        """Return what :meth:`save` has written, or None where there is none."""
        try:
            found = cls(**json.loads(file.read_text(encoding="utf-8")))
            found.results = [CheckResult.from_json(each) for each in found.results]  # type: ignore[arg-type]
            return found
        except (OSError, ValueError, TypeError):
            return None
