"""Write the table in docs/student.md from the records: ``python -m labkit.course.tasks``."""

from __future__ import annotations

import re

from labkit.base.course import course
from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.base.texts import listed
from labkit.check import record
from labkit.course.leave_out import Kept, kept

PAGE = "docs/student.md"
_TABLE = re.compile(r"(?<=<!-- TASKS -->\n).*?(?=<!-- END TASKS -->)", re.DOTALL)


def with_table(page: str, keeps: Kept) -> str:
    """Return a page whose table, between ``<!-- TASKS -->`` and its end, is of the tasks to do."""
    rows = ["| task | what | minutes | notebook |", "|---|---|---|---|"]
    for task in keeps.tasks:
        of = record(task)
        what = re.sub(r"[\w.]+", r"`\g<0>`", of.writes) + (f"; needs {listed(of.needs)}" if of.needs else "")
        rows.append(f"| {task} | {what} | {of.minutes} | {_numbers(of.notebooks, keeps)} |")
    return _TABLE.sub("".join(f"{row}\n" for row in rows), page)


def _numbers(notebooks: str, keeps: Kept) -> str:
    """Return which of a record's notebooks are kept: "04, 05", or "08 to 10" where all are."""
    ranges = [each.partition(" to ") for each in notebooks.split(", ")]
    names = [f"{n:02}" for first, _, last in ranges for n in range(int(first), int(last or first) + 1)]
    left = [each for each in names if each in keeps]
    return notebooks if left == names else ", ".join(left)


if __name__ == "__main__":
    page = lab().folder / PAGE
    text = with_table(page.read_text(encoding="utf-8"), kept(course(), lab().notebook_names))
    write_atomically(page, text.encode())
