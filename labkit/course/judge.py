"""Judge a student's files in a fresh copy of this lab, by a process that only judges.

It protects against mistakes: an answer that loops, crashes, eats its time, or edits the lab around
it touches no other answer. It does not protect against malice: answers run as this user.

The process loads all judges, and has started ranks, before the first answer runs. No answer runs
in it: those run in ranks, which import labkit from the copy. So it can judge one copy after the
other, and torch is imported once for all of them.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from labkit import todo
from labkit.base import lab as base_lab
from labkit.base.lab import PACKAGE
from labkit.base.texts import listed, shorten
from labkit.check import CheckResult, check, record
from labkit.course.student import NOT_OURS
from labkit.launch import launch
from labkit.ranks.processes.server_handle import PACKAGES, forks

LIMIT_S = 180.0  # for a task; check itself stops an answer that never ends, case by case
START_S = 300.0  # until the process can judge: on a busy machine it takes long to import torch
END_S = 10.0  # for it to end by itself
STEP_S = 0.2  # how often a wait for it checks whether grading was stopped
MAX_LAST_WORDS = 300  # characters
MAX_NAMED = 3  # files


class Stopped(Exception):
    """Grading was stopped, as by Ctrl-C."""


def judge_in_copy(files: Mapping[str, bytes], tasks: Sequence[str], judge: Judge) -> Iterator[CheckResult]:
    """Judge ``tasks`` one by one, as a student wrote them in ``files``, in a copy of this lab.

    After each task the copy is compared with what was written. One that the answer has changed is
    named in that task's result, which does not count; the next task has a new copy and a new
    process.

    Raises Stopped, OSError where no copy can be written, and RuntimeError where no process starts.
    """
    with tempfile.TemporaryDirectory(dir=judge.scratch, prefix="copy-") as folder:
        lab = Path(folder, "lab")
        missing = {f"labkit/{todo.task_file(task).name}" for task in tasks} - files.keys()
        _write_copy(lab, files, missing)
        for task in tasks:
            own = labs_own(task)
            written = _write_files(lab, {name: code + own.get(name, b"") for name, code in files.items()})
            result = judge.ask(lab, task)
            if own and not result.passed and result.claims:
                result = _with_labs_own(result, [record(other).writes for other in record(task).needs])
            if changed := _differences(written, file_hashes(lab)):
                fault = f"it has changed the lab around it ({changed}), so what its check says does not count"
                result = replace(result, claims=(), fault=fault)
                judge.end()
                _write_copy(lab, files, missing)
            yield result


def _write_copy(folder: Path, files: Mapping[str, bytes], missing: Iterable[str]) -> None:
    """Write a copy of this lab with a student's files, without those that they lack."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PACKAGE, folder / "labkit", ignore=shutil.ignore_patterns(*NOT_OURS))
    for name in missing:
        (folder / name).unlink(missing_ok=True)
    _write_files(folder, files)


def _write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write a student's files into a copy; return the hashes of all its files."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return file_hashes(folder)


def labs_own(task: str) -> dict[str, bytes]:
    """Return by file what is to stand at a student's end of it, so that ``task`` calls the lab's
    own code of the tasks that it needs.

    A mistake in one task then costs the points of that task alone, and lines keep their numbers.
    There is none in a student edition, which has no solutions.
    """
    added: dict[str, bytes] = {}
    for other in record(task).needs:
        file = f"labkit/{todo.task_file(other).name}"
        code = (PACKAGE.parent / file).read_text(encoding="utf-8")
        if "### BEGIN SOLUTION" in code:
            lines = (_defined_again(code, name.strip()) for name in record(other).writes.split(","))
            added[file] = added.get(file, b"\n") + "".join(lines).encode()
    return added


def _defined_again(code: str, name: str) -> str:
    """Return a line that defines a function, or a method as "Pipe.forward", as ``code`` has it."""
    owner, _, function = name.rpartition(".")
    scope: Any = ast.parse(code)
    if owner:
        scope = next(node for node in scope.body if isinstance(node, ast.ClassDef) and node.name == owner)
    (found,) = (node for node in scope.body if isinstance(node, ast.FunctionDef) and node.name == function)
    source = ascii(ast.unparse(found))  # whatever encoding the student's file is in
    return (
        f"exec({source})\n" if not owner else f"exec({source}, globals(), _own := {{}}); {name} = _own[{function!r}]\n"
    )


def _with_labs_own(result: CheckResult, names: Sequence[str]) -> CheckResult:
    """Return a result whose finding says that the lab's own code was called."""
    *others, last = result.claims
    wrong = f"{last.wrong} (judged with the lab's own {listed(names)})"
    return replace(result, claims=(*others, replace(last, wrong=wrong)))


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each file in a folder, by its path from there."""
    found = {}
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            with file.open("rb") as opened:
                found[file.relative_to(folder).as_posix()] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def _differences(written: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Return the names of files that have come, gone or changed, the first of them by name."""
    names = sorted({name for name, _ in written.items() ^ found.items()})
    return listed([*names[:MAX_NAMED], *([f"{len(names) - MAX_NAMED} more"] if names[MAX_NAMED:] else [])])


