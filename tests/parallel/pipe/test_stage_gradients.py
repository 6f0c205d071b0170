"""A stage's gradients are autograd's: as one node of the graph, as B, and as I and W; and its hooks
run as often."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_modules import Do, Keep, rows
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from labkit.parallel.pipe import split_backward
from labkit.parallel.pipe.scheduled_stage import Stage
from labkit.parallel.pipe.worker_stage import run_stage

Tensors = list[torch.Tensor]


class Product(torch.autograd.Function):
    """x·W as a user would write it: one backward for both gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, times: float, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.times = times
        return x @ w * times

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradients[0] @ w.T * ctx.times, None, x.T @ gradients[0] * ctx.times


class Stop(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None


def weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def linear(out: int = 4, seed: int = 1) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, out).double()


# --- four ways to go back -------------------------------------------------------------------------


def by_autograd(module: nn.Module, inputs: Tensors, run: Callable[..., Any] = lambda f, x, i: f(x)) -> list[Any]:
    """Return the inputs' gradients; the micro-batches' backward passes come one after the other."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = [run(module, x * 1, i) for i, x in enumerate(leaves)]
    for output in outputs:
        output.backward(output.detach().cos())
    return [x.grad for x in leaves]


def by_node(module: nn.Module, inputs: Tensors) -> list[Any]:
    return by_autograd(module, inputs, lambda f, x, i: run_stage(f, x, torch.device("cpu"), stage=1, micro_batch=i))


def by_b(module: nn.Module, inputs: Tensors) -> list[Any]:
    stage, gradients = forward(module, inputs)
    return [stage.backward(i, gradient) for i, gradient in enumerate(gradients)]


def by_i_and_w(module: nn.Module, inputs: Tensors) -> list[Any]:
    """W in another order than I, and all micro-batches in flight at the same time."""
    stage, gradients = forward(module, inputs)
    found = [stage.input_grad(i, gradient) for i, gradient in enumerate(gradients)]
    assert all(weight.grad is None for weight in module.parameters())
    for i in [*range(1, len(inputs)), 0]:
        stage.weight_grad(i)
    return found


def forward(module: nn.Module, inputs: Tensors) -> tuple[Stage, Tensors]:
    stage = Stage(module, 1)
    outputs = [stage.forward(i, x.detach().clone().requires_grad_()) for i, x in enumerate(inputs)]
    return stage, [output.detach().cos() for output in outputs]


WAYS = (by_node, by_b, by_i_and_w)


def check(module: nn.Module, inputs: Tensors | None = None, tolerance: float = 1e-12) -> None:
    inputs = [rows(seed=seed) for seed in range(3)] if inputs is None else inputs
    found = {}
    for way in (by_autograd, *WAYS):
        alike = copy.deepcopy(module)
        torch.manual_seed(3)  # for dropout
        found[way] = [*way(alike, inputs), *(weight.grad for weight in alike.parameters())]
    expected = found.pop(by_autograd)
    for way in WAYS:
        torch.testing.assert_close(found[way], expected, rtol=tolerance, atol=tolerance)
    assert any(gradient is not None for gradient in expected)


# --- modules of all kinds -------------------------------------------------------------------------


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1:3] = w[:2, :1].T * x[:, :2]
    return y


def half_frozen() -> nn.Module:
    half = linear()
    half.weight.requires_grad_(False)
    return Do(lambda x, f, unused: f(x), half, linear())


shared = linear()
w = weight(4, 4)
MODULES: dict[str, nn.Module] = {
    "layers": nn.Sequential(linear(), nn.LayerNorm(4).double(), nn.GELU(), nn.Dropout(0.3), linear(seed=2)),
    "checkpoint": Do(lambda x, f: checkpoint(f, f(x), use_reentrant=False), nn.Sequential(linear(), nn.Tanh())),
    "in place on a view": nn.Sequential(linear(), Do(written, w), linear(seed=2)),
    "dead branch": Do(lambda x, w: x + Stop.apply(x @ w), w),
    "one weight above itself": nn.Sequential(shared, nn.Tanh(), shared),
    "weights computed from weights": parametrizations.weight_norm(linear()),
    "an output that is the input": nn.Identity(),
    "an input that is not used": Do(lambda x, w: w.exp(), w),
    "half frozen, one unused": half_frozen(),
    "gradient stops inside": nn.Sequential(linear(), Do(Stop.apply), linear()),
    "a function and a layer with one weight": Do(lambda x, w: Product.apply(x @ w, 2.0, w) @ w, w),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_gradients_are_autograds(name):
    check(MODULES[name])


def test_where_the_input_gets_no_gradient_all_the_work_is_left_to_w():
    model, tokens = nn.Sequential(nn.Embedding(9, 4).double(), linear()), torch.tensor([[1, 2], [3, 1]])
    expected = torch.autograd.grad(model(tokens).square().mean(), list(model.parameters()))
    stage = Stage(model, 0)
    stage.loss = lambda y, i: y.square().mean()
    stage.forward(0, tokens)
    assert stage.input_grad(0) is None and all(weight.grad is None for weight in model.parameters())
    stage.weight_grad(0)
    torch.testing.assert_close([weight.grad for weight in model.parameters()], list(expected))


# --- hooks ----------------------------------------------------------------------------------------

Log = list[tuple[str, torch.Tensor]]


def hook_an_activation(model: nn.Sequential, log: Log) -> None:
    """Half the gradient; the activation is one that a linear layer gave, so W needs what the hook
    has left."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        log.append(("activation", gradient.clone()))
        return gradient / 2

    model[0].register_forward_hook(lambda module, x, y: y.register_hook(hook) and None)


