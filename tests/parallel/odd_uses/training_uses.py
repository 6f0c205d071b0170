"""Odd inputs, outputs, buffers, hooks, numbers and accidents under the data-parallel wrappers."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from odd_bed import BUCKETS, DATA, HAND, MODEL, OPTIMIZER, batch, mse, net, tokens, use
from torch import nn

WRAPPED = (BUCKETS, MODEL)


class Do(nn.Module):
    """Calls ``function(layers, *inputs)``."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def two_layers(function, **more):
    return Do(function, first=nn.Linear(4, 6), last=nn.Linear(6, 2), **more)


def steps(way, model, forward, n=3, data=batch):
    optimizer = way.optimizer(model.parameters())
    for step in range(n):
        optimizer.zero_grad()
        x, y = way.rows(*data(step))
        way.backward(forward(model, x, y))
        way.sync()
        way.step(optimizer)


# --- what goes in and comes out -------------------------------------------------------------------


@dataclass
class Inputs:
    x: torch.Tensor
    times: float = 2.0


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor | None = None


@use(*WRAPPED)
def a_dataclass_in_and_a_named_tuple_out(way):
    model = way.wrap(two_layers(lambda m, inputs: Pair(m.last(m.first(inputs.x * inputs.times).tanh()))))
    steps(way, model, lambda m, x, y: mse(m(Inputs(x)).x, y))


@use(*WRAPPED, ShardedModel="refused: Inner returned a Inputs, in which no tensor was")
def a_dataclass_out_of_a_layer(way):
    class Inner(nn.Linear):
        def forward(self, x):
            return Inputs(super().forward(x))

    model = way.wrap(Do(lambda m, x: m.last(m.first(x).x.tanh()), first=Inner(4, 6), last=nn.Linear(6, 2)))
    steps(way, model, lambda m, x, y: mse(m(x), y))


@use(*WRAPPED)
def a_model_that_returns_its_loss_and_none(way):
    model = way.wrap(two_layers(lambda m, x, y: {"loss": mse(m.last(m.first(x).tanh()), y), "cache": None}))
    steps(way, model, lambda m, x, y: m(x, y)["loss"])


@use(*WRAPPED)
def a_forward_of_parts_by_turns(way):
    model = way.wrap(two_layers(lambda m, x, part: m.first(x).tanh() if part == "encode" else m.last(x)))
    steps(way, model, lambda m, x, y: mse(m(m(x, "encode"), "decode"), y))


@use(*WRAPPED)
def an_output_changed_in_place(way):
    model = way.wrap(net())
    steps(way, model, lambda m, x, y: mse(m(x).mul_(2).add_(1), y))


@use(*WRAPPED)
def learned_positions_that_a_layer_returns(way):
    class Positions(nn.Embedding):
        def forward(self, x):
            return self.weight[: x.shape[1]]

    model = way.wrap(Do(lambda m, x: m.last(x + m.at(x)), at=Positions(6, 4), last=nn.Linear(4, 2)))
    steps(way, model, lambda m, x, y: mse(m(x[:, None].expand(-1, 3, -1)).mean(1), y))


@use(*WRAPPED)
def an_empty_layer(way):
    way.train(Do(lambda m, x: m.last(m.none(x).sum(1, keepdim=True) + x), none=nn.Linear(4, 0), last=nn.Linear(4, 2)))


@use(*WRAPPED, BucketedDataParallel="documented: One that no rank uses gets a gradient of zero")
def an_unused_layer_under_weight_decay(way):
    module = two_layers(lambda m, x: m.last(m.first(x).tanh()), never=nn.Linear(3, 3))
    way.train(module, optimizer=(torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}))