# --- the process that judges ----------------------------------------------------------------------


class Judge(contextlib.AbstractContextManager["Judge"]):
    """A process that judges answers in copies of this lab; a new one after one that was ended.

    ``limit_s`` is the time for a task. Once ``stop`` is set, callers that wait for the process get
    Stopped. ``seed`` draws the cases; without one they differ from check to check. ``scratch``
    holds the copies; where this process is killed, the one that judges removes it.
    """

    def __init__(self, limit_s: float = LIMIT_S, stop: threading.Event | None = None, seed: int | None = None):
        self.limit_s, self._stop, self._seed = limit_s, stop or threading.Event(), seed
        self._scratch = tempfile.TemporaryDirectory(prefix="labkit-judge-")
        self.scratch = Path(self._scratch.name)
        self._errors = self.scratch / "stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if none runs, and wait until it can judge."""
        if self._process is not None:
            return
        self._connection, other = Pipe()
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.scratch)}
        with other, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "labkit.course.judge", str(other.fileno()), str(self.scratch)],
                cwd=self.scratch,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[other.fileno()],
                start_new_session=True,  # Ctrl-C is for the process that waits for it
            )
        try:
            self._receive(START_S)
        except (TimeoutError, EOFError, OSError) as error:
            reason = self._last_words() or f": {error or type(error).__name__}"
            self.end()
            raise RuntimeError(f"the process that judges did not start{reason}") from None

    def ask(self, lab: Path, task: str) -> CheckResult:
        """Return what is found of a task in a copy; the process ends where that does not come."""
        self.start()
        began = time.monotonic()
        try:
            self._connection.send_bytes(json.dumps([str(lab), task, self._seed]).encode())
            found = CheckResult.from_json(json.loads(self._receive(self.limit_s)))
        except TimeoutError:
            found = self._without_answer(task, f"its check took more than {self.limit_s:g} s, and was ended")
        except (EOFError, OSError):
            found = self._without_answer(task, f"its check ended the process that judges it{self._last_words()}")
        return replace(found, seconds=round(time.monotonic() - began, 2))

    def _without_answer(self, task: str, reason: str) -> CheckResult:
        self.end()
        return CheckResult(task, untried=tuple(record(task).claims), worth=record(task).points, fault=reason)

    def _receive(self, limit_s: float) -> bytes:
        """Return the next message. Raises TimeoutError, Stopped, EOFError once it has ended."""
        until = time.monotonic() + limit_s
        while not self._connection.poll(STEP_S):
            if self._stop.is_set():
                raise Stopped
            if time.monotonic() > until:
                raise TimeoutError
        return self._connection.recv_bytes()

    def _last_words(self) -> str:
        lines = self._errors.read_text("utf-8", "replace").strip().splitlines()
        return f": {shorten(lines[-1], MAX_LAST_WORDS)}" if lines else ""

    def end(self, idle: bool = False) -> None:
        """End the process with all that it has started; one that is ``idle`` ends by itself."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with contextlib.suppress(psutil.NoSuchProcess):
            started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            if idle:
                self._connection.close()
                psutil.wait_procs(started, END_S)
            for each in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()
        self._connection.close()  # not before: it would remove the scratch folder, which the next one uses

    def __exit__(self, error_type: object, *_: object) -> None:
        self.end(idle=error_type is None)
        self._scratch.cleanup()


def main(descriptor: int, scratch: str) -> None:
    """Judge the tasks that come through a connection, until its other end is closed.

    Then remove ``scratch``: a grader that was killed cannot.
    """
    os.set_inheritable(descriptor, False)  # else a rank would hold it open
    grader = Connection(descriptor)
    for task in todo.TASKS:
        record(task)
    for _ in PACKAGES:  # before each of the first launches, the server of ranks imports one of them
        launch(int, world_size=1, backend="gloo", init=False, timeout_s=START_S)
    sys.path.insert(0, "")
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        grader.send_bytes(b"ready")
        while True:
            copy, task, seed = json.loads(grader.recv_bytes())
            os.chdir(Path(copy).parent)  # what an answer writes here is none of the lab's files
            sys.path[0], base_lab.PACKAGE = copy, Path(copy, "labkit")
            grader.send_bytes(json.dumps(check(task, seed=seed).to_json()).encode())
    forks.stop()
    until = time.monotonic() + END_S
    while os.path.exists(scratch) and time.monotonic() < until:  # ranks that still end use it
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
