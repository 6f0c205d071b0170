"""Write the table in docs/student.md from the records: ``python -m labkit.course.tasks``."""

from __future__ import annotations

import re

from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.base.texts import listed
from labkit.check import record
from labkit.todo import TASKS

PAGE = "docs/student.md"
_TABLE = re.compile(r"(?<=<!-- TASKS -->\n).*?(?=<!-- END TASKS -->)", re.DOTALL)


def with_table(page: str) -> str:
    """Return a page whose table, between ``<!-- TASKS -->`` and its end, is that of the records."""
    rows = ["| task | what | minutes | notebook |", "|---|---|---|---|"]
    for task in TASKS:
        of = record(task)
        what = re.sub(r"[\w.]+", r"`\g<0>`", of.writes) + (f"; needs {listed(of.needs)}" if of.needs else "")
        rows.append(f"| {task} | {what} | {of.minutes} | {of.notebooks} |")
    return _TABLE.sub("".join(f"{row}\n" for row in rows), page)


if __name__ == "__main__":
    page = lab().folder / PAGE
    write_atomically(page, with_table(page.read_text(encoding="utf-8")).encode())
