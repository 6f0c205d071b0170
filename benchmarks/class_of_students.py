### INSTRUCTORS ONLY: this file hands in answers, so it is not in the student edition
"""A class that hands in the wrong and right answers of ``tests/check``, and some who go further."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

sys.path.extend(str(Path(__file__).parents[1] / "tests" / folder) for folder in ("check", "helpers"))
from test_answers import ANSWERS, edited

from labkit.course.archive import STUDENT_FILES
from labkit.todo import task_file

LABKIT = Path(__file__).parents[1] / "labkit"
# A student has at most one wrong answer to each of these, so that none keeps another from being
# tried.
TOGETHER = [
    ["dp.1", "dp.2", "dp.3", "dp.4"],
    ["dp.5", "dp.6", "dp.7", "dp.8"],
    ["pipe.1", "pipe.2", "pipe.3", "pipe.4"],
    ["shard.1", "shard.2", "shard.3"],
]
WITH_THEM = ["pipe.5"]  # comes with pipe.3 or pipe.4
AFTER = {"dp.6": ["dp.7"], "pipe.1": ["pipe.3", "pipe.4"], "pipe.2": ["pipe.3", "pipe.4"], "pipe.3": ["pipe.4"]}
ENDLESS = "\n\ndef ring_all_reduce(tensor):\n    while True:\n        pass\n"
CRASHES = "\n\nimport os\n\nos.kill(os.getpid(), 9)\n"


class Student(NamedTuple):
    """A student's files, the tasks that are wrong in them, each with a phrase of its finding, and
    those that may be wrong because of that."""

    files: dict[str, str]
    wrong: dict[str, str]
    in_doubt: set[str]


def students() -> Iterator[Student]:
    """Yield students until each wrong answer, and each right one, was handed in by one of them."""
    columns = [[(task, *answer) for task in tasks for answer in _wrong(task)] for tasks in TOGETHER]
    fifth = iter([(task, *answer) for task in WITH_THEM for answer in _wrong(task)])
    for n, chosen in enumerate(zip_longest(*columns)):
        given = [each for each in chosen if each]
        if chosen[2] and chosen[2][0] in ("pipe.3", "pipe.4"):
            given += [each for each in [next(fifth, None)] if each]
        wrong = {task: edits for task, _, edits in given}
        files = {name: (LABKIT.parent / name).read_text() for name in STUDENT_FILES}
        for task, answers in ANSWERS.items():
            name = f"labkit/{task_file(task).name}"
            right = [(), *answers.RIGHT.values()]
            files[name] = edited(task, *wrong.get(task, right[n % len(right)]), source=files[name])
        in_doubt = {after for task in wrong for after in AFTER.get(task, ())}
        yield Student(files, {task: phrase for task, phrase, _ in given}, in_doubt - wrong.keys())


def _wrong(task: str) -> Iterator[tuple[str, tuple]]:
    for answers in ANSWERS[task].WRONG.values():
        for phrase, *edits in answers.values():  # lines move with the answers above
            yield phrase.partition(" (labkit/")[0], tuple(edits)


def hand_in(student: Student, archive: Path) -> None:
    """Write a student's files as an archive of ``labkit submit``."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in student.files.items():
            file.writestr(name, text)
        file.writestr("manifest.json", '{"packed": "2026-11-24T12:00:00+00:00"}')
