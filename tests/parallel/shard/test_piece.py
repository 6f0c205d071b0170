"""Pieces of a ShardedModel: what treats each number by itself is right, as in one process; what
would need a parameter whole is refused in a sentence, on every rank."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from labkit import dp
from labkit.shard import ShardedModel

pytestmark = task("shard.2")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3)).double()


def rows(rank: int) -> torch.Tensor:
    return torch.linspace(-1, 1 + rank, 12, dtype=torch.float64).view(3, 4)


def backward(model: nn.Module, finish: bool = True) -> None:
    """A backward pass of this rank's rows; of those of both ranks, if the model is plain."""
    if isinstance(model, ShardedModel):
        model(rows(dist.get_rank())).square().mean().backward()
        if finish:
            model.finish_gradient_synchronization()
    else:
        torch.stack([model(rows(rank)).square().mean() for rank in range(2)]).mean().backward()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    if isinstance(model, ShardedModel):
        return model.full_parameters()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# --- refused --------------------------------------------------------------------------------------


class Penalty(nn.Module):
    """A net that uses a weight outside its own layer."""

    def __init__(self, use: Callable[[Any, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.embedding, self.use = nn.Embedding(9, 4), use
        self.middle = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.use(self, self.middle(self.embedding(tokens)))


def tied(model: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, model.embedding.weight)


def uses(use: Callable[[Any, torch.Tensor], torch.Tensor], grad: bool = True) -> Callable[[], object]:
    def call() -> None:
        with torch.set_grad_enabled(grad):
            ShardedModel(Penalty(use))(torch.arange(6))

    return call


def after_backward(call: Callable[[ShardedModel], object], finish: bool = True) -> Callable[[], object]:
    def in_rank() -> None:
        model = ShardedModel(net())
        backward(model, finish)
        call(model)

    return in_rank


def with_loss(term: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
    return after_backward(lambda model: sum(term(p) for p in model.parameters()))


def stepped_by(optimizer: Callable[..., Any]) -> Callable[[], object]:
    """A step of the matrices, which are pieces: they keep the number of their dimensions."""
    return after_backward(lambda model: optimizer([p for p in model.parameters() if p.dim() == 2]).step(lambda: 0.0))


def penalty_on_gradient() -> None:
    x = rows(0).requires_grad_()
    torch.autograd.grad(ShardedModel(net())(x).sum(), x, create_graph=True)


class OneOrTheOther(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.b if dist.get_rank() else self.a)(x)


def of_this_rank(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), layers[dist.get_rank()])


OUTSIDE = "embedding.weight of a ShardedModel is used outside its own layer's forward pass, where it is this rank's piece, 1-D"
NORM = "is this rank's piece, whose norm is not that of all gradients: call clip_grad_norm_ of the ShardedModel"
COPY = "a ShardedModel cannot be copied: the copy's layers would not be gathered. To keep an average"
SHARDED = "0.weight is sharded already: it is in a ShardedModel, which has its own piece of each parameter on each rank"

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "torch's clipping": (after_backward(lambda model: clip_grad_norm_(model.parameters(), 1.0)), NORM),
    "its norm of gradients": (after_backward(lambda m: get_total_norm([p.grad for p in m.parameters()])), NORM),
    "its norm of weights": (after_backward(lambda model: get_total_norm(model.parameters())), NORM),
    "a tied head by hand": (uses(tied), OUTSIDE),
    "a tied head by hand, in evaluation": (uses(tied, grad=False), OUTSIDE),
    "a shape": (uses(lambda model, x: x / model.embedding.weight.shape[0]), OUTSIDE),
    "an L2 penalty": (with_loss(lambda p: p.square().sum()), "the optimizer's weight_decay"),
    "a sum of norms": (with_loss(lambda p: p.norm()), "the optimizer's weight_decay"),
    "a gradient penalty": (
        penalty_on_gradient,
        "with create_graph=True: the gradient through a ShardedModel cannot be",
    ),
    "torch.func": (
        after_backward(lambda model: torch.func.grad(lambda x: model(x).sum())(rows(0))),
        "torch.func cannot differentiate through a ShardedModel",
    ),
    "max_norm": (
        lambda: ShardedModel(nn.Sequential(nn.Embedding(9, 4, max_norm=0.1)))(torch.arange(4)),
        "0.weight was changed in place in its layer's forward pass (as max_norm does), which is lost",
    ),
    "weights drawn later": (
        after_backward(lambda model: nn.init.xavier_uniform_(model.module[0].weight)),
        "0.weight of a ShardedModel is this rank's piece, 1-D, and cannot be used as the whole one",
    ),
    "Muon": (stepped_by(torch.optim.Muon), "Muon looks at a parameter as a whole, and these are this rank's pieces"),
    "LBFGS": (stepped_by(torch.optim.LBFGS), "LBFGS looks at a parameter as a whole, and these are this rank's pieces"),
    "Adafactor": (stepped_by(torch.optim.Adafactor), "average_gradients with a ShardedOptimizer"),
    "parameters that overlap": (
        lambda: ShardedModel(overlapping()),
        "0.weight and 1.weight overlap in memory, so neither",
    ),
    "autograd.grad": (
        after_backward(lambda model: torch.autograd.grad(model(rows(0)).sum(), [*model.parameters()])),
        "0.weight of a ShardedModel has its gradient from backward() alone",
    ),
    "a whole gradient": (
        after_backward(lambda model: setattr(model.module[0].weight, "grad", torch.ones(4, 4).double())),
        "0.weight of a ShardedModel is this rank's piece, 1-D, and cannot be used as the whole one",
    ),
    "weight_norm later": (
        after_backward(lambda model: nn.utils.parametrizations.weight_norm(model.module[0])),
        "0.weight of a ShardedModel is this rank's piece, 1-D, and cannot be used as the whole one",
    ),
    "functional_call with pieces": (
        after_backward(lambda model: with_pieces(model, torch.no_grad())),
        "as pieces are, and it takes whole parameters: make them of full_parameters()",
    ),
    "functional_call with pieces, to train": (
        after_backward(lambda model: with_pieces(model, torch.enable_grad())),
        "functional_call gives 0.weight of a ShardedModel as (",
    ),
    "a plain state": (
        after_backward(lambda model: model.module.load_state_dict(net().state_dict())),
        "0.weight is (4, 4) in the state to load, and (",
    ),
    "a plain state to assign": (
        after_backward(lambda model: model.module.load_state_dict(model.full_parameters(), assign=True)),
        "load its own state_dict(), or load a plain one into the plain model and shard that",
    ),
    "clipping too early": (
        after_backward(lambda model: clip_grad_value_(model.parameters(), 1.0), finish=False),
        "0.weight of a ShardedModel has no gradient yet, since the gradients of the last backward pass are not averaged",
    ),
    "a step too early": (
        after_backward(lambda model: torch.optim.SGD(model.parameters()).step(), finish=False),
        "not averaged yet: call finish_gradient_synchronization() after backward()",
    ),
    "AveragedModel": (after_backward(AveragedModel), COPY),
    "deepcopy": (after_backward(copy.deepcopy), COPY),
    "deepcopy of the module": (after_backward(lambda model: copy.deepcopy(model.module)), COPY),
    "pickle": (after_backward(lambda model: torch.save(model, io.BytesIO())), COPY),
    "whole numbers as data": (
        after_backward(lambda model: setattr(model.module[0].weight, "data", torch.zeros(4, 4).double())),
        "and cannot become (4, 4) torch.float64 on cpu: give it a piece like it",
    ),
    "another dtype": (after_backward(lambda model: model.module.half()), "torch.float16 on cpu"),
    "sharding it again": (after_backward(ShardedModel), SHARDED),
    "buckets around it": (
        after_backward(lambda model: dp.BucketedDataParallel(nn.Sequential(model))),
        "sharded already",
    ),
    "DDP": (after_backward(nn.parallel.DistributedDataParallel), SHARDED),
    "DDP around a part": (
        after_backward(lambda model: nn.parallel.DistributedDataParallel(nn.Sequential(model, nn.Linear(3, 1)))),
        SHARDED,
    ),
    "average_gradients": (after_backward(dp.average_gradients), SHARDED),
    "gather_scatter_gradients": (after_backward(dp.gather_scatter_gradients), SHARDED),
    "another layer on each rank": (
        lambda: ShardedModel(OneOrTheOther())(torch.ones(2, 4)),
        "rank 1 uses b where rank 0 uses a, and they were mixed",
    ),
    "another class on each rank": (
        lambda: ShardedModel(of_this_rank(nn.Tanh(), nn.ReLU())),
        "rank 1 has a different model from rank 0: it has 1, a ReLU() where rank 0 has 1, a Tanh()",
    ),
    "another option on each rank": (
        lambda: ShardedModel(of_this_rank(nn.Dropout(0.1), nn.Dropout(0.2))),
        "it has 1, a Dropout(p=0.2, inplace=False) where rank 0 has 1, a Dropout(p=0.1, inplace=False)",
    ),
    "sparse gradients in a block": (
        lambda: ShardedModel(nn.Sequential(nn.Sequential(nn.Embedding(4, 2, sparse=True))), nn.Sequential),
        "are sparse, expected dense ones",
    ),
    "a head replaced later": (
        after_backward(lambda model: (setattr(model.module, "3", nn.Linear(4, 3).double()), backward(model))),
        "3 is another Linear, and it was a Linear when the module was wrapped",
    ),
    "compiled before": (lambda: ShardedModel(torch.compile(net(), backend="eager")), "shard the plain one"),
    "compiled later": (
        after_backward(lambda model: (model.module.compile(backend="eager"), backward(model))),
        "the module is compiled, which keeps the memory of weights that comes and goes here",
    ),
    "unfrozen later": (
        lambda: unfrozen_later(),
        "0.weight requires a gradient, and it was frozen when the module was wrapped",
    ),
}


def overlapping() -> nn.Module:
    row = torch.zeros(16)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    model[0].weight, model[1].weight = nn.Parameter(row.view(4, 4)), nn.Parameter(row[:8].view(2, 4))
    return model


def with_pieces(model: ShardedModel, mode: Any) -> None:
    halves = {name: p.detach() / 2 for name, p in model.named_parameters()}
    with mode:
        torch.func.functional_call(model, halves, (rows(0),))


def unfrozen_later() -> None:
    module = net()
    module[0].requires_grad_(False)
    model = ShardedModel(module)
    module[0].requires_grad_(True)
    backward(model)


def refusals() -> list[tuple[str, str]]:
    """Return what each of these raises, with the weights that a model has kept through all."""
    found = []
    for name, (call, _) in REFUSED.items():
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            call()
        found.append((name, str(caught.value)))
    return found


def test_what_needs_a_parameter_whole_is_refused_in_a_sentence_on_every_rank(ranks):
    for found in ranks(2).run(refusals).values:
        assert {name: message for name, message in found if REFUSED[name][1] not in message} == {}


def kept_through_a_second_wrapper() -> bool:
    model = ShardedModel(net())
    before = weights(model)
    for wrap in (ShardedModel, dp.BucketedDataParallel, nn.parallel.DistributedDataParallel):
        with pytest.raises(ValueError):
            wrap(model)
    backward(model)  # it still trains
    return all(torch.equal(before[name], each) for name, each in weights(model).items())


def test_a_second_wrapper_costs_no_weights(ranks):
    assert ranks(2).run(kept_through_a_second_wrapper).values == [True, True]


# --- right, as in one process ---------------------------------------------------------------------


@torch.no_grad()
def swap_in_an_average(model: nn.Module) -> None:
    average = [p.detach().clone() for p in model.parameters()]
    for own, p in zip(average, model.parameters(), strict=True):
        own.lerp_(p * 3, 0.5)
    for own, p in zip(average, model.parameters(), strict=True):
        p.data = own


@torch.no_grad()
def halve_as_vector(model: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()) / 2, model.parameters())


def freeze(*layers: int, then: bool = False) -> Callable[[nn.Module], object]:
    def change(model: nn.Module) -> None:
        module: Any = model.module if isinstance(model, ShardedModel) else model
        for layer in layers:
            module[layer].requires_grad_(False).requires_grad_(then)

    return change


def freeze_weight_alone(model: nn.Module) -> None:
    freeze(0, then=True)(model)
    next(model.parameters()).requires_grad_(False)


ALLOWED: dict[str, Callable[[nn.Module], object]] = {  # beside what odd_uses has
    "an average as data": swap_in_an_average,
    "frozen units and what is replicated": freeze(0, 2),
    "a frozen weight beside a trained bias": freeze_weight_alone,
}


def clip_values(model: nn.Module) -> None:
    clip_grad_value_(model.parameters(), 1e-3)


def trained(
    model: nn.Module, change: Callable[[nn.Module], object], of_gradients: bool = False
) -> dict[str, torch.Tensor]:
    """Three turns of three steps, with weight decay, and a change after the first, or each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3)
    for turn in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            if of_gradients:
                change(model)
            optimizer.step()
        freeze(0, 2, then=True)(model)
        if turn == 0:
            change(model)
    return weights(model)


def test_what_one_may_do_to_a_sharded_model_trains_as_in_one_process(ranks):
    def each(*change: Any) -> dict[str, torch.Tensor]:
        return trained(ShardedModel(net()), *change)

    for name, change in [*((name, (change,)) for name, change in ALLOWED.items()), ("clip", (clip_values, True))]:
        right = trained(net(), *change)
        for found in ranks(2).run(each, *change).values:
            torch.testing.assert_close(found, right, msg=lambda text, name=name: f"{name}: {text}")


def test_a_checkpoint_around_it_and_functional_call_of_whole_parameters_are_right(ranks):
    def in_rank() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        model = ShardedModel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            checkpoint(model, rows(dist.get_rank()), use_reentrant=False).square().mean().backward()
            model.finish_gradient_synchronization()
            optimizer.step()
            optimizer.zero_grad()
        halves = {name: p / 2 for name, p in model.full_parameters().items()}
        with torch.no_grad():
            return weights(model), torch.func.functional_call(model.module, halves, (rows(0),))

    alone = net()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(2):
        backward(alone)
        optimizer.step()
        optimizer.zero_grad()
    trained_alone = weights(alone)
    halve_as_vector(alone)
    for found, output in ranks(2).run(in_rank).values:
        torch.testing.assert_close(found, trained_alone)
        torch.testing.assert_close(output, alone(rows(0)).detach())


class Positions(nn.Module):
    """A layer that returns a part of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4))

    def forward(self, n: int) -> torch.Tensor:
        return self.table[:n]


