### INSTRUCTORS ONLY: this file tries answers, so it is not in the student edition
"""check rejects each wrong answer with a finding that names the mistake, and accepts right ones that differ from ours.

An answer is a definition that stands after the student's own in a copy of its file, so the later one counts. The ranks
import that copy; the claims are judged here. The answers to each task are in a file of their own.
"""

from __future__ import annotations

import answers_scheduled
import pytest
from edited_package import LABKIT

from labkit.check import check
from labkit.judging import in_ranks
from labkit.judging.as_before import text_of
from labkit.judging.trials import TRIALS
from labkit.todo import task_file

WRONG = {
    "pipe.5": answers_scheduled.WRONG,
}
RIGHT = {
    "pipe.5": answers_scheduled.RIGHT,
}


def each(answers) -> list[tuple[str, str]]:
    return [(task, name) for task, named in answers.items() for name in named]


@pytest.mark.parametrize(("task", "mistake"), each(WRONG))
def test_a_wrong_answer_is_rejected_and_the_finding_names_the_mistake(task, mistake, answer, monkeypatch):
    claim, code, phrase = WRONG[task][mistake]
    if claim is None:  # it does not come to its end
        monkeypatch.setattr(in_ranks, "TIMEOUT_S", 6.0)
    answer(code, task_file(task).name)
    result = check(task)
    assert not result.passed
    rejected = {judged.text: judged.wrong for judged in result.claims if judged.wrong}
    claimed = text_of(claim) if claim else "It runs to its end"
    assert phrase in (rejected.get(claimed) or ""), result
    assert str(LABKIT.parent) not in repr(result)


@pytest.mark.parametrize(
    ("task", "mistake"),
    [
        ("pipe.5", "does nothing"),
        ("pipe.5", "sends no activation"),
        ("pipe.5", "forgets W"),
        ("pipe.5", "a rank for a stage"),
    ],
)
def test_what_follows_from_a_mistake_is_not_tried_rather_than_wrong(task, mistake, answer):
    claim, code, _ = WRONG[task][mistake]
    answer(code, task_file(task).name)
    result = check(task)
    assert [judged.text for judged in result.claims if judged.wrong] == [text_of(claim)], result
    assert any(judged.not_tried for judged in result.claims), result


ADVICE_FOR_ANOTHER_CAUSE = {
    ("pipe.5", "a rank for a stage"): ("Stage 0 takes", "requires_grad"),
}


@pytest.mark.parametrize(("task", "mistake"), ADVICE_FOR_ANOTHER_CAUSE)
def test_no_advice_is_given_for_another_cause(task, mistake, answer):
    answer(WRONG[task][mistake][1], task_file(task).name)
    findings = "\n".join(check(task).findings)
    assert findings
    assert not [phrase for phrase in ADVICE_FOR_ANOTHER_CAUSE[task, mistake] if phrase in findings], findings


@pytest.mark.parametrize("task", TRIALS)
def test_every_claim_has_a_wrong_answer_that_it_rejects(task):
    assert {claim for claim, _, _ in WRONG[task].values()} - {None} == set(TRIALS[task].claims)


@pytest.mark.parametrize(("task", "name"), each(RIGHT))
def test_a_right_answer_that_differs_from_ours_passes(task, name, answer):
    answer(RIGHT[task][name], task_file(task).name)
    result = check(task)
    assert result.passed, result
