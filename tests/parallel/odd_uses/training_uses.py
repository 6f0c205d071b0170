"""Odd inputs, outputs, buffers, hooks, numbers and accidents under the data-parallel wrappers."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from odd_bed import use
from odd_ways import (
    BUCKETS,
    DATA,
    HAND,
    MODEL,
    OPTIMIZER,
    WRAPPED,
    Do,
    batch,
    by_token,
    mse,
    net,
    padded,
    tokens,
)
from torch import nn


def two_layers(function, **more):
    return Do(function, first=nn.Linear(4, 6), last=nn.Linear(6, 2), **more)


@use(*WRAPPED)
def learned_positions_that_a_layer_returns(way):
    class Positions(nn.Embedding):
        def forward(self, x):
            return self.weight[: x.shape[1]]

    model = way.wrap(Do(lambda m, x: m.last(x + m.at(x)), at=Positions(6, 4), last=nn.Linear(4, 2)))
    way.steps(model, through=lambda m, x, y: mse(m(x[:, None].expand(-1, 3, -1)).mean(1), y))


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


@use(*WRAPPED, BucketedDataParallel="refused: 0.weight has no shape", ShardedModel="refused: 0.weight has no shape")
def lazy_layers_without_a_dry_run(way):
    torch.manual_seed(0)
    model = way.wrap(nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(2)))
    x, _y = way.rows(*batch())
    model(x)
    way.steps(model)


@use(*DATA)
def two_parameters_side_by_side_in_one_storage(way):
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))
    flat = torch.randn(36) / 3
    module[0].weight, module[2].weight = nn.Parameter(flat[:24].view(6, 4)), nn.Parameter(flat[24:].view(2, 6))
    way.train(module)


@use(*DATA, ShardedOptimizer="refused: on rank 0, parameter 0 and", ShardedModel="refused: 0.weight and 2.weight")
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
    way.steps(model)


@use(*DATA)
def buffers_of_all_dtypes(way):
    module = net()
    kinds = (torch.int16, torch.int32, torch.bool, torch.complex64, torch.uint8, torch.float16)
    for kind in kinds:
        module[0].register_buffer(f"of_{kind}".replace(".", "_"), torch.ones(3).to(kind))
    way.train(module)


@use(*WRAPPED, BucketedDataParallel="refused: when the module was", ShardedModel="refused: this model is sharded, in")
def double_after_wrapping(way):
    model = way.wrap(net().float())
    model.double()
    way.steps(model)


@use(*WRAPPED)
def converted_before_wrapping(way):
    way.train(net().float().double())


@use(*WRAPPED, BucketedDataParallel="refused: Every forward pass takes buffers from rank 0")
def a_cached_mask_of_another_size_on_each_rank(way):
    """Rows of a rank are padded to the longest of them, and a mask is kept for that length."""

    def forward(m, x):
        m.mask = torch.ones(4 if (x.abs() > 9).any() else 2)
        return m.last(m.first(x * F.pad(m.mask, (0, 4 - len(m.mask)), value=1.0)).tanh())

    module = two_layers(forward)
    module.register_buffer("mask", None)
    way.train(module, data=lambda step: (batch(step)[0].index_fill(0, torch.tensor([0]), 10.0), batch(step)[1]))


@use(*WRAPPED, BucketedDataParallel="refused: Every forward pass takes buffers from rank 0")
def a_buffer_added_after_wrapping(way):
    module = two_layers(lambda m, x: m.last(m.first(x).tanh()) * m.times)
    model = way.wrap(module)
    module.register_buffer("times", torch.tensor(2.0))
    way.steps(model)


@use(*WRAPPED, BucketedDataParallel="refused: are not averaged yet", ShardedModel="refused: are not averaged yet")
def an_optimizer_step_in_backward(way):
    """torch's tutorial: an optimizer for each parameter, which steps in a post-accumulate hook."""
    model = way.wrap(net())
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: torch.optim.SGD([p], lr=0.1).step())
    for x, y in way.loop(model, torch.optim.SGD([torch.zeros(1)])):
        way.backward(mse(model(x), y))


@use(*WRAPPED)
def module_hooks_forward_and_backward(way):
    module = net()
    module[0].register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,))
    module[0].register_forward_hook(lambda m, inputs, output: output + 1)
    model = way.wrap(module)
    module[2].register_full_backward_hook(lambda m, grads, outs: (grads[0] * 0.5,))
    module[4].register_full_backward_pre_hook(lambda m, grads: (grads[0] * 2,))
    way.steps(model)


