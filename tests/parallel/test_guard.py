"""What was wrapped is what runs: a change that would make gradients wrong is refused by name.

What people may do with a wrapped model, and trains as in one process, is in odd_uses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn
from torch.nn.utils import clip_grad_norm_, parametrizations

from labkit.dp import BucketedDataParallel

pytestmark = task("dp.6", "dp.7")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    layers[2].bias.requires_grad_(False)
    return layers


def rows(rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1 + rank, 12, dtype=torch.float64).view(3, 4)


def backward(model: nn.Module, rank: int | None = None) -> None:
    model(rows(dist.get_rank() if rank is None else rank)).square().mean().backward()


def train(model: nn.Module, steps: int = 1) -> None:
    """Steps of a wrapped model, with momentum and weight decay."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        model.finish_gradient_synchronization()
        optimizer.step()


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


# --- refused --------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[Callable[[nn.Sequential], object], str]] = {  # after wrapping, and what the error says of it
    "a head of its own": (lambda m: setattr(m, "2", nn.Linear(4, 2)), "2 is another Linear, and it was a Linear"),
    "a layer more": (lambda m: m.append(nn.Linear(2, 2)), "3 is a new Linear, and it was not there"),
    "a layer less": (lambda m: m.pop(2), "2 is gone, and it was a Linear"),
    "layers in another order": (
        lambda m: m._modules.update({"1": m._modules.pop("1")}),
        "the module has 0, 2 and 1 in this order, and in another, 0, 1 and 2,",
    ),
    "another dtype": (lambda m: m.float(), "0.weight is (4, 4) torch.float32 on cpu, and it was (4, 4) torch.float64"),
    "weight_norm": (lambda m: parametrizations.weight_norm(m[0]), "0.parametrizations is a new ModuleDict"),
    "parameters that are assigned": (
        lambda m: m.load_state_dict(m.state_dict(), assign=True),
        "0.weight is another Parameter, and it was a Parameter",
    ),
    "a frozen one that trains": (lambda m: m[2].bias.requires_grad_(), "2.bias requires a gradient, and it was frozen"),
    "hooks that are gone": (
        lambda m: m[0].weight._post_accumulate_grad_hooks.clear(),
        "a hook of the BucketedDataParallel is gone",
    ),
}


def changed(change: Callable[[nn.Sequential], object]) -> tuple[str, str]:
    model = BucketedDataParallel(net())
    train(model)
    change(model.module)
    training = error_of(lambda: backward(model))
    with torch.no_grad():
        return training, error_of(lambda: model(rows(0)) if len(model.module) == 3 else None)


def test_a_change_after_wrapping_is_named_at_the_next_training_pass_and_no_other(ranks):
    for change, says in CHANGES.values():
        for training, without in ranks(2).run(changed, change).values:
            assert says in training
            assert "when the module was wrapped: its gradients would not be averaged" in training
            assert "requires_grad" not in without and "averaged" not in without


def trained_in_eval_mode() -> str:
    model = BucketedDataParallel(net()).eval()  # dropout is off, and one trains all the same
    model.module[2].bias.requires_grad_()
    backward(model)
    return error_of(model.finish_gradient_synchronization)


def wrapped_twice() -> list[str]:
    module = net()
    first = BucketedDataParallel(module)
    trunk = nn.Sequential(module[0], nn.Linear(4, 1).double())
    errors = [error_of(partial(BucketedDataParallel, each)) for each in (module, trunk, first)]
    train(first)  # it has taken no harm
    del first
    return [*errors, error_of(lambda: train(BucketedDataParallel(module)))]


def copies() -> list[str]:
    model = BucketedDataParallel(net())
    train(model)
    errors = []
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied.eval()(rows(0)), model(rows(0)))
        errors.append(error_of(lambda copied=copied: backward(copied.train())))
    return errors


def test_training_in_eval_mode_second_wrappers_and_trained_copies_are_refused(ranks):
    def all_of_them() -> tuple[str, list[str], list[str]]:
        return trained_in_eval_mode(), wrapped_twice(), copies()

    for in_eval, twice, copied in ranks(2).run(all_of_them).values:
        assert "2.bias requires a gradient, and it was frozen" in in_eval
        assert all("is in a BucketedDataParallel already, which averages its gradient" in error for error in twice[:3])
        assert twice[3] == "no error"
        assert all(
            "this is a copy of a wrapper" in error and "BucketedDataParallel(model.module)" in error for error in copied
        )


BEFORE_THE_MEAN: dict[str, Callable[[nn.Module, torch.optim.Optimizer], object]] = {
    "clip": lambda model, _: clip_grad_norm_(model.parameters(), 0.1),
    "clear": lambda model, _: model.zero_grad(),
    "clear in place": lambda model, _: model.zero_grad(set_to_none=False),
    "step": lambda _, optimizer: optimizer.step(),
}


