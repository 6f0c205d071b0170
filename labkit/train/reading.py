"""Data that rank 0 reads and all ranks train on."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from labkit.parallel.stage_assignment import HEAD_START_S
from labkit.train.trainer import device, world

T = TypeVar("T")


class _Sent(NamedTuple):
    """What rank 0 tells the others: the data, pickled, or why it has none."""

    data: bytes = b""
    failure: str = ""


def read_on_rank_0(read: Callable[[], T]) -> T:
    """Return what ``read()`` gives on rank 0, on every rank.

    Whatever rank 0 raises, every rank raises, so that none waits for it: rank 0 the exception
    itself, the others a RuntimeError that quotes it. An exception that pickle cannot carry is
    quoted as well as any other.
    """
    rank, world_size = world()
    if world_size == 1:
        return read()
    message: list[Any] = [None]
    mistake: BaseException | None = None
    if rank == 0:
        try:
            data = read()
            message = [_Sent(data=pickle.dumps(data))]
        except BaseException as error:
            mistake = error
            message = [_Sent(failure="".join(traceback.format_exception_only(error)).strip())]
    dist.broadcast_object_list(message, src=0, device=device())
    if mistake is not None:
        raise mistake
    (sent,) = message
    if sent.failure:
        time.sleep(HEAD_START_S)
        raise RuntimeError(f"rank 0 could not read the data, so no rank can train: {sent.failure}")
    return data if rank == 0 else pickle.loads(sent.data)
