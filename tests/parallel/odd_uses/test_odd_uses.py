"""Odd but legal uses of the wrappers are right, refused by a sentence of the lab's own, or named in
a docstring: the table is in the files beside this one."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator

import module_uses  # noqa: F401  (these fill the table)
import optimizer_uses  # noqa: F401
import pipe_uses  # noqa: F401
import pipeline_uses  # noqa: F401
import pytest
import tensor_parallel_uses  # noqa: F401
import training_uses  # noqa: F401
from odd_bed import USES, Bed, Use
from odd_ways import HAND, WRAPPERS, net

QUICK = {  # of each wrapper, a right one and a refused one
    "a_head_tied_to_the_embedding",
    "frozen_before_and_unfrozen_later",
    "a_subclass_that_adds_nothing",
    "one_layer_in_two_partitions",
    "a_sum_as_loss",
}


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in USES])
def test_an_odd_use_is_right_or_said(name: str, bed: Bed) -> None:
    for way, expected in USES[name].expected.items():
        found = bed.outcome(name, way)
        kind, _, words = expected.partition(": ")
        if kind == "documented":
            assert found.kind not in ("right", "refused"), f"{way} needs its caveat no more: {found}"
        else:
            assert found.kind == kind and words in found.words, f"{way}: {found}, expected {expected}"


def test_nothing_is_wrong_that_no_docstring_names_and_at_most_three_are_riddles() -> None:
    kinds: Counter[str] = Counter()
    for name, entry in USES.items():
        for way, expected in entry.expected.items():
            kind, _, words = expected.partition(": ")
            kinds[kind] += 1
            texts = [" ".join((inspect.getdoc(each) or "").split()) for each in WRAPPERS[way]]
            assert kind != "documented" or any(words in text for text in texts), f"{name}: {way} does not say: {words}"
    assert {*kinds} <= {"right", "refused", "documented", "riddle"} and kinds["riddle"] <= 3, kinds
    assert len(USES) >= 80


def a_sum_for_a_mean(way):
    factor = 1 if way.name == "plain" else 2
    way.train(net(), after=lambda model, step: [p.grad.mul_(factor) for p in model.parameters()])


def a_number_for_a_module(way):
    way.train(net() if way.name == "plain" else 1)


@pytest.mark.parametrize(("function", "kind"), [(a_sum_for_a_mean, "wrong"), (a_number_for_a_module, "riddle")])
def test_the_bed_tells_what_is_broken(function, kind, bed, monkeypatch) -> None:
    monkeypatch.setitem(USES, function.__name__, Use(function, {HAND: "right"}))
    found = bed.outcome(function.__name__, HAND)
    assert found.kind == kind, found
