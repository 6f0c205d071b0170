"""What docs/student.md says of the tasks is what their records and the student files say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.base.course import course
from labkit.base.lab import lab
from labkit.check import record
from labkit.course.leave_out import kept
from labkit.course.student import is_student_edition
from labkit.course.tasks import PAGE, with_table
from labkit.todo import TASKS, task_file

ROOT = Path(__file__).parents[2]


def test_the_table_of_tasks_is_that_of_their_records():
    page, taught = (ROOT / PAGE).read_text(encoding="utf-8"), course()
    assert with_table(page, kept(taught, lab().notebook_names)) == page
    assert all(f"| {task} |" in page for task in taught.tasks)


@pytest.mark.skipif(is_student_edition(), reason="a student edition has other comments")
@pytest.mark.parametrize("task", TASKS)
def test_the_minutes_of_a_task_are_those_of_its_todos_together(task):
    todos = re.findall(rf"### TODO {re.escape(task)} \((\d+) minutes?\)", task_file(task).read_text(encoding="utf-8"))
    assert sum(map(int, todos)) == record(task).minutes