@use(BUCKETS, MODEL, ShardedModel="refused: rank 1 uses experts.1 where rank 0 uses")
def a_mixture_whose_ranks_take_different_experts(way):
    def forward(m, x):
        rank = torch.arange(len(x)) // 4 if len(x) == 8 else torch.full((len(x),), dist.get_rank())
        h = m.first(x).tanh()
        out = torch.zeros_like(h)
        for number, expert in enumerate(m.experts):
            if (rank == number).any():
                out = out + expert(h) * (rank == number)[:, None]
        return m.last(out)

    way.train(two_layers(forward, experts=nn.ModuleList(nn.Linear(6, 6) for _ in range(2))))


@use(
    *WRAPPED,
    BucketedDataParallel="refused: 0.weight has no shape yet",
    ShardedModel="refused: 0.weight has no shape yet",
)
def lazy_layers_without_a_dry_run(way):
    torch.manual_seed(0)
    model = way.wrap(nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(2)))
    x, _y = way.rows(*batch())
    model(x)
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def built_on_meta_and_materialised(way):
    with torch.device("meta"):
        module = net()
    module = module.to_empty(device="cpu")
    for p in module.parameters():
        nn.init.normal_(p)
    way.train(module)


@use(*WRAPPED)
def attention(way):
    def forward(m, x):
        x = x[:, None, :] * torch.arange(1, 4)[:, None]
        return m.last(m.attention(x, x, x, need_weights=False)[0].mean(1))

    module = Do(forward, attention=nn.MultiheadAttention(4, 2, batch_first=True), last=nn.Linear(4, 2))
    model = way.wrap(module, shard=(nn.Linear, nn.MultiheadAttention)) if way.name == MODEL else way.wrap(module)
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def an_lstm_as_a_unit(way):
    module = Do(
        lambda m, x: m.last(m.cell(x[:, :, None])[0][:, -1]),
        cell=nn.LSTM(1, 5, 2, batch_first=True),
        last=nn.Linear(5, 2),
    )
    options = {"shard": (nn.LSTM,)} if way.name == MODEL else {}
    model = way.wrap(module, **options)
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def a_convolution_in_channels_last(way):
    module = Do(
        lambda m, x: m.last(
            m.conv(x.view(-1, 1, 2, 2).expand(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last)).flatten(1)
        ),
        conv=nn.Conv2d(2, 3, 2, padding=1),
        last=nn.Linear(27, 2),
    ).to(memory_format=torch.channels_last)
    options = {"shard": (nn.Conv2d, nn.Linear)} if way.name == MODEL else {}
    model = way.wrap(module, **options)
    way.steps(model, way.optimizer(model.parameters()))


@use(*DATA)
def a_transposed_parameter(way):
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    module[0].weight = nn.Parameter(torch.randn(4, 6).t())
    way.train(module)


@use(*DATA)
def two_parameters_side_by_side_in_one_storage(way):
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    flat = torch.randn(36) / 3
    module[0].weight, module[2].weight = nn.Parameter(flat[:24].view(6, 4)), nn.Parameter(flat[24:].view(2, 6))
    way.train(module)


@use(
    *DATA,
    ShardedOptimizer="refused: parameter 0 and parameter 1 overlap in memory, so",
    ShardedModel="refused: 0.weight and 2.weight overlap in memory, so",
)
def two_parameters_that_overlap(way):
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    flat = torch.randn(16) / 3
    module[0].weight, module[2].weight = nn.Parameter(flat.view(4, 4)), nn.Parameter(flat[:8].view(2, 4))
    way.train(module, optimizer=(torch.optim.SGD, {"lr": 0.1}))


@use(*WRAPPED)
def a_column_with_a_stride_as_parameter(way):
    module = two_layers(lambda m, x: m.last(m.first(x).tanh()) * m.scale)
    module.scale = nn.Parameter(torch.randn(1, 7)[:, 0])
    way.train(module)


@use(*WRAPPED)
def share_memory_after_wrapping(way):
    model = way.wrap(net())
    model.share_memory()
    way.steps(model, way.optimizer(model.parameters()))


# --- dtypes ---------------------------------------------------------------------------------------