class Lookup(nn.Module):
    """A block of which one weight's gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4))

    def forward(self, n: int) -> torch.Tensor:
        return nn.functional.embedding(torch.arange(n), self.table, sparse=True)


class Positioned(nn.Module):
    def __init__(self, positions: type[nn.Module]) -> None:
        super().__init__()
        self.net, self.positions = net(), positions()
        self.words = nn.Embedding(3, 4, sparse=True).double()  # replicated
        nn.utils.parametrizations.weight_norm(self.net[3])
        self.register_buffer("mask", torch.tensor([3, 1], dtype=torch.int16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        like = x.to(self.net[0].weight.dtype)  # its dtype may be asked for
        return self.net(like + self.positions(len(x)) + self.words(torch.tensor([0, 1, 0])))


@pytest.mark.parametrize(
    ("positions", "compiled"), [(Positions, ""), (Lookup, ""), (Positions, "after"), (Lookup, "in place")]
)
def test_layers_that_return_their_weights_and_sparse_gradients_are_right_and_so_is_a_compiled_model(
    positions, compiled, ranks
):
    def plain() -> nn.Module:
        torch.manual_seed(1)
        return Positioned(positions)

    def in_rank() -> dict[str, torch.Tensor]:
        model = ShardedModel(plain(), (nn.Linear, Positions, Lookup))
        if compiled == "in place":
            model.compile(backend="eager")
        called = torch.compile(model, backend="eager") if compiled == "after" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        called(rows(dist.get_rank())).square().mean().backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        return weights(model)

    model = plain()
    backward(model)
    for parameter in model.parameters():  # plain SGD takes sparse gradients as well
        parameter.data.sub_(parameter.grad.to_dense(), alpha=0.1)
    for found in ranks(2).run(in_rank).values:
        torch.testing.assert_close(found, weights(model))


# --- what overflows -------------------------------------------------------------------------------


def scaled(model: nn.Module, how: str) -> tuple[float, list[bool], float]:
    """A step of which row 0's gradient overflows, then a usual one: scale, rows moved, scale."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=how == "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1)
    before = weights(model)["0.weight"]
    for factor in (1e38, 1.0):
        optimizer.zero_grad()
        y = model(torch.full((2, 4), 100.0))
        scaler.scale((y * torch.tensor([factor, 1.0, 1.0, 1.0])).sum()).backward()
        getattr(model, "finish_gradient_synchronization", lambda: None)()
        if how == "unscale_":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if factor > 1:
            scale, moved = scaler.get_scale(), (weights(model)["0.weight"] != before).any(dim=1).tolist()
    return scale, moved, scaler.get_scale()


