"""Hold what was found of an archive, as it is kept between two runs of ``labkit grade``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from labkit.base.files import write_atomically
from labkit.check import CheckResult, record

Points = Mapping[str, float]  # what each task is worth that is graded
MAX_FILE_NAME = 80  # bytes of a student's name in the name of a file


@dataclass
class Grade:
    """What was found of an archive: ``error`` if it cannot be read, else the rest.

    ``remarks`` are about the archive, ``broken_rules`` about what its files use and should not,
    ``answers`` are questions and written answers as Markdown, ``files`` the names of those that
    were taken out of it for people to read.
    """

    name: str
    key: str = ""  # of what was judged, by what
    error: str = ""
    results: list[CheckResult] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    broken_rules: list[str] = field(default_factory=list)
    answers: str = ""
    files: list[str] = field(default_factory=list)

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
        return replace(self.result(task), worth=points[task]).points

    def total(self, points: Points) -> float:
        """Return the points of all tasks."""
        return round(sum(self.points(task, points) for task in points), 2)

    def undone(self, points: Points) -> list[str]:
        """Return the tasks that are still TODOs."""
        return [task for task in points if self.result(task).todo]

    def save(self, file: Path) -> None:
        """Write it, for :meth:`load`."""
        write_atomically(file, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def load(cls, file: Path) -> Grade | None:
        """Return what :meth:`save` has written, or None where there is none."""
        try:
            found = cls(**json.loads(file.read_text(encoding="utf-8")))
            found.results = [CheckResult.from_json(each) for each in found.results]  # type: ignore[arg-type]
            return found
        except (OSError, ValueError, TypeError):
            return None


def file_name(name: str) -> str:
    """Return a student's name as the name of a file, or one like it where no file can have that."""
    plain = re.sub(r"[^\w .,()@+-]", "_", name).strip(" .")
    if plain == name and len(name.encode()) <= MAX_FILE_NAME:
        return name
    head = plain.encode()[:MAX_FILE_NAME].decode(errors="ignore")
    return f"{head}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
