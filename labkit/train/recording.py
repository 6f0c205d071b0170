"""What every rank found and when, on rank 0: for ranks that this lab did not start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

from labkit import trace
from labkit.train.joining import common_origin_ns
from labkit.train.trainer import device, world

if TYPE_CHECKING:
    import pandas as pd


class Recorded(NamedTuple):
    """Every rank's value, in rank order, and the event table of all of them."""

    values: list[Any]
    events: pd.DataFrame


def recorded_on_all(fn: Callable[[], Any]) -> Recorded | None:
    """Run ``fn()`` on every rank, its spans recorded. Return everything on rank 0, else None."""
    rank, world_size = world()
    recorder = trace.Recorder()
    recorder.start(device().type)
    origin = common_origin_ns()
    value = fn()
    rows = trace.rank_events(recorder.finish(), rank, origin)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, (value, rows))
    if rank:
        return None
    events = trace.event_table((row for _, rows in gathered for row in rows), measured=True)
    return Recorded([value for value, _ in gathered], events)
