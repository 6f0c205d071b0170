"""I and W together are B, and B is what autograd does: the same gradients, and the same hooks as
often."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_modules import Do, rows
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from labkit import models
from labkit.parallel import split_backward
from labkit.parallel.graph_entry import enter_graph
from labkit.parallel.split_backward import StageGraph

MICRO_BATCHES = 3


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


# --- three ways to go back ------------------------------------------------------------------------


def plain(module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """As autograd does it; the micro-batches' backward passes one after the other."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = [module(x * 1) for x in leaves]
    for output in outputs:
        output.backward(output.detach().cos())
    return [x.grad for x in leaves]


def whole(module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    graphs, gradients = forward(module, inputs)
    return [graph.backward(gradient) for graph, gradient in zip(graphs, gradients, strict=True)]


def split(module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """W in another order than I, and all micro-batches in flight at the same time."""
    graphs, gradients = forward(module, inputs)
    found = [graph.input_grad(gradient) for graph, gradient in zip(graphs, gradients, strict=True)]
    assert all(weight.grad is None for weight in module.parameters())
    for graph in [graphs[1], *graphs[2:], graphs[0]]:
        graph.weight_grad()
    return found


def forward(module: nn.Module, inputs: list[torch.Tensor]) -> tuple[list[StageGraph], list[torch.Tensor]]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = [module(enter_graph(x)) for x in leaves]
    graphs = [StageGraph(output, x) for output, x in zip(outputs, leaves, strict=True)]
    return graphs, [output.detach().cos() for output in outputs]


def check(module: nn.Module, inputs: list[torch.Tensor] | None = None, tolerance: float = 1e-12) -> None:
    inputs = [rows(seed=seed) for seed in range(MICRO_BATCHES)] if inputs is None else inputs
    found = {}
    for way in (plain, whole, split):
        alike = copy.deepcopy(module)
        torch.manual_seed(3)  # for dropout
        found[way] = [*way(alike, inputs), *(weight.grad for weight in alike.parameters())]
    torch.testing.assert_close(found[whole], found[plain], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[split], found[plain], rtol=tolerance, atol=tolerance)
    assert any(gradient is not None for gradient in found[plain])


# --- random modules -------------------------------------------------------------------------------

POOL = 3  # weights of which several layers of one module may use the same

LAYERS: dict[str, Callable[[nn.Parameter], nn.Module]] = {
    "linear": lambda w: linear(),
    "frozen": lambda w: linear().requires_grad_(False),
    "layer_norm": lambda w: nn.LayerNorm(4).double(),
    "gelu": lambda w: nn.GELU(),
    "relu in place": lambda w: Do(lambda x: (x * 1).relu_()),
    "dropout": lambda w: nn.Dropout(0.3),
    "matmul": lambda w: Do(lambda x, w: x @ w, w),
    "tied": lambda w: Do(lambda x, w: (x @ w).tanh() @ w.T, w),
    "bias": lambda w: Do(lambda x, w: x + w[0], w),
    "gate": lambda w: Do(lambda x, w: x * w.exp().mean(dim=0) + w[1], w),
    "part of x": lambda w: Do(lambda x, w: torch.cat([x[:, :2] * w[0, :2], x[:, 2:]], dim=1), w),
    "function": lambda w: Do(lambda x, w: Product.apply(x, 0.5, w), w),
    "dead branch": lambda w: Do(lambda x, w: x + Stop.apply(x @ w), w),
    "in place on a view": lambda w: Do(lambda x, w: written(x, w), w),
}


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1:3] = w[:2, :1].T * x[:, :2]
    return y


def built(plan: Any, pool: list[nn.Parameter]) -> nn.Module:
    if isinstance(plan[0], str) and plan[0] in LAYERS:
        return LAYERS[plan[0]](pool[plan[1]])
    inner = nn.Sequential(*(built(part, pool) for part in plan[1]))
    return {
        "chain": lambda: inner,
        "residual": lambda: Do(lambda x, f: x + f(x), inner),
        "twice": lambda: nn.Sequential(inner, inner),
        "checkpoint": lambda: Do(lambda x, f: checkpoint(f, x, use_reentrant=False), inner),
    }[plan[0]]()


plans = st.recursive(
    st.tuples(st.sampled_from(sorted(LAYERS)), st.integers(0, POOL - 1)),
    lambda part: st.tuples(
        st.sampled_from(["chain", "residual", "twice", "checkpoint"]), st.lists(part, min_size=1, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_input_gradient_and_weight_gradient_together_are_the_whole_backward_pass(plan):
    check(built(plan, [weight(4, 4, seed=seed) for seed in range(POOL)]))


# --- special cases --------------------------------------------------------------------------------


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.LSTM(4, 3, num_layers=2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (h, _) = self.inner(x)
        return y + h[-1]


class Rows(nn.Module):
    """Rows of a table, weighed; the table's gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(6, 4, sparse=True).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table(torch.arange(5) % 3)


shared = linear()
w = weight(4, 4)
MODULES: dict[str, nn.Module] = {
    "one weight above itself": nn.Sequential(shared, nn.Tanh(), shared),
    "one weight beside itself": Do(lambda x, f: f(x) * f(x.exp()), shared),
    "weights computed from weights": parametrizations.weight_norm(linear()),
    "and used twice": Do(lambda x, f: f(f(x)), parametrizations.weight_norm(linear())),
    "computed from weights once, used twice": Do(lambda x, w: (lambda v: (x @ v).tanh() @ v)(w.exp()), w),
    "spectral norm": parametrizations.spectral_norm(linear()),
    "weights beside the path": Do(lambda x, f, w: f(x) + w.exp().sum(dim=0), linear(), w),
    "the weight squared": Do(lambda x, w: x * (w * w)[0], w),
    "views of one weight": Do(lambda x, w: x @ w[:, :2] @ w[:2] + w.view(2, 8)[0, :4], w),
    "expanded weight": Do(lambda x, w: x * w.expand(5, 4), weight(1, 4)),
    "broadcast input and weight": Do(lambda x, w: x[:, :1] * w, weight(1, 4)),
    "another dtype": Do(lambda x, w: x + w, nn.Parameter(torch.ones(4))),
    "several outputs, some not used": Do(lambda x, w: torch.split(x @ w, 1, dim=1)[2] * 2, w),
    "unbind": Do(lambda x, w: sum(part * w[0, 0] for part in (x * w[1]).unbind(dim=1)), w),
    "lstm": Lstm(),
    "gru": Do(lambda x, f: f(x)[0], nn.GRU(4, 3).double()),
    "attention": Do(lambda x, f: f(x, x, x)[0], nn.MultiheadAttention(4, 2).double()),
    "batch norm": nn.Sequential(linear(), nn.BatchNorm1d(4).double()),
    "convolution": Do(lambda x, f: f(x[:, None]).flatten(1), nn.Conv1d(1, 2, 3).double()),
    "sparse gradient": Rows(),
    "scalar weight": Do(lambda x, w: x * w, weight()),
    "prelu": nn.PReLU(dtype=torch.float64),
    "an output that is the input": nn.Identity(),
    "an output that is a view": Do(lambda x, f: f(x).view(-1)[3:], linear()),
    "an input that is not used": Do(lambda x, w: w.exp(), w),
    "an input that is used for its shape": Do(lambda x, w: x.detach() * w[0], w),
    "an output that is a weight": Do(lambda x, w: w, w),
    "all frozen": nn.Sequential(linear(), nn.Tanh()).requires_grad_(False),
    "no weights": nn.Softmax(dim=1),
    "half frozen, one unused": Do(lambda x, f, g: f(x), nn.Linear(4, 4, dtype=torch.float64), linear()),
    "gradient stops inside": nn.Sequential(linear(), Do(Stop.apply), linear()),
    "in place first": nn.Sequential(nn.ReLU(inplace=True), linear()),
    "a function last": nn.Sequential(linear(), Do(lambda x, w: Product.apply(x, 2.0, w), w)),
    "a function and a layer with one weight": Do(lambda x, w: Product.apply(x @ w, 2.0, w) @ w, w),
    "a function of weights": Do(lambda x, v, w: x @ Product.apply(v, 2.0, w), weight(4, 4, seed=1), w),
}
MODULES["half frozen, one unused"].get_submodule("0").weight.requires_grad_(False)


@pytest.mark.parametrize("name", MODULES)
def test_the_gradients_are_those_of_one_process(name):
    check(MODULES[name])


@pytest.mark.parametrize("most_bytes", [0, 100])
@pytest.mark.parametrize("name", ["one weight above itself", "lstm", "and used twice", "half frozen, one unused"])
def test_gradients_may_be_added_as_they_come(name, most_bytes, monkeypatch):
    monkeypatch.setattr(split_backward, "MOST_BYTES", most_bytes)
    check(nn.Sequential(MODULES[name], nn.LayerNorm(MODULES[name](rows()).shape[-1]).double()))


def test_a_gpt2_block_and_both_its_ends():
    gpt2 = models.gpt2("nano", vocab_size=50, n_positions=8).double()
    body, head = gpt2.transformer, gpt2.lm_head  # which has the weight of the embedding
    tokens = torch.arange(14).view(2, 7) * 3
    check(
        Do(lambda x, wte, h, ln_f, head: head(ln_f(h(wte(tokens) + x))), body.wte, body.h[0], body.ln_f, head),
        [torch.randn(2, 7, 64, dtype=torch.float64) for _ in range(MICRO_BATCHES)],
        tolerance=1e-10,
    )


def test_without_an_input_that_wants_a_gradient_all_the_work_is_left_to_w():
    table, layer = nn.Embedding(9, 4).double(), linear()
    model = nn.Sequential(table, layer)
    tokens, gradient = torch.tensor([[1, 2], [3, 1]]), torch.ones(2, 2, 4, dtype=torch.float64)
    model(tokens).backward(gradient)
    expected = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    graph = StageGraph(model(tokens))
    assert graph.input_grad(gradient) is None and layer.weight.grad is None
    graph.weight_grad()
    torch.testing.assert_close([weight.grad for weight in model.parameters()], expected)


def test_a_loss_needs_no_gradient():
    layer, x = linear(), rows().requires_grad_()
    expected = torch.autograd.grad(layer(x).square().mean(), [x, *layer.parameters()])
    graph = StageGraph(layer(enter_graph(x)).square().mean(), x)
    found = graph.input_grad()
    graph.weight_grad()
    torch.testing.assert_close((found, *(weight.grad for weight in layer.parameters())), expected)


def test_under_autocast_the_gradients_are_those_of_one_process():
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        check(layers, [rows(seed=seed).float() for seed in range(MICRO_BATCHES)], tolerance=1e-5)


# --- hooks ----------------------------------------------------------------------------------------

Log = list[tuple[str, torch.Tensor]]


def hook_an_activation(model: nn.Sequential, log: Log) -> None:
    """Half the gradient; the activation is one that a linear layer gave, so W needs what the hook
    has left."""

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        log.append(("activation", gradient.clone()))
        return gradient / 2

    model[0].register_forward_hook(lambda module, x, y: y.register_hook(hook) and None)


def hook_an_activation_in_place(model: nn.Sequential, log: Log) -> None:
    model[0].register_forward_hook(lambda module, x, y: y.register_hook(lambda gradient: gradient.mul_(2)) and None)


def hook_modules(model: nn.Sequential, log: Log) -> None:
    for layer in model:
        layer.register_full_backward_hook(lambda module, inner, outer: log.append(("module", inner[0].clone())))
        layer.register_full_backward_pre_hook(lambda module, outer: (outer[0] * 3,))


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
@pytest.mark.parametrize(
    "hook",
    [
        hook_an_activation,
        hook_an_activation_in_place,
        hook_modules,
        hook_weights,
        hook_where_gradients_are_added,
    ],
)
def test_hooks_run_as_often_as_in_one_process_and_see_the_same(hook, twice, monkeypatch):
    monkeypatch.setattr(split_backward, "MOST_BYTES", 0)  # a sum is waited for all the same
    found = {}
    for way in (plain, whole, split):
        layers = [linear(), nn.Tanh(), linear(seed=2)]
        function = Do(lambda x, w: Product.apply(x, 0.5, w), weight(4, 4))
        model, log = nn.Sequential(*layers, layers[0] if twice else nn.GELU(), function), []
        hook(model, log)
        gradients = way(model, [rows(), rows(seed=1)])
        # Which weight comes first is up to the engine, and W need not come in the order of I.
        log = sorted((what, round(float(seen.sum()), 9)) for what, seen in log if what != "added")
        found[way] = (log, [*gradients, *(weight.grad for weight in model.parameters())])
    assert found[whole][0] == found[split][0] == found[plain][0]
    torch.testing.assert_close(found[whole][1], found[plain][1])
    torch.testing.assert_close(found[split][1], found[plain][1])


def test_a_weights_whole_gradient_is_there_when_its_hooks_run(monkeypatch):
    monkeypatch.setattr(split_backward, "MOST_BYTES", 0)
    layer, seen = linear(), []
    layer.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
    for graph, gradient in zip(*forward(nn.Sequential(layer, nn.Tanh(), layer), [rows()]), strict=True):
        graph.input_grad(gradient)
        assert not seen
        graph.weight_grad()
    assert len(seen) == 1 and seen[0].equal(layer.weight.grad)


# --- work and memory ------------------------------------------------------------------------------


def test_no_product_is_computed_twice_however_deep_the_stage():
    from torch.utils.flop_counter import FlopCounterMode

    def flops(way: Callable[..., Any], depth: int) -> int:
        model = nn.Sequential(*(linear() for _ in range(depth)))
        with FlopCounterMode(display=False) as counter:
            way(model, [rows(), rows(seed=1)])
        return counter.get_total_flops()

    assert flops(split, 7) == flops(plain, 7) > flops(plain, 6)


def test_each_half_computes_its_half_of_the_products():
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(linear(), nn.Tanh(), linear())
    (graph,), (gradient,) = forward(model, [rows()])
    counts = []
    for half in (lambda: graph.input_grad(gradient), graph.weight_grad):
        with FlopCounterMode(display=False) as counter:
            half()
        counts.append(counter.get_total_flops())
    assert counts == [2 * 2 * 5 * 4 * 4] * 2


def test_a_checkpoint_is_computed_again_once_for_each_half():
    calls = []
    layers = nn.Sequential(linear(), nn.Tanh(), linear(), nn.LayerNorm(4).double())
    layers[0].register_forward_hook(lambda *_: calls.append(1))
    module = Do(lambda x, f: checkpoint(f, x, use_reentrant=False), layers)
    (graph,), (gradient,) = forward(module, [rows()])
    graph.input_grad(gradient)
    assert len(calls) == 2
    graph.weight_grad()
    assert len(calls) == 3


class Keep(torch.autograd.Function):
    """The identity, which saves a copy for backward. ``alive`` has a reference to each copy's
    memory."""

    alive: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        Keep.alive.append(weakref.ref(kept.untyped_storage()))
        ctx.save_for_backward(kept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] + 0 * ctx.saved_tensors[0]


@pytest.mark.parametrize("way", [whole, split])
@pytest.mark.parametrize("name", ["half frozen, one unused", "one weight above itself", "an input that is not used"])
def test_nothing_of_the_graph_stays_alive(way, name):
    module = nn.Sequential(MODULES[name], Do(Keep.apply), Do(lambda x, w: Product.apply(x, 2.0, w), w))
    gc.collect()
    gc.disable()  # it must not be needed
    try:
        Keep.alive = []
        way(copy.deepcopy(module) if way is split else module, [rows(), rows(seed=1)])
        assert len(Keep.alive) == 2 and not any(storage() is not None for storage in Keep.alive)
    finally:
        gc.enable()
        module.zero_grad()


def test_a_graph_that_is_dropped_after_i_is_gone_too():
    Keep.alive = []
    gc.collect()
    gc.disable()
    try:
        graphs, gradients = forward(nn.Sequential(linear(), Do(Keep.apply), linear()), [rows()])
        graphs[0].input_grad(gradients[0])
        assert Keep.alive[0]() is not None
        graphs.clear()
        assert Keep.alive[0]() is None
    finally:
        gc.enable()


def test_a_stage_without_weights_keeps_nothing_after_i():
    Keep.alive = []
    (graph,), (gradient,) = forward(nn.Sequential(linear().requires_grad_(False), Do(Keep.apply)), [rows()])
    graph.input_grad(gradient)
    assert Keep.alive[0]() is None
    graph.weight_grad()


@pytest.mark.parametrize("saved", [False, True])
def test_the_outputs_memory_is_kept_only_where_an_operation_saved_it(saved):
    x, layer = rows().requires_grad_(), linear()
    output = layer(enter_graph(x))
    output = output.exp() if saved else output + 1
    graph, memory = StageGraph(output, x), weakref.ref(output.untyped_storage())
    gradient = torch.ones_like(output)
    del output
    assert (memory() is not None) == saved
    graph.input_grad(gradient)
    assert (memory() is not None) == saved
    graph.weight_grad()
    del graph
    assert memory() is None
