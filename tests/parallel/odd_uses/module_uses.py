"""Odd modules and odd steps under the data-parallel wrappers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from odd_bed import BUCKETS, DATA, MODEL, batch, mse, net, tokens, use
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

WRAPPED = (BUCKETS, MODEL)


def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


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
    way.train(Tied(), data=tokens, loss=cross_entropy)


@use(*DATA, ShardedModel="refused: where it is this rank's piece")
def a_tied_head_written_by_hand(way):
    way.train(Tied(by_hand=True), data=tokens, loss=cross_entropy)


# --- parametrizations -----------------------------------------------------------------------------


@use(*DATA)
def weight_norm_before_wrapping(way):
    way.train(nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 2)))


@use(*WRAPPED)
def the_old_weight_norm_before_wrapping(way):
    way.train(nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 2)))


@use(
    *WRAPPED, BucketedDataParallel="refused: when the module was wrapped", ShardedModel="refused: is this rank's piece"
)
def weight_norm_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    parametrizations.weight_norm(module[0])
    way.steps(model, way.optimizer(model.parameters()))


@use(*DATA)
def spectral_norm(way):
    torch.manual_seed(0)
    way.train(nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 2)))


@use(*WRAPPED)
def a_cached_parametrization(way):
    module = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
    model = way.wrap(module)
    for x, y in way.loop(model):
        with parametrize.cached():
            way.backward(mse(model(x), y))


@use(*WRAPPED)
def a_pruned_layer(way):
    from torch.nn.utils import prune

    module = net()
    torch.manual_seed(5)
    prune.random_unstructured(module[0], "weight", amount=0.5)
    way.train(module)


class LoRA(nn.Linear):
    """A linear layer with a frozen weight and a low-rank part beside it."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2) / 5)

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


@use(*DATA, ShardedModel="refused: freeze all of a layer, or nothing")
def lora_in_a_subclass_of_linear(way):
    way.train(nn.Sequential(LoRA(4, 6), nn.Tanh(), LoRA(6, 2)))


class Adapter(nn.Module):
    """LoRA around a frozen layer, as peft does."""

    def __init__(self, base, outputs):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@use(*DATA)
def lora_around_a_frozen_layer(way):
    way.train(nn.Sequential(Adapter(nn.Linear(4, 6), 6), nn.Tanh(), Adapter(nn.Linear(6, 2), 2)))


@use(*WRAPPED, ShardedModel="refused: 0.up.weight of a ShardedModel is this rank's")
def lora_merged_and_unmerged_in_between(way):
    module = nn.Sequential(Adapter(nn.Linear(4, 6), 6), nn.Tanh(), nn.Linear(6, 2))

    @torch.no_grad()
    def evaluate(model, step):
        layer = module[0]
        layer.base.weight.data += layer.up.weight @ layer.down.weight
        layer.base.weight.data -= layer.up.weight @ layer.down.weight

    way.train(module, each=evaluate)


# --- averages and copies of the weights -----------------------------------------------------------


@use(*WRAPPED, ShardedModel="refused: cannot be copied")
def an_averaged_model(way):
    average = []

    def update(model, step):
        if not average:
            average.append(torch.optim.swa_utils.AveragedModel(model))
        average[0].update_parameters(model)

    way.train(net(), after=update)
    with torch.no_grad():
        way.note("output of the average", average[0].eval()(way.rows(batch()[0])), "rows")


@use(*WRAPPED, ShardedModel="refused: cannot be copied")
def a_deepcopy_as_target_network(way):
    module = net()
    model = way.wrap(module)
    target, optimizer = copy.deepcopy(model).requires_grad_(False), way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        x = way.rows(batch(step)[0])
        with torch.no_grad():
            wanted = target(x) * 0.9 + 1
        way.backward(mse(model(x), wanted))
        way.sync()
        way.step(optimizer)
        if step == 1:
            target.load_state_dict(model.state_dict())


@use(*WRAPPED, BucketedDataParallel="refused: is a copy of a wrapper", ShardedModel="refused: cannot be copied")
def a_deepcopy_that_trains(way):
    model = way.wrap(net())
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    x, y = way.rows(*batch())
    mse(twin(x), y).backward()
    if hasattr(twin, "finish_gradient_synchronization"):
        twin.finish_gradient_synchronization()
    optimizer.step()
    with torch.no_grad():
        way.note("output of the copy", twin(x), "rows")


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
def weights_swapped_by_copy_for_evaluation(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters())
    shadow = [p.detach().clone() for p in model.parameters()]
    for step in range(3):
        way.steps(model, optimizer, n=1)
        kept = [p.detach().clone() for p in model.parameters()]
        for p, average in zip(model.parameters(), shadow, strict=True):
            average.lerp_(p.detach(), 0.5)
            p.data.copy_(average)
        with torch.no_grad():
            way.note("output of the average", model(way.rows(batch(step)[0])), "rows")
        for p, own in zip(model.parameters(), kept, strict=True):
            p.data.copy_(own)


