"""Run a function on N ranks from a notebook cell, and get their values and timings back.

    def fn():
        x = torch.ones(1000) * dist.get_rank()
        with span("all_reduce", lane="comm", bytes=x.nbytes):
            dist.all_reduce(x)
        return x[0].item()

    launch(fn, world_size=2)

The function is an ordinary one that would run under torchrun as well. Each rank is a process of
its own, in which RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are
set and the process group is up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from labkit.base.deprecations import hide_deprecations
from labkit.base.lab import check_own
from labkit.base.notebook import in_notebook, static
from labkit.cost import Link
from labkit.ranks.faults.errors import LaunchTimeout, RankError
from labkit.ranks.messages.message import Progress
from labkit.ranks.notebook.run import Run
from labkit.ranks.notebook.warm_ranks import WarmRanks, check_call, check_names
from labkit.ranks.processes import rank, server_handle
from labkit.ranks.processes.plan import BACKENDS, LaunchPlan, decide
from labkit.ranks.processes.refusals import check_folders

if TYPE_CHECKING:
    import torch

__all__ = [
    "BACKENDS",
    "LaunchTimeout",
    "LinkTooFast",
    "RankError",
    "Run",
    "WarmRanks",
    "device",
    "launch",
    "progress",
    "workers",
]

T = TypeVar("T")


# --- launch and workers ---------------------------------------------------------------------------


def workers(world_size: int = 2, **options: Any) -> WarmRanks:
    """Start ranks that stay: ``with workers(world_size=2) as ranks: ranks.run(fn, *args) …``.

    The options are those of :func:`launch`; ``timeout_s`` is that of each run. They are checked
    before any rank starts.
    """
    __tracebackhide__ = True
    check_names(options, "workers")
    ranks = WarmRanks(_checked_plan(world_size, **options))
    ranks._started(time.monotonic())
    return ranks


def launch(
    fn: Callable[..., Any] | None = None,
    /,
    *args: Any,
    world_size: int = 2,
    backend: str = "auto",
    timeout_s: float = 120.0,
    threads: int | None = None,
    link: Link | None = None,
    share_gpu: bool = False,
    init: bool = True,
    compared_with: int | None = None,
    **kwargs: Any,
) -> Run:
    """Run ``fn(*args, **kwargs)`` on ``world_size`` new ranks, each a process, and wait for all.

    ``backend``: ``"auto"`` takes NCCL where each rank has a GPU of its own, otherwise gloo on the
    CPU. ``share_gpu=True`` puts several NCCL ranks on one GPU, for correctness only.
    ``compared_with``: the world size of another launch that this one is compared with; ``"auto"``
    then takes a backend that both can have. On a machine with one GPU, ``world_size=1,
    compared_with=2`` runs on the CPU, because two ranks would.
    ``threads``: CPU threads per rank; by default the ranks share the cores.
    ``link``: a :class:`labkit.cost.Link`, such as ``ETHERNET_1G``. All communication takes at least
    as long as it would there, over gloo (see :mod:`labkit.link`). It must have less bandwidth than
    gloo, which is measured once per world size.
    ``init=False`` leaves ``init_process_group`` to ``fn``.
    ``timeout_s``: seconds from the call until every rank has answered. Reading the ranks' stacks
    and ending them takes a moment more: at most 1 s and 4 s, if they no longer react.

    Raises TypeError or ValueError if the call cannot work, before anything starts; only gloo is
    measured before a link that is too fast is refused. Raises RankError if a rank raises or dies,
    and LaunchTimeout, with every rank's stack, if they are not done in time, or wait for what
    cannot come: then it says within seconds who waits for whom. In none of these cases is a rank
    left behind.
    """
    __tracebackhide__ = True
    fn = kwargs.pop("fn", None) if fn is None else fn  # by name, as in launch(fn=train)
    check_call(fn, args, kwargs)
    assert fn is not None
    plan = _checked_plan(world_size, backend, timeout_s, threads, link, share_gpu, init, compared_with)
    ranks = WarmRanks(plan)
    try:
        return ranks._run(fn, args, kwargs)
    finally:
        ranks.close(wait=plan.backend == "nccl")  # the next launch may need the memory of the GPU


def _checked_plan(*given: Any, **options: Any) -> LaunchPlan:
    """Return what the options of launch come to. Raises what :func:`launch` raises."""
    __tracebackhide__ = True
    check_folders()
    plan = decide(*given, **options)
    _check_link_is_slower(plan)
    return plan


# --- a link must be slower than what it is emulated over ------------------------------------------

_transport: dict[int, float] = {}  # world size -> bytes per second that gloo moves, once it was measured
TRANSPORT_TIMEOUT_S = 60.0


class LinkTooFast(ValueError):
    """A link is faster than the transport over which it is to be emulated."""


def _check_link_is_slower(plan: LaunchPlan) -> None:
    """Refuse a link faster than gloo is between these ranks.

    gloo is measured twice more before that, because the machine may have been busy.
    """
    __tracebackhide__ = True
    if (link := plan.link) is None:
        return
    from labkit.link import measure_transport  # which imports torch

    n = plan.world_size
    for _ in range(3):
        if link.bytes_per_s <= _transport.get(n, 0.0):
            return
        with WarmRanks(replace(plan, link=None, timeout_s=TRANSPORT_TIMEOUT_S)) as ranks:
            _transport[n] = max(_transport.get(n, 0.0), min(ranks.run(measure_transport).values))
    if link.bytes_per_s > _transport[n]:
        raise LinkTooFast(
            f"launch: link is {link}, faster than the transport under it: gloo moves {_transport[n] / 1e6:.0f} MB/s between "
            f"{n} ranks on this machine, and an emulated link can only be slower. Take a slower link here, such as "
            f"Link({link.latency_s:g}, {_transport[n] / 2:.0e}); the faster ones are for prediction, with labkit.cost"
        )


# --- in a rank, and under torchrun ----------------------------------------------------------------


def device() -> torch.device:
    """Return this rank's device under launch, else the one that parallel/devices.py finds."""
    from labkit.parallel.devices import process_device

    return process_device(rank.current.device if rank.current is not None else None)


