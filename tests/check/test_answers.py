### INSTRUCTORS ONLY: this file tries answers, so it is not in the student edition
"""check rejects each wrong answer with a finding that names the mistake, and accepts right ones
that differ from ours.

The answers to a task are in a file of their own, such as wrong_dp_6.py. WRONG: the claim that
rejects each (None: it does not run to its end), a phrase of the finding, and what makes it of the
reference, see edits.py. FOLLOWS: those of which nothing else is said to be wrong. OTHER_CAUSE:
advice that must not be given. RIGHT: other right answers, code or a list of edits.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from edited_package import LABKIT
from edits import edited

from labkit.check import check, harness
from labkit.check.harness import ENDS, sentence
from labkit.todo import task_file

TASKS = sorted(file.stem.removeprefix("wrong_").replace("_", ".") for file in Path(__file__).parent.glob("wrong_*.py"))
ANSWERS = {task: importlib.import_module(f"wrong_{task.replace('.', '_')}") for task in TASKS}


def each(name: str) -> list[tuple[str, str]]:
    return [(task, answer) for task, answers in ANSWERS.items() for answer in getattr(answers, name)]


@pytest.fixture
def put(answer, monkeypatch):
    """put(task, mistake): let ranks import that wrong answer; gives the sentence of the claim, and
    the phrase."""

    def put(task: str, mistake: str) -> tuple[str, str]:
        claim, phrase, *edits = ANSWERS[task].WRONG[mistake]
        if "did not end in time" in phrase:
            monkeypatch.setattr(harness, "TIMEOUT_S", 6.0)
        answer(edited(task, *edits), task_file(task).name, whole=True)
        return sentence(claim) if claim else ENDS, phrase

    return put


@pytest.mark.parametrize(("task", "mistake"), each("WRONG"))
def test_a_wrong_answer_is_rejected_and_the_finding_names_the_mistake(task, mistake, put):
    claimed, phrase = put(task, mistake)
    result = check(task)
    assert not result.passed
    rejected = {claim.text: claim.wrong for claim in result.claims if claim.wrong}
    assert phrase in (rejected.get(claimed) or ""), result
    assert str(LABKIT.parent) not in repr(result)
    for advice in ANSWERS[task].OTHER_CAUSE.get(mistake, ()):
        assert advice not in repr(result), result
    if mistake in ANSWERS[task].FOLLOWS:
        assert list(rejected) == [claimed], result
        assert any(claim.not_tried for claim in result.claims), result


@pytest.mark.parametrize("task", TASKS)
def test_every_claim_has_a_wrong_answer_that_it_rejects(task):
    answers, task_module = ANSWERS[task], importlib.import_module(f"labkit.check.{task.replace('.', '_')}")
    claims = {test.holds for test in task_module.TASK.tests}
    assert {claim for claim, *_ in answers.WRONG.values()} - {None} == claims
    assert {*answers.FOLLOWS, *answers.OTHER_CAUSE} <= set(answers.WRONG)


@pytest.mark.parametrize(("task", "name"), each("RIGHT"))
def test_a_right_answer_that_differs_from_ours_passes(task, name, answer):
    other = ANSWERS[task].RIGHT[name]
    answer(edited(task, *([other] if isinstance(other, str) else other)), task_file(task).name, whole=True)
    result = check(task)
    assert result.passed, result