@use(*DATA)
def parameters_from_a_vector(way):
    module = net()

    def shrink(model, step):
        vector = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(vector * 0.9, model.parameters())

    way.train(module, each=shrink)


@use(*DATA)
def weights_clamped_after_each_step(way):
    def clamp(model, step):
        for p in model.parameters():
            p.data.clamp_(-0.3, 0.3)

    way.train(net(), each=clamp)


@use(*WRAPPED, ShardedModel="refused: 0.weight of a ShardedModel is this rank's")
def weights_initialised_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    torch.manual_seed(3)
    for layer in module:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    way.steps(model, way.optimizer(model.parameters()))


# --- frozen, and not any more ---------------------------------------------------------------------


@use(
    *DATA,
    BucketedDataParallel="refused: when the module was wrapped",
    ShardedModel="refused: when the module was wrapped",
)
def frozen_before_and_unfrozen_later(way):
    module = net()
    module[0].requires_grad_(False)
    way.train(module, each=lambda model, step: module[0].requires_grad_(step > 0))


@use(*DATA)
def frozen_after_wrapping_with_weight_decay(way):
    module = net()
    model = way.wrap(module)
    optimizer = way.optimizer(model.parameters(), torch.optim.SGD, lr=0.1, weight_decay=0.1)
    module[0].requires_grad_(False)
    way.steps(model, optimizer)


@use(*DATA)
def frozen_after_two_steps_and_back(way):
    module = net()
    way.train(module, each=lambda model, step: module[0].requires_grad_(step != 1))


@use(*WRAPPED, ShardedModel="refused: freeze all of a layer, or nothing")
def biases_alone_are_trained(way):
    module = net()
    for name, p in module.named_parameters():
        p.requires_grad_("bias" in name)
    way.train(module)


@use(*DATA)
def the_turns_of_a_gan(way):
    maker, critic = way.wrap(net()), way.wrap(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)))
    makers, critics = way.optimizer(maker.parameters()), way.optimizer(critic.parameters())
    for step in range(3):
        x, y = way.rows(*batch(step))
        critics.zero_grad()
        critic.requires_grad_(True)
        way.backward(critic(maker(x).detach()).mean() - critic(y).mean())
        way.sync()
        way.step(critics)
        makers.zero_grad()
        critic.requires_grad_(False)
        way.backward(-critic(maker(x)).mean())
        way.sync()
        way.step(makers)
    critic.requires_grad_(True)


# --- several passes -------------------------------------------------------------------------------


@use(*DATA)
def gradients_accumulated_without_synchronising(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        with way.no_sync():
            x, y = way.rows(*batch(2 * step))
            way.backward(mse(model(x), y))
        x, y = way.rows(*batch(2 * step + 1))
        way.backward(mse(model(x), y))
        way.sync()
        way.step(optimizer)


@use(BUCKETS, BucketedDataParallel="refused: are not averaged yet")
def no_sync_around_forward_alone(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        with way.no_sync():
            x, y = way.rows(*batch(2 * step))
            loss = mse(model(x), y)
        way.backward(loss)
        x, y = way.rows(*batch(2 * step + 1))
        way.backward(mse(model(x), y))
        way.sync()
        way.step(optimizer)


@use(*WRAPPED)
def an_evaluation_between_accumulation_steps(way):
    model = way.wrap(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)))
    for x, y in way.loop(model):
        with way.no_sync():
            way.backward(mse(model(x), y))
        model.eval()
        with torch.no_grad():
            way.note("evaluation", model(x), "rows")
        model.train()
        model[1].eval() if isinstance(model, nn.Sequential) else model.module[1].eval()
        way.backward(mse(model(x * 2), y))


@use(*WRAPPED)
def an_evaluation_in_inference_mode_between_steps(way):
    def evaluate(model, step):
        with torch.inference_mode():
            way.note("evaluation", model(way.rows(batch(9)[0])).clone(), "rows")

    way.train(net(), each=evaluate)