@use(*DATA)
def complex_parameters(way):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 2, dtype=torch.complex128))

        def forward(self, x):
            return (x.to(self.weight.dtype) @ self.weight).abs()

    module = nn.Sequential(nn.Linear(4, 4), Complex())
    way.train(module)


@use(*DATA, tolerance=0.05)
def bfloat16_parameters(way):
    model = way.wrap(net().bfloat16())
    steps(way, model, lambda m, x, y: mse(m(x.bfloat16()), y.bfloat16()))


@use(*WRAPPED, tolerance=0.03)
def autocast_around_forward(way):
    model = way.wrap(net().float())

    def loss(m, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            output = m(x.float())
        return mse(output.float(), y.float())

    steps(way, model, loss)


@use(*DATA)
def buffers_of_all_dtypes(way):
    module = net()
    kinds = (torch.int16, torch.int32, torch.bool, torch.complex64, torch.uint8, torch.float16)
    for kind in kinds:
        module[0].register_buffer(f"of_{kind}".replace(".", "_"), torch.ones(3).to(kind))
    way.train(module)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: a tensor of torch.sparse_coo is not sent to",
    ShardedModel="refused: a tensor of torch.sparse_coo is not sent to",
)
def a_sparse_buffer(way):
    module = two_layers(lambda m, x: m.last(torch.sparse.mm(m.graph, m.first(x).tanh().T).T))
    module.register_buffer("graph", torch.eye(6).to_sparse())
    way.train(module)


@use(
    HAND,
    BUCKETS,
    MODEL,
    BucketedDataParallel="refused: is sparse, expected a dense one",
    ShardedModel="refused: are sparse, expected dense ones",
)
def a_sparse_embedding(way):
    module = Do(
        lambda m, ids: m.last(m.embedding(ids).mean(1)), embedding=nn.Embedding(9, 4, sparse=True), last=nn.Linear(4, 9)
    )
    way.train(module, data=tokens, loss=F.cross_entropy, optimizer=(torch.optim.SGD, {"lr": 0.1}))


@use(
    *WRAPPED,
    BucketedDataParallel="refused: when the module was wrapped",
    ShardedModel="refused: this model is sharded, in torch.float32 on cpu,",
)
def double_after_wrapping(way):
    model = way.wrap(net().float())
    model.double()
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def converted_before_wrapping(way):
    way.train(net().float().double())


# --- buffers --------------------------------------------------------------------------------------


@use(*DATA, by_shards=True)
def batch_norm(way):
    way.train(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)))


@use(*WRAPPED)
def a_counter_in_a_buffer(way):
    def forward(m, x):
        m.calls += 1
        return m.last(m.first(x).tanh()) / m.calls

    module = two_layers(forward)
    module.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    way.train(module)
    way.note("calls", module.calls)


@use(*WRAPPED, BucketedDataParallel="refused: Every forward pass takes buffers from rank 0")
def a_cached_mask_of_another_size_on_each_rank(way):
    """Rows of a rank are padded to the longest of them, and a mask is kept for that length."""

    def forward(m, x):
        length = 4 if (x.abs() > 9).any() else 2
        if m.mask is None or len(m.mask) != length:
            m.mask = torch.ones(length)
        return m.last(m.first(x * F.pad(m.mask, (0, 4 - length), value=1.0)).tanh())

    def uneven(step):
        x, y = batch(step)
        x[0, 0] = 10.0 + step  # the longest is rank 0's
        return x, y

    module = two_layers(forward)
    module.register_buffer("mask", None)
    way.train(module, data=uneven)


@use(*WRAPPED, BucketedDataParallel="refused: Every forward pass takes buffers from rank 0")
def a_buffer_that_grows(way):
    def forward(m, x):
        m.seen = torch.cat([m.seen, m.seen.new_ones(1)])
        return m.last(m.first(x).tanh()) * len(m.seen)

    module = two_layers(forward)
    module.register_buffer("seen", torch.zeros(0))
    way.train(module)