@pytest.mark.parametrize("how", ["unscale_", "fused"])
def test_a_scaler_decides_as_in_one_process_where_one_rank_alone_has_the_overflow(how, ranks):
    def linear() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4, bias=False))

    right = scaled(linear(), how)
    assert right == (0.5, [False] * 4, 1.0)
    assert ranks(2).run(lambda: scaled(ShardedModel(linear()), how)).values == [right] * 2


def test_without_a_scaler_what_overflows_stays_in_its_row(ranks):
    def gradients(model: nn.Module) -> list[torch.Tensor]:
        y = model(torch.ones(2, 4, dtype=torch.float64))
        (y * torch.tensor([1.0, float("nan"), 1.0])).sum().backward()
        getattr(model, "finish_gradient_synchronization", lambda: None)()
        return [p.grad.detach().clone() for p in [*model.parameters()][-2:]]

    row = torch.cat([each.flatten() for each in gradients(net())])
    pieces = nn.functional.pad(row, (0, len(row) % 2)).chunk(2)
    for rank, found in enumerate(ranks(2).run(lambda: gradients(ShardedModel(net()))).values):
        torch.testing.assert_close(torch.cat(found), pieces[rank][: sum(map(len, found))], equal_nan=True)


# --- a state that was asked for, and not loaded ---------------------------------------------------

