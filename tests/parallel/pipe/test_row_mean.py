"""labkit.parallel.pipe.row_mean: a loss that is not a mean over rows is refused, a right one never,
and nobody notices the comparison."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.parallel.pipe import row_mean
from labkit.parallel.pipe.row_mean import MAX_PARTS, RowMeanCheck
from labkit.trace import record, span


def compared(loss_fn, *micro_batches):
    check = RowMeanCheck(loss_fn)
    for i, (output, target) in enumerate(micro_batches):
        check.add(output, target, i)
    check.finish()


def floats(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def two(*shape, dtype=torch.float64):
    """Two micro-batches of outputs and targets."""
    return [(floats(*shape, seed=i, dtype=dtype), floats(*shape, seed=9 + i, dtype=dtype)) for i in range(2)]


def tokens(*lengths, width=7, length=6):
    """One micro-batch: logits, and targets of which each row has so many valid ones."""
    target = torch.arange(len(lengths) * length).view(-1, length) % width
    target[torch.arange(length) >= torch.tensor(lengths)[:, None]] = -100
    return floats(len(lengths), length, width, seed=len(lengths)), target


def per_token(logits, target, **options):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), **options)


TOKENS_PER_ROW = torch.tensor(23) / 6  # in float32


def per_row(logits, target):
    """The way out that the refusal names."""
    return per_token(logits, target, reduction="sum") / (len(target) * TOKENS_PER_ROW)


# --- refused --------------------------------------------------------------------------------------

CLASSES = [(floats(4, 5), torch.arange(4)), (floats(4, 5, seed=1), torch.arange(4))]
WEIGHTS = torch.arange(1.0, 6)
NOT_A_MEAN = {
    "valid tokens": (per_token, [tokens(6, 3, 1, 2)]),
    "511 valid tokens and 512": (per_token, [tokens(512, 511, width=3, length=512)]),
    "tokens, alike in each micro-batch": (per_token, [tokens(6, 6), tokens(2, 2)]),
    "tokens, one row in each micro-batch": (per_token, [tokens(6), tokens(2)]),
    "a row without a valid token": (per_token, [tokens(6, 0)]),
    "a sum": (lambda y, t: (y - t).square().sum(), two(3, 4)),
    "a root": (lambda y, t: F.mse_loss(y, t).sqrt(), two(3, 4)),
    "a normalisation over rows": (lambda y, t: F.mse_loss((y - y.mean(0)) / y.std(0, correction=0), t), two(3, 4)),
    "class weights in float32": (nn.CrossEntropyLoss(weight=WEIGHTS), [(y.float(), t) for y, t in CLASSES]),
    "class weights of a function": (lambda y, t: F.cross_entropy(y, t, WEIGHTS), [(y.float(), t) for y, t in CLASSES]),
    "more rows than parts": (lambda y, t: F.mse_loss(y, t).square(), two(3 * MAX_PARTS + 1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_A_MEAN)
def test_a_loss_that_is_not_a_mean_over_rows_is_refused_with_what_to_divide_by(kind):
    loss_fn, micro_batches = NOT_A_MEAN[kind]
    with pytest.raises(
        ValueError, match=r"Divide a sum by what is the same.*\(len\(target\) \* tokens_per_row\)"
    ) as error:
        compared(loss_fn, *micro_batches)
    assert str(error.value).startswith("loss_fn gives ")


@pytest.mark.parametrize("lengths", [(6, 6, 2, 2), (6, 6, 6, 2), (2, 6, 6, 6)])
def test_large_rows_are_compared_two_at_a_time_and_each_with_the_next(lengths, monkeypatch):
    compared_rows = []
    monkeypatch.setattr(row_mean, "MAX_NUMBERS", 1)
    with pytest.raises(ValueError, match="for 2 rows up to micro-batch 0"):
        compared(lambda y, t: compared_rows.append(len(y)) or per_token(y, t), tokens(*lengths))
    assert max(compared_rows) == 2


# --- never refused --------------------------------------------------------------------------------


class Noisy(nn.Module):
    """A row-wise loss with noise in it, of whatever generator."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def forward(self, y, t):
        return (y - t + self.noise(y)).square().mean()