@use(*WRAPPED, BucketedDataParallel="refused: Every forward pass takes buffers from rank 0")
def a_buffer_added_after_wrapping(way):
    module = two_layers(lambda m, x: m.last(m.first(x).tanh()) * m.times)
    model = way.wrap(module)
    module.register_buffer("times", torch.tensor(2.0))
    way.steps(model, way.optimizer(model.parameters()))


# --- hooks ----------------------------------------------------------------------------------------


@use(*DATA)
def a_parameter_hook_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    module[0].weight.register_hook(lambda gradient: gradient * 0.5)
    way.steps(model, way.optimizer(model.parameters()))


def double_gradient(p):
    p.grad.mul_(2)


@use(*WRAPPED)
def a_post_accumulate_hook_before_wrapping(way):
    module = net()
    module[0].weight.register_post_accumulate_grad_hook(double_gradient)
    way.train(module)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: was changed between backward() and",
    ShardedModel="refused: of a ShardedModel has no gradient yet",
)
def a_post_accumulate_hook_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    module[0].weight.register_post_accumulate_grad_hook(double_gradient)
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED, BucketedDataParallel="refused: are not averaged yet", ShardedModel="refused: are not averaged yet")
def an_optimizer_step_in_backward(way):
    """torch's tutorial: an optimizer for each parameter, which steps in a post-accumulate hook."""
    module = net()
    model = way.wrap(module)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step_and_free(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_and_free)
    for step in range(3):
        x, y = way.rows(*batch(step))
        way.backward(mse(model(x), y))
        way.sync()


@use(*WRAPPED)
def module_hooks_forward_and_backward(way):
    module = net()
    module[0].register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,))
    module[0].register_forward_hook(lambda m, inputs, output: output + 1)
    model = way.wrap(module)
    module[2].register_full_backward_hook(lambda m, grads, outs: (grads[0] * 0.5,))
    module[4].register_full_backward_pre_hook(lambda m, grads: (grads[0] * 2,))
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def features_caught_by_a_forward_hook(way):
    module = net()
    model = way.wrap(module)
    caught = {}
    module[2].register_forward_hook(lambda m, inputs, output: caught.update(h=output))
    steps(way, model, lambda m, x, y: mse(m(x), y) + caught["h"].square().mean())


# --- what is done to gradients --------------------------------------------------------------------


@use(*DATA)
def clipped_as_the_docs_say(way):
    way.train(net(), after=lambda model, step: way.clip(0.1))


@use(*DATA, ShardedModel="refused: whose norm is not that of all gradients")
def clipped_by_torch_after_waiting(way):
    way.train(net(), after=lambda m, step: way.note("norm", nn.utils.clip_grad_norm_(m.parameters(), 0.1)))


