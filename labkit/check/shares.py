"""Cases of shard.1 and claims about them: which rank owns which parameters, how evenly."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

import torch
from torch import nn

from labkit.base.texts import listed
from labkit.check.harness import Finding

N = 3  # ranks


@dataclass(eq=False)
class Shares:
    """Parameters of these sizes, in elements, in groups; the last group is added later.

    The first one is frozen.
    """

    what: str
    groups: Sequence[Sequence[int]]
    dtypes: Sequence[str] = ("float64",)  # in turns
    world_size: int = N

    def __str__(self) -> str:
        return f"{self.what}, of {listed([list(group) for group in self.groups])} elements"

    def parameters(self) -> list[list[nn.Parameter]]:
        dtypes = cycle(vars(torch)[dtype] for dtype in self.dtypes)
        zeros = [[torch.zeros(size, dtype=next(dtypes)) for size in group] for group in self.groups]
        parameters = [[*map(nn.Parameter, group)] for group in zeros]
        parameters[0][0].requires_grad_(False)
        return parameters

    def sizes(self) -> list[int]:
        return [parameter.nbytes for parameter in chain(*self.parameters())]

    def observe(self) -> list[int]:
        """Return the numbers of the parameters that the optimizers of this rank hold."""
        from labkit import shard

        made: weakref.WeakSet[Any] = weakref.WeakSet()

        class Watched(torch.optim.SGD):
            def __init__(self, *args: Any, **options: Any):
                super().__init__(*args, **options)
                made.add(self)

        parameters = self.parameters()
        first, *later = [{"params": group} for group in parameters]
        optimizer = shard.ShardedOptimizer([first, *later[:-1]], Watched, lr=0.1)
        for group in later[-1:]:
            optimizer.add_param_group(group)
        gc.collect()
        groups = chain(*(each.param_groups for each in made))
        held = {*chain(*(group["params"] for group in groups))}
        return [n for n, parameter in enumerate(chain(*parameters)) if parameter in held]


def drawn(draw: random.Random) -> list[Shares]:
    """Return shares of two ranks, and of three with large and small parameters."""
    small = [draw.randint(1, 9) for _ in range(draw.randint(6, 12))]
    return [
        Shares("parameters on two ranks", [draw.sample([20, *small], len(small) + 1)], world_size=2),
        Shares("parameters", [small[:3], draw.sample([20, 20, 20, *small[3:]], len(small))]),
    ]


SHARES: list[Any] = [
    Shares("parameters of which every third is large", [[9, 1, 1] * 3]),
    Shares("parameters of which the first are large", [[9] * 3 + [1] * 6]),
    Shares("float64 and bfloat16 parameters", [[9] * 9], ["float64", "bfloat16", "bfloat16"]),
    Shares("three groups, the last of which is added later", [[9, 1]] * 3),
    Shares("fewer parameters than ranks", [[9, 1]]),
    drawn,
]


def each_parameter_has_one_owner(case: Shares, seen: Any) -> Finding:
    """Each parameter is in the optimizer_class of one rank alone, its owner."""
    holders = [[rank for rank in range(case.world_size) if n in seen[rank]] for n in range(len(case.sizes()))]
    counts = {len(ranks) for ranks in holders}
    keep = "Give it only what this rank owns"
    if counts == {case.world_size}:
        return f"every rank's optimizer holds all parameters, so no memory is saved. {keep}"
    if counts == {N - 1} and case.world_size == N:
        return f"each parameter is held by all ranks but one. {keep}"
    disagree = "ranks disagree about owners, and each has to find the same ones"
    for n, ranks in enumerate(holders):
        if not ranks:
            frozen = ", which is frozen and may be unfrozen later" * (n == 0)
            return f"no rank's optimizer holds parameter {n}{frozen}, so nobody would step it: {disagree}"
        if len(ranks) > 1:
            return f"ranks {listed(ranks)} hold parameter {n}: {disagree}"


def shares_are_even_in_bytes(case: Shares, seen: Any) -> Finding:
    """The fullest rank has at most as many bytes as the emptiest and the largest parameter."""
    sizes, numels = case.sizes(), [*chain(*case.groups)]
    held = [sum(sizes[n] for n in numbers) for numbers in seen]
    elements = {sum(numels[n] for n in numbers) for numbers in seen}
    max_held = min(held) + max(sizes)
    if max(held) <= max_held:
        return None
    owners = [next(rank for rank in range(case.world_size) if n in seen[rank]) for n in range(len(sizes))]
    in_turns = [n % case.world_size for n in range(len(sizes))]
    reasons = {
        f"all parameters are on rank {owners[0]}": len(set(owners)) == 1,
        "each group may be even by itself, but earlier groups count, too": len(case.groups) > 1,
        "each has as many elements, not as many bytes": len(case.dtypes) > 1 and len(elements) == 1,
        "parameters were given out in turns, whatever their sizes": owners == in_turns,
        "there are as many parameters on each rank": len({*map(len, seen)}) == 1,
        "that is too uneven": True,
    }
    why = next(reason for reason, applies in reasons.items() if applies)
    return f"ranks have {listed(held)} bytes, and the fullest may have {max_held}: {why}"
