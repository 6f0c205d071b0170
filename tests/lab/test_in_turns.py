"""Loops around a step give every way its own times, and the span of a step its own number."""

from __future__ import annotations

import pytest
from torch import nn

from labkit.lab import overlap
from labkit.trace import span


def step(model, tokens, optimizer, sync):
    with span("forward"):
        loss = nn.functional.cross_entropy(model(tokens).logits.mT, tokens)
    with span("backward"):
        loss.backward()
    with span("wait"):
        sync()
    with span("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def trained():
    in_one = overlap.after_backward(overlap.average_buckets, [range(52)])
    return overlap.in_turns(step, {"no sync": overlap.no_sync, "flat": in_one}, rounds=3)


def test_each_way_has_a_time_a_round_without_the_first_and_its_parts_are_within_it(trained):
    assert trained.step_s.shape == (2, 2) and [*trained.step_s.columns] == ["no sync", "flat"]
    assert (trained.part_s("backward") < trained.step_s).all(axis=None)
    assert [*trained.parts.columns] == ["forward", "elapsed in backward", "wait", "optimizer"]


def test_the_typical_step_is_one_of_its_way_and_has_its_all_reduce(trained):
    found = trained.typical_step("flat")
    assert set(found.name) == {"backward", "wait", "all_reduce"}
    (number,) = found.step.dropna().unique()
    assert number % 2 == 1