def hook_weights(model: nn.Sequential, log: Log) -> None:
    for layer in model:
        for weight in layer.parameters():
            weight.register_hook(lambda gradient: log.append(("weight", gradient.clone())) or gradient * 5)
            weight.register_post_accumulate_grad_hook(lambda weight: log.append(("added", weight.grad.clone())))


def hook_where_gradients_are_added(model: nn.Sequential, log: Log) -> None:
    """As torch's DistributedDataParallel does. The nodes live as long as someone has them."""
    model.nodes = [weight.view_as(weight).grad_fn.next_functions[0][0] for weight in model.parameters()]
    for node in model.nodes:
        node.register_hook(lambda *_: log.append(("node", torch.zeros(()))))


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("hook", [hook_an_activation, hook_weights, hook_where_gradients_are_added])
def test_hooks_run_as_often_as_under_autograd_and_see_the_same(hook, twice, monkeypatch):
    monkeypatch.setattr(split_backward, "MAX_BYTES", 0)  # a sum is waited for all the same
    found = {}
    for way in (by_autograd, *WAYS):
        layers = [linear(), nn.Tanh(), linear(seed=2)]
        function = Do(lambda x, w: Product.apply(x, 0.5, w), weight(4, 4))
        model, log = nn.Sequential(*layers, layers[0] if twice else nn.GELU(), function), []
        hook(model, log)
        gradients = way(model, [rows(), rows(seed=1)])
        # Which weight comes first is up to the engine, and W need not come in the order of I.
        log = sorted((what, round(float(seen.sum()), 9)) for what, seen in log if what != "added")
        found[way] = (log, [*gradients, *(weight.grad for weight in model.parameters())])
    log, expected = found.pop(by_autograd)
    for found_log, gradients in found.values():
        assert found_log == log
        torch.testing.assert_close(gradients, expected)


# --- work and memory ------------------------------------------------------------------------------


def flops(work: Callable[..., Any], *arguments: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        work(*arguments)
    return counter.get_total_flops()


def test_no_product_is_computed_twice_however_deep_the_stage_and_each_half_computes_half():
    seven, six = (nn.Sequential(*(linear() for _ in range(depth))) for depth in (7, 6))
    inputs = [rows(), rows(seed=1)]
    assert flops(by_i_and_w, copy.deepcopy(seven), inputs) == flops(by_autograd, seven, inputs)
    assert flops(by_autograd, seven, inputs) > flops(by_autograd, six, inputs)
    stage, (gradient,) = forward(nn.Sequential(linear(), nn.Tanh(), linear()), [rows()])
    assert [flops(stage.input_grad, 0, gradient), flops(stage.weight_grad, 0)] == [2 * 2 * 5 * 4 * 4] * 2


@pytest.fixture
def no_garbage_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["half frozen, one unused", "one weight above itself", "an input that is not used"])
def test_nothing_of_the_graph_stays_alive(way, name, no_garbage_collector):
    keep = Keep()
    module = copy.deepcopy(nn.Sequential(MODULES[name], Do(lambda x, w: Product.apply(x, 2.0, w), w)))
    way(nn.Sequential(module, keep), [rows(), rows(seed=1)])
    assert (len(keep.kept), keep.alive()) == (2, 0)
