"""Hints on request: what they are, when they are shown, and that it is remembered."""

from __future__ import annotations

import itertools
import re

import pytest

from labkit.check import CheckResult, Claim, check, harness
from labkit.check.hints import HINTS, log_hint
from labkit.todo import TASKS


@pytest.fixture(autouse=True)
def answers(tmp_path, monkeypatch):
    """The reader's own folder, empty."""
    monkeypatch.setenv("LABKIT_ANSWERS", str(tmp_path / "answers"))
    return tmp_path / "answers"


@pytest.fixture
def unfilled(answer):
    answer("from labkit.todo import TodoError\n\ndef assign_buckets():\n    raise TodoError('dp.6')\n", whole=True)


def test_each_of_a_tasks_three_hints_says_more_than_the_one_before_in_at_most_three_sentences_and_is_no_code():
    assert list(HINTS) == list(TASKS)
    for hints in HINTS.values():
        assert sorted(hints, key=len) == list(hints) and len(hints) == 3
    for hint in itertools.chain(*HINTS.values()):
        assert 1 <= len(re.findall(r"[.?](?= |$)", hint)) <= 3, hint
        assert not re.search(r"[`=\[\]{}]|\w\(|  |\bfor \w+ in\b.*:$", hint), hint


def test_without_a_hint_the_result_is_as_ever_and_nothing_is_written(unfilled, answers):
    check("dp.6", hint=2)
    (answers / "hints.json").unlink()
    result, todo = check("dp.6"), "TODO dp.6: labkit/dp.py, line 4"
    assert (result.passed, repr(result), result.findings) == (False, todo, [todo])
    assert todo in result._repr_html_() and "Hints" not in result._repr_html_()
    assert not (answers / "hints.json").exists()


def test_hints_so_far_stand_under_the_result_with_how_many_were_asked_for_at_most(unfilled):
    result = check("dp.6", hint=2)
    first, *lines, last = repr(result).splitlines()
    assert (first, last) == ("TODO dp.6: labkit/dp.py, line 4", "hints asked for: 2 of 3")
    assert " ".join(" ".join(lines).split()) == f"hint 1: {HINTS['dp.6'][0]} hint 2: {HINTS['dp.6'][1]}"
    assert max(map(len, lines)) <= 100
    assert result._repr_html_().count("<li>") == 2 and "asked for: 2 of 3" in result._repr_html_()
    again = check("dp.6", hint=1)
    assert (again.hints, again.hints_used) == (HINTS["dp.6"][:1], 2)
    assert log_hint("pipe.3", 1) == 1


@pytest.mark.parametrize("content", ["{", "[1]", '{"dp.1": "many"}'])
def test_a_file_that_cannot_be_read_is_replaced(content, answers):
    answers.mkdir()
    (answers / "hints.json").write_text(content)
    assert [log_hint("dp.1", 1), log_hint("dp.1", 2)] == [1, 2]


@pytest.mark.parametrize("hint", [0, 4, -1, 1.0, "1", True])
def test_a_hint_that_there_is_not_is_an_error_before_anything_is_judged(hint, monkeypatch):
    monkeypatch.setattr(harness, "_checked", lambda task: pytest.fail("it was judged"))
    with pytest.raises(ValueError, match=r"^hint is .*, expected 1, 2 or 3"):
        check("dp.6", hint=hint)


def test_a_result_that_is_right_shows_hints_too():
    result = CheckResult("dp.1", (Claim("right", None),), hints=("a < b",), hints_used=1)
    assert repr(result).splitlines() == ["dp.1 is right", "  ✓ right", "hint 1: a < b", "hints asked for: 1 of 3"]
    assert "<li>a &lt; b</li>" in result._repr_html_()
