"""Odd optimizers, and odd things done to them, on all parameters sharded and on pieces."""

from __future__ import annotations

import copy
import io
from collections import defaultdict

import torch
from odd_bed import MODEL, OPTIMIZER, batch, mse, net, tokens, use
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

SHARES = (OPTIMIZER, MODEL)
FRAGILE = 1e-6  # of optimizers that divide by small numbers


def by(kind, **options):
    """Return a use: three steps of this optimizer."""

    def train(way):
        way.train(net(), optimizer=(kind, options))

    return train


def enter(name, function, *ways, **options):
    function.__name__ = function.__qualname__ = name
    globals()[name] = function
    use(*(ways or SHARES), **options)(function)


for kind, options in {
    optim.Adam: {"lr": 0.01, "amsgrad": True},
    optim.AdamW: {"lr": 0.01, "weight_decay": 0.1},
    optim.NAdam: {"lr": 0.01, "decoupled_weight_decay": True},
    optim.RAdam: {"lr": 0.01},
    optim.Adamax: {"lr": 0.01},
    optim.Adadelta: {"lr": 0.5},
    optim.Adagrad: {"lr": 0.05, "initial_accumulator_value": 0.1},
    optim.ASGD: {"lr": 0.05, "t0": 1},
    optim.Rprop: {"lr": 0.01},
    optim.RMSprop: {"lr": 0.01, "centered": True, "momentum": 0.5},
}.items():
    enter(f"trained_by_{kind.__name__}", by(kind, **options), tolerance=FRAGILE)

enter(
    "trained_by_adafactor",
    by(optim.Adafactor, lr=0.01),
    tolerance=FRAGILE,
    ShardedModel="refused: looks at a parameter as a whole",
)
enter("adamw_by_foreach", by(optim.AdamW, lr=0.01, foreach=True))
enter("adamw_fused", by(optim.AdamW, lr=0.01, fused=True))
enter("adamw_with_a_rate_in_a_tensor", by(optim.AdamW, lr=torch.tensor(0.01, dtype=torch.float64)))
enter(
    "sgd_that_maximises_with_nesterov",
    by(optim.SGD, lr=0.02, momentum=0.9, nesterov=True, maximize=True, weight_decay=0.1),
)


@use(*SHARES, tolerance=0.05, ShardedModel="refused: Muon looks at a parameter as a whole")
def trained_by_muon(way):
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    way.train(module, optimizer=(optim.Muon, {"lr": 0.1}))


@use(
    *SHARES,
    ShardedOptimizer="refused: optimizer_class is LBFGS, which steps all",
    ShardedModel="refused: looks at a parameter as a whole",
)
def trained_by_lbfgs(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), optim.LBFGS, lr=0.5, max_iter=3)
    x, y = way.rows(*batch())

    def closure():
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        way.sync()
        return loss

    for _ in range(2):
        optimizer.step(closure)


