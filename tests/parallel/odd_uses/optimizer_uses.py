"""Odd optimizers, and odd things done to them, on all parameters sharded and on pieces."""

from __future__ import annotations

from odd_bed import use
from odd_ways import (
    MODEL,
    SHARES,
    batch,
    mse,
    net,
)
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

FRAGILE = 1e-6  # of optimizers that divide by small numbers


@use(*SHARES, tolerance=FRAGILE, ShardedModel="refused: looks at a parameter as a whole")
def trained_by_adafactor(way):
    way.train(net(), optimizer=(optim.Adafactor, {"lr": 0.01}))


@use(*SHARES, tolerance=0.05, ShardedModel="refused: Muon looks at a parameter as a whole, and these")
def trained_by_muon(way):
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    way.train(module, optimizer=(optim.Muon, {"lr": 0.1}))


@use(*SHARES, ShardedOptimizer="refused: optimizer_class is LBFGS,", ShardedModel="refused: looks at a parameter as a")
def trained_by_lbfgs(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), optim.LBFGS, lr=0.5)
    x, y = way.rows(*batch())

    def closure():
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        way.sync()
        return loss

    for _ in range(2):
        optimizer.step(closure)


@use(*SHARES, ShardedOptimizer="refused: param_groups has 4 parameters, which are not the")
def parameters_taken_out_of_a_group(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][2:]
    way.steps(model, optimizer, n=2)


@use(MODEL)
def sharded_state_of_a_new_optimizer(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)
    if way.name == MODEL:
        model.sharded_state(optimizer)
    way.steps(model, optimizer)


@use(*SHARES, ShardedOptimizer="documented: A hook of all optimizers")
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
