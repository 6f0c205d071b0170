### INSTRUCTORS ONLY: this file tries answers, so it is not in the student edition
"""check rejects each wrong answer with a finding that names the mistake, and accepts right ones
that differ from ours.

The answers to a task are in a file of their own, such as wrong_dp_6.py. WRONG has for each claim
the answers that it rejects (None: they do not run to their end): by name, a phrase of the finding,
and what makes it of the reference, see edited. RIGHT: other right answers.
REMARKS: what a warning says of some of those.

make test tries the first answer to each claim, and the first right one of each task. The others are
slow.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from edited_package import LABKIT

from labkit.check import check, observer
from labkit.check.result import ENDS
from labkit.todo import task_file


def text_of(holds: Any) -> str:
    """Return the sentence of a claim's docstring."""
    return " ".join(holds.__doc__.split()).removesuffix(".")


SEED = 58  # draws cases for wrong answers, so that each run finds the same of them
BEGIN, END = "### BEGIN SOLUTION {}\n", "### END SOLUTION\n"
TASKS = sorted(file.stem.removeprefix("wrong_").replace("_", ".") for file in Path(__file__).parent.glob("wrong_*.py"))
ANSWERS = {task: importlib.import_module(f"wrong_{task.replace('.', '_')}") for task in TASKS}


def edited(task: str, *answer: tuple[str, str] | str, source: str = "") -> str:
    """Return the student file of ``task``, or ``source``, with each (before, after) carried out in
    the reference to the task.

    ``before`` must occur exactly once there. Anything but a pair is code that comes at the end of
    the file, so it counts.
    """
    source = source or task_file(task).read_text(encoding="utf-8")
    head, *parts = source.split(BEGIN.format(task))
    regions = [part.partition(END) for part in parts]
    for each in answer:
        if not isinstance(each, str):
            before, after = each
            count = sum(region.count(before) for region, _, _ in regions)
            assert count == 1, f"{before!r} occurs {count} times in the reference to {task}, expected once"
            regions = [(region.replace(before, after), end, rest) for region, end, rest in regions]
    code = "".join(each for each in answer if isinstance(each, str))
    return BEGIN.format(task).join([head, *map("".join, regions)]) + f"\n\n{code}"


def tried(names: Iterable[str], *given: Any) -> list[Any]:
    """Return a test's parameters for each of these answers: all but the first are slow."""
    return [pytest.param(*given, name, marks=[pytest.mark.slow] * (n > 0)) for n, name in enumerate(names)]


WRONG = [each for task in TASKS for claim, names in ANSWERS[task].WRONG.items() for each in tried(names, task, claim)]
RIGHT = [each for task in TASKS for each in tried(ANSWERS[task].RIGHT, task)]


@pytest.mark.parametrize(("task", "claim", "mistake"), WRONG)
def test_a_wrong_answer_is_rejected_and_the_finding_names_the_mistake(task, claim, mistake, answer):
    phrase, *edits = ANSWERS[task].WRONG[claim][mistake]
    answer(edited(task, *edits), task_file(task).name, whole=True)
    result = check(task, seed=SEED)
    assert not result.passed
    *held, rejected = result.claims
    assert rejected.text == (text_of(claim) if claim else ENDS) and phrase in rejected.wrong, result
    assert all(claim.holds for claim in held), result
    assert str(LABKIT.parent) not in repr(result)


@pytest.mark.parametrize("task", TASKS)
def test_every_claim_has_a_wrong_answer_that_it_rejects(task):
    claims = importlib.import_module(f"labkit.check.{task.replace('.', '_')}").TASK.checks
    assert {*ANSWERS[task].WRONG} - {None} == {claim.holds for claim in claims}


@pytest.mark.parametrize(("task", "name"), RIGHT)
def test_a_right_answer_that_differs_from_ours_passes(task, name, answer, monkeypatch):
    monkeypatch.setattr(observer, "TIMEOUT_S", 240.0)  # a case ends, however busy the machine is
    answer(edited(task, *ANSWERS[task].RIGHT[name]), task_file(task).name, whole=True)
    result = check(task)  # whatever is drawn
    assert result.passed, result
    remark = getattr(ANSWERS[task], "REMARKS", {}).get(name, "")
    assert remark in " ".join(result.warnings), result


@pytest.mark.parametrize("task", TASKS)
def test_every_remark_is_made_of_a_right_answer(task):
    remarks = importlib.import_module(f"labkit.check.{task.replace('.', '_')}").TASK.remarks
    assert len(getattr(ANSWERS[task], "REMARKS", {})) >= len(remarks)


LEAVES_A_PROCESS = """
def run_processes(fn, world_size, backend):
    context = mp.start_processes(_run_rank, (fn, world_size, backend), nprocs=world_size, join=False)
    with open({path!r}, "a") as file:
        print(*context.pids(), file=file)
    while not context.join():
        pass
"""


def test_what_an_answer_leaves_is_ended_and_nothing_else_of_the_notebooks_group(answer, tmp_path):
    started = tmp_path / "started"
    answer(LEAVES_A_PROCESS.format(path=str(started)))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (finding,) = check("dp.8").findings
        assert other.poll() is None
    assert "1 of 1 were still running" in finding
    assert not any(psutil.pid_exists(int(process)) for process in started.read_text().split())


ELEVEN_CLOCKS = """
def clock_cycles(m, n):
    for clock in range(min(11, m + n - 1)):
        yield [(clock - j, j) for j in range(n) if 0 <= clock - j < m]
"""


def test_a_finding_about_a_drawn_case_names_the_seed_which_draws_it_again(answer):
    answer(ELEVEN_CLOCKS, "pipe.py")
    (finding,) = check("pipe.2").findings
    seed = int(re.search(r"\(drawn with seed=(\d+)\)", finding)[1])
    assert check("pipe.2", seed=seed).findings == [finding]
