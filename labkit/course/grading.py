"""Grade a folder of archives: a table, a page for each student, and one for the class.

What was found of an archive is kept in ``results/``, so a run that was stopped goes on from there.
Points are counted anew each time: editing the table of points judges nothing again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from labkit.base.lab import PACKAGE
from labkit.check import CheckResult, restrictions
from labkit.check.harness import new_seed
from labkit.course.archive import STUDENT_FILES, Submission, read_submission
from labkit.course.grade_pages import write_pages
from labkit.course.judge import LIMIT_S, Judge, file_hashes, judge_in_copy
from labkit.course.points import Grade, Points
from labkit.todo import TASKS

# --- one archive ----------------------------------------------------------------------------------


def check_archive(archive: Path, tasks: Sequence[str] = (), say: Callable[[str], None] = print) -> bool:
    """Check ``tasks`` of an archive, by default those that were packed; return whether all passed.

    Raises ValueError for a file that cannot be read as an archive of ``labkit submit``.
    """
    submission = read_submission(archive)
    checks = submission.manifest.get("checks")
    packed = [task for task in TASKS if isinstance(checks, dict) and task in checks]
    with Judge() as judge:
        results = print_results(judge_in_copy(submission.files, tasks or packed or [*TASKS], judge), say)
    for remark in (*submission.remarks, *broken_rules(submission)):
        say(f"- {remark}")
    return all(result.passed for result in results)


def print_results(results: Iterable[CheckResult], say: Callable[[str], None]) -> list[CheckResult]:
    """Print results as a table, each as soon as it is there; return them."""
    say(f"{'task':<8}{'passed':<8}first finding")
    found = []
    for result in results:
        say(f"{result.task:<8}{'yes' if result.passed else 'no':<8}{result.first_finding}".rstrip())
        found.append(result)
    return found


def broken_rules(submission: Submission) -> list[str]:
    """Return what the student files use and should not, also by the archive's layout."""
    layout = str(submission.manifest.get("layout", ""))
    return [each for name, content in submission.files.items() for each in restrictions.broken(name, content, layout)]


# --- a folder of archives -------------------------------------------------------------------------


def grade_folder(
    folder: Path,
    points: Points,
    out: Path,
    jobs: int = 1,
    limit_s: float = LIMIT_S,
    say: Callable[[str], None] = print,
) -> bool:
    """Grade each ``.zip`` in ``folder``, ``jobs`` at a time; return whether all could be graded.

    The pages and ``grades.csv`` go to ``out``. An archive whose grade is there from before, by the
    same edition, is not graded again. ``limit_s`` is the time for a task. Some cases of a check are
    drawn: from one seed, which is drawn once, printed, and kept in ``results/seed``.

    Raises ValueError for a folder without archives and OSError where nothing can be written. Where
    it is stopped by Ctrl-C, the pages have what is done by then.
    """
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    archives = {file.stem: file for file in files if file.suffix.lower() == ".zip"}
    if not archives:
        raise ValueError(f"there is no .zip in {folder}: expected a folder of archives from labkit submit")
    if others := [file.name for file in files if file not in archives.values()]:
        say(f"left out, because they are not .zip: {', '.join(others)}")
    (out / "results").mkdir(parents=True, exist_ok=True)
    edition = _edition()
    keys = {name: _key(file, edition, points.of) for name, file in archives.items()}
    saved = [Grade.load(out / "results" / f"{name}.json") for name in archives]
    grades = {grade.name: grade for grade in saved if grade and grade.key and grade.key == keys.get(grade.name)}
    seed = _class_seed(out / "results" / "seed")
    if grades:
        say(f"{len(grades)} of {len(archives)} are graded already")
    say(f"cases are drawn with seed={seed}, for all alike: check(task, seed={seed}) draws the same ones")
    waiting = [file for name, file in archives.items() if name not in grades]
    try:
        with contextlib.closing(_grade_all(waiting, list(points.of), jobs, limit_s, seed)) as found:
            for grade in found:
                if isinstance(grade, str):
                    say(grade)
                    continue
                grade.key = keys[grade.name]
                grade.save(out / "results")
                grades[grade.name] = grade
                say(f"{len(grades)} of {len(archives)}  {grade.name}: {_summary(grade, points)}")
    finally:
        write_pages(out, [grades[name] for name in sorted(grades)], points)
    return len(grades) == len(archives)


def _class_seed(file: Path) -> int:
    """Return the seed that a class is graded with: drawn once, and kept for a run that goes on."""
    if not file.exists():
        file.write_text(f"{new_seed()}\n", encoding="utf-8")
    return int(file.read_text(encoding="utf-8"))


def _edition() -> str:
    """Return a hash of this lab without the student files."""
    files = {name: each for name, each in file_hashes(PACKAGE).items() if f"labkit/{name}" not in STUDENT_FILES}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _key(archive: Path, edition: str, tasks: Iterable[str]) -> str:
    """Return a hash of archive, edition and tasks; "" of an archive that cannot be read."""
    try:
        with archive.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
    return hashlib.sha256(json.dumps([content, edition, sorted(tasks)]).encode()).hexdigest()


def _summary(grade: Grade, points: Points) -> str:
    return grade.error or f"{grade.total(points):g} of {sum(points.of.values()):g} points, {grade.seconds:.0f} s"


def _grade_all(
    archives: Sequence[Path], tasks: Sequence[str], jobs: int, limit_s: float, seed: int
) -> Generator[Grade | str, None, None]:
    """Yield the grade of each archive as soon as it is there, or why it could not be graded."""
    stop, judges = threading.Event(), queue.SimpleQueue[Judge]()

    def grade(archive: Path) -> Grade:
        judge = judges.get()
        try:
            return _grade_archive(archive, tasks, judge)
        finally:
            judges.put(judge)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            judges.put(stack.enter_context(Judge(limit_s, stop, seed)))
        futures = {pool.submit(grade, archive): archive for archive in archives}
        try:
            for future in as_completed(futures):
                try:
                    yield future.result()
                except (OSError, RuntimeError) as error:  # of this machine, not of the archive
                    yield f"{futures[future].name} could not be graded, so run this again: {error}"
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _grade_archive(archive: Path, tasks: Sequence[str], judge: Judge) -> Grade:
    grade = Grade(archive.stem)
    try:
        submission = read_submission(archive)
    except ValueError as error:
        grade.error = str(error).replace(str(archive), archive.name)
        return grade
    grade.packed = str(submission.manifest.get("packed", ""))
    grade.remarks = [*submission.remarks, *broken_rules(submission)]
    grade.results = [*judge_in_copy(submission.files, tasks, judge)]
    return grade
