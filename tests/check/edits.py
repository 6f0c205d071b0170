### INSTRUCTORS ONLY: this file is of use with answers alone, so it is not in the student edition
"""Wrong answers as edits of the reference: the text between the markers of a task, with some of it
replaced."""

from __future__ import annotations

from labkit.todo import task_file

BEGIN, END = "### BEGIN SOLUTION {}\n", "### END SOLUTION\n"


def edited(task: str, *answer: tuple[str, str] | str) -> str:
    """Return the student file of ``task`` with each (before, after) carried out in the reference to
    the task.

    ``before`` must occur exactly once there. What is no pair is code that comes at the end of the
    file, so it counts.
    """
    head, *parts = task_file(task).read_text(encoding="utf-8").split(BEGIN.format(task))
    regions = [part.partition(END) for part in parts]
    for each in answer:
        if not isinstance(each, str):
            before, after = each
            count = sum(region.count(before) for region, _, _ in regions)
            assert count == 1, f"{before!r} occurs {count} times in the reference to {task}, expected once"
            regions = [(region.replace(before, after), end, rest) for region, end, rest in regions]
    code = "".join(each for each in answer if isinstance(each, str))
    return BEGIN.format(task).join([head, *map("".join, regions)]) + f"\n\n{code}"
