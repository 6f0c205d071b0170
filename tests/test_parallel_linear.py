"""ColumnParallelLinear and RowParallelLinear in a group of some ranks, and what they refuse. What
check claims of shard.3 is not claimed again here."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from labkit.launch import launch
from labkit.shard import ColumnParallelLinear, RowParallelLinear


def plain():
    torch.manual_seed(5)
    return nn.Linear(3, 2).double(), nn.Linear(2, 4).double()


def output_and_gradient(first, second):
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    y = second(first(x).relu())
    y.square().sum().backward()
    return y.detach(), x.grad


def in_pairs():
    """Ranks 0 and 1 share out the layers, and so do ranks 2 to 4, one with an empty part."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3, 4])]
    group = groups[dist.get_rank() > 1]
    first, second = plain()
    return output_and_gradient(ColumnParallelLinear(first, group), RowParallelLinear(second, group))


def test_each_group_has_the_plain_layers_with_an_empty_part_too():
    right = output_and_gradient(*plain())
    for found in launch(in_pairs, world_size=5, backend="gloo", threads=1).values:
        for each, expected in zip(found, right, strict=True):
            torch.testing.assert_close(each, expected)


REFUSED = {
    "TypeError: expected an nn.Linear, whose matrix is to be shared out, and got Embedding": lambda _: nn.Embedding(
        4, 2
    ),
    "ValueError: rank 1 has Linear(in_features=3": lambda rank: nn.Linear(2 + rank, 2),
    "bias=False) of torch.float32 and rank 0 Linear(in_features=2": lambda rank: nn.Linear(2, 2, bias=rank == 0),
}


def refusals():
    said = []
    for kind in (ColumnParallelLinear, RowParallelLinear):
        for layer_of_rank in REFUSED.values():
            try:
                kind(layer_of_rank(dist.get_rank()))
            except (TypeError, ValueError) as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


def test_anything_else_is_refused_on_every_rank():
    for said in launch(refusals, world_size=2, backend="gloo", threads=1).values:
        assert len(said) == 2 * len(REFUSED)
        assert all(words in each for words, each in zip([*REFUSED] * 2, said, strict=True))
