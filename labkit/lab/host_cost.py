"""Measure the host cost: what one call of a collective costs its rank beyond the link's α and β.

On an emulated link it is many times what it is on this machine's own transport: 14 and 31 times on
two quiet cores. Why is not settled. A likely part: a rank sleeps there until the link is done, so
in every call its thread and gloo's have to be woken.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.cost import Link, fit_host_s, ring_all_reduce_s
from labkit.launch import device, launch
from labkit.stats import repeats
from labkit.trace import barrier, span

_FLOATS = 4  # so few that their bytes take no time


def host_cost_s(link: Link, emulated: bool = False, calls: int = 30, times: int = 9) -> float:
    """Return the seconds that one ``all_reduce`` costs a rank beyond ``link``'s α and β.

    Two ranks call it ``calls`` times in a row, as a training step does, and the row's time less
    ``calls`` times what the link takes is shared out; of ``times`` rows it is the median. ``link``
    is the one that the ranks are on: emulated, or fitted to this machine's by calls that came
    alone. It is never below 0.
    """
    run = launch(_rows_of_calls, calls, times, threads=1, link=link if emulated else None)
    row_s = repeats(run.events).median().item()
    call_s = ring_all_reduce_s(4 * _FLOATS, 2, link.latency_s, link.bytes_per_s)
    return fit_host_s([calls], [row_s], [calls * call_s])


def _rows_of_calls(calls: int, times: int) -> None:
    tiny = torch.zeros(_FLOATS, device=device())
    for _ in range(times):
        barrier()
        with span("row of calls", lane="comm"):
            for _ in range(calls):
                dist.all_reduce(tiny)
