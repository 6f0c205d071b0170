"""Take a training step in a rank with the parts of a model that it keeps, and weigh them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.functional import mse_loss

from labkit.pipe import ScheduledPipeline
from labkit.schedule import gpipe

WIDTH, ROWS = 256, 8
Weight = tuple[int, str, int, int, str]  # stage, what it is, parameters, bytes, digest


def weigh(settings: Sequence[Sequence[Sequence[int]]]) -> list[list[Weight]]:
    """Return what this rank keeps after a step in each setting: nothing where it takes no part.

    ``settings[i][rank]`` are the stages of a rank. Those of one pipeline have neighbouring numbers;
    ranks with the same stages see different samples, and average their gradients.
    """
    return [_one_setting(stages) for stages in settings]


def _one_setting(stages: Sequence[Sequence[int]]) -> list[Weight]:
    rank, length = dist.get_rank(), len(set(map(tuple, stages)))
    ranks = range(len(stages))
    pipelines = [list(ranks)[first : first + length] for first in ranks[::length]]
    replicas = [[each for each in ranks if tuple(stages[each]) == own] for own in sorted(set(map(tuple, stages)))]
    groups = {tuple(members): dist.new_group(members) for members in pipelines + replicas}  # by all ranks, in one order
    if rank not in ranks:
        return []
    own_pipeline, own_replicas = (
        next(groups[tuple(members)] for members in parts if rank in members) for parts in (pipelines, replicas)
    )
    parts = nn.ModuleList(_stage(number) for number in stages[rank])
    optimizer = torch.optim.Adam(parts.parameters())
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(rank // length))
    if length == 1:
        mse_loss(nn.Sequential(*parts)(x), torch.zeros_like(x)).backward()
    else:
        ScheduledPipeline(list(parts), gpipe(length, 1), mse_loss, own_pipeline).step(x, torch.zeros_like(x))
    if len(replicas[0]) > 1:
        gradients: Any = (parameter.grad for parameter in parts.parameters())  # torch's takes any tensors
        average_parameters(gradients, own_replicas)
    optimizer.step()
    return [
        weight for number, part in zip(stages[rank], parts, strict=True) for weight in _weights(number, part, optimizer)
    ]


def _stage(number: int) -> nn.Module:
    torch.manual_seed(number)  # the same in all ranks that have this stage
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _weights(number: int, part: nn.Module, optimizer: torch.optim.Optimizer) -> list[Weight]:
    kinds: dict[str, Callable[[nn.Parameter], list[Any]]] = {
        "weights": lambda parameter: [parameter],
        "gradients": lambda parameter: [parameter.grad],
        "optimizer state": lambda parameter: list(optimizer.state[parameter].values()),
    }
    count = sum(parameter.numel() for parameter in part.parameters())
    found = []
    for name, tensors_of in kinds.items():
        tensors = [tensor.detach().cpu() for parameter in part.parameters() for tensor in tensors_of(parameter)]
        digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
        found.append((number, name, count, sum(tensor.nbytes for tensor in tensors), digest))
    return found
