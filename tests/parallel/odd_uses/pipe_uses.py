"""Odd stages, inputs and surroundings of a Pipe."""

from __future__ import annotations

import contextvars

import torch
from odd_bed import use
from odd_ways import (
    PIPE,
    Do,
    batch,
    mse,
)
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from labkit.parallel.pipe.placement import WithDevice


def stages(*modules):
    """Return the modules in a Sequential, each on a virtual device of its own."""
    return nn.Sequential(*(WithDevice(module, f"cpu:{number}") for number, module in enumerate(modules)))


def three(middle=None):
    return stages(nn.Linear(4, 5), middle or nn.Sequential(nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 2))


@use(PIPE)
def one_layer_in_two_partitions(way):
    shared = nn.Linear(4, 4)
    way.train(stages(nn.Sequential(shared, nn.Tanh()), nn.Linear(4, 4), nn.Sequential(shared, nn.Linear(4, 2))))


@use(PIPE, Pipe="documented: So does what else changes in every forward")
def a_spectral_norm_that_moves_with_each_micro_batch(way):
    torch.manual_seed(0)
    way.train(stages(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)))


@use(PIPE, Pipe="refused: a Pipe was called inside torch.func (grad,")
def torch_func_grad_through_a_pipe(way):
    pipe = way.wrap(three())
    x, y = batch()
    way.note("gradient", torch.func.grad(lambda x: mse(pipe(x), y))(x))


@use(PIPE, Pipe="documented: torch.compile is for the stages, not for the Pipe")
def a_compiled_pipe(way):
    pipe = way.wrap(three())
    way.steps(torch.compile(pipe, backend="aot_eager"), way.optimizer(pipe.parameters()))


@use(PIPE, Pipe="refused: batch_first")
def an_encoder_layer_with_time_first(way):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    first, last = Do(lambda m, x: x[:, None].expand(-1, 3, 4)), Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 2))
    way.train(stages(first, layer, last))


@use(PIPE, Pipe="documented: torch.utils.checkpoint needs ``use_reentrant=False`` in a stage")
def a_reentrant_checkpoint_in_a_stage(way):
    way.train(three(Do(lambda m, x: checkpoint(m.inner, x, use_reentrant=True), inner=nn.Linear(5, 5))))


CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)


@use(PIPE, Pipe="documented: Stages run in threads of their own")
def a_stage_that_reads_a_context_variable(way):
    token = CONTEXT.set(2.0)
    way.train(three(Do(lambda m, x: x * CONTEXT.get())))
    CONTEXT.reset(token)
