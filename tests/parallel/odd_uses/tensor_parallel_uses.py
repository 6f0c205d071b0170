"""Odd uses of column- and row-parallel layers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from odd_bed import TENSOR, batch, mse, use
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


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


def train(way, block, **options):
    way.train(block, **options)


@use(TENSOR)
def a_width_that_ranks_do_not_divide(way):
    train(way, Block(way, width=7))


@use(TENSOR)
def rows_of_rows(way):
    train(way, Block(way, function=lambda m, x: m.row(m.column(m.before(x[:, None].expand(-1, 3, -1))).tanh()).mean(1)))


@use(TENSOR)
def frozen_layers_of_lora(way):
    first, second = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 2).requires_grad_(False)
    train(way, Block(way, first, second), optimizer=(torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}))


class Scaled(nn.Linear):
    """A subclass with a forward of its own."""

    def __init__(self, *shape):
        super().__init__(*shape)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return super().forward(x) * self.scale


class Renamed(nn.Linear):
    """A subclass without a forward of its own."""


@use(TENSOR, parallel_linear_layers="refused: expected an nn.Linear")
def a_subclass_with_a_forward_of_its_own(way):
    train(way, Block(way, Scaled(4, 6), Scaled(6, 2)))


@use(TENSOR)
def a_subclass_that_adds_nothing(way):
    train(way, Block(way, Renamed(4, 6), Renamed(6, 2)))


@use(TENSOR, parallel_linear_layers="refused: expected an nn.Linear")
def a_layer_with_weight_norm(way):
    train(way, Block(way, parametrizations.weight_norm(nn.Linear(4, 6))))


@use(TENSOR, parallel_linear_layers="refused: expected an nn.Linear")
def a_layer_with_the_old_spectral_norm(way):
    train(way, Block(way, nn.utils.spectral_norm(nn.Linear(4, 6))))


@use(TENSOR, parallel_linear_layers="refused: expected an nn.Linear")
def a_layer_with_hooks(way):
    first = nn.Linear(4, 6)
    first.register_forward_hook(lambda m, inputs, output: output * 2)
    train(way, Block(way, first))


@use(TENSOR, parallel_linear_layers="documented: are new ones")
def a_weight_with_a_hook(way):
    first = nn.Linear(4, 6)
    first.weight.register_hook(lambda gradient: gradient * 0.5)
    train(way, Block(way, first))


@use(TENSOR, parallel_linear_layers="documented: a parameter that is used between the two layers")
def a_parameter_between_column_and_row(way):
    block = Block(way, function=lambda m, x: m.row((m.column(m.before(x)) * m.scale).tanh()))
    block.scale = nn.Parameter(torch.tensor(1.5))
    train(way, block)


@use(TENSOR)
def a_layer_norm_before_and_a_residual_around(way):
    second = nn.Linear(6, 4)
    block = Block(way, second=second, function=lambda m, x: (x + m.row(m.column(m.norm(m.before(x))).relu()))[:, :2])
    block.norm = nn.LayerNorm(4)
    train(way, block)


@use(TENSOR, parallel_linear_layers="documented: (rows, width / N), of this rank")
def a_layer_norm_between(way):
    block = Block(way, function=lambda m, x: m.row(F.layer_norm((h := m.column(m.before(x))), h.shape[-1:])))
    train(way, block)


@use(TENSOR, parallel_linear_layers="refused: create_graph=True cannot differentiate through")
def a_gradient_penalty_through_both(way):
    block = way.wrap(Block(way))
    for x, y in way.loop(block):
        x.requires_grad_()
        output = block(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        way.backward(mse(output, y) + slope.square().sum(1).mean())


@use(TENSOR, parallel_linear_layers="refused: torch.func cannot")
def a_jacobian_by_torch_func(way):
    block = way.wrap(Block(way))
    way.note("jacobian", torch.func.jacrev(block)(way.rows(batch()[0])[0]))


@use(TENSOR, parallel_linear_layers="refused: torch.func cannot")
def a_gradient_by_torch_func(way):
    block = way.wrap(Block(way))
    x, y = way.rows(*batch())
    way.note("gradient", torch.func.grad(lambda x: mse(block(x), y))(x))


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
    way.note_gradients()


@use(TENSOR)
def a_checkpoint_around_both(way):
    train(
        way,
        Block(
            way, function=lambda m, x: checkpoint(lambda h: m.row(m.column(h).tanh()), m.before(x), use_reentrant=False)
        ),
    )


@use(TENSOR)
def both_compiled(way):
    block = way.wrap(Block(way))
    way.steps(torch.compile(block, backend="aot_eager"), way.optimizer(block.parameters()))


@use(TENSOR)
def used_twice_before_one_backward(way):
    train(
        way,
        Block(way, function=lambda m, x: m.row(m.column(m.before(x)).tanh()) + m.row(m.column(m.before(x * 2)).tanh())),
    )


@use(TENSOR, parallel_linear_layers="documented: a norm of them")
def clipped_by_torch(way):
    train(way, Block(way), after=lambda m, step: way.note("norm", nn.utils.clip_grad_norm_(m.parameters(), 0.05)))


@use(TENSOR, parallel_linear_layers="documented: a norm of them")
def adafactor_on_parts(way):
    train(
        way,
        Block(way),
        optimizer=(torch.optim.Adafactor, {"lr": 0.01}),
    )


@use(TENSOR, parallel_linear_layers="documented: are new ones")
def a_head_tied_to_an_embedding(way):
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embedding.weight
    block = Block(
        way,
        second=nn.Linear(9, 2),
        first=head,
        function=lambda m, x: m.row(m.column(m.embedding(x.abs().long().clamp(0, 8)).mean(1))),
    )
    block.embedding = embedding
    train(way, block)


@use(TENSOR, parallel_linear_layers="documented: are new ones")
def the_plain_layer_trained_on(way):
    """An optimizer that was made of the plain layer's parameters goes on with those."""
    first = nn.Linear(4, 6)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    block = way.wrap(Block(way, first))
    x, y = way.rows(*batch())
    way.backward(mse(block(x), y))
    optimizer.step()
    with torch.no_grad():
        way.note("output", block(x))


@use(TENSOR)
def a_state_saved_and_loaded(way):
    block = way.wrap(Block(way))
    optimizer = way.optimizer(block.parameters())
    way.steps(block, optimizer, n=1)
    kept = copy.deepcopy(block.state_dict())
    way.steps(block, optimizer, n=1)
    block.load_state_dict(kept)
    way.steps(block, optimizer, n=1)


@use(TENSOR, parallel_linear_layers="refused: x is (8, 6), and this rank's part of the weight takes 3 inputs")
def a_row_layer_of_a_whole_input(way):
    """The row layer is given all inputs: no column layer stands before it."""
    block = way.wrap(Block(way, function=lambda m, x: m.row(m.whole(m.before(x)).tanh())))
    block.whole = nn.Linear(4, 6)
    way.steps(block, way.optimizer(block.parameters()))
