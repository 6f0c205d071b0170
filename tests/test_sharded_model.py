"""ShardedModel: the weights that one process has, whatever the model, or a sentence why not.
What check claims of shard.2 is not claimed again here."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn
from torch.distributed import checkpoint as distributed_checkpoint
from torch.utils.checkpoint import checkpoint

from labkit import models, shard
from labkit.launch import launch

pytestmark = task("shard.2")


@pytest.fixture(scope="module")
def two(ranks):
    return ranks(2)


# --- models ---------------------------------------------------------------------------------------


class Layers(nn.Module):
    """One layer twice, one frozen, one that is not sharded, one that is not used."""

    def __init__(self):
        super().__init__()
        self.twice, self.frozen, self.unused = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.twice(self.norm(self.frozen(self.twice(x)).to(self.norm.weight)).tanh()).tanh()


class Checkpointed(Layers):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Block(nn.Module):
    """Two layers that are to be one unit, with an input that is given by name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, *, x):
        return {"y": self.second(self.first(x).tanh())}


class CheckpointedBlocks(nn.Module):
    """Blocks whose forward pass is run again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x=x, use_reentrant=False)["y"]
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.middle, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.middle(self.embedding(as_tokens(x, 9))).tanh())


class Stack(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Linear(4, 4) for _ in range(3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt2 = models.gpt2("mini", n_layer=2, n_embd=8, n_head=2, vocab_size=16, n_positions=8)

    def forward(self, x):
        return self.gpt2(as_tokens(x, 16)).logits


def as_tokens(x, vocabulary):
    return (x.abs() * vocabulary).long() % vocabulary


def blocks():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    return GPT2Block


def made(kind):
    torch.manual_seed(3)
    return kind().double()


def loss_of(model, step, shares=False):
    """The mean loss over a batch, or over this rank's share of it."""
    rows = torch.linspace(-1, 1 + step, 32, dtype=torch.float64).sin().view(8, 4)
    if shares:
        rows = rows.chunk(dist.get_world_size())[dist.get_rank()]
    return model(rows).double().square().mean()


# --- as in one process ----------------------------------------------------------------------------

PLANS = {  # per step of the optimizer, the backward passes; each with the batches of the forward passes before it
    "a pass a step": [[[0]], [[1]], [[2]]],
    "gradients that add up": [[[0], [1]], [[2], [3]]],
    "two forward passes before one backward pass": [[[0, 1]], [[2, 1]]],
}