@use(BUCKETS, BucketedDataParallel="refused: was changed between backward() and")
def clipped_before_waiting(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        way.backward(mse(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


@use(
    BUCKETS,
    OPTIMIZER,
    MODEL,
    BucketedDataParallel="refused: was changed between backward() and",
    ShardedModel="refused: 0.weight of a ShardedModel has no gradient yet",
)
def gradients_scaled_before_waiting(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        way.backward(mse(model(x), y))
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= 2


@use(*DATA, ShardedModel="refused: whose norm is not that of all gradients")
def the_norm_for_a_log(way):
    way.train(net(), after=lambda m, s: way.note("norm", nn.utils.get_total_norm([p.grad for p in m.parameters()])))


@use(*DATA, ShardedModel="documented: A norm or a sum that you compute of them is this rank's alone")
def the_norm_by_hand(way):
    def norm(model, step):
        way.note("norm", sum(p.grad.square().sum() for p in model.parameters()).sqrt())

    way.train(net(), after=norm)


@use(*DATA, ShardedModel="documented: A norm or a sum that you compute of them is this rank's alone")
def each_gradient_normalised_by_itself(way):
    @torch.no_grad()
    def normalise(model, step):
        for p in model.parameters():
            p.grad /= p.grad.norm() + 1e-6

    way.train(net(), after=normalise)


@use(*DATA)
def zero_grad_that_keeps_zeros(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        x, y = way.rows(*batch(step))
        way.backward(mse(model(x), y))
        way.sync()
        way.step(optimizer)


@use(*DATA, BucketedDataParallel="documented: the next backward pass overwrites it")
def gradients_read_between_steps(way):
    """A list of gradients is kept from step to step without a clone, as a momentum by hand."""
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    before = None
    for step in range(3):
        optimizer.zero_grad()
        x, y = way.rows(*batch(step))
        way.backward(mse(model(x), y))
        way.sync()
        own = [p.grad for p in model.parameters()]
        if before:
            for p, earlier in zip(model.parameters(), before, strict=True):
                p.grad = p.grad + 0.5 * earlier
        before = own
        way.step(optimizer)


@use(*WRAPPED)
def a_wide_range_of_losses_with_a_nan_on_one_rank(way):
    """A batch with a bad row: the step is left out where any gradient is NaN."""
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step)
        if step == 1:
            y[7] = float("nan")
        x, y = way.rows(x, y)
        way.backward(mse(model(x), y))
        way.sync()
        if all(p.grad.isfinite().all() for p in model.parameters()):
            way.step(optimizer)


@use(*DATA, tolerance=1e-05)
def a_grad_scaler_without_overflow(way):
    model = way.wrap(net().float())
    optimizer = way.optimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        optimizer.zero_grad()
        x, y = way.rows(*batch(step))
        way.backward(scaler.scale(mse(model(x.float()), y.float())))
        way.sync()
        scaler.step(optimizer)
        scaler.update()


@use(*DATA, tolerance=0.0001)
def a_grad_scaler_with_an_overflow_in_one_row_of_weights(way):
    model = way.wrap(nn.Sequential(nn.Linear(4, 4, bias=False)).float())
    optimizer = way.optimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    for step in range(3):
        optimizer.zero_grad()
        x = way.rows(torch.full((8, 4), 100.0).float())
        factor = torch.tensor([1e38 if step == 1 else 1.0, 1.0, 1.0, 1.0]).float()
        scaler.scale((model(x) * factor).mean()).backward()
        way.sync()
        scaler.step(optimizer)
        scaler.update()
        way.note("scale", scaler.get_scale())


@use(*DATA, ShardedModel="refused: where it is this rank's piece")
def an_l2_penalty_of_all_parameters(way):
    model = way.wrap(net())
    steps(way, model, lambda m, x, y: mse(m(x), y) + 0.1 * sum(p.square().sum() for p in m.parameters()))


@use(*DATA)
def sums_over_tokens_divided_by_those_of_all_ranks(way):
    """The right way for padded batches: each rank's sum over the tokens of all ranks."""
    module = Do(lambda m, ids: m.last(m.embedding(ids)), embedding=nn.Embedding(9, 4), last=nn.Linear(4, 9))
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        ids, _ = tokens(step)
        ids = ids.clone()
        target = ids.roll(1, 1)
        for row in range(8):
            target[row, 1 + row // 2 :] = -100
        count, n = (target != -100).sum(), 1 if way.name == "plain" else 2
        ids, target = way.rows(ids, target)
        loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
        way.backward(loss * n / count)
        way.sync()
        way.step(optimizer)


@use(
    HAND,
    BUCKETS,
    MODEL,
    average_gradients="documented: mean over a shard of equal size",
    BucketedDataParallel="documented: where shards are of equal size",
    ShardedModel="documented: gradients are now means over ranks",
)
def a_mean_over_tokens_where_ranks_have_different_numbers(way):
    module = Do(lambda m, ids: m.last(m.embedding(ids)), embedding=nn.Embedding(9, 4), last=nn.Linear(4, 9))

    def padded(step):
        ids, _ = tokens(step)
        target = ids.roll(1, 1).clone()
        for row in range(8):
            target[row, 1 + row // 2 :] = -100
        return ids, target

    way.train(
        module, data=padded, loss=lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten(), ignore_index=-100)
    )


@use(
    *WRAPPED,
    BucketedDataParallel="documented: A forward pass that changes weights in place",
    ShardedModel="refused: embedding.weight was changed in place in its",
)
def an_embedding_with_a_largest_norm(way):
    module = Do(
        lambda m, ids: m.last(m.embedding(ids).mean(1)),
        embedding=nn.Embedding(9, 4, max_norm=1.0),
        last=nn.Linear(4, 9),
    )
    way.train(module, data=tokens, loss=F.cross_entropy)


@use(*WRAPPED, ShardedModel="refused: 0.weight was changed in place in its layer's")
def weights_normalised_in_place_by_a_layer_itself(way):
    class Unit(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.copy_(F.normalize(self.weight, dim=1))
            return super().forward(x)

    way.train(nn.Sequential(Unit(4, 6), nn.Tanh(), nn.Linear(6, 2)))


# --- the wrapper as an object ---------------------------------------------------------------------


@use(
    *WRAPPED,
    BucketedDataParallel="refused: when the module was wrapped",
    ShardedModel="refused: when the module was wrapped",
)
def a_head_replaced_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    module[4] = nn.Linear(5, 2)
    way.steps(model, way.optimizer(model.parameters()))


@use(
    *WRAPPED,
    BucketedDataParallel="refused: when the module was wrapped",
    ShardedModel="refused: when the module was wrapped",
)
def a_weight_replaced_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    torch.manual_seed(4)
    module[0].weight = nn.Parameter(torch.randn(6, 4))
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def a_layer_without_parameters_replaced(way):
    module = net()
    model = way.wrap(module)
    module[1] = nn.ReLU()
    way.steps(model, way.optimizer(model.parameters()))


@use(
    *WRAPPED,
    BucketedDataParallel="refused: is in a BucketedDataParallel already",
    ShardedModel="refused: is sharded already",
)
def wrapped_twice(way):
    module = net()
    model = way.wrap(module)
    if way.name != "plain":
        model = type(model)(model)
        way.models[-1] = model
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def net_and_wrapper_made_again_in_a_cell_run_twice(way):
    def cell(seed):
        torch.manual_seed(seed)
        return way.wrap(net())

    model = cell(0)
    way.steps(model, way.optimizer(model.parameters()), n=1)
    if way.name != "plain":
        way.models.clear()
    way.modules.clear()
    model = cell(1)
    way.steps(model, way.optimizer(model.parameters()), n=1)


@use(BUCKETS)
def wrapped_again_once_the_first_wrapper_is_gone(way):
    module = net()
    model = way.wrap(module)
    way.steps(model, way.optimizer(model.parameters()), n=1)
    if way.name != "plain":
        way.modules.clear()
        way.models.clear()
        del model
        model = way.wrap(module)
    way.steps(model, way.optimizer(model.parameters()), n=1)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: is in a BucketedDataParallel already",
    ShardedModel="refused: is sharded already",
)
def wrapped_again_while_the_first_wrapper_lives(way):
    module = net()
    model = way.wrap(module)
    way.steps(model, way.optimizer(model.parameters()), n=1)
    if way.name != "plain":
        way.modules.clear()
        way.models.clear()
        model = way.wrap(module)
    way.steps(model, way.optimizer(model.parameters()), n=1)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: is in a BucketedDataParallel already",
    ShardedModel="refused: is sharded already",
)
def the_wrapper_wrapped_again_in_a_cell_run_twice(way):
    model = way.wrap(net())
    way.steps(model, way.optimizer(model.parameters()), n=1)
    if way.name != "plain":
        way.modules.clear()
        way.models.clear()
        model = way.wrap(model)
    way.steps(model, way.optimizer(model.parameters()), n=1)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: is in a BucketedDataParallel already",
    ShardedModel="refused: is sharded already",
)
def two_wrappers_around_one_trunk(way):
    trunk = nn.Linear(4, 6)
    one, two = way.wrap(nn.Sequential(trunk, nn.Linear(6, 2))), way.wrap(nn.Sequential(trunk, nn.Linear(6, 2)))
    optimizer = way.optimizer({*one.parameters()} and [*dict.fromkeys([*one.parameters(), *two.parameters()])])
    for step in range(3):
        optimizer.zero_grad()
        x, y = way.rows(*batch(step))
        way.backward(mse(one(x), y) + mse(two(x), -y))
        way.sync()
        way.step(optimizer)


@use(*WRAPPED, BucketedDataParallel="refused: is a copy of a wrapper", ShardedModel="refused: cannot be copied")
def pickled_whole_and_trained_on(way):
    model = way.wrap(net())
    way.steps(model, way.optimizer(model.parameters()), n=1)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    inner = getattr(again, "module", again)
    way.modules[-1] = inner
    if way.name != "plain":
        way.models[-1] = again
    way.steps(again, way.optimizer(again.parameters()), n=2)


@use(*WRAPPED, ShardedModel="refused: load a plain one into the plain model and shard that")
def a_plain_checkpoint_loaded_after_wrapping(way):
    torch.manual_seed(9)
    saved = {name: torch.randn_like(p) for name, p in net().named_parameters()}
    module = net()
    model = way.wrap(module)
    module.load_state_dict(saved)
    way.steps(model, way.optimizer(model.parameters()))


@use(
    *WRAPPED,
    BucketedDataParallel="refused: when the module was wrapped",
    ShardedModel="refused: load a plain one into the plain model and shard that",
)
def a_plain_checkpoint_assigned_after_wrapping(way):
    torch.manual_seed(9)
    saved = {name: torch.randn_like(p) for name, p in net().named_parameters()}
    module = net()
    model = way.wrap(module)
    module.load_state_dict(saved, assign=True)
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def its_own_state_loaded_mid_training(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(model, optimizer, n=1)
    kept = copy.deepcopy(model.state_dict())
    kept_too = copy.deepcopy(optimizer.state_dict())
    way.steps(model, optimizer, n=1)
    model.load_state_dict(kept)
    optimizer.load_state_dict(kept_too)
    way.steps(model, optimizer, n=2)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: when the module was wrapped",
    ShardedModel="refused: when the module was wrapped",
)
def its_own_state_assigned_mid_training(way):
    model = way.wrap(net())
    way.steps(model, way.optimizer(model.parameters()), n=1)
    kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(kept, assign=True)
    way.steps(model, way.optimizer(model.parameters()), n=2)


@use(*WRAPPED, ShardedModel="documented: For a plain model save :meth:`full_parameters`")
def saved_for_a_plain_model(way):
    module = net()
    model = way.train(module)
    saved = model.state_dict()
    plain = net()
    plain.load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})
    with torch.no_grad():
        way.note("output of the plain model", plain(way.rows(batch()[0])), "rows")


@use(*DATA)
def the_optimizer_made_before_the_wrapper(way):
    module = net()
    optimizer = way.optimizer(module.parameters())
    model = way.wrap(module)
    way.steps(model, optimizer)


@use(*DATA)
def decay_for_matrices_alone(way):
    """nanoGPT's groups: weight decay for parameters of two dimensions or more."""
    model = way.wrap(net())
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    way.steps(model, way.optimizer([g for g in groups if g["params"]], torch.optim.SGD, lr=0.1))


@use(*DATA, ShardedModel="documented: a parameter is a piece, in ``shape`` and ``numel()``")
def the_number_of_parameters(way):
    model = way.train(net())
    way.note("number", sum(p.numel() for p in model.parameters()))


@use(*WRAPPED)
def an_exception_in_forward_and_on(way):
    def forward(m, x):
        h = m.first(x).tanh()
        if m.fails:
            raise MemoryError("out of memory")
        return m.last(h)

    module = two_layers(forward)
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        module.fails = step == 1
        x, y = way.rows(*batch(step))
        try:
            way.backward(mse(model(x), y))
        except MemoryError:
            continue
        way.sync()
        way.step(optimizer)


class FailsOnce(torch.autograd.Function):
    """The identity, whose backward raises in the second call."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        FailsOnce.calls += 1
        if FailsOnce.calls == 2:
            raise KeyboardInterrupt
        return gradient


@use(
    *WRAPPED,
    BucketedDataParallel="refused: if backward() was interrupted, start the ranks anew",
    ShardedModel="refused: if backward() was interrupted, start the ranks anew",
)
def a_backward_interrupted_half_way_and_on(way):
    FailsOnce.calls = 0
    model = way.wrap(two_layers(lambda m, x: m.last(FailsOnce.apply(m.first(x)).tanh())))
    optimizer = way.optimizer(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        x, y = way.rows(*batch(step))
        loss = mse(model(x), y)
        try:
            loss.backward()
        except KeyboardInterrupt:
            continue
        way.count(loss)
        way.sync()
        way.step(optimizer)


@use(*WRAPPED)
def a_loss_left_out_on_all_ranks_and_on(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        x, y = way.rows(*batch(step))
        loss = mse(model(x), y)
        if step == 1:
            continue  # a forward pass without a backward pass
        way.backward(loss)
        way.sync()
        way.step(optimizer)


@use(*WRAPPED)
def backward_in_another_thread(way):
    import threading

    model = way.wrap(net())
    for x, y in way.loop(model):
        loss = mse(model(x), y)
        way.count(loss)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()


@use(*WRAPPED)
def one_output_backward_in_two_chunks(way):
    """GradCache: the output's gradient is taken first, and then sent back."""
    model = way.wrap(net())
    for x, y in way.loop(model):
        output = model(x)
        leaf = output.detach().requires_grad_()
        loss = mse(leaf, y)
        loss.backward()
        way.count(loss)
        output.backward(leaf.grad)


@use(*WRAPPED)
def a_layer_used_in_the_first_of_two_accumulated_batches(way):
    """pytorch #69031: what the last pass does not use has a gradient from the first."""
    module = two_layers(lambda m, x: m.last(m.some(m.first(x)).tanh() if m.on else m.first(x)), some=nn.Linear(6, 6))
    model = way.wrap(module)
    for x, y in way.loop(model):
        module.on = True
        with way.no_sync():
            way.backward(mse(model(x), y))
        module.on = False
        way.backward(mse(model(x * 2), y))


@use(BUCKETS, BucketedDataParallel="refused: are not averaged yet")
def the_switch_that_nanogpt_sets_on_ddp(way):
    """``model.require_backward_grad_sync = False`` in place of no_sync()."""
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(2):
        optimizer.zero_grad()
        for part in range(2):
            model.require_backward_grad_sync = part == 1
            x, y = way.rows(*batch(2 * step + part))
            way.backward(mse(model(x), y))
        way.sync()
        way.step(optimizer)


@use(
    *WRAPPED,
    BucketedDataParallel="refused: there is no gradient to average",
    ShardedModel="refused: there is no gradient to average",
)
def the_inner_module_replaced(way):
    model = way.wrap(net())
    torch.manual_seed(4)
    fresh = net()
    if way.name == "plain":
        model = way.modules[0] = fresh
    else:
        model.module = way.modules[0] = fresh
    way.steps(model, way.optimizer(model.parameters()))


@use(*WRAPPED)
def a_forward_replaced_by_a_patch(way):
    """A library patches ``forward`` of a layer after the model was wrapped."""
    module = net()
    model = way.wrap(module)
    inner = module[0].forward
    module[0].forward = lambda x: inner(x) * 2
    way.steps(model, way.optimizer(model.parameters()))
