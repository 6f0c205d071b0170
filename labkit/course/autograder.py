"""Make an autograder for Gradescope, and be it there: ``labkit autograder OUT.zip``.

The archive is laid out as https://gradescope-autograders.readthedocs.io asks for it. ``setup.sh``
runs once, when Gradescope builds the container. ``run_autograder`` runs for each hand-in, in
``/autograder``: it judges ``submission/`` and writes ``results/results.json``. What takes longer
than Gradescope allows ends without a result, so a task may use an equal share of the time that is
left, and the results are rewritten after each.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.course import FILE, Course, course
from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.check import points_of, record
from labkit.course.archive import Submission, read_submission
from labkit.course.downloads import is_archive
from labkit.course.grades import Grade, Points
from labkit.course.grading import broken_rules
from labkit.course.judge import Judge, judge_in_copy
from labkit.course.student import tracked_files

FILES = Path(__file__).with_name("gradescope")  # setup.sh and run_autograder
ALSO = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")  # what pip needs beside labkit/
SETTINGS = "settings.json"
MINUTES = (1, 40)  # what Gradescope allows, at least and at most
SPARE = 0.1  # of the time, for all that is not a check
NOT_YET = "not judged: the time was up before"


class Settings(NamedTuple):
    """The minutes that Gradescope allows, and when students see the results."""

    minutes: float = 10
    visibility: str = "visible"


# --- the archive ----------------------------------------------------------------------------------


def write_autograder(out: Path, taught: Course, settings: Settings) -> None:
    """Write the archive for Gradescope.

    Raises ValueError for minutes that Gradescope does not allow, outside a lab, and for a file that
    is there and is not an archive; OSError where nothing can be written.
    """
    low, high = MINUTES
    if not low <= settings.minutes <= high:
        raise ValueError(f"--minutes is {settings.minutes:g}, expected what Gradescope allows: {low} to {high}")
    here = lab().folder
    if missing := [name for name in ALSO if not (here / name).is_file()]:
        raise ValueError(f"{here} is not the lab's repository, it has no {missing[0]}: go there")
    if os.path.lexists(out) and not (out.is_file() and zipfile.is_zipfile(out)):
        raise FileExistsError(f"{out} is not an archive, and only one is replaced: name another file")
    names = [name for name in tracked_files(here) if name in ALSO or name.startswith("labkit/")]
    scratch = out.with_name(f".{out.name}")
    try:
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(FILES.iterdir()):
                archive.write(file, file.name)
                archive.getinfo(file.name).external_attr = 0o100755 << 16  # Gradescope executes it
            archive.writestr(SETTINGS, json.dumps(settings._asdict(), indent=1))
            if taught.file:
                archive.write(taught.file, FILE)
            for name in names:
                archive.write(here / name, f"lab/{name}")
        os.replace(scratch, out)
    finally:
        scratch.unlink(missing_ok=True)


# --- on Gradescope --------------------------------------------------------------------------------


def grade(folder: Path, taught: Course, settings: Settings) -> None:
    """Judge ``submission/`` of a folder, and write ``results/results.json`` there, task by task."""
    until = time.monotonic() + settings.minutes * 60 * (1 - SPARE)
    points, found = points_of(taught), Grade("")
    results = folder / "results" / "results.json"
    results.parent.mkdir(exist_ok=True)
    write_results(results, found, points, settings.visibility)
    try:
        submission = _handed_in(folder / "submission", taught)
        found.remarks = [*submission.remarks, *broken_rules(submission)]
        with Judge() as judge:
            judged = judge_in_copy(submission.files, taught.tasks, judge)
            for n_left in range(len(taught.tasks), 0, -1):
                judge.start()  # after a task that ended it; this takes time, too
                judge.limit_s = max(1.0, (until - time.monotonic()) / n_left)
                found.results.append(next(judged))
                write_results(results, found, points, settings.visibility)
    except ValueError as error:
        found.error = str(error).replace(f"{folder}/", "")
    except (OSError, RuntimeError) as error:  # of this machine
        found.error = f"the rest could not be judged here, so ask for another run: {error}"
    write_results(results, found, points, settings.visibility)


def _handed_in(folder: Path, taught: Course) -> Submission:
    """Return what was handed in: files, as Gradescope unpacks an archive, or an archive in them."""
    archives = [each for each in sorted(folder.iterdir()) if is_archive(each)]
    try:
        return read_submission(folder, taught)
    except ValueError:
        if len(archives) != 1:
            raise
        return read_submission(archives[0], taught)


def write_results(file: Path, found: Grade, points: Points, visibility: str) -> None:
    """Write what was found so far as Gradescope reads it: a test for each task."""
    texts = [text for text in (found.error, *found.remarks) if text]
    tests = [_test(found, task, points) | {"visibility": visibility} for task in points]
    results = {"output": "\n".join(texts), "visibility": visibility, "tests": tests}
    write_atomically(file, json.dumps(results, indent=1).encode())


def _test(found: Grade, task: str, points: Points) -> dict[str, Any]:
    judged = any(result.task == task for result in found.results)
    return {
        "name": f"{task}: {record(task).writes}",
        "score": found.points(task, points),
        "max_score": points[task],
        "output": repr(found.result(task)) if judged else found.error or NOT_YET,
    }


if __name__ == "__main__":
    source = Path("source")
    own = source / FILE
    settings = Settings(**json.loads((source / SETTINGS).read_text(encoding="utf-8")))
    grade(Path.cwd(), course(own if own.exists() else None), settings)