ASKED: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "NAdam": {},
    "Rprop": {},
    "ASGD": {"lr": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    "Adagrad": {"initial_accumulator_value": 0.5},
}


def after_reading_state(name: str, times: int) -> tuple[dict[str, torch.Tensor], bool]:
    """Train, after a state was asked for so often. Return weights, and whether it follows them."""
    model = ShardedModel(net())
    optimizer = vars(torch.optim)[name](model.parameters(), **ASKED[name])
    state: dict[str, Any] = {}
    for _ in range(times):
        state = model.sharded_state(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    later = model.sharded_state(optimizer)
    return weights(model), all(torch.equal(_local(state[key]), _local(later[key])) for key in state)


def _local(value: Any) -> torch.Tensor:
    return value.to_local() if hasattr(value, "to_local") else value


def test_a_new_optimizer_trains_as_if_its_state_had_not_been_asked_for_and_the_state_follows(ranks):
    for name, options in ASKED.items():
        plain = net()
        optimizer = vars(torch.optim)[name](plain.parameters(), **options)
        for _ in range(3):
            optimizer.zero_grad()
            backward(plain)
            optimizer.step()
        for times in (1, 2):
            for found, follows in ranks(2).run(after_reading_state, name, times).values:
                torch.testing.assert_close(found, weights(plain), msg=lambda text, name=name: f"{name}: {text}")
                assert follows, name
