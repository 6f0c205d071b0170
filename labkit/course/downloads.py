"""Find what a class handed in, in a folder as an LMS writes it; names of students come from there.

Moodle has a folder a student, ``Ada Lovelace_123_assignsubmission_file/submission.zip``, or without
folders a file, ``Ada Lovelace_123_assignsubmission_file_submission.zip``. Canvas has
``lovelaceada_LATE_123_456_submission.zip``. In any other folder an archive's own name counts.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".zip", ".tar.gz", ".tgz")
GRADES, GUESSES_PAGE = "grades", "guesses.html"  # what labkit itself writes into the folder, unless told otherwise
_MOODLE = re.compile(r"(?P<name>.+?)_\d+_assignsubmission_file(?:_.*)?", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?:_LATE)?_\d+_\d+_.+", re.DOTALL)


class HandIn(NamedTuple):
    """What a student handed in: an archive, or a folder of files. No other has this name."""

    name: str
    path: Path


def hand_ins(folder: Path, beside: Path) -> tuple[list[HandIn], list[str]]:
    """Return what was handed in, and the names of everything else but ``beside`` and labkit's own.

    What would have the name of another, but for the case of letters, is called by its path.
    """
    there = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    ours = {os.path.abspath(path) for path in (beside, folder / GRADES, folder / GUESSES_PAGE)}
    found = {path: [*_hand_ins_at(path)] for path in there if os.path.abspath(path) not in ours}
    archives = [each for of_one in found.values() for each in of_one]
    count = Counter(each.name.casefold() for each in archives)
    paths = {each.path: shown(each.path.relative_to(folder).as_posix()) for each in archives}
    names = {paths[path] if count[name.casefold()] > 1 else name: path for name, path in archives}
    if len(names) < len(archives):
        names = {paths[path]: path for path in paths}
    return [HandIn(*each) for each in names.items()], [shown(path.name) for path, here in found.items() if not here]


def _hand_ins_at(path: Path) -> Iterator[HandIn]:
    """Yield what a file or folder holds: in a student's folder each archive, or else all files."""
    if (moodle := _MOODLE.fullmatch(path.name)) and path.is_dir():
        there = sorted(path.iterdir()) if os.access(path, os.R_OK | os.X_OK) else []
        archives = [each for each in there if is_archive(each)]
        yield from (HandIn(shown(moodle["name"]), each) for each in archives or [path])
    elif is_archive(path):
        lms = moodle or _CANVAS.fullmatch(path.name)
        yield HandIn(shown(lms["name"] if lms else _stem(path.name)), path)


def is_archive(path: Path) -> bool:
    """Return whether it is called as an archive is."""
    return path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")


def _stem(name: str) -> str:
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.lower().endswith(suffix)), name)


def shown(name: str) -> str:
    """Return a file's name as text of one line, other bytes than UTF-8's as escapes."""
    text = os.fsencode(name.replace("\\", "\\\\")).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
