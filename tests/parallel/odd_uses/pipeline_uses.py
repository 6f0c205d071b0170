"""Odd stages, losses and steps of a ScheduledPipeline."""

from __future__ import annotations

import contextlib

import torch.nn.functional as F
from odd_bed import use
from odd_ways import (
    SCHEDULED,
    Do,
    batch,
    by_token,
    mse,
    padded,
    tokens,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.schedule import one_f_one_b, zero_bubble_h1


def two(last=None, first=None):
    return [first or nn.Sequential(nn.Linear(4, 5), nn.Tanh()), last or nn.Linear(5, 2)]


def train(way, stages, loss=mse, schedule=None, data=batch, after=None):
    steps(way, way.pipeline(stages, schedule or one_f_one_b(2, 4), loss), way.own_optimizer(), data, after=after)


def steps(way, pipeline, optimizer, data=batch, n=3, after=None):
    for step in range(n):
        optimizer.zero_grad()
        way.count(pipeline.step(*data(step)))
        if after:
            after(step)
        way.step(optimizer)


@use(SCHEDULED, ScheduledPipeline="documented: A weight that stages on two ranks share is two weights")
def a_weight_tied_between_two_ranks(way):
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embedding.weight
    train(way, [nn.Sequential(embedding, Do(lambda m, x: x.mean(1).tanh())), head], F.cross_entropy, data=tokens)


@use(SCHEDULED, ScheduledPipeline="refused: expected a mean over rows")
def a_sum_as_loss(way):
    train(way, two(), nn.MSELoss(reduction="sum"))


@use(SCHEDULED, ScheduledPipeline="refused: rank 1 cannot take part in the pipeline, so no")
def a_mean_over_tokens_with_padding(way):
    train(way, [nn.Embedding(9, 4), nn.Linear(4, 9)], by_token, data=padded)


@use(SCHEDULED, ScheduledPipeline="documented: torch.utils.checkpoint needs ``use_reentrant=False``")
def a_reentrant_checkpoint_in_a_stage_with_i_and_w(way):
    train(
        way,
        two(Do(lambda m, x: checkpoint(m.last, x, use_reentrant=True), last=nn.Linear(5, 2))),
        schedule=zero_bubble_h1(2, 4),
    )


@use(SCHEDULED, ScheduledPipeline="documented: Hooks of a parameter run for each micro-batch")
def a_parameter_hook_that_clamps(way):
    stages = two()
    stages[0][0].weight.register_hook(lambda gradient: gradient.clamp(-0.005, 0.005))
    train(way, stages)


@use(SCHEDULED, ScheduledPipeline="documented: What looks at all gradients")
def clipped_by_each_rank(way):
    train(way, two(), after=lambda step: nn.utils.clip_grad_norm_([p for m in way.own for p in m.parameters()], 0.05))


@use(SCHEDULED)
def a_refused_first_step_and_then_a_good_one(way):
    pipeline = way.pipeline(two(), one_f_one_b(2, 4), mse)
    optimizer = way.own_optimizer()
    if way.name != "plain":
        x = batch()[0].requires_grad_()
        with contextlib.suppress(ValueError):
            pipeline.step(x[:5], batch()[1][:5])
    steps(way, pipeline, optimizer, n=2)


@use(SCHEDULED, ScheduledPipeline="refused: an earlier step of this ScheduledPipeline has fa")
def an_exception_in_a_stage_and_a_step_after_it(way):
    def fail_once(m, x):
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError("out of memory")
        return m.last(x)

    calls = []
    pipeline = way.pipeline(two(Do(fail_once, last=nn.Linear(5, 2))), one_f_one_b(2, 4), mse)
    for step in range(2):
        with contextlib.suppress(MemoryError):
            pipeline.step(*batch(step))
