"""Tests that wait for a task: those marked with it, and those that reach its TODO."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from labkit.todo import TASKS, missing

missing = functools.cache(missing)  # many tests ask for the same tasks
_OF_ANSWERS = re.compile(r"^(?:from|import) labkit\b.*\b(?:dp|pipe|shard)\b|\btask\(", re.MULTILINE)


def task(*names: str) -> pytest.MarkDecorator:
    """A test of these tasks' answers: skipped in an edition in which one of them is still to do."""
    to_do = [place for name in names if (place := missing(name))]
    return pytest.mark.skipif(bool(to_do), reason="; ".join(to_do))


def named_in(text: str) -> str | None:
    """Return where a task that is still to do is, if a failure names its TODO."""
    return next((place for name in TASKS if f"TODO {name}: " in text and (place := missing(name))), None)


def is_of_answers(file: Path) -> bool:
    """Return whether a file tests what students write: it imports that, or is marked with a task.

    Not what notebooks conclude (``tests/lab``): that takes as long as all the others.
    """
    return file.parent.name != "lab" and bool(_OF_ANSWERS.search(file.read_text(encoding="utf-8")))