class Lars(optim.Optimizer):
    """A step of a tensor is scaled by its norm over its gradient's, as in LARS and LAMB."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * p.norm() / (p.grad.norm() + 1e-12) * p.grad


@use(*SHARES, ShardedModel="documented: Those that look at a matrix or at all parameters together")
def trained_by_lars(way):
    way.train(net(), optimizer=(Lars, {"lr": 0.05}))


class Sam(optim.Optimizer):
    """Climbs along the whole gradient, and steps by the gradient that is found there."""

    def __init__(self, params, lr=0.1, rho=0.1):
        super().__init__(params, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure=None):
        ps = [p for group in self.param_groups for p in group["params"]]
        norm = sum(p.grad.square().sum() for p in ps).sqrt() if ps else torch.tensor(1.0)
        climbs = [p.grad * self.defaults["rho"] / norm for p in ps]
        for p, climb in zip(ps, climbs, strict=True):
            p += climb
        with torch.enable_grad():
            loss = closure()
        for p, climb in zip(ps, climbs, strict=True):
            p -= climb
            p -= self.defaults["lr"] * p.grad
        return loss


@use(
    *SHARES,
    ShardedOptimizer="documented: which steps each parameter by itself",
    ShardedModel="documented: Those that look at a matrix or at all parameters together",
)
def trained_by_sam(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), Sam, lr=0.1)
    for step in range(3):
        x, y = way.rows(*batch(step))

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            way.sync()
            return loss

        closure()
        optimizer.step(closure)


@use(*SHARES)
def a_closure_that_computes_anew(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        x, y = way.rows(*batch(step))

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            way.sync()
            return loss

        way.note("loss", optimizer.step(closure).detach(), "mean")


@use(*SHARES)
def groups_of_their_own_rates(way):
    module = net()
    model = way.wrap(module)
    groups = [
        {"params": [*module[0].parameters()], "lr": 0.01},
        {"params": [*module[2].parameters()], "momentum": 0.5},
        {"params": [*module[4].parameters()], "weight_decay": 0.1},
    ]
    way.steps(model, way.optimizer(groups, optim.SGD, lr=0.1))


@use(*SHARES)
def a_group_added_when_a_layer_thaws(way):
    module = net()
    model = way.wrap(module)
    module[0].requires_grad_(False)
    optimizer = way.optimizer([*module[2].parameters(), *module[4].parameters()])
    way.steps(model, optimizer, n=2)
    module[0].requires_grad_(True)
    optimizer.add_param_group({"params": module[0].parameters(), "lr": 0.01})
    way.steps(model, optimizer, n=2)


@use(*SHARES, ShardedOptimizer="refused: which are not the 6 that were shared out")
def a_group_taken_away(way):
    module = net()
    model = way.wrap(module)
    groups = [{"params": [*module[0].parameters()]}, {"params": [*module[2:].parameters()]}]
    optimizer = way.optimizer(groups)
    way.steps(model, optimizer, n=1)
    optimizer.param_groups.pop(0)
    way.steps(model, optimizer, n=2)


@use(*SHARES, ShardedOptimizer="refused: which are not the 6 that were shared out")
def parameters_taken_out_of_a_group(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][2:]
    way.steps(model, optimizer, n=2)


@use(OPTIMIZER, ShardedOptimizer="refused: which are not the 6 that were shared out")
def a_parameter_replaced_in_its_group(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    torch.manual_seed(3)
    module[0].weight = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.randn(6, 4))
    way.steps(model, optimizer, n=2)


@use(*SHARES)
def a_schedule_of_rate_and_momentum(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), optim.AdamW, lr=0.01)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=5)
    for step in range(4):
        way.steps(model, optimizer, n=1, data=lambda _, step=step: batch(step))
        schedule.step()


@use(*SHARES)
def the_state_cleared(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=2)
    optimizer.state = defaultdict(dict)
    way.steps(model, optimizer, n=2)


@use(*SHARES)
def the_state_cleared_in_place(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=2)
    optimizer.state.clear()
    way.steps(model, optimizer, n=2)


@use(*SHARES, ShardedModel="refused: cannot be copied")
def a_deepcopy_of_the_optimizer(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=2)
    twins, twin = copy.deepcopy((model, optimizer))
    with torch.no_grad():
        way.note("output of the copy", twins(way.rows(batch()[0])), "rows")
    twin.step()


@use(OPTIMIZER)
def pickled_with_its_model(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=2)
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    again, another = torch.load(file, weights_only=False)
    way.modules[-1] = again
    way.steps(again, another, n=2)


@use(OPTIMIZER)
def a_plain_optimizers_state_loaded(way):
    model = way.wrap(net())
    plain = optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.3)
    way.steps(model, plain, n=2)
    optimizer = way.optimizer(model.parameters(), optim.AdamW, lr=0.5)
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    way.steps(model, optimizer, n=2)


@use(OPTIMIZER)
def the_full_state_loaded_by_a_plain_one(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), optim.AdamW, lr=0.02)
    way.steps(model, optimizer, n=2)
    full = optimizer.state_dict() if way.name == "plain" else optimizer.full_state_dict()
    plain = optim.AdamW(model.parameters(), lr=0.5)
    plain.load_state_dict(full)
    way.steps(model, plain, n=2)


def asked_for_its_state(kind, **options):
    """Return a use: the state of a new optimizer is asked for, nothing is loaded."""

    def train(way):
        model = way.wrap(net())
        optimizer = way.optimizer(model.parameters(), kind, **options)
        if way.name == MODEL:
            model.sharded_state(optimizer)
        way.steps(model, optimizer)

    return train


for kind, options in {
    optim.SGD: {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    optim.NAdam: {"lr": 0.01},
    optim.RAdam: {"lr": 0.01},
    optim.ASGD: {"lr": 0.05, "t0": 1},
    optim.Rprop: {"lr": 0.01},
    optim.Adagrad: {"lr": 0.05, "initial_accumulator_value": 0.1},
    optim.AdamW: {"lr": 0.01, "amsgrad": True},
}.items():
    enter(f"sharded_state_of_a_new_{kind.__name__}", asked_for_its_state(kind, **options), MODEL, tolerance=FRAGILE)


@use(*SHARES)
def hooks_of_the_optimizer(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    calls = []

    def halve(optimizer, args, kwargs):
        calls.append(1)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    way.steps(model, optimizer)
    way.note("calls", len(calls))


@use(*SHARES, ShardedOptimizer="wrong")
def hooks_of_all_optimizers(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    calls = []
    handle = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    try:
        way.steps(model, optimizer)
    finally:
        handle.remove()
    way.note("calls", len(calls))


@use(*SHARES)
def two_optimizers_of_one_model(way):
    """Muon's recipe: one optimizer for some parameters, another for the rest."""
    module = net()
    model = way.wrap(module)
    one = way.optimizer([module[0].weight, module[2].weight], optim.SGD, lr=0.1)
    two = way.optimizer([module[0].bias, module[2].bias, *module[4].parameters()], optim.AdamW, lr=0.01)
    for step in range(3):
        model.zero_grad()
        x, y = way.rows(*batch(step))
        way.backward(mse(model(x), y))
        way.sync()
        way.step(one)
        two.step()


@use(OPTIMIZER)
def parameters_swapped_by_data_before_the_step(way):
    module = net()

    def swap(model, step):
        for p in module.parameters():
            p.data = p.data.clone() * 0.9

    way.train(module, each=swap)


@use(OPTIMIZER)
def weights_replaced_by_assignment_before_the_step(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    torch.manual_seed(3)
    module.load_state_dict({n: torch.randn_like(p) for n, p in module.named_parameters()}, assign=True)
    way.steps(model, optimizer, n=2)


@use(OPTIMIZER, ShardedOptimizer="refused: parameter 0 is (6, 4) torch.float64 on cpu, and")
def double_after_the_optimizer(way):
    module = net().float()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    model.double()
    way.steps(model, optimizer)


@use(OPTIMIZER)
def no_gradient_for_some_in_some_steps(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters(), optim.AdamW, lr=0.01, weight_decay=0.1)

    def drop(model, step):
        if step == 1:
            for p in module[0].parameters():
                p.grad = None

    way.steps(model, optimizer, after=drop)


@use(OPTIMIZER)
def sparse_adam(way):
    module = nn.Embedding(9, 9, sparse=True)
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters(), optim.SparseAdam, lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        ids, target = tokens(step)
        way.backward(nn.functional.cross_entropy(model(ids).mean(1), target))  # the whole batch on each rank
        way.step(optimizer)
