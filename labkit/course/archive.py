"""Write what a student hands in as one zip file, and read it without trusting it."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from labkit.course.student import NOT_OURS
from labkit.todo import TASKS, task_file

STUDENT_FILES = tuple(dict.fromkeys(f"labkit/{task_file(task).name}" for task in TASKS))
MANIFEST = "manifest.json"
GUESSES, QUESTIONS = "guesses.json", "notebooks/questions.toml"  # what was guessed, and what was asked
MAX_PACKED_BYTES = 10_000_000  # of a file that is packed
MAX_READ_BYTES = 1 << 20  # of a student's file or the manifest, unpacked
MAX_ARCHIVE_BYTES = 200_000_000  # the list of a zip file's members is read whole
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others unpack more than one asks for


class Archive:
    """The files of an archive by name, and what its author should know of them.

    ``warnings`` say what is missing or left out.
    """

    def __init__(self, lab: Path):
        self.lab, self.files = lab, dict[str, bytes]()
        self.warnings: list[str] = []

    def add(self, name: str, content: bytes | str) -> None:
        """Add a file, unless it is too large."""
        content = content.encode() if isinstance(content, str) else content
        if self._fits(name, len(content)):
            self.files[name] = content

    def add_file(self, file: Path, name: str | None = None) -> None:
        """Add a file of the lab, by default under the name that it has there."""
        name = name or file.relative_to(self.lab).as_posix()
        if file.is_file() and self._fits(name, file.stat().st_size):
            self.files[name] = file.read_bytes()

    def add_files(self, *patterns: str) -> None:
        """Add the files of the lab that fit one of ``patterns``, such as ``runs/**/*.json``."""
        for pattern in patterns:
            for file in sorted(self.lab.glob(pattern)):
                if file.suffix != ".zip" and not NOT_OURS.intersection(file.relative_to(self.lab).parts):
                    self.add_file(file)

    def _fits(self, name: str, size: int) -> bool:
        if size > MAX_PACKED_BYTES:
            self.warnings.append(
                f"{name} is left out: it has {size / 1e6:.0f} MB, more than {MAX_PACKED_BYTES / 1e6:.0f}"
            )
        return size <= MAX_PACKED_BYTES

    def write(self, file: Path) -> None:
        """Write the files as one zip file."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(self.files.items()):
                archive.writestr(name, content)


class Submission(NamedTuple):
    """What a grader takes from an archive: the student files by name, the manifest, and remarks."""

    files: dict[str, bytes]
    manifest: dict[str, Any]
    remarks: list[str]


def read_submission(archive: Path) -> Submission:
    """Return the student files and the manifest of an archive; nothing else of it is unpacked.

    They may be in one folder, as when an archive was unpacked and packed again.

    Raises ValueError, with what to do, for a file that cannot be read as such an archive: damaged,
    encrypted, too large, packed by another method than zip's usual one, or without a student file.
    """
    found, there = read_members(archive, (*STUDENT_FILES, MANIFEST))
    manifest = _manifest(found.pop(MANIFEST, b""))
    if not found:
        raise ValueError(f"{archive} has neither {' nor '.join(STUDENT_FILES)}: expected an archive from labkit submit")
    return Submission(found, manifest, [*_remarks(found, manifest, there)])


def read_members(archive: Path, names: Iterable[str]) -> tuple[dict[str, bytes], dict[str, list[zipfile.ZipInfo]]]:
    """Return these files of an archive, and the members of each name; nothing else is unpacked.

    Raises ValueError as :func:`read_submission`.
    """
    try:
        if archive.stat().st_size > MAX_ARCHIVE_BYTES:
            raise ValueError(f"it has more than {MAX_ARCHIVE_BYTES / 1e6:.0f} MB")
        with zipfile.ZipFile(archive) as members:
            there = {name: _members(members, name) for name in names}
            return {name: _content(members, infos[0]) for name, infos in there.items() if infos}, there
    except OSError as error:
        raise ValueError(f"{archive} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # of a damaged zip file, zipfile raises nearly anything
        raise ValueError(f"{archive} cannot be read as a zip archive: {error or type(error).__name__}") from None


def _members(members: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
    """Return the members of this name, also in a folder, the one with the shortest path first."""
    pattern = re.compile(rf"([^/\\]*[^/\\.]/)?{re.escape(name)}")
    return sorted(
        (info for info in members.infolist() if pattern.fullmatch(info.filename)), key=lambda i: len(i.filename)
    )


def _content(members: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.compress_type not in METHODS:
        raise ValueError(f"{info.filename} in it is neither stored nor deflated: pack it again with labkit submit")
    with members.open(info) as member:
        content = member.read(MAX_READ_BYTES + 1)  # whatever its header says
    if len(content) > MAX_READ_BYTES:
        raise ValueError(f"{info.filename} in it has more than {MAX_READ_BYTES:,} bytes unpacked")
    return content


def _manifest(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _remarks(
    found: Mapping[str, bytes], manifest: Mapping[str, Any], there: Mapping[str, list[zipfile.ZipInfo]]
) -> Iterator[str]:
    if not manifest:
        yield f"its {MANIFEST} is missing or cannot be read: labkit submit did not make it"
    hashes = manifest.get("sha256")
    for name in STUDENT_FILES:
        if name not in found:
            yield f"{name} is not in it"
        elif len(there[name]) > 1:
            yield f"there are {len(there[name])} {name} in it: {there[name][0].filename} was taken"
        elif isinstance(hashes, dict) and hashes.get(name) != hashlib.sha256(found[name]).hexdigest():
            yield f"{name} was changed after labkit submit had packed it"
