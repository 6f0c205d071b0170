"""Grade a folder of archives: tables, a page for each student, and a summary of the class.

What was found of an archive is kept in ``results/``, so a run that was stopped goes on from there.
Points are counted each time: new points need no new judging.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import queue
import textwrap
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from labkit.base.course import Course, course
from labkit.base.files import write_atomically
from labkit.base.lab import PACKAGE
from labkit.base.texts import listed
from labkit.check import CheckResult, points_of, restrictions
from labkit.check.harness import new_seed
from labkit.course.archive import STUDENT_FILES, Submission, read_submission
from labkit.course.downloads import SUFFIXES, hand_ins, shown
from labkit.course.grade_tables import summary, write_tables
from labkit.course.grades import Grade, Points, file_name
from labkit.course.judge import LIMIT_S, Judge, file_hashes, judge_in_copy
from labkit.todo import TASKS

# --- one archive ----------------------------------------------------------------------------------


def check_archive(archive: Path, tasks: Sequence[str] = (), say: Callable[[str], None] = print) -> bool:
    """Check ``tasks`` of an archive, by default those that were packed; return whether all passed.

    Raises ValueError for a file that cannot be read as an archive of ``labkit submit``.
    """
    taught = course()
    submission = read_submission(archive, taught)
    checks = submission.manifest.get("checks")
    packed = [task for task in TASKS if isinstance(checks, dict) and task in checks]
    with Judge() as judge:
        results = print_results(judge_in_copy(submission.files, tasks or packed or taught.tasks, judge), say)
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


class Request(NamedTuple):
    """How to grade a folder: see ``labkit grade --help``. ``limit_s`` is the time for a task."""

    folder: Path
    course: Course
    out: Path
    jobs: int = 1
    limit_s: float = LIMIT_S
    only: str = ""
    wide: bool = False


def grade_folder(request: Request, say: Callable[[str], None] = print) -> bool:
    """Grade what was handed in, some archives at a time; return whether all could be graded.

    The tables and pages go to ``out``. An archive whose grade is there from before, by the same
    edition, is not graded again unless it is the one that ``only`` names. Some cases of a check are
    drawn: from one seed, which is drawn once, printed, and kept in ``results/seed``.

    Raises ValueError for a folder without archives, an unknown name, or one that is being graded by
    another process, and OSError where nothing can be written. Where it is stopped by Ctrl-C, the
    tables have what is done by then.
    """
    archives, points = _archives(request, say), points_of(request.course)
    results = request.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    with _alone(results):
        keys = _keys(archives, request.course)
        saved = {name: Grade.load(results / f"{file_name(name)}.json") for name in archives}
        grades = {name: each for name, each in saved.items() if each and each.key and each.key == keys[name]}
        seed = _class_seed(results / "seed")
        again = [request.only] if request.only else [name for name in archives if name not in grades]
        if grades and not request.only:
            say(f"{len(grades)} of {len(archives)} are graded already")
        say(f"cases are drawn with seed={seed}, for all alike: check(task, seed={seed}) draws the same ones")
        try:
            with contextlib.closing(_grade_all({name: archives[name] for name in again}, request, seed)) as graded:
                for n, grade in enumerate(graded, len(archives) - len(again) + 1):
                    if isinstance(grade, str):
                        say(grade)
                        continue
                    grade.key = keys[grade.name]
                    grade.save(results / f"{file_name(grade.name)}.json")
                    grades[grade.name] = grade
                    say(f"{n} of {len(archives)}  {grade.name}: {_in_short(grade, points)}")
        finally:
            write_tables(request.out, [grades[name] for name in sorted(grades)], points, request.wide)
    for line in summary([*grades.values()], points):
        say(line)
    return len(grades) == len(archives)


def _archives(request: Request, say: Callable[[str], None]) -> dict[str, Path]:
    """Return what was handed in, by name. Raises ValueError: see :func:`grade_folder`."""
    found, others = hand_ins(request.folder, request.out)
    endings = listed(SUFFIXES, "or")
    if not found:
        raise ValueError(f"there is no {endings} in {request.folder}: expected archives from labkit submit")
    names = [each.name for each in found]
    if request.only and request.only not in names:
        raise ValueError(f"--only {request.only}: nobody has this name, expected one of: {', '.join(names)}")
    if others:
        say(f"left out, because they are not {endings}: {', '.join(others)}")
    return {each.name: each.path for each in found}


def _class_seed(file: Path) -> int:
    """Return the seed that a class is graded with: drawn once, and kept for a run that goes on."""
    if not file.exists():
        file.write_text(f"{new_seed()}\n", encoding="utf-8")
    return int(file.read_text(encoding="utf-8"))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from grading into a folder. Raises ValueError if one does."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another labkit grade writes into {folder.parent}: wait until it has ended") from None
        yield


def _keys(archives: Mapping[str, Path], taught: Course) -> dict[str, str]:
    """Return a hash of each archive, edition and course; "" for one that cannot be read."""
    edition = {name: each for name, each in file_hashes(PACKAGE).items() if f"labkit/{name}" not in STUDENT_FILES}
    keys = {}
    for name, path in archives.items():
        try:
            content = file_hashes(path) if path.is_dir() else _hash(path)
            keys[name] = hashlib.sha256(
                json.dumps([content, edition, taught.title, sorted(taught.tasks)]).encode()
            ).hexdigest()
        except OSError:
            keys[name] = ""
    return keys


def _hash(file: Path) -> str:
    if file.exists() and not file.is_file():
        raise OSError("no file")
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _in_short(grade: Grade, points: Points) -> str:
    return grade.error or f"{grade.total(points):g} of {sum(points.values()):g} points, {grade.seconds:.0f} s"


def _grade_all(archives: Mapping[str, Path], request: Request, seed: int) -> Generator[Grade | str, None, None]:
    """Yield the grade of each archive as soon as it is there, or why it could not be graded."""
    stop, judges = threading.Event(), queue.SimpleQueue[Judge]()

    def grade(name: str) -> Grade:
        judge = judges.get()
        try:
            return _grade_archive(name, archives[name], request, judge)
        finally:
            judges.put(judge)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(request.jobs) as pool:
        for _ in range(request.jobs):
            judges.put(stack.enter_context(Judge(request.limit_s, stop, seed)))
        futures = {pool.submit(grade, name): name for name in archives}
        try:
            for future in as_completed(futures):
                try:
                    found: Grade | str = future.result()
                except Exception as error:  # of this machine or of the lab, not of the archive
                    reason = error if isinstance(error, OSError | RuntimeError) else repr(error)
                    found = f"{futures[future]} could not be graded, so run this again: {reason}"
                yield found
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _grade_archive(name: str, path: Path, request: Request, judge: Judge) -> Grade:
    grade = Grade(name)
    try:
        submission = read_submission(path, request.course)
    except ValueError as error:
        grade.error = str(error).replace(str(path), shown(path.name))
        return grade
    grade.remarks, grade.broken_rules = submission.remarks, broken_rules(submission)
    grade.answers, unreadable = written_answers(submission.texts)
    grade.remarks += [f"{each} cannot be read as a notebook" for each in unreadable]
    grade.files = [*_write_files(request.out / "students" / file_name(name), submission)]
    grade.results = [*judge_in_copy(submission.files, request.course.tasks, judge)]
    return grade


# --- what people read -----------------------------------------------------------------------------

# Stands before a page that a student made: nothing in it runs, and nothing is fetched.
NOTHING_RUNS = b"""<!DOCTYPE html><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
"""


def _write_files(folder: Path, submission: Submission) -> Iterator[str]:
    """Write reports and code into a student's folder; yield their names."""
    reports = {name: content for name, content in submission.texts.items() if not name.endswith(".ipynb")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (reports | submission.files).items():
        file = folder / name.removeprefix("labkit/")
        write_atomically(file, NOTHING_RUNS + content if file.suffix == ".html" else content)
        yield file.name


def written_answers(notebooks: Mapping[str, bytes]) -> tuple[str, list[str]]:
    """Return questions and written answers as Markdown, and the names of unreadable notebooks."""
    import nbformat  # loads much

    from labkit.course.report import ReportError, report_cells

    parts, unreadable = list[str](), list[str]()
    for name, content in sorted(notebooks.items()):
        if not name.endswith(".ipynb"):
            continue
        try:
            cells = report_cells(Path(name), nbformat.reads(content, as_version=4).cells, texts_alone=True)
        except ReportError:
            continue  # it has no questions
        except Exception:  # of a file that its author may have changed by hand
            unreadable.append(name)
            continue
        for cell in cells:
            text = textwrap.indent(cell.source, "    ") if cell.cell_type == "code" else cell.source
            if "answer" in cell.metadata.get("tags", []):
                text = textwrap.indent(text or "*not answered*", "> ", lambda line: True)
            parts.append(text)
    return "\n\n".join(parts), unreadable
