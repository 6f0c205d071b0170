"""Run a function on N ranks from a notebook cell, a test or a script, and get their values and timings back.

    def fn():
        x = torch.ones(1000) * dist.get_rank()
        with span("all_reduce", lane="comm", bytes=x.nbytes):
            dist.all_reduce(x)
        return x[0].item()

    launch(fn, world_size=2)

The function is an ordinary one that would run under torchrun as well: each rank is a process of its own with RANK,
LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set and the process group up.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import html
import inspect
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from labkit import _processes, _rank, _wire, limits, show, trace
from labkit._cell import CellBars, CellOutput, static
from labkit._ranks import LaunchTimeout, RankError, Ranks
from labkit.cost import Link
from labkit.rendezvous import LOOPBACK_INTERFACE

if TYPE_CHECKING:
    import pandas as pd
    import torch

__all__ = ["LaunchTimeout", "RankError", "Run", "device", "launch", "progress", "workers"]

BACKENDS = ("auto", "gloo", "nccl")
T = TypeVar("T")


# --- what comes back -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one function did on every rank.

    ``values``: what it returned, a list in rank order, tensors on the CPU. ``backend``: ``"gloo"`` or ``"nccl"``.
    ``devices``: each rank's device, a list of str. ``seconds``: from the call until every rank had answered.
    ``events``: every span of every rank as an event table, in seconds since the call. ``timings``: one row per rank and
    span name. As the last line of a cell it shows a header line and the timings. What was emulated stands in the header
    and in ``.attrs["emulated"]`` of both tables, so it is said wherever they are shown or drawn;
    pd.concat of tables that differ in it loses it.
    """

    values: list[Any]
    backend: str
    world_size: int
    devices: list[str]
    seconds: float
    header: str
    _rows: list[tuple[Any, ...]]
    _emulated: str = ""

    @functools.cached_property
    def events(self) -> pd.DataFrame:
        return trace.event_table(self._rows, measured=True, emulated=self._emulated)

    @functools.cached_property
    def timings(self) -> pd.DataFrame:
        return trace.timings(self.events)

    def __repr__(self) -> str:
        return f"{self.header}\n{self.timings!r}" if self._rows else f"{self.header}\nno spans were recorded"

    def _repr_html_(self) -> str:
        table = self.timings._repr_html_() if self._rows else "<p>no spans were recorded</p>"  # type: ignore[operator]
        return f"<p><code>{html.escape(self.header)}</code></p>{table}"


# --- where the ranks run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """Everything about a set of ranks that is decided before any of them starts."""

    world_size: int
    backend: str
    why: str
    devices: list[str]
    threads: int
    init: bool
    variables: list[dict[str, str]]  # per rank
    link: Link | None

    def place(self, rank: int, port: int) -> _rank.Place:
        where = (rank, self.world_size, self.backend, self.devices[rank], self.threads, self.init, port)
        return _rank.Place(*where, self.variables[rank], self.link)

    @property
    def emulated(self) -> str:
        return f"emulated link: {self.link}" if self.link else ""

    def header(self, seconds: float) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        threads = show.fact(f"{self.threads} CPU thread{'s' * (self.threads > 1)} each", width=20)
        parts = [ranks, show.fact(f"{self.backend}: {self.why}"), threads, show.measured(seconds, "s"), self.emulated]
        return " ".join(filter(None, parts))


