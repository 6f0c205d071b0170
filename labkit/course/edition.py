"""What came with the lab: the record that a student edition carries of its files.

``labkit student`` writes it, as ``.edition.zip``: the hash of every file, and the text of those
that are programs. So what was edited since can be told, and what a student wrote be set into the
files as they were.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from labkit.course.student import HASHES, NOT_OURS, RECORD, student_source, tracked_files
from labkit.todo import TASKS, task_file

STUDENT_FILES = tuple(dict.fromkeys(f"labkit/{task_file(task).name}" for task in TASKS))


class Edition:
    """The files of the lab in ``folder`` as they came. In the marked source, as they are."""

    def __init__(self, folder: Path):
        self.folder, self.hashes = folder, {}
        self.programs: dict[str, str] = {}
        if (folder / RECORD).is_file():
            try:
                with zipfile.ZipFile(folder / RECORD) as record:
                    self.hashes = json.loads(record.read(HASHES))
                    self.programs = {name: record.read(name).decode() for name in record.namelist() if name != HASHES}
            except (zipfile.BadZipFile, zlib.error, KeyError, ValueError) as error:
                raise ValueError(
                    f"{folder / RECORD} is damaged ({error}): put it back, as it came with the lab"
                ) from None
        else:
            for name in STUDENT_FILES:
                with_solutions = (folder / name).read_text(encoding="utf-8")
                self.programs[name] = student_source(with_solutions, name)[0]

    def names(self) -> list[str]:
        """Return the names of the files that came with the lab."""
        return sorted(self.hashes) or tracked_files(self.folder)

    def edited(self) -> Iterator[tuple[str, str]]:
        """Yield names of files that are not for students to change, and what was changed."""
        for name, hashed in self.hashes.items():
            file = self.folder / name
            if name in STUDENT_FILES or name.startswith(("notebooks/", "figures/")):
                continue
            content = file.read_bytes() if file.is_file() else None
            if content is None:
                yield name, "came with the lab and is not there any more"
            elif hashlib.sha256(content).hexdigest() != hashed:
                yield name, f"was edited{_differs(self.programs.get(name), content)}"

    def write_package(self, folder: Path, written: Mapping[str, bytes]) -> None:
        """Write labkit as it came to ``folder``, with the student's files that were ``written``."""
        there = shutil.ignore_patterns(*NOT_OURS)
        shutil.copytree(self.folder / "labkit", folder / "labkit", dirs_exist_ok=True, ignore=there)
        given = {name: text.encode() for name, text in self.programs.items() if name.startswith("labkit/")}
        for name, content in {**given, **written}.items():
            (folder / name).write_bytes(content)


def _differs(given: str | None, content: bytes) -> str:
    """Return in how many lines a program differs from what was given, and in which first."""
    if given is None:
        return ""
    old, new = given.splitlines(), content.decode("utf-8", "replace").splitlines()
    changes = [each for each in difflib.SequenceMatcher(None, old, new).get_opcodes() if each[0] != "equal"]
    n = sum(max(old_end - old_start, end - start) for _, old_start, old_end, start, end in changes)
    return f": {n} line{'s' * (n != 1)} from line {changes[0][3] + 1} on" if changes else ": its line ends"
