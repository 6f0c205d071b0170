"""Measure the host cost on an emulated link: what one call costs its rank beyond α and β.

It is the emulator's, not that of a real link: see ``benchmarks/bench_link.py``. On a real link α is
fitted to calls, so it holds what a call costs already.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.cost import Link, fit_host_s, ring_all_reduce_s
from labkit.launch import device, launch
from labkit.stats import repeats
from labkit.trace import barrier, span

_FLOATS = 4  # so few that their bytes take no time


def host_cost_s(link: Link, calls: int = 20, times: int = 9, world_size: int = 2) -> float:
    """Return the seconds that one ``all_reduce`` costs a rank beyond the emulated link's α and β.

    All ranks call it ``calls`` times in a row, as a training step does, and the row's time less
    ``calls`` times what the link takes is shared out; of ``times`` rows it is the median. It is
    never below 0.
    """
    run = launch(_rows_of_calls, calls, times, world_size=world_size, threads=1, link=link)
    row_s = repeats(run.events).median().item()
    call_s = ring_all_reduce_s(4 * _FLOATS, world_size, link.latency_s, link.bytes_per_s)
    return fit_host_s([calls], [row_s], [calls * call_s])


def _rows_of_calls(calls: int, times: int) -> None:
    tiny = torch.zeros(_FLOATS, device=device())
    for _ in range(times):
        barrier()
        with span("row of calls", lane="comm"):
            for _ in range(calls):
                dist.all_reduce(tiny)
