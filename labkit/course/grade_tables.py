"""Write grades as tables, as a page for each student, and as a summary of the class."""

from __future__ import annotations

import csv
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

from labkit.base.files import write_atomically
from labkit.course.grades import Grade, Points, file_name

COLUMNS = ("name", "task", "points", "of", "claims", "seconds", "first_finding", "broken_rules")
TOTAL = "total"  # stands for a task in a student's last row
MAX_FINDINGS = 12  # in the summary
_FORMULA = re.compile(r"[=+\-@\t\r]")  # how a cell begins that a spreadsheet would compute


def write_tables(folder: Path, grades: Sequence[Grade], points: Points, wide: bool = False) -> None:
    """Write ``grades.csv``, ``students/NAME.md`` and, if ``wide``, ``grades_wide.csv``.

    Raises OSError where nothing can be written.
    """
    (folder / "students").mkdir(parents=True, exist_ok=True)
    pages = {f"students/{file_name(grade.name)}.md": page(grade, points) for grade in grades}
    pages["grades.csv"] = as_csv(long_rows(grades, points))
    if wide:
        pages["grades_wide.csv"] = "\ufeff" + as_csv(wide_rows(grades, points))  # by which Excel knows UTF-8
    for name, text in pages.items():
        # what an answer raised may be any text
        write_atomically(folder / name, text.encode("utf-8", "backslashreplace"))


# --- tables ---------------------------------------------------------------------------------------


def long_rows(grades: Iterable[Grade], points: Points) -> Iterator[Sequence[object]]:
    """Yield a row for each student and task, and one for a student's total."""
    yield COLUMNS
    of_all = sum(points.values())
    for grade in grades:
        for task, of in points.items():
            result = grade.result(task)
            claims = f"{len(result.held)}/{len(result.of_task)}"
            yield grade.name, task, grade.points(task, points), of, claims, result.seconds, result.first_finding, ""
        why = grade.error or "; ".join(grade.remarks)
        yield grade.name, TOTAL, grade.total(points), of_all, "", grade.seconds, why, "; ".join(grade.broken_rules)


def wide_rows(grades: Iterable[Grade], points: Points) -> Iterator[Sequence[object]]:
    """Yield a row for each student, with a column for each task."""
    yield "name", TOTAL, *points, "undone", "broken_rules", "remarks"
    for grade in grades:
        each = (grade.points(task, points) for task in points)
        texts = " ".join(grade.undone(points)), "; ".join(grade.broken_rules), grade.error or "; ".join(grade.remarks)
        yield grade.name, grade.total(points), *each, *texts


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, in which no text is a formula."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    for row in rows:
        table.writerow(_as_text(cell) if isinstance(cell, str) else f"{cell:g}" for cell in row)
    return text.getvalue()


def _as_text(cell: str) -> str:
    return f"'{cell}" if _FORMULA.match(cell) else cell


# --- a student ------------------------------------------------------------------------------------


def page(grade: Grade, points: Points) -> str:
    """Return what a student's archive has: points, remarks, what check found, written answers."""
    lines = [f"# {grade.name}", "", f"{grade.total(points):g} of {sum(points.values()):g} points"]
    lines[-1] += f"; still to do: {', '.join(undone)}" if (undone := grade.undone(points)) else ""
    folder = file_name(grade.name)
    links = [f"[{name}](<{folder}/{name}>)" for name in grade.files]
    lines += ["", " · ".join(links)] if links else []
    lines += ["", *(f"- {text}" for text in (grade.error, *grade.remarks, *grade.broken_rules) if text)]
    for result in grade.results:
        if result.task in points:
            worth = f"{grade.points(result.task, points):g} of {points[result.task]:g} points, {result.seconds:.1f} s"
            lines += ["", f"## {result.task}: {worth}", "", textwrap.indent(repr(result), "    ")]
    lines += ["", "## Written answers", "", grade.answers] if grade.answers else []
    return "\n".join(lines) + "\n"


# --- the class ------------------------------------------------------------------------------------


def summary(grades: Sequence[Grade], points: Points) -> Iterator[str]:
    """Yield what a class knows, line by line: its points, and which finding how often."""
    read = [grade for grade in grades if not grade.error]
    if not read:
        return
    totals = [grade.total(points) for grade in read]
    mean, median, of = statistics.mean(totals), statistics.median(totals), sum(points.values())
    yield f"{len(read)} archives have {min(totals):g} to {max(totals):g} of {of:g} points: mean {mean:.1f}, median {median:g}"
    yield ""
    yield f"{'task':<9}{'right':>6}{'wrong':>7}{'TODO':>6}{'mean points':>14}"
    for task, worth in points.items():
        results = [grade.result(task) for grade in read]
        right, undone = sum(result.passed for result in results), sum(bool(result.todo) for result in results)
        earned = statistics.mean(grade.points(task, points) for grade in read)
        yield f"{task:<9}{right:>6}{len(read) - right - undone:>7}{undone:>6}{earned:>8.1f} of {worth:g}"
    if found := [*findings(read, points)]:
        yield ""
        yield "what is wrong how often, the most frequent first"
        yield from (f"{n:>4} × {text}" for text, n in found[:MAX_FINDINGS])
        yield from [f"     and {len(found) - MAX_FINDINGS} more: see grades.csv"] if found[MAX_FINDINGS:] else []
    if broken := sum(bool(grade.broken_rules) for grade in read):
        yield f"{broken} of {len(read)} use what they should not: see broken_rules in grades.csv"
    if unread := [grade.name for grade in grades if grade.error]:
        yield f"{len(unread)} could not be read: {', '.join(unread)}"


def findings(grades: Iterable[Grade], points: Points) -> list[tuple[str, int]]:
    """Return what was wrong, and in how many archives, the most frequent first.

    What is still a TODO is not wrong. A finding is the claim that did not hold, whatever numbers
    the answer gave.
    """
    found = Counter[str]()
    for result in (grade.result(task) for grade in grades for task in points):
        found.update([f"{result.task}: {result.fault}"] if result.fault else [])
        found.update(f"{result.task}: {claim.text}" for claim in result.claims if not claim.holds)
    return found.most_common()
