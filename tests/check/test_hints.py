"""Hints on request: what they are, and when they are shown."""

from __future__ import annotations

import itertools
import re

import pytest

from labkit.check import check, harness, record
from labkit.todo import TASKS

HINTS = {task: record(task).hints for task in TASKS}


@pytest.fixture
def unfilled(answer):
    answer("from labkit.todo import TodoError\n\ndef assign_buckets():\n    raise TodoError('dp.6')\n", whole=True)


@pytest.mark.parametrize(
    ("hints", "lengths"),
    [(["a", "ab"], "1, 2"), (["a", "ab", "abc", "abcd"], "1, 2, 3, 4"), (["a", "abcd", "abc"], "1, 4, 3"), ("", "")],
)
def test_a_task_has_three_hints_each_longer_than_the_last_or_is_refused_with_their_lengths(hints, lengths):
    with pytest.raises(ValueError, match=f"^the hints for f have {lengths} characters, expected 3 hints, each longer"):
        harness.Task(writes="f", minutes=1, points=1, notebooks="00", hints=hints)


def test_a_hint_has_at_most_three_sentences_and_is_no_code():
    for hint in itertools.chain(*HINTS.values()):
        assert 1 <= len(re.findall(r"[.?](?= |$)", hint)) <= 3, hint
        assert not re.search(r"[`=\[\]{}]|\w\(|  |\bfor \w+ in\b.*:$", hint), hint


def test_hints_up_to_the_one_asked_for_stand_under_the_result(unfilled):
    result = check("dp.6", hint=2)
    first, *lines = repr(result).splitlines()
    assert first == "TODO dp.6: labkit/dp.py, line 4"
    shown = " ".join(" ".join(lines).split())
    assert shown == f"hint 1 of 3: {HINTS['dp.6'][0]} hint 2 of 3: {HINTS['dp.6'][1]}"
    assert max(map(len, lines)) <= 100
    assert result._repr_html_().count("<li>") == 2 and "(2 of 3)" in result._repr_html_()
    assert check("dp.6", hint=1).hints == HINTS["dp.6"][:1]


@pytest.mark.parametrize("hint", [0, 4, -1, 1.0, "1", True])
def test_a_hint_that_there_is_not_is_an_error_before_anything_is_judged(hint, monkeypatch):
    monkeypatch.setattr(harness, "_checked", lambda task: pytest.fail("it was judged"))
    with pytest.raises(ValueError, match=r"^hint is .*, expected 1, 2 or 3"):
        check("dp.6", hint=hint)
