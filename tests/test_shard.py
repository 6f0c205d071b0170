"""ShardedOptimizer: torch's own optimizers to the bit, on any number of ranks, clear when wrong.
What check claims of shard.1 is not claimed again here."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn

from labkit.dp import BucketedDataParallel
from labkit.shard import ShardedModel, ShardedOptimizer

pytestmark = task("shard.1")

OPTIMIZERS: dict[str, dict[str, Any]] = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {}, "AdamW": {}, "Adagrad": {}}


def net() -> nn.Sequential:
    """Eight parameters: one lies in memory as channels_last does, one is a number with a stride."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        image = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5), image, nn.Embedding(7, 3))
    model[1].bias.requires_grad_(False)
    model[3].register_parameter("scale", nn.Parameter(torch.ones(1, 7)[:, 0]))
    return model


def groups(model: nn.Sequential) -> list[dict[str, Any]]:
    return [{"params": model[:2].parameters()}, {"params": model[2:].parameters(), "lr": 0.02}]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One step, with gradients that are the same on all ranks."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) if parameter.requires_grad else None
    optimizer.step()


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, steps: range = range(10)) -> list[torch.Tensor]:
    for number in steps:
        step(model, optimizer, number)
    return [parameter.detach().clone() for parameter in model.parameters()]


def plain(model: nn.Sequential, name: str) -> torch.optim.Optimizer:
    return vars(torch.optim)[name](groups(model), **OPTIMIZERS[name])


def sharded(model: nn.Sequential, name: str) -> ShardedOptimizer:
    return ShardedOptimizer(groups(model), vars(torch.optim)[name], **OPTIMIZERS[name])


def in_one_process(name: str) -> list[torch.Tensor]:
    return train(model := net(), plain(model, name))


# --- the arithmetic of one process ----------------------------------------------------------------


def by_each(names: list[str]) -> list[list[torch.Tensor]]:
    return [train(model := net(), sharded(model, name)) for name in names]


@pytest.mark.parametrize("world_size", [1, 3, pytest.param(9, marks=pytest.mark.slow)])  # two of nine own nothing
def test_ten_steps_give_the_weights_of_one_process_to_the_bit(world_size, ranks):
    for found in ranks(world_size).run(by_each, [*OPTIMIZERS]).values:
        for name, weights in zip(OPTIMIZERS, found, strict=True):
            assert all(map(torch.equal, weights, in_one_process(name))), name


