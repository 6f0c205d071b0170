"""Run a ring in a rank on a tensor that says whose its parts are, and log its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from labkit import dp
from labkit.check.calls import recorded
from labkit.explore.grids.tagged_tensor import tagged_tensor


class Call(NamedTuple):
    """A call as a rank saw it: of which kind, with which peer, after the end of which earlier ones.

    ``held`` is the rank's tensor before it, and ``message`` what it sends, if it sends.
    """

    name: str
    n_bytes: int
    peer: int | None
    after: list[int]
    held: np.ndarray
    message: np.ndarray | None


class RankLog(NamedTuple):
    """What one rank did: its calls, and its tensor in the end."""

    calls: list[Call]
    final: np.ndarray


def log_ring(ring: Callable[[torch.Tensor], object] | None) -> RankLog:
    """Run ``ring``, by default the reader's own, in this rank, and return its calls."""
    held = tagged_tensor(dist.get_rank(), dist.get_world_size())
    begun, calls = list[Any](), list[Call]()

    def note(call: Any, tensors: Any) -> None:
        message = tensors[0].detach().flatten().float().numpy().copy() if call.name == "send" else None
        ended = [number for number, earlier in enumerate(begun) if earlier.waits]
        calls.append(Call(call.name, call.bytes, call.peer, ended, held.numpy().copy(), message))
        begun.append(call)

    with recorded(note):
        (ring or dp.ring_all_reduce)(held.view(-1))
    return RankLog(calls, held.numpy().copy())
