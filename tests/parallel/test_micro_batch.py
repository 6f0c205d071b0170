"""micro_batch: the rows of a batch, each in one micro-batch, and the batch's loss from the parts of
theirs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from labkit.parallel.micro_batch import MeanLoss, agreed_rows, check_no_grad, cut


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 20))
def test_every_row_is_in_one_micro_batch_in_order_and_none_has_two_more_than_another(n_micro, more):
    batch = torch.arange(2 * (n_micro + more)).reshape(-1, 2)
    parts = cut("x", batch, n_micro)
    sizes = list(map(len, parts))
    assert torch.equal(torch.cat(parts), batch) and len(parts) == n_micro
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1 <= sizes[-1]


@pytest.mark.parametrize("loss_fn", [mse_loss, l1_loss, cross_entropy, lambda y, t: mse_loss(y, t).reshape(1)])
@settings(deadline=None)
@given(n_micro=st.integers(1, 5), more=st.integers(0, 7))
def test_the_parts_add_up_to_the_mean_over_all_rows_and_so_do_their_gradients(loss_fn, n_micro, more):
    generator = torch.Generator().manual_seed(n_micro + 10 * more)
    output, target = torch.randn(2, n_micro + more, 3, generator=generator, dtype=torch.float64)
    whole, parts = output.clone().requires_grad_(), output.clone().requires_grad_()
    loss_fn(whole, target).backward()
    loss = MeanLoss(loss_fn, cut("target", target, n_micro))
    for number, part in enumerate(parts.tensor_split(n_micro)):
        loss(part, number).backward()
    torch.testing.assert_close(loss.total(), loss_fn(output, target).squeeze())
    torch.testing.assert_close(parts.grad, whole.grad)
    assert not loss.total().requires_grad


def test_a_loss_on_an_output_without_gradient_needs_none():
    loss = MeanLoss(lambda y, t: (y.argmax(1) == t).float().mean(), [torch.tensor([0, 1]), torch.tensor([1])])
    for number, output in enumerate([torch.eye(2), torch.eye(2)[:1]]):
        loss(output, number)
    assert loss.total().item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("output", [torch.ones(3, 2), torch.tensor(1.0)])
def test_an_output_with_other_rows_than_the_target_is_refused(output):
    with pytest.raises(ValueError, match=r"the output has shape .* and the target \(2, 2\), expected as many rows"):
        MeanLoss(mse_loss, [torch.ones(2, 2)])(output, 0)


def test_rows_that_are_there_on_one_end_only_are_those():
    two, three = cut("x", torch.ones(5), 2), cut("x", torch.ones(5), 3)
    assert agreed_rows(two, three) == agreed_rows(two, []) == agreed_rows([], three) == 5
    assert agreed_rows([], []) is None
    with pytest.raises(ValueError, match="x has 5 rows and target 4, expected as many"):
        agreed_rows(two, cut("target", torch.ones(4), 2))


def test_a_batch_that_requires_grad_is_refused_by_name():
    check_no_grad("x", cut("x", torch.ones(4, 1), 2))
    with pytest.raises(
        ValueError, match=r"x requires grad, .*: put what computes x into stage 0, or give x.detach\(\)"
    ):
        check_no_grad("x", cut("x", torch.ones(4, 1, requires_grad=True), 2))
