"""Records against plain torch: what counts as rounding, what is named, and which verdict comes
first."""

from __future__ import annotations

import math

import pytest
import torch

from labkit.parity.judge import Judgement, judge
from labkit.parity.record import Record

TOLERANCE = 1e-12


def beginning(**values: list[float]) -> Record:
    return Record(None, {}, {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()})


def step(before: Record, lr: float = 0.1, loss: float = 1.0, **gradients: list[float]) -> Record:
    """One step of plain gradient descent, written down."""
    found = {name: torch.tensor(value, dtype=torch.float64) for name, value in gradients.items()}
    after = {name: value - lr * found.get(name, torch.zeros(())) for name, value in before.parameters.items()}
    return Record(loss, found, after)


BEGIN = beginning(first=[1.0, 2.0], last=[0.5])
TRUTH = [BEGIN, step(BEGIN, first=[0.3, -0.2], last=[0.1])]


def verdict(*ranks: Record, truth: list[Record] = TRUTH, beginning: Record = BEGIN) -> Judgement:
    return judge([[beginning, record] for record in ranks], [truth], TOLERANCE)


def test_what_differs_by_rounding_alone_is_right_and_the_largest_difference_is_relative():
    found = verdict(step(BEGIN, first=[0.3 + 3e-14, -0.2], last=[0.1]))
    assert found.off is None and found.truth == 0
    assert found.largest == pytest.approx(1e-13, rel=0.01)


def test_a_sum_for_a_mean_is_off_by_all_of_the_gradient_in_the_first_parameter_at_step_1():
    found = verdict(step(BEGIN, loss=1.0, first=[0.6, -0.4], last=[0.2]))
    assert found.off is not None and (found.off.name, found.off.step) == ("the gradient of first", 1)
    assert found.off.amount == pytest.approx(1.0)


@pytest.mark.parametrize("loss", [math.nan, 2.0])
def test_a_loss_that_differs_or_is_not_a_number_is_off(loss):
    found = verdict(step(BEGIN, loss=loss, first=[0.3, -0.2], last=[0.1]))
    assert found.off is not None and found.off.name == "the loss"


def test_a_gradient_that_is_not_a_number_is_off():
    found = verdict(step(BEGIN, first=[math.nan, -0.2], last=[0.1]))
    assert found.off is not None and found.off.amount == math.inf


@pytest.mark.parametrize("missing", ["first", "last"])
def test_a_missing_gradient_counts_as_zero_and_so_does_one_that_plain_torch_has_not(missing):
    gradients = {"first": [0.3, -0.2], "last": [0.1]}
    without = {name: value for name, value in gradients.items() if name != missing}
    zeros = without | {missing: [0.0] * len(gradients[missing])}
    named = verdict(step(BEGIN, **without)).off
    assert named is not None and named.name == f"the gradient of {missing}"
    assert verdict(step(BEGIN, **zeros), truth=[BEGIN, step(BEGIN, **without)]).off is None


def test_ranks_that_are_apart_come_before_what_is_off_at_the_same_step():
    found = verdict(step(BEGIN, first=[0.3, 0.2], last=[0.1]), step(BEGIN, first=[0.3, 0.4], last=[0.1]))
    assert found.off is not None and found.off.ranks == (0, 1)
    assert found.off.name == "the gradient of first"


def test_ranks_that_take_another_optimizer_step_are_apart_in_a_parameter():
    gradients = {"first": [0.3, -0.2], "last": [0.1]}
    found = verdict(step(BEGIN, **gradients), step(BEGIN, lr=0.0, **gradients))
    assert found.off is not None and (found.off.ranks, found.off.name) == ((0, 1), "first")


def signed(gradient: list[float]) -> Record:
    """A step by the gradient's sign, as AdamW's first one is."""
    one = torch.tensor(gradient, dtype=torch.float64)
    return Record(1.0, {"w": one}, {"w": torch.ones(2, dtype=torch.float64) - 0.01 * one.sign()})


def test_a_parameter_may_go_the_other_way_where_its_gradient_is_below_rounding_and_is_named():
    begin = beginning(w=[1.0, 1.0])
    found = verdict(signed([0.5, -1e-16]), truth=[begin, signed([0.5, 1e-16])], beginning=begin)
    assert found.off is None
    assert found.moved == (pytest.approx(0.02, rel=0.02), "w")


def test_a_parameter_may_not_go_the_other_way_where_its_gradient_agrees():
    begin = beginning(w=[1.0, 1.0])
    other = signed([0.5, 0.0])
    other.parameters["w"][1] += 0.02
    found = verdict(other, truth=[begin, signed([0.5, 0.0])], beginning=begin)
    assert found.off is not None and found.off.name == "w"


def test_the_gradient_before_a_batch_norm_which_is_zero_but_for_rounding_is_right():
    truth = [BEGIN, step(BEGIN, first=[0.3, -0.2], last=[1e-17])]
    assert verdict(step(BEGIN, first=[0.3, -0.2], last=[-3e-17]), truth=truth).off is None


def test_two_truths_are_tried_and_the_one_that_agrees_is_named():
    other = [BEGIN, step(BEGIN, first=[0.1, 0.1], last=[0.1])]
    found = judge([other], [TRUTH, other], TOLERANCE)
    assert (found.truth, found.off) == (1, None)


def test_what_is_on_one_rank_alone_is_compared_with_plain_torch_alone():
    parts = [{name: TRUTH[1].parameters[name] for name in names} for names in (["first"], ["last"])]
    begins = [Record(None, {}, {name: BEGIN.parameters[name] for name in part}) for part in parts]
    ranks = [Record(None, {n: TRUTH[1].gradients[n] for n in part}, part) for part in parts]
    ranks[1] = ranks[1]._replace(loss=1.0)
    found = judge([[b, r] for b, r in zip(begins, ranks, strict=True)], [TRUTH], TOLERANCE)
    assert (found.truth, found.off, found.largest) == (0, None, 0.0)
