"""Check what a student has written in a copy of this edition: from an archive, or before it is one.

Nothing but the regions of ``labkit/dp.py`` and ``labkit/pipe.py`` is taken from an archive, and no
other file of it is read. The answers run as this user: an archive of somebody you do not trust
belongs into a container. (Whole classes, and strangers' code, are a later issue.)
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

from labkit.check.restrictions import broken
from labkit.course import regions
from labkit.course.edition import STUDENT_FILES, Edition
from labkit.todo import TASKS, task_file

MOST_BYTES = 1 << 20  # of a student's file
MANIFEST = "manifest.json"
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    json.JSONDecodeError,
    TypeError,
)
_CHECK = """
import json, sys
from labkit.check import check
found = [check(task) for task in sys.argv[2:]]
results = [(each.task, each.passed, each.findings, each.warnings) for each in found]
open(sys.argv[1], "w", encoding="utf-8").write(json.dumps(results))
"""


class Checked(NamedTuple):
    """What the check of a task found."""

    task: str
    passed: bool
    findings: Sequence[str]
    warnings: Sequence[str] = ()


def table(results: Sequence[Checked]) -> str:
    """Return the results as a table: task, passed, first finding."""
    lines = [f"{'task':<8}{'passed':<8}first finding"]
    for each in results:
        first = next(iter(each.findings), "").partition("\n")[0]
        lines.append(f"{each.task:<8}{'yes' if each.passed else 'no':<8}{first}".rstrip())
    return "\n".join(lines)


def check_archive(archive: Path, repository: Path, tasks: Sequence[str]) -> tuple[list[Checked], list[str]]:
    """Check ``tasks`` of an archive that ``labkit submit`` has made; return results and remarks.

    Raises ValueError for a file that is no such archive, or that holds what none of them does.
    """
    files, layout, remarks = _student_files(archive)
    with tempfile.TemporaryDirectory() as scratch:
        folder, edition = Path(scratch), Edition(repository)
        edition.write_package(folder, written_into(edition, files))
        results = checked_in(folder, tasks)
    warnings = [f"{each.task}: {warning}" for each in results for warning in each.warnings]
    for task in tasks if layout else ():
        name = f"labkit/{task_file(task).name}"
        source = decode_source(files[name]) if name in files else ""
        warnings += [f"{task}: {each}" for each in broken(task, layout, source, edition.programs[name])]
    return results, remarks + list(dict.fromkeys(warnings))


def written_into(edition: Edition, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the student's files with nothing but what the student wrote.

    One that is no Python is taken as it is: its checks say in which line.
    """
    result = {}
    for name, content in files.items():
        try:
            result[name] = regions.set_into(edition.programs[name], decode_source(content)).encode()
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            result[name] = content
    return result


def edits_what_was_given(edition: Edition, name: str, content: bytes) -> bool:
    """Return whether a student's file differs from the given one in what was given."""
    try:
        source = decode_source(content)
        return ast.dump(ast.parse(regions.set_into(edition.programs[name], source))) != ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # its checks say that it is no Python


def checked_in(folder: Path, tasks: Sequence[str]) -> list[Checked]:
    """Check ``tasks`` with the labkit in ``folder``, in a Python of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _CHECK, str(results), *tasks]
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if ended.returncode or not results.is_file():
            reason = (ended.stderr.strip() or "it printed nothing").splitlines()[-1]
            return [Checked(task, False, [f"labkit cannot be imported from there: {reason}"]) for task in tasks]
        return [Checked(*each) for each in json.loads(results.read_text(encoding="utf-8"))]


def _student_files(archive: Path) -> tuple[dict[str, bytes], str, list[str]]:
    """Return dp.py and pipe.py of an archive, its layout, and what is to be said of it."""
    layout = ""
    try:
        with zipfile.ZipFile(archive) as members:
            names = members.namelist()
            found = {}
            for name in STUDENT_FILES:
                there = [each for each in names if re.fullmatch(rf"([^/\\]*[^/\\.]/)?{re.escape(name)}", each)]
                if there:  # also in a folder, as task2a of --layout cos598d
                    found[name] = _content(members, there[0])
            if MANIFEST in names:
                layout = str(dict(json.loads(_content(members, MANIFEST))).get("layout", ""))
            remarks = [] if MANIFEST in names else [f"{archive.name} has no {MANIFEST}: labkit submit did not make it"]
    except OSError as error:
        raise ValueError(f"{archive} cannot be read: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise ValueError(f"{archive} is no archive that can be read ({error})") from None
    if not found:
        raise ValueError(f"{archive} has neither {' nor '.join(STUDENT_FILES)}: expected what labkit submit makes")
    return found, layout, [*remarks, *(f"{name} is not in it" for name in STUDENT_FILES if name not in found)]


def _content(members: zipfile.ZipFile, name: str) -> bytes:
    with members.open(name) as member:
        content = member.read(MOST_BYTES + 1)  # whatever its header says
    if len(content) > MOST_BYTES:
        raise ValueError(f"{name} in it has more than {MOST_BYTES:,} bytes unpacked: no student's file has")
    return content


def tasks_of(only: Sequence[str]) -> list[str]:
    """Return the tasks that ``only`` names, each a task or ``dp`` or ``pipe``; all for none.

    Raises ValueError for another name.
    """
    for each in only:
        if each not in TASKS and each not in ("dp", "pipe"):
            raise ValueError(f"there is no task {each!r}, expected dp, pipe, or one of: {', '.join(TASKS)}")
    return [task for task in TASKS if not only or task in only or task.partition(".")[0] in only]