def behind_buckets() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights that four ranks learn of two rows each, and those of one process with all rows."""
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        alone = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    model = BucketedDataParallel(copy.deepcopy(alone))
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam)
    reference = torch.optim.Adam(alone.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(rows[2 * dist.get_rank() :][:2]).square().mean().backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        reference.zero_grad()
        alone(rows).square().mean().backward()
        reference.step()
    return [p.detach() for p in model.parameters()], [p.detach() for p in alone.parameters()]


@task("dp.6", "dp.7")
def test_behind_buckets_four_ranks_learn_what_one_process_learns_of_the_whole_batch(ranks):
    for ours, alone in ranks(4).run(behind_buckets).values:
        torch.testing.assert_close(ours, alone)


# --- states ---------------------------------------------------------------------------------------


def too_early() -> tuple[str, bool]:
    """Step before the buckets have been waited for, and after."""
    model = BucketedDataParallel(nn.Linear(2, 2))
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    before = model.module.weight.detach().clone()
    model(torch.ones(2)).sum().backward()
    with pytest.raises(RuntimeError) as error:
        optimizer.step()
    unchanged = torch.equal(model.module.weight, before)
    model.finish_gradient_synchronization()
    optimizer.step()
    return str(error.value), unchanged and not torch.equal(model.module.weight, before)


@task("dp.6", "dp.7")
def test_a_step_before_the_gradients_are_averaged_is_refused(ranks):
    for error, stepped_later in ranks(2).run(too_early).values:
        assert "not averaged yet: call finish_gradient_synchronization() after backward()" in error and stepped_later


def half_way(name: str) -> tuple[dict[str, Any], dict[str, Any], list[torch.Tensor]]:
    optimizer = sharded(model := net(), name)
    weights = train(model, optimizer, range(5))
    return optimizer.full_state_dict(), optimizer.state_dict(), weights


def go_on(name: str, states: list[dict[str, Any]], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """The weights after the second half, of an optimizer that begins where others ended."""
    optimizer = sharded(model := net(), name) if dist.is_initialized() else plain(model := net(), name)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    state = states[dist.get_rank() % len(states)] if dist.is_initialized() else states[0]
    optimizer.load_state_dict(copy.deepcopy(state))  # or torch goes on in the very tensors of the saved one
    return train(model, optimizer, range(5, 10))


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_full_state_goes_on_in_one_process_and_on_another_number_of_ranks_a_share_on_as_many(name, ranks):
    saved = ranks(3).run(half_way, name).values
    whole, weights = in_one_process(name), saved[0][2]
    full, shares = saved[0][0], [share for _, share, _ in saved]
    assert all(map(torch.equal, go_on(name, [full], weights), whole))
    for states, world_size in (([full], 2), (shares, 3)):
        for found in ranks(world_size).run(go_on, name, states, weights).values:
            assert all(map(torch.equal, found, whole)), (name, world_size)


def load_anothers() -> None:
    optimizer = sharded(net(), "SGD")
    optimizer.load_state_dict(optimizer.state_dict() | {"share": [0, 4]})


# --- what one may do to a plain optimizer and to this one -----------------------------------------


def replace_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state = defaultdict(dict)


ALLOWED = {  # beside what odd_uses has
    "another state": replace_state,
    "a deepcopy": lambda *both: copy.deepcopy(both),
    "a pickle": lambda *both: pickle.loads(pickle.dumps(both)),
}


def changed(optimizer_of: Callable[..., torch.optim.Optimizer], names: list[str]) -> list[list[torch.Tensor]]:
    found = []
    for name in names:
        optimizer = optimizer_of(model := net(), "SGD")
        train(model, optimizer, range(2))
        model, optimizer = ALLOWED[name](model, optimizer) or (model, optimizer)
        found.append(train(model, optimizer, range(2, 4)))
    return found


def test_what_one_may_do_to_a_plain_optimizer_is_right_with_this_one(ranks):
    right = changed(plain, [*ALLOWED])
    for found in ranks(3).run(changed, sharded, [*ALLOWED]).values:
        for name, weights, expected in zip(ALLOWED, found, right, strict=True):
            assert all(map(torch.equal, weights, expected)), name


def odd_parameters() -> list[Any]:
    """Side by side in one storage, of one element with a stride, without dimensions or elements."""
    row = torch.arange(10.0)
    given = [
        row[:6],
        row[6:],
        torch.ones(1, 7)[:, 0],
        torch.ones(()),
        torch.ones(0),
        torch.ones(2, dtype=torch.complex64),
    ]
    parameters = [nn.Parameter(each) for each in given]
    optimizer = (ShardedOptimizer if dist.is_initialized() else _plain)(parameters, torch.optim.SGD, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return [parameter.tolist() for parameter in parameters]


def _plain(parameters: list[torch.Tensor], optimizer_class: Any, **options: Any) -> torch.optim.Optimizer:
    return optimizer_class(parameters, **options)


def test_parameters_of_any_form_travel(ranks):
    assert ranks(3).run(odd_parameters).values == [odd_parameters()] * 3


# --- what travels, and what is refused ------------------------------------------------------------


def other_model(rank: int) -> Iterator[nn.Parameter]:
    return (nn.Linear(4, 3 + rank) if rank else net()).parameters()


def with_one_on(device: str) -> list[torch.Tensor]:
    return [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, device=device))]


def gaps() -> list[torch.Tensor]:
    return [nn.Parameter(torch.zeros(4, 4)[:, :2])]


ROW = torch.zeros(10)


def converted_later() -> None:
    optimizer = sharded(model := net(), "SGD")
    model.double()
    optimizer.step()


def with_a_parameter_less() -> None:
    optimizer = sharded(net(), "SGD")
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][1:]
    optimizer.step()


def with_another_parameter() -> None:
    optimizer = sharded(net(), "SGD")
    optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.zeros(20, 10))
    optimizer.step()


def with_a_group_less() -> None:
    optimizer = sharded(net(), "SGD")
    optimizer.param_groups.pop(0)
    optimizer.step()


def pickled_by_the_other() -> bytes:
    found = [b""] * dist.get_world_size()
    dist.all_gather_object(found, pickle.dumps(sharded(net(), "SGD")))
    return found[1 - dist.get_rank()]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "other models": (
        lambda: ShardedOptimizer(other_model(dist.get_rank()), torch.optim.Adam),
        "ValueError: rank 1 has different parameters from rank 0: its parameter 0 is (4, 4) torch.float32, strides (4, 1), and "
        "that of rank 0 is (20, 10) torch.float32, strides (10, 1). Build the same model on every rank",
    ),
    "a parameter less": (
        lambda: ShardedOptimizer([*net().parameters()][: 3 - dist.get_rank()], torch.optim.Adam),
        "ValueError: rank 1 has different parameters from rank 0: its parameter 2 is missing, and that of rank 0 is (",
    ),
    "a group for some": (
        lambda: sharded(net(), "Adam").add_param_group({"params": [nn.Parameter(torch.zeros(2 + dist.get_rank()))]}),
        "ValueError: rank 1 has different parameters from rank 0: its parameter 0 is (3,)",
    ),
    "another device": (
        lambda: ShardedOptimizer(with_one_on("meta" if dist.get_rank() else "cpu"), torch.optim.Adam),
        "ValueError: on rank 1, parameter 1 is on meta, and its group sends from cpu",
    ),
    "gaps": (lambda: ShardedOptimizer(gaps(), torch.optim.Adam), "parameter 0 leaves gaps in memory (strides (4, 1))"),
    "another share": (load_anothers, "ValueError: this is the share of rank 0 of 4, and this is rank "),
    "parameters in the same memory": (
        lambda: ShardedOptimizer([nn.Parameter(each) for each in (ROW[4:], ROW[:6])], torch.optim.SGD, lr=0.1),
        "parameter 0 and parameter 1 overlap in memory, so neither can be moved by itself: make them one Parameter, or give each",
    ),
    "converted later": (
        lambda: converted_later(),
        "parameter 0 is (20, 10) torch.float64 on cpu, and was (20, 10) torch.float32 on cpu when it was shared out",
    ),
    "taken out of its group": (
        lambda: with_a_parameter_less(),
        "param_groups has 7 parameters, which are not the 8 that were shared out, in that order",
    ),
    "replaced in its group": (
        lambda: with_another_parameter(),
        "param_groups has 8 parameters, which are not the 8 that were shared out, in that order",
    ),
    "a group less": (
        lambda: with_a_group_less(),
        "param_groups has 4 parameters, which are not the 8 that were shared out, in that order",
    ),
    "a pickle of another rank's": (
        lambda: pickle.loads(pickled_by_the_other()),
        "of 2: save full_state_dict() instead, which can be loaded at any world size",
    ),
    "LBFGS": (
        lambda: ShardedOptimizer(net().parameters(), torch.optim.LBFGS),
        "ValueError: optimizer_class is LBFGS, which steps all parameters together",
    ),
    "an optimizer": (
        lambda: ShardedOptimizer(net().parameters(), torch.optim.SGD(net().parameters(), lr=0.1)),
        "TypeError: optimizer_class is SGD (",
    ),
}


def refusals() -> dict[str, str]:
    found = {}
    for name, (call, _) in REFUSED.items():
        with pytest.raises(Exception) as caught:
            call()
        found[name] = f"{type(caught.value).__name__}: {caught.value}"
    return found


def test_what_cannot_be_shared_out_is_refused_on_every_rank_with_what_to_do(ranks):
    for found in ranks(2).run(refusals).values:
        for name, (_, phrase) in REFUSED.items():
            assert phrase in found[name], name


# --- a model that is sharded itself ---------------------------------------------------------------


def pieces_after_and_before() -> list[str]:
    """What is said of a ShardedOptimizer made after a ShardedModel, and of one made before."""
    after, before = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    sharded_model = ShardedModel(after)
    optimizer = ShardedOptimizer(before.parameters(), torch.optim.SGD, lr=0.1)
    ShardedModel(before)
    found = []
    for call in (lambda: ShardedOptimizer(sharded_model.parameters(), torch.optim.SGD, lr=0.1), optimizer.step):
        with pytest.raises(ValueError) as caught:
            call()
        found.append(str(caught.value))
    return found


@task("shard.2")
def test_pieces_of_a_sharded_model_are_not_sent_whichever_comes_first(ranks):
    for errors in ranks(2).run(pieces_after_and_before).values:
        assert all("own piece of a ShardedModel's: give these to a plain optimizer" in each for each in errors)
