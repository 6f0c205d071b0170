"""Odd modules and odd steps under the data-parallel wrappers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from odd_bed import use
from odd_ways import (
    BUCKETS,
    DATA,
    MODEL,
    WRAPPED,
    batch,
    mse,
    net,
    tokens,
)
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Tied(nn.Module):
    """An embedding whose weight is the head's too: a layer's, or used by hand."""

    def __init__(self, by_hand=False):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.head = None if by_hand else nn.Linear(4, 9, bias=False)
        if self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        h = self.middle(self.embedding(ids).mean(1)).tanh()
        return F.linear(h, self.embedding.weight) if self.head is None else self.head(h)


@use(*DATA)
def a_head_tied_to_the_embedding(way):
    way.train(Tied(), data=tokens, loss=F.cross_entropy)


@use(*DATA, ShardedModel="refused: where it is this rank's piece")
def a_tied_head_written_by_hand(way):
    way.train(Tied(by_hand=True), data=tokens, loss=F.cross_entropy)


@use(*WRAPPED, BucketedDataParallel="refused: when the module was", ShardedModel="refused: 0.weight of a ShardedModel")
def weight_norm_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    parametrizations.weight_norm(module[0])
    way.steps(model)


@use(*WRAPPED, BucketedDataParallel="refused: is a copy of a wrapper", ShardedModel="refused: cannot be copied")
def a_deepcopy_that_trains(way):
    twin = copy.deepcopy(way.wrap(net()))
    x, y = way.rows(*batch())
    mse(twin(x), y).backward()


@use(*DATA)
def weights_swapped_by_data_for_evaluation(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(3):
        way.steps(model, optimizer, n=1)
        for name, p in model.named_parameters():
            shadow[name].lerp_(p.detach(), 0.5)
        kept = {name: p.data for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.data = shadow[name]
        with torch.no_grad():
            way.note("output of the average", model(way.rows(batch(step)[0])), "rows")
        for name, p in model.named_parameters():
            p.data = kept[name]


@use(*DATA)
def parameters_from_a_vector(way):
    module = net()

    def shrink(model, step):
        vector = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(vector * 0.9, model.parameters())

    way.train(module, each=shrink)


@use(*DATA, BucketedDataParallel="refused: when the module was", ShardedModel="refused: when the module was wrapped")
def frozen_before_and_unfrozen_later(way):
    module = net()
    module[0].requires_grad_(False)
    way.train(module, each=lambda model, step: module[0].requires_grad_(step > 0))


@use(*DATA)
def frozen_after_two_steps_and_back(way):
    module = net()
    way.train(module, each=lambda model, step: module[0].requires_grad_(step != 1))


@use(*DATA)
def the_turns_of_a_gan(way):
    maker, critic = way.wrap(net()), way.wrap(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)))
    makers, critics = way.optimizer(maker.parameters()), way.optimizer(critic.parameters())
    for step in range(6):
        x, y = way.rows(*batch(step))
        trains = step % 2 == 0
        (critics if trains else makers).zero_grad()
        critic.requires_grad_(trains)
        way.backward(critic(maker(x).detach()).mean() - critic(y).mean() if trains else -critic(maker(x)).mean())
        way.sync()
        way.step(critics if trains else makers)
    critic.requires_grad_(True)


@use(*DATA)
def gradient_surgery_over_two_backward_passes(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        found = []
        x, y = way.rows(*batch(step))
        for factor in (1, 2):
            optimizer.zero_grad()
            way.backward(mse(factor * model(x), y))
            way.sync()
            found.append([p.grad for p in model.parameters()])
        for p, first, second in zip(model.parameters(), *found, strict=True):
            p.grad = first - 0.5 * second
        way.step(optimizer)


@use(*DATA, BucketedDataParallel="refused: there is no gradient to", ShardedModel="refused: 0.weight of a")
def gradients_taken_by_autograd_grad(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        gradients = torch.autograd.grad(mse(model(x), y), [*model.parameters()])
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient


@use(*DATA, ShardedModel="refused: cannot be differentiated again")
def a_gradient_penalty(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        x.requires_grad_()
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        way.backward(mse(output, y) + slope.square().sum(1).mean())


class Checkpointed(nn.Module):
    def __init__(self, reentrant, times=1):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)
        self.reentrant, self.times = reentrant, times

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.last(x)


@use(*DATA, BucketedDataParallel="refused: became ready twice")
def a_reentrant_checkpoint_around_a_shared_block(way):
    way.train(Checkpointed(reentrant=True, times=2))


@use(*DATA)
def a_checkpoint_around_the_whole_wrapper(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(lambda x: checkpoint(model, x, use_reentrant=False), optimizer)


@use(*WRAPPED, ShardedModel="refused: functional_call gives 0.weight of a ShardedModel")
def functional_call_under_no_grad(way):
    model = way.wrap(net())
    halves = {name: p.detach() / 2 for name, p in model.named_parameters()}
    with torch.no_grad():
        way.note("output of halves", torch.func.functional_call(model, halves, (way.rows(batch()[0]),)), "rows")
    way.steps(model)


@use(BUCKETS, MODEL, by_shards=True, ShardedModel="refused: 0.weight of a ShardedModel has its gradient from")
def per_task_steps_of_maml(way):
    def adapted(model, x, y):
        named = dict(model.named_parameters())
        inner = torch.autograd.grad(model(x).square().mean(), [*named.values()], create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(named.items(), inner, strict=True)}
        return mse(torch.func.functional_call(model, fast, (x,)), y)

    way.steps(way.wrap(net()), through=adapted)


@use(*WRAPPED, ShardedModel="refused: torch.func cannot")
def per_sample_gradients_by_vmap(way):
    model = way.wrap(net())
    named = {name: p.detach() for name, p in model.named_parameters()}
    loss = lambda p, row, y: mse(torch.func.functional_call(model, p, (row[None],)), y[None])  # noqa: E731
    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(named, *way.rows(*batch()))
    for gradient in gradients.values():
        way.note("gradients of rows", gradient, "rows")


@use(*WRAPPED)
def compiled_after_wrapping(way):
    model = way.wrap(net())
    way.steps(torch.compile(model, backend="aot_eager"), way.optimizer(model.parameters()))


@use(*WRAPPED, ShardedModel="refused: the module is compiled")
def compiled_in_place_before_wrapping(way):
    module = net()
    module.compile(backend="aot_eager")
    way.train(module)
