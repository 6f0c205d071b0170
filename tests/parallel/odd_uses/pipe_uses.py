"""Odd stages, inputs and surroundings of a Pipe."""

from __future__ import annotations

import contextvars
import pickle
import threading

import torch
import torch.nn.functional as F
from odd_bed import PIPE, batch, mse, tokens, use
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from labkit.parallel.placement import WithDevice


class Do(nn.Module):
    """Calls ``function(self, x)``; ``layers`` are its own."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def stages(*modules):
    """Return the modules in a Sequential, each on a virtual device of its own."""
    return nn.Sequential(*(WithDevice(module, f"cpu:{number}") for number, module in enumerate(modules)))


def three(middle=None):
    return stages(nn.Linear(4, 5), middle or nn.Sequential(nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 2))


@use(PIPE)
def one_layer_in_two_partitions(way):
    shared = nn.Linear(4, 4)
    way.train(stages(nn.Sequential(shared, nn.Tanh()), nn.Linear(4, 4), nn.Sequential(shared, nn.Linear(4, 2))))


@use(PIPE)
def a_parameter_that_a_stage_uses_without_owning_it(way):
    embedding = nn.Embedding(9, 4)
    head = Do(lambda m, x: F.linear(x.mean(1), embedding.weight))
    way.train(stages(embedding, nn.Linear(4, 4), head), data=tokens, loss=F.cross_entropy)


@use(PIPE, Pipe="documented: So does what else changes in every forward")
def a_spectral_norm_that_moves_with_each_micro_batch(way):
    torch.manual_seed(0)
    way.train(stages(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)))


@use(PIPE, Pipe="refused: cannot be differentiated again")
def a_gradient_penalty_through_stages(way):
    pipe = way.wrap(three())
    x, y = way.rows(*batch())
    x.requires_grad_()
    output = pipe(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    way.backward(mse(output, y) + slope.square().sum(1).mean())
    way.note_gradients()


@use(PIPE, Pipe="refused: a Pipe was called inside torch.func (grad,")
def torch_func_grad_through_a_pipe(way):
    pipe = way.wrap(three())
    x, y = batch()
    way.note("gradient", torch.func.grad(lambda x: mse(pipe(x), y))(x))


@use(PIPE, Pipe="refused: a Pipe was called inside torch.func (grad,")
def torch_func_gradients_of_parameters(way):
    pipe = way.wrap(three())
    x, y = batch()
    named = {name: p.detach() for name, p in pipe.named_parameters()}
    found = torch.func.grad(lambda p: mse(torch.func.functional_call(pipe, p, (x,)), y))(named)
    for gradient in found.values():
        way.note("gradient", gradient)


@use(PIPE, Pipe="refused: a Pipe was called inside torch.func (grad,")
def jacobians_through_a_pipe(way):
    pipe = way.wrap(three())
    way.note("jacobian", torch.func.jacrev(pipe)(batch()[0]))


@use(PIPE, Pipe="refused: a Pipe was called inside torch.func (grad,")
def tangents_through_a_pipe(way):
    pipe = way.wrap(three())
    x = batch()[0]
    way.note("tangent", torch.func.jvp(pipe, (x,), (torch.ones_like(x),))[1])


@use(PIPE, Pipe="refused: a Pipe was called inside torch.func (grad,")
def vmap_over_a_pipe(way):
    pipe = way.wrap(three())
    x = batch()[0].view(2, 4, 4)
    with torch.no_grad():
        way.note("output", torch.func.vmap(pipe)(x))


@use(PIPE)
def functional_call_of_a_pipe(way):
    pipe = way.wrap(three())
    halves = {name: (p / 2).detach().requires_grad_() for name, p in pipe.named_parameters()}
    x, y = batch()
    mse(torch.func.functional_call(pipe, halves, (x,)), y).backward()
    for half in halves.values():
        way.note("gradient", half.grad)


@use(PIPE, Pipe="documented: has that graph run once for each of them")
def functional_call_with_a_graph_of_its_own(way):
    """Parameters computed from others: a hypernetwork."""
    pipe = way.wrap(three())
    scale = torch.tensor(0.5, requires_grad=True)
    x, y = batch()
    mse(torch.func.functional_call(pipe, {n: p * scale for n, p in pipe.named_parameters()}, (x,)), y).backward()
    way.note("gradient", scale.grad)
    way.note_gradients()


@use(PIPE, Pipe="documented: torch.compile is for the stages, not for the Pipe")
def a_compiled_pipe(way):
    pipe = way.wrap(three())
    way.steps(torch.compile(pipe, backend="aot_eager"), way.optimizer(pipe.parameters()))


@use(PIPE)
def compiled_stages(way):
    module = three()
    for stage in module:
        stage.compile(backend="aot_eager")
    way.train(module)


@use(PIPE, tolerance=0.02)
def a_pipe_under_autocast(way):
    pipe = way.wrap(three().float())
    with torch.autocast("cpu", torch.bfloat16):
        output = pipe(batch()[0].float())
    way.note("dtype", float(output.dtype == torch.bfloat16))
    way.note("output", output.double())
    way.backward(output.float().square().mean())
    way.note_gradients()


@use(PIPE, Pipe="refused: batch_first")
def an_encoder_layer_with_time_first(way):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    way.train(
        stages(
            Do(lambda m, x: x[:, None].expand(8 if len(x) == 8 else len(x), 3, 4)),
            layer,
            Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 2)),
        )
    )


@use(PIPE)
def an_encoder_layer_with_rows_first(way):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    way.train(
        stages(
            Do(lambda m, x: x[:, None].expand(-1, 3, -1)),
            layer,
            Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 2)),
        )
    )


@use(PIPE, Pipe="documented: normalises each micro-batch by itself")
def batch_norm_in_a_stage(way):
    way.train(three(nn.BatchNorm1d(5)))


@use(PIPE, Pipe="documented: rows depend on each other give other numbers")
def rows_that_depend_on_each_other(way):
    way.train(three(Do(lambda m, x: x - x.mean(0))))


def clamp_gradient(p):
    p.grad.clamp_(-0.01, 0.01)


@use(PIPE)
def hooks_on_stages_and_parameters(way):
    module = three()
    module[0].module.register_forward_hook(lambda m, inputs, output: output * 2)
    module[1].module.register_full_backward_hook(lambda m, grads, outs: (grads[0] * 0.5,))
    module[2].module.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    pipe = way.wrap(module)
    module[0].module.weight.register_post_accumulate_grad_hook(clamp_gradient)
    way.steps(pipe, way.optimizer(pipe.parameters()))


@use(PIPE, Pipe="documented: torch.utils.checkpoint needs ``use_reentrant=False`` in a stage")
def a_reentrant_checkpoint_in_a_stage(way):
    way.train(three(Do(lambda m, x: checkpoint(m.inner, x, use_reentrant=True), inner=nn.Linear(5, 5))))


@use(PIPE)
def a_checkpoint_around_a_pipe(way):
    pipe = way.wrap(three())
    way.steps(lambda x: checkpoint(pipe, x, use_reentrant=False), way.optimizer(pipe.parameters()))


@use(PIPE, Pipe="refused: stage 0 returned a tuple for micro-batch 0,")
def a_tuple_between_partitions(way):
    way.train(stages(Do(lambda m, x: (m.inner(x), x), inner=nn.Linear(4, 2)), Do(lambda m, x: x[0] + x[1][:, :2])))


@use(PIPE)
def a_pickled_pipe(way):
    pipe = pickle.loads(pickle.dumps(way.wrap(three())))
    x, y = batch()
    mse(pipe(x), y).backward()
    for p in pipe.parameters():
        way.note("gradient", p.grad)


@use(PIPE)
def an_average_of_a_pipes_weights(way):
    pipe = way.wrap(three())
    average = torch.optim.swa_utils.AveragedModel(pipe)
    way.steps(pipe, way.optimizer(pipe.parameters()), after=lambda m, s: average.update_parameters(pipe))
    with torch.no_grad():
        way.note("output", average(batch()[0]))


@use(PIPE)
def a_state_of_the_plain_model_loaded(way):
    module = three()
    pipe = way.wrap(module)
    torch.manual_seed(9)
    module.load_state_dict({n: torch.randn_like(p) for n, p in module.named_parameters()}, assign=True)
    way.steps(pipe, way.optimizer(pipe.parameters()))


@use(PIPE, Pipe="documented: A module that is put into ``module`` afterwards is not in the Pipe")
def a_stage_replaced_in_the_sequential(way):
    module = three()
    pipe = way.wrap(module)
    torch.manual_seed(9)
    module[2] = WithDevice(nn.Linear(5, 2), "cpu:2")
    way.steps(pipe, way.optimizer(module.parameters()))


@use(PIPE)
def a_layer_replaced_inside_a_stage(way):
    module = three()
    pipe = way.wrap(module)
    torch.manual_seed(9)
    module[2].module = nn.Linear(5, 2)
    way.steps(pipe, way.optimizer(pipe.parameters()))


@use(PIPE)
def double_after_the_pipe(way):
    pipe = way.wrap(three().float())
    pipe.double()
    way.steps(pipe, way.optimizer(pipe.parameters()))


@use(PIPE)
def stages_frozen_and_thawed(way):
    module = three()
    way.train(module, each=lambda m, step: module[0].requires_grad_(step != 1))


@use(PIPE)
def an_input_changed_in_place(way):
    way.train(stages(nn.ReLU(inplace=True), nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)))


@use(PIPE, Pipe="refused: the last stage gave a tensor without dimensions")
def an_output_that_is_a_scalar(way):
    way.train(stages(nn.Linear(4, 5), Do(lambda m, x: x.mean())), loss=lambda o, y: o)


@use(PIPE)
def a_second_backward_through_a_retained_graph(way):
    pipe = way.wrap(three())
    x, y = batch()
    output = pipe(x)
    way.backward(mse(output, y), retain_graph=True)
    way.backward(output.abs().mean())
    way.note_gradients()


CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)
LOCAL = threading.local()


@use(PIPE, Pipe="documented: Stages run in threads of their own")
def a_stage_that_reads_a_context_variable(way):
    token = CONTEXT.set(2.0)
    way.train(three(Do(lambda m, x: x * CONTEXT.get())))
    CONTEXT.reset(token)


@use(PIPE, Pipe="documented: Stages run in threads of their own")
def a_function_mode_around_a_pipe(way):
    class Twice(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is F.linear else result

    pipe = way.wrap(three())
    with Twice():
        way.note("output", pipe(batch()[0]))


@use(PIPE, Pipe="documented: Stages run in threads of their own")
def counted_operations(way):
    from torch.utils.flop_counter import FlopCounterMode

    pipe = way.wrap(three())
    with FlopCounterMode(display=False) as counter:
        pipe(batch()[0])
    way.note("operations", counter.get_total_flops())


@use(PIPE, Pipe="documented: Stages run in threads of their own")
def activations_saved_on_the_cpu(way):
    counts = []

    def pack(t):
        counts.append(1)
        return t

    pipe = way.wrap(stages(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = pipe(batch()[0])
    way.note("packed at all", float(len(counts) > 0))
    way.backward(output.square().mean())
    way.note_gradients()


@use(PIPE)
def an_exception_in_a_stage_and_on(way):
    def maybe(m, x):
        if m.fails:
            raise MemoryError("out of memory")
        return x.tanh()

    middle = Do(maybe)
    middle.fails = False
    pipe = way.wrap(three(middle))
    optimizer = way.optimizer(pipe.parameters())
    for step in range(4):
        optimizer.zero_grad()
        middle.fails = step == 1
        x, y = batch(step)
        try:
            way.backward(mse(pipe(x), y))
        except MemoryError:
            continue
        way.step(optimizer)


@use(PIPE)
def an_interrupt_in_a_stage_and_on(way):
    def maybe(m, x):
        if m.fails:
            raise KeyboardInterrupt
        return x.tanh()

    middle = Do(maybe)
    middle.fails = False
    pipe = way.wrap(three(middle))
    optimizer = way.optimizer(pipe.parameters())
    for step in range(4):
        optimizer.zero_grad()
        middle.fails = step == 1
        x, y = batch(step)
        try:
            way.backward(mse(pipe(x), y))
        except KeyboardInterrupt:
            continue
        way.step(optimizer)


@use(PIPE)
def a_pipe_inside_a_pipe(way):
    if way.name == "plain":
        module = stages(nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 2))
        x, y = batch()
        mse(module(x), y).backward()
        for p in module.parameters():
            way.note("gradient", p.grad)
        return
    from labkit.pipe import Pipe

    first, middle, last = nn.Linear(4, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 2)
    inner = Pipe(stages(*middle), 2)
    pipe = Pipe(stages(first, inner, last), 3)
    x, y = batch()
    mse(pipe(x), y).backward()
    for p in [*first.parameters(), *middle.parameters(), *last.parameters()]:
        way.note("gradient", p.grad)


@use(PIPE, Pipe="documented: draws its masks for each micro-batch")
def noise_of_a_generator_of_its_own(way):
    generator = torch.Generator().manual_seed(3)
    middle = Do(lambda m, x: x + torch.randn(x.shape, generator=generator))
    way.train(three(middle))
