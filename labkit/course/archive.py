"""Write what a student hands in as one zip file, and read it without trusting it."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from labkit.base.course import Course
from labkit.course.student import NOT_OURS
from labkit.todo import TASKS, task_file

STUDENT_FILES = tuple(dict.fromkeys(f"labkit/{task_file(task).name}" for task in TASKS))
MANIFEST = "manifest.json"
GUESSES, QUESTIONS = "guesses.json", "notebooks/questions.toml"  # what was guessed, and what was asked
MAX_PACKED_BYTES = 10_000_000  # of a file that is packed
MAX_READ_BYTES = 1 << 20  # of a student's file or the manifest, unpacked
MAX_ARCHIVE_BYTES = 200_000_000  # the list of a zip file's members is read whole
MAX_UNPACKED_BYTES = 1_000_000_000  # of a gzipped tar file: all of it is unpacked, to disk
MAX_TEXTS = 40  # notebooks and reports
GZIP = b"\x1f\x8b"  # how such a file begins
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others unpack more than one asks for

# A notebook, or a report beside the folders: also in a folder, as a student file may be.
_TEXT = re.compile(r"(?:(?!notebooks/|figures/)[^/\\]*[^/\\.]/)?(notebooks/[^/\\]+\.ipynb|[^/\\]+\.(?:html|pdf))")


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
    """What a grader takes from an archive.

    ``files`` are the student files by name, ``texts`` its notebooks and its report for people to
    read, by name, and ``remarks`` are sentences about it.
    """

    files: dict[str, bytes]
    manifest: dict[str, Any]
    remarks: list[str]
    texts: Mapping[str, bytes] = MappingProxyType({})


def read_submission(source: Path, taught: Course) -> Submission:
    """Return what a course's grader takes from an archive or folder; nothing else is unpacked.

    An archive is a zip file or a gzipped tar file. Its files may be in one folder, as when an
    archive was unpacked and packed again, and the student files may stand there without ``labkit``.

    Raises ValueError, with what to do, for what cannot be read as such an archive: damaged,
    encrypted, too large, packed by another method than zip's usual one, or without a student file.
    """
    texts = dict[str, bytes]()
    with _opened(source) as members:
        there = {name: _named(members, name) for name in (*taught.student_files, MANIFEST)}
        found = {name: _content(same[-1]) for name, same in there.items() if same}
        for member in [each for each in members if _TEXT.fullmatch(each.name)][:MAX_TEXTS]:
            with contextlib.suppress(Exception):  # what only people read costs no points
                texts[_TEXT.sub(r"\1", member.name)] = _content(member, MAX_PACKED_BYTES)
    manifest = _manifest(found.pop(MANIFEST, b""))
    if not found:
        raise ValueError(
            f"{source} has no {' and no '.join(taught.student_files)}: expected an archive from labkit submit"
        )
    return Submission(found, manifest, [*_remarks(found, manifest, there, taught)], texts)


def read_members(source: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return those of these files that an archive or folder has; nothing else is unpacked.

    Raises ValueError as :func:`read_submission` does.
    """
    with _opened(source) as members:
        there = {name: _named(members, name) for name in names}
        return {name: _content(same[-1]) for name, same in there.items() if same}


class Member(NamedTuple):
    """A file in an archive: its name there, and a function that opens it."""

    name: str
    open: Callable[[], Any]


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[list[Member]]:
    """Give the files of an archive or folder. Raises ValueError for one that cannot be read."""
    try:
        with _members(source) as members:
            yield members
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # of a damaged archive, its module raises nearly anything
        raise ValueError(f"{source} cannot be read as an archive: {error or type(error).__name__}") from None


@contextlib.contextmanager
def _members(source: Path) -> Iterator[list[Member]]:
    """Give the files of a zip file, a gzipped tar file, or a folder."""
    if source.is_dir():
        files = sorted(file for file in source.rglob("*") if file.is_file() and not file.is_symlink())
        yield [Member(file.relative_to(source).as_posix(), functools.partial(file.open, "rb")) for file in files]
        return
    if source.exists() and not source.is_file():
        raise ValueError("it is not a file")
    if source.stat().st_size > MAX_ARCHIVE_BYTES:
        raise ValueError(f"it has more than {MAX_ARCHIVE_BYTES / 1e6:.0f} MB")
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(source.open("rb"))
        if file.peek(len(GZIP)).startswith(GZIP):
            tar = stack.enter_context(tarfile.open(fileobj=stack.enter_context(_unzipped(file))))
            regular = (each for each in tar if each.isreg())
            yield [Member(each.name.removeprefix("./"), functools.partial(tar.extractfile, each)) for each in regular]
        else:
            zipped = stack.enter_context(zipfile.ZipFile(file))
            yield [Member(each.filename, functools.partial(_open_zipped, zipped, each)) for each in zipped.infolist()]


def _unzipped(file: IO[bytes]) -> IO[bytes]:
    """Return a gzipped file's content as a temporary file."""
    content = tempfile.TemporaryFile()  # noqa: SIM115 for the caller to close
    with gzip.open(file) as packed:
        while chunk := packed.read(MAX_READ_BYTES):
            content.write(chunk)
            if content.tell() > MAX_UNPACKED_BYTES:
                raise ValueError(f"it has more than {MAX_UNPACKED_BYTES / 1e6:.0f} MB unpacked")
    content.seek(0)
    return content


def _open_zipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    if member.compress_type not in METHODS:
        raise ValueError(f"{member.filename} in it is neither stored nor deflated: pack it again with labkit submit")
    return archive.open(member)


def _named(members: Sequence[Member], name: str) -> list[Member]:
    """Return the members of this name, also in a folder, and last the one that counts.

    That is one in ``labkit``, then the one with the shortest path; of several with one path the
    last, as for unzip.
    """
    folder, _, file = name.rpartition("/")
    inside = f"({re.escape(folder)}/)?" if folder else ""
    pattern = re.compile(rf"([^/\\]*[^/\\.]/)?{inside}{re.escape(file)}")
    found = [each for each in members if pattern.fullmatch(each.name)]
    return sorted(found, key=lambda each: (f"/{each.name}".endswith(f"/{name}"), -len(each.name)))


def _content(member: Member, max_bytes: int = MAX_READ_BYTES) -> bytes:
    with member.open() as opened:
        content = opened.read(max_bytes + 1)  # whatever its header says
    if len(content) > max_bytes:
        raise ValueError(f"{member.name} in it has more than {max_bytes:,} bytes unpacked")
    return content


def _manifest(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _remarks(
    found: Mapping[str, bytes], manifest: Mapping[str, Any], there: Mapping[str, list[Member]], taught: Course
) -> Iterator[str]:
    if not manifest:
        yield f"its {MANIFEST} is missing or cannot be read: labkit submit did not make it"
    elif (packed_for := str(manifest.get("course", ""))) != taught.title:
        ours = f"the course {taught.title!r}" if taught.title else "the whole lab"
        yield f"it was packed for {f'the course {packed_for!r}' if packed_for else 'the whole lab'}, and this is {ours}"
    hashes = manifest.get("sha256")
    for name in taught.student_files:
        if name not in found:
            yield f"{name} is not in it"
            continue
        if others := there[name][:-1]:
            taken = there[name][-1].name
            which = "the last " if any(other.name == taken for other in others) else ""
            yield f"there are {len(others) + 1} {name} in it: {which}{taken} was taken"
        if isinstance(hashes, dict) and hashes.get(name) != hashlib.sha256(found[name]).hexdigest():
            yield f"{name} was changed after labkit submit had packed it"
