"""Take a training step in a rank with the parts of a model that it keeps, and weigh them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.functional import mse_loss

from labkit.explore.grids.placement_map import SETTINGS, Kept
from labkit.launch import progress
from labkit.pipe import ScheduledPipeline
from labkit.schedule import gpipe

WIDTH, ROWS = 256, 8


def weigh() -> list[Kept]:
    """Return what this rank keeps after a step in each setting: nothing where it takes no part."""
    settings = progress(list(enumerate(SETTINGS)), desc="A step in each setting")
    return [kept for number, setting in settings for kept in _one_setting(number, setting.stages)]


def _one_setting(number: int, stages: Sequence[tuple[int, ...]]) -> list[Kept]:
    """Return what this rank keeps after a step in a setting.

    ``stages[rank]`` are those of a rank. Those of one pipeline have neighbouring numbers; ranks
    with the same stages see different samples, and average their gradients.
    """
    rank, ranks, length = dist.get_rank(), range(len(stages)), len(set(stages))
    pipelines = [list(ranks[first : first + length]) for first in ranks[::length]]
    replicas = [[each for each in ranks if stages[each] == own] for own in sorted(set(stages))]
    own_pipeline, own_replicas = (dist.new_subgroups_by_enumeration(groups)[0] for groups in (pipelines, replicas))
    if rank not in ranks:
        return []
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
        Kept(number, rank, stage, name, count, sum(tensor.nbytes for tensor in tensors), _digest(tensors))
        for stage, part in zip(stages[rank], parts, strict=True)
        for count in [sum(parameter.numel() for parameter in part.parameters())]
        for name, tensors in _tensors(part, optimizer).items()
    ]


def _stage(number: int) -> nn.Module:
    torch.manual_seed(number)  # the same in all ranks that have this stage
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _tensors(part: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[Any]]:
    parameters = list(part.parameters())
    return {
        "weights": parameters,
        "gradients": [parameter.grad for parameter in parameters],
        "optimizer state": [tensor for parameter in parameters for tensor in optimizer.state[parameter].values()],
    }


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()