def _plan(
    world_size: int, backend: str, timeout_s: float, threads: int | None, link: Link | None, share_gpu: bool, init: bool
) -> _Plan:
    """Check every option and decide. Raises TypeError or ValueError that says what was given and what was expected."""
    __tracebackhide__ = True
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"launch: world_size is {world_size!r}, expected a whole number of ranks, 1 or more")
    if world_size < 1:
        raise ValueError(f"launch: world_size is {world_size}, expected 1 or more")
    if backend not in BACKENDS:
        raise ValueError(f"launch: backend is {backend!r}, expected one of {', '.join(map(repr, BACKENDS))}")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ValueError(f"launch: timeout_s is {timeout_s!r}, expected seconds, more than 0")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ValueError(
            f"launch: threads is {threads!r}, expected a whole number of threads a rank, 1 or more, or None"
        )
    if link is not None:
        _check_link(link, backend, init)
        link = None if link.is_free or world_size == 1 else link  # nothing to emulate
    backend, why, gpus = _choose_backend(world_size, backend, share_gpu, link)
    variables = [
        _network_variables(backend, rank, shared=backend == "nccl" and gpus < world_size) for rank in range(world_size)
    ]
    devices = [f"cuda:{rank % gpus}" if backend == "nccl" else "cpu" for rank in range(world_size)]
    threads = threads or max(1, limits.cores() // world_size)
    plan = _Plan(world_size, backend, why, devices, threads, bool(init), variables, None)
    if link is not None:
        _check_slower(link, plan)
    return replace(plan, link=link)


def _choose_backend(world_size: int, backend: str, share_gpu: bool, link: Link | None) -> tuple[str, str, int]:
    """(backend, why, number of GPUs): NCCL where each rank has a GPU of its own, otherwise gloo."""
    __tracebackhide__ = True
    if link is not None and backend == "auto":
        return "gloo", "CPU, as a link is emulated over it", 0
    gpus = 0 if backend == "gloo" else _gpu_count()
    have = {0: "no GPU", 1: "1 GPU"}.get(gpus, f"{gpus} GPUs")
    if backend == "gloo":
        return "gloo", "CPU, as asked for", gpus
    if gpus >= world_size:
        return "nccl", "each rank has a GPU of its own", gpus
    if share_gpu and gpus:
        return "nccl", f"{have} shared, for correctness only", gpus
    if backend == "nccl":
        raise ValueError(
            f"launch: backend='nccl' needs a GPU for each of the {world_size} ranks, and this machine has {have}. "
            "Use backend='auto', which falls back to gloo on the CPU"
            + (", or share_gpu=True to put several ranks on one GPU (for correctness only: it is slow)" * bool(gpus))
            + (" (share_gpu=True would need at least one GPU)" * (not gpus))
        )
    return "gloo", f"CPU, as there {'is' if gpus < 2 else 'are'} {have} here", gpus


def _gpu_count() -> int:
    import torch
    import torch.distributed as dist

    return torch.cuda.device_count() if dist.is_nccl_available() else 0


def _network_variables(backend: str, rank: int, shared: bool) -> dict[str, str]:
    """Variables that keep the ranks' traffic on this machine, and let ranks share a GPU if they must."""
    variables = {"GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE, "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE}
    if shared:
        import torch

        if torch.cuda.nccl.version() >= (2, 30):
            variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        else:  # NCCL refuses two ranks on one GPU of one host, so let each believe it is on a host of its own
            variables |= {"NCCL_HOSTID": f"labkit-{rank}", "NCCL_NET": "Socket"}
    return variables


# --- emulated links --------------------------------------------------------------------------------------------------

_transport: dict[int, float] = {}  # world size -> bytes per second that gloo moves, once it was measured


def _check_link(link: Any, backend: str, init: bool) -> None:
    __tracebackhide__ = True
    if not isinstance(link, Link):
        raise TypeError(
            f"launch: link is {link!r}, expected a labkit.cost.Link, such as ETHERNET_1G or Link(50e-6, 125e6), or None"
        )
    if backend == "nccl":
        raise ValueError("launch: link is emulated over gloo, on the CPU; use backend='auto' or 'gloo' with it")
    if not init:
        raise ValueError("launch: link needs the process group that launch forms; leave out init=False")


def _check_slower(link: Link, plan: _Plan) -> None:
    """Refuse a link that is faster than gloo is between these ranks. It is measured again before that: it may have been busy."""
    __tracebackhide__ = True
    n = plan.world_size
    for _ in range(2):
        if link.bytes_per_s <= _transport.get(n, 0.0):
            return
        with Workers(plan, TRANSPORT_TIMEOUT_S) as ranks:
            _transport[n] = max(_transport.get(n, 0.0), min(ranks.run(_measure_transport).values))
    if link.bytes_per_s > _transport[n]:
        raise ValueError(
            f"launch: link is {link}, faster than the transport under it: gloo moves {_transport[n] / 1e6:.0f} MB/s between "
            f"{n} ranks on this machine, and an emulated link can only be slower. Take a slower link here, such as "
            "labkit.cost.ETHERNET_1G; the faster ones are for prediction, with labkit.cost"
        )


TRANSPORT_TIMEOUT_S = 60.0
_TRANSPORT_BYTES, _TRANSPORT_REPEATS = 4 * 2**20, 7


def _measure_transport() -> float:
    """In each rank: bytes per second that a rank sends in an all_reduce, the median of several."""
    import torch
    import torch.distributed as dist

    tensor, n = torch.ones(_TRANSPORT_BYTES // 4), dist.get_world_size()
    seconds = []
    for _ in range(_TRANSPORT_REPEATS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - start)
    return 2 * (n - 1) / n * tensor.nbytes / statistics.median(seconds)


# --- launch and workers ----------------------------------------------------------------------------------------------


class Workers:
    """Warm ranks: started once, then one function after another runs on them within milliseconds. See :func:`workers`."""

    def __init__(self, plan: _Plan, timeout_s: float):
        self._plan, self._timeout_s = plan, timeout_s
        self._ranks: Ranks | None = None
        self._open = True

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Run:
        """Run ``fn(*args, **kwargs)`` on every rank. A rank keeps its modules and globals from one run to the next.

        Raises what :func:`launch` raises. After a RankError or a LaunchTimeout, and after a function that left the
        process group out of step, the next run has new ranks.
        """
        __tracebackhide__ = True  # IPython shows the reader's frames, not this one
        if not self._open:
            raise RuntimeError("workers: these ranks were ended with their with block; start new ones")
        _check_call(fn, args, kwargs)
        call = _wire.dumps_call(fn, args, kwargs)
        output = CellOutput(held=static())
        start, start_ns = time.perf_counter(), time.perf_counter_ns()
        try:
            with CellBars() as bars:
                results = self._started().run(call, self._timeout_s, output, bars)
        except BaseException:
            self._end(kill=True)
            raise
        finally:
            output.show()
        seconds = time.perf_counter() - start
        rows = [row for rank, (rows, _) in enumerate(results) for row in trace.rank_events(rows, rank, start_ns)]
        values = [_wire.loads(value) for _, value in results]
        plan = self._plan
        header = plan.header(seconds)
        return Run(values, plan.backend, plan.world_size, plan.devices, seconds, header, rows, plan.emulated)

    def _started(self) -> Ranks:
        if self._ranks is not None and not self._ranks.in_step:
            print("labkit: the last function left the process group out of step, so the ranks were started anew")
            self._end(kill=True)
        if self._ranks is None:
            self._ranks = Ranks(self._plan.world_size, self._plan.place)
        return self._ranks

    def _end(self, kill: bool = False) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(kill)

    def close(self) -> None:
        """End the ranks."""
        self._open = False
        self._end()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._open = False
        self._end(kill=error_type is not None)


def workers(
    world_size: int = 2,
    backend: str = "auto",
    timeout_s: float = 120.0,
    threads: int | None = None,
    link: Link | None = None,
    share_gpu: bool = False,
    init: bool = True,
) -> Workers:
    """Start ranks that stay: ``with workers(world_size=2) as ranks: ranks.run(fn, *args) …``. Options as for launch.

    ``timeout_s`` is per run. Options are checked at once, before any process starts.
    """
    __tracebackhide__ = True
    ranks = Workers(_plan(world_size, backend, timeout_s, threads, link, share_gpu, init), timeout_s)
    ranks._ranks = Ranks(world_size, ranks._plan.place)
    return ranks


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str = "auto",
    timeout_s: float = 120.0,
    threads: int | None = None,
    link: Link | None = None,
    share_gpu: bool = False,
    init: bool = True,
    **kwargs: Any,
) -> Run:
    """Run ``fn(*args, **kwargs)`` on ``world_size`` new ranks, each a process of its own, and wait for all of them.

    ``backend``: ``"auto"`` takes NCCL where each rank has a GPU of its own, otherwise gloo on the CPU; ``share_gpu=True``
    puts several NCCL ranks on one GPU, for correctness only. ``threads``: CPU threads a rank, by default the cores
    shared out. ``link``: a :class:`labkit.cost.Link`, such as ``ETHERNET_1G``: all communication takes as long as it would
    there (see :mod:`labkit.link`). It must be slower than gloo, which the first launch with a link measures.
    ``init=False`` leaves ``init_process_group`` to ``fn``. ``timeout_s``: seconds from the start until every rank has
    answered.

    Raises TypeError or ValueError before anything starts if the call cannot work; RankError if a rank raises or dies;
    LaunchTimeout, with every rank's stack, if they are not done in time. No rank is left in any of these cases.
    """
    __tracebackhide__ = True
    _check_call(fn, args, kwargs)
    plan = _plan(world_size, backend, timeout_s, threads, link, share_gpu, init)
    with Workers(plan, timeout_s) as ranks:
        return ranks.run(fn, *args, **kwargs)


_OPTIONS = tuple(inspect.signature(workers).parameters)


def _check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call that could not work on any rank."""
    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"launch: fn is {fn!r}, expected a function to run on each rank (without calling it yourself)")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins tell nothing of their parameters
        return
    bound = fn.keywords if isinstance(fn, functools.partial) else {}
    name = getattr(fn, "__name__", repr(fn))
    if taken := [option for option in _OPTIONS if option in signature.parameters and option not in bound]:
        raise TypeError(
            f"launch: {name} has a parameter named {taken[0]!r}, which launch itself takes. "
            f"Bind it first: launch(functools.partial({name}, {taken[0]}=...), ...)"
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = _hint(signature, args, kwargs)
        raise TypeError(f"launch: {name}{signature} cannot be called with what was given: {error}{hint}") from None


def _hint(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What was perhaps meant by a call that does not fit: a misspelt option, or a number of ranks given by position."""
    for name in kwargs.keys() - signature.parameters.keys():
        if close := difflib.get_close_matches(name, _OPTIONS, n=1):
            return f". Did you mean {close[0]}=...?"
    if len(args) == 1 and not signature.parameters and isinstance(args[0], int):
        return f". Did you mean world_size={args[0]}? What follows fn is passed on to it"
    return ""


# --- in a rank, and under torchrun -----------------------------------------------------------------------------------


def device() -> torch.device:
    """This rank's device: under launch, under torchrun (its own GPU where there is one for each rank of the node), or alone."""
    import torch

    if _rank.current is not None:
        return torch.device(_rank.current.place.device)
    gpus = torch.cuda.device_count()
    if int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= gpus:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


PROGRESS_EVERY_S = 0.1


def progress(iterable: Iterable[T], desc: str = "") -> Iterator[T]:
    """Go through ``iterable`` and show a bar. In ranks: one bar in the cell, as far as the slowest rank."""
    total = len(iterable) if isinstance(iterable, Sized) else None
    if _rank.current is None:
        from tqdm.auto import tqdm

        yield from tqdm(iterable, desc=desc, disable=static() or os.environ.get("RANK", "0") != "0")
        return
    done, sent = 0, time.monotonic()
    _rank.current.send("progress", desc, 0, total)
    try:
        for item in iterable:
            yield item
            done += 1
            if time.monotonic() - sent > PROGRESS_EVERY_S:
                _rank.current.send("progress", desc, done, total)
                sent = time.monotonic()
    finally:
        _rank.current.send("progress", desc, done, total)


if sys.platform == "win32":
    raise ImportError("labkit.launch needs Linux or macOS; on Windows use WSL (see README)")
if _processes.server.usable and "RANK" not in os.environ and multiprocessing.parent_process() is None:
    # It imports torch in the background, so that the first cell need not wait. A process that multiprocessing spawned and
    # that is still importing its main module may not start another (RuntimeError), and has no need to.
    with contextlib.suppress(OSError, RuntimeError):
        _processes.server.ensure_running()