@use(BUCKETS)
def a_tensors_hook_and_a_module_compiled_in_place_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    module[0].weight.register_hook(lambda gradient: 2 * gradient)
    way.steps(model, n=1)
    module.compile(backend="eager")
    way.steps(model, n=1)


@use(*DATA, ShardedModel="refused: whose norm is not that of all gradients")
def clipped_by_torch_after_waiting(way):
    way.train(net(), after=lambda m, step: way.note("norm", nn.utils.clip_grad_norm_(m.parameters(), 0.1)))


@use(BUCKETS, OPTIMIZER, MODEL, BucketedDataParallel="refused: was changed", ShardedModel="refused: 0.weight of a")
def gradients_scaled_before_waiting(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        way.backward(mse(model(x), y))
        for p in [p for p in model.parameters() if p.grad is not None]:
            p.grad /= 2


@use(*DATA, ShardedModel="documented: A norm or a sum that you compute of them is this rank's alone")
def the_norm_by_hand(way):
    def norm(model, step):
        way.note("norm", sum(p.grad.square().sum() for p in model.parameters()).sqrt())

    way.train(net(), after=norm)


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
    way.steps(model, through=lambda m, x, y: mse(m(x), y) + 0.1 * sum(p.square().sum() for p in m.parameters()))


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
    way.train(module, data=padded, loss=by_token)


@use(
    *WRAPPED,
    BucketedDataParallel="documented: A forward pass that changes weights in place",
    ShardedModel="refused: embedding.weight",
)
def an_embedding_with_a_largest_norm(way):
    module = Do(
        lambda m, ids: m.last(m.embedding(ids).mean(1)),
        embedding=nn.Embedding(9, 4, max_norm=1.0),
        last=nn.Linear(4, 9),
    )
    way.train(module, data=tokens, loss=F.cross_entropy)


@use(*WRAPPED, BucketedDataParallel="refused: when the module was", ShardedModel="refused: when the module was")
def a_head_replaced_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    module[4] = nn.Linear(5, 2)
    way.steps(model)


@use(*WRAPPED)
def a_layer_without_parameters_replaced(way):
    module = net()
    model = way.wrap(module)
    module[1] = nn.ReLU()
    way.steps(model)


@use(*WRAPPED)
def net_and_wrapper_made_again_in_a_cell_run_twice(way):
    def cell(seed):
        torch.manual_seed(seed)
        return way.wrap(net())

    model = cell(0)
    way.steps(model, n=1)
    if way.name != "plain":
        pass
    way.forget()
    model = cell(1)
    way.steps(model, n=1)


@use(BUCKETS)
def wrapped_again_once_the_first_wrapper_is_gone(way):
    module = net()
    model = way.wrap(module)
    way.steps(model, n=1)
    if way.name != "plain":
        way.forget()
        del model
        model = way.wrap(module)
    way.steps(model, n=1)


@use(*WRAPPED, BucketedDataParallel="refused: is in a", ShardedModel="refused: is sharded already")
def wrapped_again_while_the_first_wrapper_lives(way):
    module = net()
    model = way.wrap(module)
    way.steps(model, n=1)
    if way.name != "plain":
        way.forget()
        model = way.wrap(module)
    way.steps(model, n=1)


@use(*WRAPPED, BucketedDataParallel="refused: is in a", ShardedModel="refused: is sharded already")
def two_wrappers_around_one_trunk(way):
    trunk = nn.Linear(4, 6)
    one, two = (way.wrap(nn.Sequential(trunk, nn.Linear(6, 2))) for _ in range(2))
    for x, y in way.loop(one, way.optimizer([*dict.fromkeys([*one.parameters(), *two.parameters()])])):
        way.backward(mse(one(x), y) + mse(two(x), -y))


@use(*WRAPPED, BucketedDataParallel="refused: when the module was", ShardedModel="refused: 0.weight is (6, 4) in the")
def a_plain_checkpoint_assigned_after_wrapping(way):
    torch.manual_seed(9)
    saved = {name: torch.randn_like(p) for name, p in net().named_parameters()}
    module = net()
    model = way.wrap(module)
    module.load_state_dict(saved, assign=True)
    way.steps(model)


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


@use(*DATA)
def decay_for_matrices_alone(way):
    """nanoGPT's groups: weight decay for parameters of two dimensions or more."""
    model = way.wrap(net())
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    way.steps(model, way.optimizer([g for g in groups if g["params"]], torch.optim.SGD, lr=0.1))