def seldom(y):
    """Noise that most calls do not have."""
    return float(random.random() < 0.1)


ROW_WISE = {
    "mse": F.mse_loss,
    "smooth L1": nn.SmoothL1Loss(),
    "a sum over rows of many numbers": lambda y, t: ((y - t) ** 2).sum() / len(y),
    "a difference of large numbers": lambda y, t: (1e4 + y - t).sum(1).mean() - 1e4 * y.shape[1],
    "in float32 inside": lambda y, t: F.mse_loss(y.float(), t.float()),
    "in bfloat16 inside": lambda y, t: F.mse_loss(y.bfloat16(), t.bfloat16()),
    "label smoothing": lambda y, t: F.cross_entropy(y, t.abs().argmax(1), label_smoothing=0.1),
    "KL batchmean": lambda y, t: F.kl_div(y.log_softmax(1), t.softmax(1), reduction="batchmean"),
    "binary": lambda y, t: F.binary_cross_entropy_with_logits(y, (t > 0).to(y.dtype)),
    "in place": lambda y, t: y.sub_(t).square_().mean(),
    "dropout": Noisy(lambda y: F.dropout(torch.ones_like(y), 0.5)),
    "noise of numpy": Noisy(lambda y: float(np.random.rand())),
    "noise that is seldom": Noisy(seldom),
    "needs two rows": lambda y, t: F.mse_loss(F.batch_norm(y, None, None, training=True), t),
    "needs grad": lambda y, t: torch.autograd.grad(F.mse_loss(y, t), y)[0].sum(),
    "of numbers that are not finite": lambda y, t: F.mse_loss(y, t) * float("inf"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ROW_WISE)
def test_a_row_wise_loss_is_not_refused_for_rounding_or_chance_or_where_it_cannot_be_judged(kind, dtype):
    random.seed(7)
    compared(ROW_WISE[kind], *two(7, 5, dtype=dtype), *two(1, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["mse", "a sum over rows of many numbers"])
def test_large_rows_are_not_refused(kind, dtype):
    compared(ROW_WISE[kind], *two(2, 2**18, dtype=dtype))


def test_a_sum_of_tokens_divided_by_the_batches_is_not_refused_whatever_the_shapes():
    compared(per_row, tokens(6, 3, 1), tokens(2, length=4), tokens(5, 5))


def test_under_autocast_a_right_loss_is_not_refused():
    head = nn.Linear(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        compared(lambda y, t: F.mse_loss(head(y), t), *two(8, 64, dtype=torch.float32))


# --- no trace -------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A loss that counts its calls, keeps a mean of its outputs, draws numbers and has a span."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.calls = 0

    def forward(self, y, t):
        with span("loss"):
            self.calls += 1
            self.kept.mul_(0.9).add_(y.detach().mean())
            self.replaced = self.replaced + 1
            random.random(), np.random.rand()
            return F.mse_loss(F.dropout(y, 0.5), t) * (1 + self.kept)


@pytest.mark.parametrize("wrapped", [False, True], ids=["module", "closure"])
def test_the_comparison_leaves_no_trace_in_random_numbers_modules_spans_and_what_backward_needs(wrapped):
    loss_fn = Counting()
    (y, t), *_ = two(4, 5)
    loss = loss_fn(y.requires_grad_(), t)
    before, kept = (loss_fn.kept.clone(), loss_fn.replaced.clone(), loss_fn.calls), loss_fn.kept
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with record() as recording:
        compared((lambda y, t: loss_fn(y, t)) if wrapped else loss_fn, (y, t), (y, t))
    loss.backward()  # which needs the buffer as it was
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert (loss_fn.kept, loss_fn.replaced, loss_fn.calls) == before and loss_fn.kept is kept
    assert recording.events.empty and torch.equal(y, two(4, 5)[0][0])
