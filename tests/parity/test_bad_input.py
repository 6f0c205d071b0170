"""What cannot be compared is refused in a sentence before ranks train."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.parity import compare, comparison
from labkit.parity.training import Cut
from labkit.parity.truth import Facts, find_truth
from labkit.schedule import forward_only, one_f_one_b

X, Y = torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(8) % 3


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.fixture(autouse=True)
def _no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the one plain rank work in this process, and no other rank start."""

    def launch(fn: Any, *args: Any, **_: Any) -> Any:
        assert fn is find_truth, "ranks were started"
        return type("Run", (), {"values": [fn(*args)]})

    monkeypatch.setattr(comparison, "launch", launch)


SCHEDULED = "ScheduledPipeline"
STATIC = [
    ({"ways": ["BucketDataParallel"]}, ValueError, r"did you mean BucketedDataParallel\?"),
    ({"ways": ["ddp"]}, ValueError, r"did you mean DDP\?"),
    ({"ways": [("ShardedModel", {"shards": nn.Linear})]}, ValueError, r"no option 'shards' \(did you mean shard\?"),
    ({"ways": ("Pipe", {"split_sise": 2})}, ValueError, r"did you mean split_size\?"),
    ({"ways": [["DDP", "Pipe"]]}, TypeError, "a dict of options"),
    ({"ways": {"DDP": {"bucket_cap": 1}}}, ValueError, r"did you mean bucket_cap_mb\?"),
    ({"ways": [3]}, TypeError, "a way is 3 .*expected a name"),
    ({"ways": []}, ValueError, "expected at least one of"),
    ({"ways": [(SCHEDULED, {"schedule": one_f_one_b(4, 4)})]}, ValueError, "is for 4 ranks, and world_size is 2"),
    ({"ways": [(SCHEDULED, {"schedule": "1F1B"})]}, TypeError, "expected a Schedule"),
    ({"ways": [(SCHEDULED, {"schedule": forward_only(2, 4)})]}, ValueError, "no backward passes"),
    ({"ways": [(SCHEDULED, {"schedule": one_f_one_b(2, 9)})]}, ValueError, "8 rows, and .* over 9 micro-batches"),
    ({"ways": [("pipelining", {"schedule": "1f1b"})]}, ValueError, r"did you mean 1F1B\?"),
    ({"ways": [lambda module, optimizer: None], "world_size": 9}, ValueError, "8 rows, and <lambda> .* over 9 ranks"),
    ({"world_size": 0}, ValueError, "world_size is 0"),
    ({"steps": 1.5}, TypeError, "steps is 1.5"),
    ({"batch": (X, Y[:7])}, ValueError, "tensors of 7 and 8 rows"),
    ({"batch": X}, TypeError, r"expected a pair \(inputs, target\)"),
    ({"batch": (1.0, 2.0)}, ValueError, "no tensor with rows"),
    ({"build": build()}, TypeError, "build is a Sequential, expected a function"),
    ({"loss": "mse"}, TypeError, "loss is 'mse', expected a function"),
    ({"optimizer": "SGD"}, TypeError, "expected a pair such as"),
    ({"optimizer": (torch.optim.LBFGS, {})}, ValueError, "LBFGS"),
    ({"dtype": torch.int64}, TypeError, "expected a floating-point dtype"),
]


@pytest.mark.parametrize(("given", "error", "says"), STATIC)
def test_bad_input_is_refused_before_anything_runs(given, error, says):
    arguments = {"build": build, "batch": (X, Y), "loss": F.cross_entropy, "ways": ["DDP"]} | given
    with pytest.raises(error, match=says):
        compare(**arguments)


NET = build()
COUNT = iter(range(100))


def two_kinds() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3 + next(COUNT)))


def drawn_elsewhere() -> nn.Module:
    model = build()
    nn.init.uniform_(model[0].bias, generator=torch.Generator().manual_seed(next(COUNT)))
    return model


def frozen() -> nn.Module:
    return build().requires_grad_(False)


class Whole(nn.Module):
    """A module that is not an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


PIPES = {"ways": ["Pipe"]}
IN_PLAIN_TORCH = [
    ({"build": lambda: NET}, "a module twice"),
    ({"build": lambda: nn.Sequential(NET)}, "a module twice"),
    ({"build": two_kinds}, "two builds of one seed differ in 0."),
    ({"build": drawn_elsewhere}, "two builds of one seed differ in 0.bias"),
    ({"build": frozen}, "no parameter of the module requires a gradient"),
    ({"build": lambda: F.relu}, "expected an nn.Module"),
    ({"loss": lambda out, y: F.cross_entropy(out, y, reduction="none")}, r"a tensor of shape \(8,\)"),
    ({"loss": lambda out, y: F.cross_entropy(out, y).item()}, "loss returned a float"),
    ({"loss": lambda out, y: F.cross_entropy(out.detach(), y)}, "depends on no parameter"),
    ({"optimizer": (torch.optim.SGD, {"lr": 1e200})}, "not finite at step [23]"),
    (PIPES | {"stages": lambda module: [module]}, "there are 1 modules to make 2 stages of"),
    (PIPES | {"stages": lambda module: [*build()]}, "not a Parameter of it"),
    (PIPES | {"stages": lambda module: [module[0], module[1]]}, "leave out 2.weight"),
    (PIPES | {"stages": lambda module: [module[0], F.relu, module[2]]}, "expected modules in the order"),
    (PIPES | {"build": Whole}, "give stages="),
]


@pytest.mark.parametrize(("given", "says"), IN_PLAIN_TORCH)
def test_what_plain_torch_shows_to_be_wrong_is_refused_before_other_ranks_start(given, says):
    arguments = {"build": build, "batch": (X, Y), "loss": F.cross_entropy, "ways": ["DDP"]} | given
    with pytest.raises(ValueError, match=says):
        compare(**arguments)


def test_a_build_that_returns_copies_of_one_module_is_fine(tmp_path):
    training = comparison.make_training(
        lambda: copy.deepcopy(NET), (X, Y), F.cross_entropy, 1, (torch.optim.SGD, {"lr": 0.1}), None, None, None
    )
    facts: Facts = find_truth(training, [Cut()], 0, tmp_path)
    assert facts.refused == ""