def train(model, plan, shares):
    finish = getattr(model, "finish_gradient_synchronization", lambda: None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for passes in plan:
        for batches in passes:
            torch.stack([loss_of(model, batch, shares) for batch in batches]).sum().backward()
            finish()
        optimizer.step()
        optimizer.zero_grad()


def sharded(kind, plan="a pass a step", kinds=None, **options):
    """Train in a rank. Return weights, the loss of evaluation, and bytes kept between steps."""
    kinds = (blocks(),) if kinds == "blocks" else kinds or (nn.Linear, nn.Embedding)
    model = shard.ShardedModel(made(kind), kinds, **options)
    train(model, PLANS[plan], shares=True)
    with torch.no_grad():
        loss = loss_of(model, 0).item()
    kept = sum(unit.full.untyped_storage().nbytes() for unit in model.units)
    return model.full_parameters(), loss, kept


def assert_learned_alike(values, kind, plan="a pass a step"):
    alone = made(kind)
    train(alone, PLANS[plan], shares=False)
    for weights, loss, kept in values:
        assert weights.keys() == dict(alone.named_parameters()).keys() and kept == 0
        for name, right in alone.named_parameters():
            torch.testing.assert_close(weights[name], right.detach(), rtol=0, atol=1e-9, msg=name)
        assert loss == pytest.approx(loss_of(alone, 0).item())


@pytest.mark.parametrize(
    ("kind", "kinds", "prefetch"),
    [
        (Layers, None, False),
        (Layers, (nn.Linear, nn.LayerNorm), False),
        (Checkpointed, None, True),
        (CheckpointedBlocks, (Block,), False),
        (Tied, None, True),
        (Transformer, None, False),
        (Transformer, "blocks", True),
    ],
)
def test_it_learns_and_evaluates_as_one_process_does_and_keeps_no_layer(two, kind, kinds, prefetch):
    assert_learned_alike(two.run(sharded, kind, kinds=kinds, prefetch=prefetch).values, kind)


@pytest.mark.parametrize("plan", [*PLANS][1:])
def test_gradients_are_those_of_all_passes(two, plan):
    assert_learned_alike(two.run(sharded, Layers, plan).values, Layers, plan)


@pytest.mark.parametrize("world_size", [1, 4])
def test_so_it_does_on_other_numbers_of_ranks_some_of_them_with_empty_pieces(world_size):
    run = launch(sharded, Layers, world_size=world_size, backend="gloo", threads=1)
    assert_learned_alike(run.values, Layers)


# --- the norm of all gradients --------------------------------------------------------------------


def clipped(model, max_norm, clip):
    """The norms in three steps of training, and the weights after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    norms = []
    for step in range(3):
        loss_of(model, step, shares=clip is None).backward()
        if clip is None:
            model.finish_gradient_synchronization()
        norms.append(model.clip_grad_norm_(max_norm) if clip is None else clip(model.parameters(), max_norm))
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(norms)


def clips(kind, max_norm):
    model = shard.ShardedModel(made(kind))
    return clipped(model, max_norm, None), model.full_parameters()


@pytest.mark.parametrize(("world_size", "kind", "max_norm"), [(2, Layers, 1e-3), (2, Layers, 1e6), (4, Stack, 1e-3)])
def test_gradients_are_clipped_by_the_norm_that_one_process_finds(world_size, kind, max_norm):
    run = launch(clips, kind, max_norm, world_size=world_size, backend="gloo", threads=1)
    alone = made(kind)
    right = clipped(alone, max_norm, nn.utils.clip_grad_norm_)
    for norms, weights in run.values:
        torch.testing.assert_close(norms, right)
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(weights[name], parameter.detach(), msg=name)
    small = run.events[(run.events.name == "all_reduce") & (run.events["rank"] == 0) & (run.events.bytes == 8)]
    assert len(small) == 3  # one number a step


# --- what travels, what is kept, and what is not used ---------------------------------------------


def test_a_step_moves_the_parameters_twice_and_their_gradients_once(two):
    events = two.run(sharded, Stack).events
    moved = events[events["rank"] == 0].groupby("name").bytes.sum()
    n_bytes = sum(p.nbytes for p in made(Stack).parameters())
    assert moved["reduce_scatter"] == 3 * n_bytes
    assert moved["all_gather"] == 3 * 2 * n_bytes + n_bytes  # three steps, and an evaluation


def gradients_on_their_way():
    """Return of how many units the whole gradients are kept, whenever one more leaves."""
    model, kept = shard.ShardedModel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))), []
    scatter = model._scatter

    def counted(unit):
        kept.append(1 + sum(not each.work.done for each in model._on_their_way))
        return scatter(unit)

    model._scatter = counted
    model(torch.ones(2, 4)).sum().backward()
    model.finish_gradient_synchronization()
    return kept


def test_only_two_units_whole_gradients_are_kept_until_they_have_arrived(two):
    assert two.run(gradients_on_their_way).values == [[1, 2, 2, 2, 2]] * 2


class Unused(Stack):
    """With norms that no rank uses: one in a unit, one replicated."""

    def __init__(self):
        super().__init__()
        self[0].norm, self.norm = nn.LayerNorm(4), nn.LayerNorm(4)

    def forward(self, x):
        return self[2](self[1](self[0](x)))


def gradients_of_the_unused():
    model = shard.ShardedModel(made(Unused), (nn.Linear,))
    loss_of(model, 0).backward()
    model.finish_gradient_synchronization()
    weights = [norm.weight for norm in (model.module[0].norm, model.module.norm)]
    return [(weight.grad.shape == weight.shape, int(weight.grad.count_nonzero())) for weight in weights]


def test_what_no_rank_uses_gets_a_gradient_of_zero(two):
    assert two.run(gradients_of_the_unused).values == [[(True, 0)] * 2] * 2


# --- a checkpoint ---------------------------------------------------------------------------------


def steps_of(model, optimizer, steps, shares):
    for step in steps:
        loss_of(model, step, shares).backward()
        getattr(model, "finish_gradient_synchronization", lambda: None)()
        optimizer.step()
        optimizer.zero_grad()


def saves_or_goes_on(kind, name, folder, saves):
    """Train for two steps and save; or load into a model with other weights, and train on."""
    plain = made(kind)
    for parameter in () if saves else plain.parameters():
        nn.init.zeros_(parameter)
    model = shard.ShardedModel(plain)
    optimizer = vars(torch.optim)[name](model.parameters(), **OPTIMIZERS[name])
    if not saves:
        distributed_checkpoint.load(model.sharded_state(optimizer), checkpoint_id=folder)
    steps_of(model, optimizer, range(2) if saves else range(2, 4), shares=True)
    if saves:
        distributed_checkpoint.save(model.sharded_state(optimizer), checkpoint_id=folder)
    return model.full_parameters()


OPTIMIZERS = {"AdamW": {"lr": 0.05}, "SGD": {"lr": 0.1, "momentum": 0.9}}


@pytest.mark.parametrize(("kind", "name", "world_size"), [(Layers, "AdamW", 4), (Tied, "AdamW", 1), (Layers, "SGD", 4)])
def test_a_checkpoint_of_two_ranks_goes_on_at_another_world_size(two, kind, name, world_size, tmp_path):
    two.run(saves_or_goes_on, kind, name, str(tmp_path), saves=True)
    run = launch(
        saves_or_goes_on, kind, name, str(tmp_path), saves=False, world_size=world_size, backend="gloo", threads=1
    )
    alone = made(kind)
    steps_of(alone, vars(torch.optim)[name](alone.parameters(), **OPTIMIZERS[name]), range(4), shares=False)
    for weights in run.values:
        for key, parameter in alone.named_parameters():
            torch.testing.assert_close(weights[key], parameter.detach(), rtol=0, atol=1e-9, msg=key)


# --- gathered ahead -------------------------------------------------------------------------------


class OneOfTwo(nn.Module):
    """A layer or another, as the caller says."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, order):
        for number in order:
            x = self.layers[number](x)
        return x


def in_another_order_each_time(sharded):
    model, x = made(OneOfTwo), torch.ones(2, 4, dtype=torch.float64)
    model = shard.ShardedModel(model, prefetch=True) if sharded else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for order in ([0, 1, 2], [0, 2, 1], [0, 1], [0, 1], [0], [2, 0], [2, 1, 0]):
        losses.append(model(x, order).square().mean())
        if order != [0]:  # that is for evaluation, and 1 was gathered for nothing
            losses[-1].backward()
            getattr(model, "finish_gradient_synchronization", lambda: None)()
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses).tolist(), sum(
        unit.full.untyped_storage().nbytes() for unit in getattr(model, "units", ())
    )


