"""Odd uses of column- and row-parallel layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from odd_bed import use
from odd_ways import (
    TENSOR,
    batch,
)
from torch import nn


class Block(nn.Module):
    """Column, activation, row; ``function`` may do something else with them."""

    def __init__(self, way, first=None, second=None, function=None, width=6, bias=True):
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.column = way.column(first or nn.Linear(4, width, bias=bias))
        self.row = way.row(second or nn.Linear(width, 2, bias=bias))
        self.function = function

    def forward(self, x):
        if self.function:
            return self.function(self, x)
        return self.row(F.gelu(self.column(self.before(x))))


@use(TENSOR)
def frozen_layers_of_lora(way):
    first, second = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 2).requires_grad_(False)
    way.train(Block(way, first, second), optimizer=(torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}))


class Scaled(nn.Linear):
    """A subclass with a forward of its own."""

    def __init__(self, *shape):
        super().__init__(*shape)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return super().forward(x) * self.scale


class Renamed(nn.Linear):
    """A subclass without a forward of its own."""


@use(TENSOR, ColumnParallelLinear="refused: expected an nn.Linear")
def a_subclass_with_a_forward_of_its_own(way):
    way.train(Block(way, Scaled(4, 6), Scaled(6, 2)))


@use(TENSOR)
def a_subclass_that_adds_nothing(way):
    way.train(Block(way, Renamed(4, 6), Renamed(6, 2)))


@use(TENSOR, ColumnParallelLinear="refused: expected an nn.Linear")
def a_layer_with_hooks(way):
    first = nn.Linear(4, 6)
    first.register_forward_hook(lambda m, inputs, output: output * 2)
    way.train(Block(way, first))


@use(TENSOR, ColumnParallelLinear="documented: a parameter that is used between the two layers")
def a_parameter_between_column_and_row(way):
    block = Block(way, function=lambda m, x: m.row((m.column(m.before(x)) * m.scale).tanh()))
    block.scale = nn.Parameter(torch.tensor(1.5))
    way.train(block)


@use(TENSOR, ColumnParallelLinear="refused: torch.func cannot")
def a_jacobian_by_torch_func(way):
    block = way.wrap(Block(way))
    way.note("jacobian", torch.func.jacrev(block)(way.rows(batch()[0])[0]))


@use(TENSOR, tolerance=0.02)
def both_under_autocast(way):
    block = way.wrap(Block(way).float())
    with torch.autocast("cpu", torch.bfloat16):
        x = way.rows(batch()[0]).float()
        hidden = block.column(block.before(x))
        output = block.row(hidden)
    for name, value in (("hidden", hidden), ("output", output)):
        way.note(f"dtype of {name}", float(value.dtype == torch.bfloat16))
    way.note("output", output.double())
    way.backward(output.float().square().mean())
    way.note_all("gradient", way.gradients)


@use(TENSOR)
def both_compiled(way):
    block = way.wrap(Block(way))
    way.steps(torch.compile(block, backend="aot_eager"), way.optimizer(block.parameters()))


@use(TENSOR, ColumnParallelLinear="documented: a norm of them")
def clipped_by_torch(way):
    way.train(Block(way), after=lambda m, step: way.note("norm", nn.utils.clip_grad_norm_(m.parameters(), 0.05)))


@use(TENSOR, ColumnParallelLinear="documented: are new ones")
def a_head_tied_to_an_embedding(way):
    head = nn.Linear(4, 6, bias=False)
    block = Block(way, head, function=lambda m, x: m.row(m.column(m.embedding(x.abs().long().clamp(0, 5)).mean(1))))
    block.embedding = nn.Embedding.from_pretrained(head.weight, freeze=False)
    block.embedding.weight = head.weight
    way.train(block)