def early(what: str) -> tuple[str, str]:
    model = BucketedDataParallel(net())
    backward(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at_once = error_of(lambda: BEFORE_THE_MEAN[what](model, optimizer))
    finished = error_of(model.finish_gradient_synchronization)
    train(model)  # the next step is as if nothing had been
    return at_once, finished


def test_what_is_done_to_gradients_before_they_are_averaged_is_refused(ranks):
    for what in BEFORE_THE_MEAN:
        for at_once, finished in ranks(2).run(early, what).values:
            if what == "step":
                assert "are not averaged yet: call finish_gradient_synchronization()" in at_once
                assert finished == "no error"
            else:
                assert "the gradient of 2.weight was changed between backward() and" in finished
                assert "wait first, then clip" in finished


def frozen_on_one_rank() -> str:
    model = BucketedDataParallel(net())
    model.module[0].requires_grad_(dist.get_rank() == 0)
    return error_of(lambda: train(model))


def grown_buffer() -> str:
    module = net()
    module.register_buffer("mask", torch.ones(3, 3))
    model = BucketedDataParallel(module)
    module.mask = torch.ones(6, 6) if dist.get_rank() else torch.ones(3, 3)
    return error_of(lambda: model._guard.check() or model(rows(0))) if dist.get_rank() else ""


def test_a_parameter_frozen_on_one_rank_and_a_buffer_that_has_grown_are_refused(ranks):
    assert (
        "0.bias is frozen on this rank, and another rank has a gradient for it"
        in ranks(2).run(frozen_on_one_rank).values[1]
    )
    assert "the buffer mask is (6, 6) torch.float32, and was (3, 3)" in ranks(2).run(grown_buffer).values[1]


# --- allowed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [lambda gradient: gradient, lambda gradient: gradient.view(-1)], ids=["it", "a view"])
def test_gradients_that_are_kept_over_two_passes_stay_and_memory_is_new_only_then(keep, ranks):
    def in_rank(keep: Callable[[Any], torch.Tensor]) -> tuple[Any, Any]:
        model, kept, plain = BucketedDataParallel(net()), [], []
        at = [model.buckets[0].buffer.data_ptr()]
        for factor in (1, 3):
            model.zero_grad()
            (factor * model(rows(dist.get_rank())).square().mean()).backward()
            model.finish_gradient_synchronization()
            kept.append([keep(p.grad) for p in model.parameters() if p.requires_grad])
            at.append(model.buckets[0].buffer.data_ptr())
            alone = net()
            (factor * sum(alone(rows(rank)).square().mean() for rank in range(2)) / 2).backward()
            plain.append([keep(p.grad) for p in alone.parameters() if p.requires_grad])
        torch.testing.assert_close(kept, plain)
        kept.clear()
        train(model, 3)
        return at, model.buckets[0].buffer.data_ptr()

    for (first, second, third), last in ranks(2).run(in_rank, keep).values:
        assert first == second != third == last


def test_complex_parameters_and_buffers_of_any_dtype_are_taken_and_averaged(ranks):
    def in_rank() -> tuple[torch.Tensor, list[torch.Tensor]]:
        module = nn.Module()
        module.w = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]) * (1 + dist.get_rank()))
        for number, dtype in enumerate((torch.int16, torch.bool, torch.complex64, torch.bfloat16)):
            module.register_buffer(f"b{number}", torch.full((2, 2), 1 - dist.get_rank()).to(dtype).t())
        model = BucketedDataParallel(module)
        (module.w * (1 + dist.get_rank())).abs().square().sum().backward()
        model.finish_gradient_synchronization()
        return module.w.grad, [*module.buffers()]

    w = torch.tensor([1 + 2j, 3 - 1j])
    for gradient, buffers in ranks(2).run(in_rank).values:
        torch.testing.assert_close(gradient, 2 * w * (1 + 4) / 2)
        assert all(bool((buffer == 1).all()) for buffer in buffers)


def test_a_compiled_model_averages_as_an_uncompiled_one(ranks):
    def in_rank(compiled: bool) -> list[torch.Tensor]:
        module = net()
        model = BucketedDataParallel(torch.compile(module, backend="eager") if compiled else module)
        for _ in range(2):
            model.zero_grad()
            model(rows(dist.get_rank())).square().mean().backward()
            model.finish_gradient_synchronization()
        return [p.grad for p in module.parameters() if p.requires_grad]

    torch.testing.assert_close(ranks(2).run(in_rank, True).values, ranks(2).run(in_rank, False).values)
