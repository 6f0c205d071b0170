"""Measure the host cost: what one call of a collective costs its rank beyond the link's α and β.

On an emulated link it is the emulator's, not that of a real one: see ``benchmarks/bench_link.py``.
What it is made of is not measured.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.base.formats import fact
from labkit.cost import Link, fit_host_s, ring_all_reduce_s
from labkit.launch import device, launch
from labkit.stats import repeats
from labkit.trace import barrier, span

_FLOATS = 4  # so few that their bytes take no time


def host_cost_s(link: Link, emulated: bool = False, calls: int = 30, times: int = 9, world_size: int = 2) -> float:
    """Return the seconds that one ``all_reduce`` costs a rank beyond ``link``'s α and β.

    All ranks call it ``calls`` times in a row, as a training step does, and the row's time less
    ``calls`` times what the link takes is shared out; of ``times`` rows it is the median. ``link``
    is the one that the ranks are on: emulated, or fitted to this machine's by calls that came
    alone. It is never below 0.
    """
    run = launch(_rows_of_calls, calls, times, world_size=world_size, threads=1, link=link if emulated else None)
    row_s = repeats(run.events).median().item()
    call_s = ring_all_reduce_s(4 * _FLOATS, world_size, link.latency_s, link.bytes_per_s)
    return fit_host_s([calls], [row_s], [calls * call_s])


def host_cost_text(seconds: float) -> str:
    """Return a host cost as it stands in a sentence; of 0, what that means."""
    return fact(f"{1e6 * seconds:.3g} µs" if seconds else "0: calls in a row took no longer than α and β", width=46)


def _rows_of_calls(calls: int, times: int) -> None:
    tiny = torch.zeros(_FLOATS, device=device())
    for _ in range(times):
        barrier()
        with span("row of calls", lane="comm"):
            for _ in range(calls):
                dist.all_reduce(tiny)
