"""Odd but legal uses of the wrappers are right, refused by a sentence of the lab's own, or named in
a docstring: the table is in the files beside this one."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator

import broken_uses
import module_uses  # noqa: F401  (these fill the table)
import optimizer_uses  # noqa: F401
import pipe_uses  # noqa: F401
import pipeline_uses  # noqa: F401
import pytest
import tensor_parallel_uses  # noqa: F401
import training_uses  # noqa: F401
from odd_bed import HAND, USES, WRAPPERS, Bed, Use

MAX_RIDDLES = 3
QUICK = {  # of each wrapper, a right one and a refused one
    "a_head_tied_to_the_embedding",
    "frozen_before_and_unfrozen_later",
    "a_subclass_that_adds_nothing",
    "one_layer_in_two_partitions",
    "a_sum_as_loss",
}


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed() as bed:
        yield bed


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in USES])
def test_an_odd_use_is_right_or_said(name: str, bed: Bed) -> None:
    found = {way: bed.outcome(name, way) for way in USES[name].expected}
    for way, expected in USES[name].expected.items():
        kind, _, words = expected.partition(": ")
        if kind == "documented":
            assert found[way].kind not in ("right", "refused"), f"{way} needs its caveat no more: {found[way]}"
        else:
            assert found[way].kind == kind and words in found[way].words, f"{way}: {found[way]}, expected {expected}"


def test_what_is_documented_stands_in_the_docstring() -> None:
    for name, entry in USES.items():
        for way, expected in entry.expected.items():
            kind, _, words = expected.partition(": ")
            if kind == "documented":
                texts = [" ".join((inspect.getdoc(each) or "").split()) for each in WRAPPERS[way]]
                assert any(words in text for text in texts), f"{name}: {way} does not say: {words}"


@pytest.mark.xfail(strict=True, reason="rows that are wrong or a riddle still stand in the table as such")
def test_nothing_wrong_is_expected_and_few_riddles() -> None:
    kinds = Counter(each.partition(": ")[0] for entry in USES.values() for each in entry.expected.values())
    assert {*kinds} <= {"right", "refused", "documented", "riddle"}, kinds
    assert kinds["riddle"] <= MAX_RIDDLES, kinds
    assert len(USES) >= 80


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (broken_uses.a_sum_for_a_mean, "wrong", "gradient of 0.0.weight"),
        (broken_uses.a_step_that_a_rank_skips, "wrong", "apart"),
        (broken_uses.matrices_that_do_not_fit, "riddle", "cannot be multiplied"),
        pytest.param(broken_uses.a_collective_that_a_rank_skips, "hang", "rank", marks=pytest.mark.slow),
    ],
)
def test_the_bed_tells_what_is_broken(function, kind, words, bed, monkeypatch) -> None:
    monkeypatch.setitem(USES, function.__name__, Use(function, {HAND: "right"}, False, 1e-8))
    found = bed.outcome(function.__name__, HAND)
    assert found.kind == kind and words in found.words
