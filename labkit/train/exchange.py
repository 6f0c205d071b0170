"""Give all ranks what rank 0 reads, and rank 0 what each of them has found and when."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch.distributed as dist

from labkit import trace
from labkit.base import machine
from labkit.base.consequence import as_consequence
from labkit.train import trainer

if TYPE_CHECKING:
    import pandas as pd

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
    rank, world_size = trainer.world()
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
    dist.broadcast_object_list(message, src=0, device=trainer.device())
    if mistake is not None:
        raise mistake
    (sent,) = message
    if sent.failure:
        text = f"rank 0 could not read the data, so no rank can train: {sent.failure}"
        raise as_consequence(RuntimeError(text))
    return data if rank == 0 else pickle.loads(sent.data)


class Recorded(NamedTuple):
    """Every rank's value, in rank order, and the event table of all of them."""

    values: list[Any]
    events: pd.DataFrame


def recorded_on_all(fn: Callable[[], Any]) -> Recorded | None:
    """Run ``fn()`` on every rank, its spans recorded. Return everything on rank 0, else None."""
    rank, world_size = trainer.world()
    recorder = trace.Recorder()
    recorder.start(trainer.device().type)
    origin = common_origin_ns()
    value = fn()
    rows = trace.rank_events(recorder.finish(), rank, origin)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, (value, rows))
    if rank:
        return None
    events = trace.event_table((row for _, rows in gathered for row in rows), measured=True)
    return Recorded([value for value, _ in gathered], events)


def common_origin_ns() -> int:
    """Return the moment from which all ranks count, as a reading of this machine's clock.

    All ranks have come this far by then. The processes of a machine have one clock, so they take
    the reading of the first of them.
    """
    dist.barrier()
    readings: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(readings, (machine.name(), time.perf_counter_ns()))
    return next(reading for name, reading in readings if name == machine.name())
