"""Sum a tensor over all ranks with send and receive: through a server, and along a tree.

The third way, around a ring, is the student's task ``dp.5``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def sum_by_server(tensor: torch.Tensor) -> None:
    """Replace ``tensor``, on every rank, by the sum over all ranks, which rank 0 works out."""
    if dist.get_rank() > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    others = range(1, dist.get_world_size())
    for other in others:
        dist.recv(part := torch.empty_like(tensor), other)
        tensor += part
    sent = [dist.isend(tensor, other) for other in others]  # all at once
    for work in filter(None, sent):
        work.wait()


def sum_by_tree(tensor: torch.Tensor) -> None:
    """Replace ``tensor``, on every rank, by the sum over all ranks, up a tree and down again."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    hops = [2**k for k in range((world_size - 1).bit_length())]
    for hop in hops:  # up: of the ranks that are left, half send
        if rank % (2 * hop) == hop:
            dist.send(tensor, rank - hop)
        elif rank % (2 * hop) == 0 and rank + hop < world_size:
            dist.recv(part := torch.empty_like(tensor), rank + hop)
            tensor += part
    for hop in hops[::-1]:  # and down again
        if rank % (2 * hop) == hop:
            dist.recv(tensor, rank - hop)
        elif rank % (2 * hop) == 0 and rank + hop < world_size:
            dist.send(tensor, rank + hop)