def test_a_layer_that_was_gathered_ahead_for_nothing_is_let_go_and_never_used_stale(two):
    right, _ = in_another_order_each_time(sharded=False)
    assert two.run(in_another_order_each_time, sharded=True).values == [(pytest.approx(right), 0)] * 2


# --- gradients of the inputs alone ----------------------------------------------------------------


def input_gradient_then_a_step(world=None):
    """Take the gradient of an input, then a step with gradients that were there before."""
    model = made(Stack) if world is None else shard.ShardedModel(made(Stack), prefetch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss_of(model, step, shares=world is not None).backward()
        getattr(model, "finish_gradient_synchronization", lambda: None)()
        x = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
        (dx,) = torch.autograd.grad(model(x).square().mean(), x)
        kept = sum(unit.full.untyped_storage().nbytes() for unit in getattr(model, "units", ()))
        optimizer.step()
        optimizer.zero_grad()
    weights = dict(model.named_parameters()) if world is None else model.full_parameters()
    return dx, {name: each.detach() for name, each in weights.items()}, kept


def test_a_gradient_of_an_input_leaves_no_layer_whole_and_takes_no_part_in_the_step(two):
    dx, weights, _ = input_gradient_then_a_step()
    for found, learned, kept in two.run(input_gradient_then_a_step, 2).values:
        torch.testing.assert_close(found, dx)
        assert kept == 0
        for name in weights:
            torch.testing.assert_close(learned[name], weights[name], msg=name)


# --- what cannot work -----------------------------------------------------------------------------


def layer(change):
    linear = nn.Linear(2, 2)
    change(linear)
    return nn.Sequential(linear)


def in_order(*calls):
    model = shard.ShardedModel(made(Stack))
    do = {"finish": model.finish_gradient_synchronization, "forward": lambda: loss_of(model, 0)}
    do |= {"clip": lambda: model.clip_grad_norm_(1.0), "backward": lambda: loss_of(model, 0).backward()}
    for call in calls:
        do[call]()


def optimizer_of_before():
    model = made(Stack)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps_of(model, optimizer, range(1), shares=True)
    # It has the momentum of whole parameters now, and gets pieces.
    steps_of(shard.ShardedModel(model), optimizer, range(1), shares=True)


def sharded_by(module, kinds=(nn.Linear, nn.Embedding)):
    return lambda: shard.ShardedModel(module(), kinds)


NOT_AVERAGED = "not averaged yet: call finish_gradient_synchronization"
REFUSED = {
    "shard is 'Linear', expected a class of modules": sharded_by(Tied, "Linear"),
    "the model has no layer with parameters of Conv1d": sharded_by(Tied, nn.Conv1d),
    "embedding.weight is a parameter of head too": sharded_by(Tied, nn.Linear),
    "0.weight is trained and 0.bias is frozen": sharded_by(lambda: layer(lambda x: x.bias.requires_grad_(False))),
    "0.weight is torch.float32 and 0.bias is torch.float64": sharded_by(
        lambda: layer(lambda x: setattr(x, "bias", nn.Parameter(x.bias.double())))
    ),
    "the gradients of 0 are sparse": sharded_by(lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True))),
    "uses its layers' weights without calling": sharded_by(lambda: nn.Sequential(nn.MultiheadAttention(4, 2))),
    "rank 1 has a different model from rank 0": sharded_by(lambda: nn.Sequential(nn.Linear(2, 2 + dist.get_rank()))),
    "rank 1 has different units from rank 0": lambda: shard.ShardedModel(
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), (nn.Linear, nn.LayerNorm)[dist.get_rank()]
    ),
    "there is no gradient to average": lambda: in_order("finish"),
    "no gradient to average": lambda: in_order("backward", "finish", "finish"),
    NOT_AVERAGED: lambda: in_order("backward", "forward"),
    NOT_AVERAGED[:20]: lambda: in_order("backward", "clip"),
    "sharded, in torch.float64 on cpu, and cannot become torch.float16": lambda: shard.ShardedModel(made(Stack)).half(),
    "The size of tensor a": optimizer_of_before,  # it has stepped, so it cannot go on
}


def refusals():
    """Return what each of these calls raises, on this rank."""
    found = []
    for call in REFUSED.values():
        with pytest.raises((RuntimeError, TypeError, ValueError)) as error:
            call()
        found.append(str(error.value))
    return found


def test_what_cannot_work_is_refused_in_a_sentence_on_every_rank(two):
    for found in two.run(refusals).values:
        assert {right: message for right, message in zip(REFUSED, found, strict=True) if right not in message} == {}
