"""Uses that go wrong on purpose: the bed has to tell them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from odd_bed import net
from torch import nn


def a_sum_for_a_mean(way):
    way.train(
        net(), after=lambda model, step: [p.grad.mul_(1 if way.name == "plain" else 2) for p in model.parameters()]
    )


def a_step_that_a_rank_skips(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer)
    if way.name == "plain" or dist.get_rank() == 0:
        optimizer.step()


def matrices_that_do_not_fit(way):
    way.train(nn.Sequential(nn.Linear(4, 3), nn.Linear(2 if way.name != "plain" else 3, 2)))


def a_collective_that_a_rank_skips(way):
    if way.name != "plain" and dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
