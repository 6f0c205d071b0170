"""Odd optimizers, and odd things done to them, on all parameters sharded and on pieces."""

from __future__ import annotations

import copy
from collections import defaultdict

import torch
from odd_bed import MODEL, OPTIMIZER, batch, mse, net, use
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

SHARES = (OPTIMIZER, MODEL)
FRAGILE = 1e-6  # of optimizers that divide by small numbers


@use(*SHARES, tolerance=FRAGILE, ShardedModel="refused: looks at a parameter as a whole")
def trained_by_adafactor(way):
    way.train(net(), optimizer=(optim.Adafactor, {"lr": 0.01}))


@use(*SHARES, tolerance=0.05, ShardedModel="documented: Those that look at a matrix or at all parameters together")
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


@use(*SHARES, ShardedOptimizer="riddle")
def a_group_taken_away(way):
    module = net()
    model = way.wrap(module)
    groups = [{"params": [*module[0].parameters()]}, {"params": [*module[2:].parameters()]}]
    optimizer = way.optimizer(groups)
    way.steps(model, optimizer, n=1)
    optimizer.param_groups.pop(0)
    way.steps(model, optimizer, n=2)


@use(*SHARES, ShardedOptimizer="wrong")
def parameters_taken_out_of_a_group(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][2:]
    way.steps(model, optimizer, n=2)


@use(OPTIMIZER, ShardedOptimizer="wrong")
def a_parameter_replaced_in_its_group(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    torch.manual_seed(3)
    module[0].weight = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.randn(6, 4))
    way.steps(model, optimizer, n=2)


@use(*SHARES)
def the_state_cleared(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=2)
    optimizer.state = defaultdict(dict)
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
def a_plain_optimizers_state_loaded(way):
    model = way.wrap(net())
    plain = optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.3)
    way.steps(model, plain, n=2)
    optimizer = way.optimizer(model.parameters(), optim.AdamW, lr=0.5)
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    way.steps(model, optimizer, n=2)


@use(MODEL)
def sharded_state_of_a_new_optimizer(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)
    if way.name == MODEL:
        model.sharded_state(optimizer)
    way.steps(model, optimizer)


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


@use(OPTIMIZER, ShardedOptimizer="refused: parameter 0 is (6, 4) torch.float64 on cpu, and")
def double_after_the_optimizer(way):
    module = net().float()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    model.double()
    way.steps(model, optimizer)
