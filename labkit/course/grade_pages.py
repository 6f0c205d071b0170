"""Write grades as a table, a page for each student, and one for the class."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import jinja2

from labkit.base.files import write_atomically
from labkit.check import record
from labkit.course.points import Grade, Points, late_days

COLUMNS = ("name", "task", "points", "of", "claims", "seconds", "first_finding")
TOTAL = "total"  # stands for a task in a student's last row


class FailedClaim(NamedTuple):
    """A claim, and of how many answers it did not hold or was not reached."""

    task: str
    text: str
    failed: int
    not_reached: int


def write_pages(folder: Path, grades: Sequence[Grade], points: Points) -> None:
    """Write ``grades.csv``, ``index.html`` for the class, and ``students/NAME.html`` into a folder.

    Raises OSError where nothing can be written.
    """
    (folder / "students").mkdir(parents=True, exist_ok=True)
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    ).get_template("grades.html.jinja")
    shared = {"points": points, "of": sum(points.of.values()), "late_days": late_days, "core": core_of}
    pages = {f"students/{grade.name}.html": template.render(grade=grade, **shared) for grade in grades}
    totals = [grade.total(points) for grade in grades]
    failed = [*failed_claims(grades, points)]
    pages["index.html"] = template.render(grades=grades, totals=totals, failed=failed, **shared)
    pages["grades.csv"] = as_csv(grades, points)
    for name, text in pages.items():
        write_atomically(
            folder / name, text.encode("utf-8", "backslashreplace")
        )  # what an answer raised may be any text


def core_of(task: str) -> str:
    """Return the claim without which an answer has no points."""
    return next(claim.text for claim in record(task).claims if claim.core)


def as_csv(grades: Sequence[Grade], points: Points) -> str:
    """Return the grades as CSV: a row for each student and task, and one for a student's total."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for grade in grades:
        for task, of in points.of.items():
            result = grade.result(task)
            claims = f"{len(result.held)}/{len(result.of_task)}"
            numbers = f"{grade.points(task, points):g}", f"{of:g}", claims, f"{result.seconds:g}"
            table.writerow([grade.name, task, *numbers, result.first_finding])
        days = late_days(grade.packed, points)
        late = f"{days} day{'s' * (days > 1)} late" if days else ""
        numbers = f"{grade.total(points):g}", f"{sum(points.of.values()):g}", "", f"{grade.seconds:g}"
        table.writerow([grade.name, TOTAL, *numbers, grade.error or late])
    return text.getvalue()


def failed_claims(grades: Sequence[Grade], points: Points) -> Iterator[FailedClaim]:
    """Yield the claims that failed, in the order of the tasks, then the most frequent first.

    That an answer ran to its end is one, too. Only archives that could be read count.
    """
    read = [grade for grade in grades if not grade.error]
    for task in points.of:
        results = [grade.result(task) for grade in read]
        failed = Counter(claim.text for result in results for claim in result.claims if not claim.holds)
        held = Counter(text for result in results for text in result.held)
        texts = [claim.text for claim in record(task).claims]
        for text, n in sorted(
            failed.items(), key=lambda claim: (-claim[1], claim[0] in texts and texts.index(claim[0]))
        ):
            yield FailedClaim(task, text, n, len(read) - n - held[text] if text in texts else 0)
