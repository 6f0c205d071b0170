"""The two plain trainings, against loops that are written out here."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.parity.record import read
from labkit.parity.request import make_training
from labkit.parity.training import Cut, Training, own_draws
from labkit.parity.truth import Facts, find_truth

X, Y = torch.linspace(-1, 1, 28).reshape(7, 4), torch.arange(7) % 3


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def training(build=dense, batch=(X, Y), loss=F.cross_entropy, dtype=None, **options) -> Training:
    return make_training(build, batch, loss, 2, (torch.optim.SGD, {"lr": 0.1} | options), dtype, None, None)


def truth(folder: Path, cut: Cut, **options) -> tuple[Facts, dict[str, torch.Tensor], torch.nn.Module]:
    """Return the facts, the gradients of step 1, and the module that the training began with."""
    asked = training(**options)
    with own_draws():
        facts = find_truth(asked, [cut], 0, folder)
        assert not facts.refused, facts.refused
        begin, first = read(folder / "0", 0, 0), read(folder / "0", 0, 1)
    assert begin is not None and first is not None
    module = asked.build().double()
    module.load_state_dict(begin.parameters, strict=False)
    return facts, first.gradients, module


def gradient(module: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def halves() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(X[:4].double(), Y[:4]), (X[4:].double(), Y[4:])]


def test_the_whole_batch_gives_the_gradient_of_its_loss(tmp_path):
    facts, found, module = truth(tmp_path, Cut())
    assert_close(found, gradient(module, F.cross_entropy(module(X.double()), Y)))
    assert (facts.dtype, facts.draws, facts.batch_norm) == (torch.float64, False, False)


def test_shards_give_the_mean_of_their_gradients_with_a_batch_norm_pass_each(tmp_path):
    facts, found, module = truth(tmp_path, Cut(2, draws=True), build=normed)
    losses = [F.cross_entropy(module(x), y) for x, y in halves()]
    assert_close(found, gradient(module, (losses[0] + losses[1]) / 2))
    assert facts.batch_norm


def test_micro_batches_are_weighed_by_their_rows(tmp_path):
    _, found, module = truth(tmp_path, Cut(2, mean="rows"), build=normed)
    losses = [F.cross_entropy(module(x), y) for x, y in halves()]
    assert_close(found, gradient(module, (4 * losses[0] + 3 * losses[1]) / 7))


def test_joined_outputs_have_one_loss(tmp_path):
    _, found, module = truth(tmp_path, Cut(rows=4, mean="batch"), build=normed)
    joined = torch.cat([module(x) for x, _ in halves()])
    assert_close(found, gradient(module, F.cross_entropy(joined, Y)))


def test_each_shard_draws_random_numbers_of_its_own(tmp_path):
    def noisy() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))

    batch = torch.ones(2, 4), torch.zeros(2, dtype=torch.long)
    facts, found, _ = truth(tmp_path, Cut(2, draws=True), build=noisy, batch=batch)
    other = tmp_path / "other"
    other.mkdir()
    _, alike, _ = truth(other, Cut(2), build=noisy, batch=batch)
    assert facts.draws
    assert not torch.equal(found["1.weight"], alike["1.weight"])


def test_a_model_that_insists_on_float32_stays_in_it(tmp_path):
    class Insists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x.float(), self.layer.weight, self.layer.bias)

    assert find_truth(training(Insists), [Cut()], 0, tmp_path).dtype is None


def test_a_batch_may_be_a_function_of_the_step_and_nested_and_have_no_target():
    asked = training(batch=lambda step: ({"x": X + step, "flag": True}, None), loss=lambda out, _: out.sum())
    assert [float(asked.batches[step][0]["x"][0, 0]) for step in (0, 1)] == [-1.0, 0.0]
    parts = Cut(2).parts(asked.batch(1))
    assert [len(inputs["x"]) for inputs, _ in parts] == [4, 3]
    assert parts[1][0]["flag"] is True


@pytest.mark.parametrize("draw", [torch.rand, np.random.uniform, lambda _: random.random()])
def test_a_batch_that_draws_leaves_the_callers_generators_as_they_were(draw):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return X * float(draw(1)), Y

    training(batch=batch)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
