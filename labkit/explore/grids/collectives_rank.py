"""Call seven collectives in a rank on tensors that say whose they are, and keep what it got."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from labkit.explore.grids.tagged_tensor import tagged_tensor
from labkit.launch import device


def observe_collectives(names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return for each collective what this rank gives and what it gets, as [2, chunk, …]."""
    rank, n = dist.get_rank(), dist.get_world_size()
    whole, root = tagged_tensor(rank, n).to(device()), rank == 0
    nothing = torch.zeros_like(whole)
    part = nothing.clone()
    part[rank] = whole[rank]  # what a rank has that has a part only

    gave = dict.fromkeys(names, whole) | {"gather": part, "all_gather": part}
    if not root:
        gave |= {"broadcast": nothing, "scatter": nothing}
    in_place = ("broadcast", "reduce", "all_reduce")
    got = {name: (whole if name in in_place else nothing).clone() for name in names}

    dist.broadcast(got["broadcast"], src=0)
    dist.scatter(got["scatter"][rank], list(whole) if root else None, src=0)
    dist.gather(whole[rank], list(got["gather"]) if root else None, dst=0)
    dist.all_gather(list(got["all_gather"]), whole[rank])
    dist.reduce(got["reduce"], dst=0)
    dist.reduce_scatter(got["reduce_scatter"][rank], list(whole))
    dist.all_reduce(got["all_reduce"])

    if not root:
        got["reduce"] = nothing
    return {name: torch.stack([gave[name], got[name]]).cpu().numpy() for name in names}