PROGRESS_EVERY_S = 0.1


def progress(iterable: Iterable[T], desc: str = "") -> Iterator[T]:
    """Go through ``iterable`` and show a bar.

    In ranks: one bar in the cell, as far as the slowest rank. Loops with the same ``desc`` share a
    bar one after the other, and one inside another has its own.
    """
    desc = "" if desc is None else str(desc)
    total = len(iterable) if isinstance(iterable, Sized) else None
    if rank.current is None:
        from tqdm.auto import tqdm

        yield from tqdm(iterable, desc=desc, disable=static() or os.environ.get("RANK", "0") != "0")
        return
    loops, sent = rank.current.loops, time.monotonic()
    depth = loops.open[desc]
    now = Progress(desc, 0, total, depth, loops.begun[desc, depth])
    loops.open[desc] += 1
    loops.begun[desc, depth] += 1
    rank.current.send(now)
    try:
        for item in iterable:
            yield item
            now = now._replace(done=now.done + 1)
            if time.monotonic() - sent > PROGRESS_EVERY_S:
                rank.current.send(now)
                sent = time.monotonic()
    finally:
        loops.open[desc] -= 1
        rank.current.send(now._replace(over=True))


def load_ipython_extension(_shell: object = None) -> None:
    """Bring ``%ranks`` and ``%%ranks`` to a notebook, as importing this module there does.

    Raises ImportError in a lab that has a labkit of its own, which is not this one.
    """
    check_own()
    hide_deprecations()
    if rank.current is not None:  # a cell that runs on ranks
        return
    server_handle.forks.start_ahead()  # it imports torch in the background, so the first cell need not wait
    from labkit.ranks.notebook import magics  # here, because it needs IPython

    magics.load(_checked_plan)


if sys.platform == "win32":
    raise ImportError("labkit.launch needs Linux or macOS; on Windows use WSL (see docs/platforms.md)")
if in_notebook():
    load_ipython_extension()