@use(*DATA)
def two_forwards_before_one_backward(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        first, second = model(x), model(x.flip(1))
        way.backward(mse(first, y) + (first * second).mean())


@use(*DATA)
def two_losses_of_one_forward(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        output = model(x)
        with way.no_sync():
            way.backward(mse(output, y), retain_graph=True)
        way.backward(output.square().mean())


@use(*WRAPPED, BucketedDataParallel="refused: became ready twice")
def two_backwards_without_no_sync(way):
    model = way.wrap(net())
    for x, y in way.loop(model):
        output = model(x)
        way.backward(mse(output, y), retain_graph=True)
        way.backward(output.square().mean())


@use(*DATA, BucketedDataParallel="documented: the next backward pass overwrites it")
def gradient_surgery_over_two_backward_passes(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        found = []
        x, y = way.rows(*batch(step))
        for loss in (mse, lambda output, y: output.abs().mean()):
            optimizer.zero_grad()
            way.backward(loss(model(x), y))
            way.sync()
            found.append([p.grad for p in model.parameters()])
        for p, first, second in zip(model.parameters(), *found, strict=True):
            p.grad = first - 0.5 * second
        way.step(optimizer)


@use(
    *DATA,
    BucketedDataParallel="refused: there is no gradient to average",
    ShardedModel="refused: has its gradient from backward() alone",
)
def gradients_taken_by_autograd_grad(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        x, y = way.rows(*batch(step))
        loss = mse(model(x), y)
        way.count(loss)
        for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            p.grad = gradient
        way.sync()
        way.step(optimizer)


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


@use(*DATA)
def a_reentrant_checkpoint(way):
    way.train(Checkpointed(reentrant=True))


@use(*DATA)
def a_checkpoint_around_a_shared_block(way):
    way.train(Checkpointed(reentrant=False, times=2))


@use(*DATA, BucketedDataParallel="refused: became ready twice")
def a_reentrant_checkpoint_around_a_shared_block(way):
    way.train(Checkpointed(reentrant=True, times=2))


@use(*DATA)
def a_checkpoint_around_the_whole_wrapper(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    way.steps(lambda x: checkpoint(model, x, use_reentrant=False), optimizer)


# --- torch.func and compile -----------------------------------------------------------------------


@use(*WRAPPED, ShardedModel="refused: functional_call gives 0.weight of a ShardedModel as (15,)")
def functional_call_under_no_grad(way):
    model = way.wrap(net())
    halves = {name: p.detach() / 2 for name, p in model.named_parameters()}
    with torch.no_grad():
        way.note("output of halves", torch.func.functional_call(model, halves, (way.rows(batch()[0]),)), "rows")
    way.steps(model, way.optimizer(model.parameters()))


@use(BUCKETS, MODEL, by_shards=True, ShardedModel="refused: has its gradient from backward() alone")
def per_task_steps_of_maml(way):
    model = way.wrap(net())
    optimizer = way.optimizer(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        for x, y in way.parts(*batch(step)):
            named = dict(model.named_parameters())
            inner = torch.autograd.grad(model(x).square().mean(), [*named.values()], create_graph=True)
            fast = {name: p - 0.1 * g for (name, p), g in zip(named.items(), inner, strict=True)}
            way.backward(mse(torch.func.functional_call(model, fast, (x,)), y))
        way.sync()
        way.step(optimizer)


@use(*WRAPPED, BucketedDataParallel="refused: when the module was wrapped", ShardedModel="refused: torch.func cannot")
def gradients_by_torch_func_grad(way):
    model = way.wrap(net())
    x, y = way.rows(*batch())
    named = {name: p.detach() for name, p in model.named_parameters()}
    gradients = torch.func.grad(lambda p: mse(torch.func.functional_call(model, p, (x,)), y))(named)
    for gradient in gradients.values():
        way.note("gradient by func", gradient, "mean")


@use(*WRAPPED, BucketedDataParallel="refused: when the module was wrapped", ShardedModel="refused: torch.func cannot")
def per_sample_gradients_by_vmap(way):
    model = way.wrap(net())
    x, y = way.rows(*batch())
    named = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, row, target):
        return mse(torch.func.functional_call(model, parameters, (row[None],)), target[None])

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(named, x, y)
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


@use(*WRAPPED)
def a_layer_compiled_in_place_after_wrapping(way):
    module = net()
    model = way.wrap(module)
    module[2].compile(backend="aot_eager")
    way.steps(model, way.optimizer(model.parameters()))
