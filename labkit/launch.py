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

import difflib
import functools
import inspect
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from labkit import stats, trace
from labkit.base.measurement_html import as_html
from labkit.base.notebook import in_notebook, static
from labkit.cost import Link
from labkit.ranks import pickling, rank, server_handle
from labkit.ranks.cell_output import CellDisplay, show
from labkit.ranks.errors import LaunchTimeout, RankError
from labkit.ranks.messages import Progress
from labkit.ranks.plan import BACKENDS, LaunchPlan, decide
from labkit.ranks.pool import LaunchCall, RankPool
from labkit.ranks.rank_config import CallerEnvironment, check_folders

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from labkit.stats.repeated_times import RepeatedTimes

__all__ = ["BACKENDS", "LaunchTimeout", "LinkTooFast", "RankError", "Run", "device", "launch", "progress", "workers"]

T = TypeVar("T")


# --- what comes back ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one function did on every rank.

    ``values``: what it returned, a list in rank order, tensors on the CPU. ``backend``: ``"gloo"``
    or ``"nccl"``. ``devices``: each rank's device, a list of str. ``seconds``: from the call until
    every rank had answered. ``events``: every span of every rank as an event table, in seconds
    since the call. ``timings``: one row per rank and span name.

    As the last line of a cell it shows a header line and the timings. The header says what was
    emulated, and so does ``.attrs["emulated"]`` of both tables, so that it is said wherever they
    are shown or drawn. pd.concat loses it if the tables differ in it.
    """

    values: list[Any]
    seconds: float
    _plan: LaunchPlan
    _rows: list[tuple[Any, ...]]
    _notes: list[str]  # what the ranks emulated

    @property
    def backend(self) -> str:
        return self._plan.backend

    @property
    def world_size(self) -> int:
        return self._plan.world_size

    @property
    def devices(self) -> list[str]:
        return self._plan.devices

    @functools.cached_property
    def header(self) -> str:
        return ". ".join([self._plan.header(self.seconds), *self._notes])

    @functools.cached_property
    def events(self) -> pd.DataFrame:
        emulated = ". ".join(filter(None, [self._plan.emulated, *self._notes]))
        return trace.event_table(self._rows, measured=True, emulated=emulated)

    @functools.cached_property
    def timings(self) -> pd.DataFrame:
        return trace.timings(self.events)

    def repeats(self, by: str = "name", name: str | None = None) -> RepeatedTimes:
        """Return the seconds of each repeat, a column per way: see :func:`labkit.stats.repeats`."""
        return stats.repeats(self.events, by, name)

    def __repr__(self) -> str:
        return f"{self.header}\n{self.timings!r}" if self._rows else f"{self.header}\nno spans were recorded"

    def _repr_html_(self) -> str:
        table = self.timings._repr_html_() if self._rows else "<p>no spans were recorded</p>"  # type: ignore[operator]
        return f"<p>{as_html(self.header)}</p>{table}"


# --- launch and workers ---------------------------------------------------------------------------


class WarmRanks:
    """Warm ranks: started once, then one function after another runs on them within milliseconds.

    See :func:`workers`.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        decode: Callable[[bytes | bytearray], Any] = pickling.loads,
        max_printed: int = sys.maxsize,
    ):
        """``decode`` makes a value of what a rank sent; unpickling, the default, may run code.

        ``max_printed`` characters of what a run prints are shown.
        """
        self._plan, self._decode, self._max_printed = plan, decode, max_printed
        self._ranks: RankPool | None = None
        self._open = True

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Run:
        """Run ``fn(*args, **kwargs)`` on every rank.

        A rank keeps its modules and globals from one run to the next.

        Raises what :func:`launch` raises. After a RankError or a LaunchTimeout, and after a
        function that left the process group out of step, the next run has new ranks.
        """
        __tracebackhide__ = True  # IPython shows the reader's frames, not this one
        if not self._open:
            raise RuntimeError("workers: these ranks ended with their with block; start new ones")
        _check_call(fn, args, kwargs)
        return self._run(fn, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """Run a call that has been checked. Nothing starts before it is packed."""
        __tracebackhide__ = True
        since, start_ns = time.monotonic(), time.perf_counter_ns()
        call = LaunchCall(pickle.dumps(CallerEnvironment.here()), pickling.dumps_call(fn, args, kwargs), since)
        try:
            with CellDisplay(self._max_printed) as display:
                answers = self._started(since).run(call, display)
        except BaseException:
            self._end(kill=True)
            raise
        seconds = time.monotonic() - since
        rows = [row for i, answer in enumerate(answers) for row in trace.rank_events(answer.rows, i, start_ns)]
        notes = list(dict.fromkeys(note for answer in answers for note in answer.notes))
        return Run([self._decode(answer.value) for answer in answers], seconds, self._plan, rows, notes)

    def _started(self, since: float) -> RankPool:
        """Return the ranks, which are asked for if there are none, or none that can go on."""
        if self._ranks is not None and not self._ranks.in_step:
            show("labkit: the last function left the process group out of step, so the ranks were started anew\n")
            self._end(kill=True)
        if self._ranks is None:
            self._ranks = RankPool(self._plan, since)
        return self._ranks

    def _end(self, kill: bool = False, wait: bool = True) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(kill, wait)

    def close(self, wait: bool = True) -> None:
        """End the ranks, and wait until they are gone, unless ``wait=False``."""
        self._open = False
        self._end(wait=wait)

    def __enter__(self) -> WarmRanks:
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
    compared_with: int | None = None,
    check_collectives: bool = False,
) -> WarmRanks:
    """Start ranks that stay: ``with workers(world_size=2) as ranks: ranks.run(fn, *args) …``.

    The options are those of :func:`launch`; ``timeout_s`` is that of each run. They are checked
    before any rank starts.
    """
    __tracebackhide__ = True
    check_folders()
    plan = decide(world_size, backend, timeout_s, threads, link, share_gpu, init, compared_with, check_collectives)
    _check_link_is_slower(plan)
    ranks = WarmRanks(plan)
    ranks._started(time.monotonic())
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
    compared_with: int | None = None,
    check_collectives: bool = False,
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
    ``check_collectives=True`` compares every collective's operation, shapes and dtype between the
    ranks before it runs, and raises where they differ; it is slow, and torch's own
    (TORCH_DISTRIBUTED_DEBUG=DETAIL).
    ``timeout_s``: seconds from the call until every rank has answered. Reading the ranks' stacks
    and ending them takes a moment more: at most 1 s and 4 s, if they no longer react.

    Raises TypeError or ValueError if the call cannot work, before anything starts; only gloo is
    measured before a link that is too fast is refused. Raises RankError if a rank raises or dies,
    and LaunchTimeout, with every rank's stack, if they are not done in time, or wait for what
    cannot come: then it says within seconds who waits for whom. In none of these cases is a rank
    left behind.
    """
    __tracebackhide__ = True
    _check_call(fn, args, kwargs)
    check_folders()
    plan = decide(world_size, backend, timeout_s, threads, link, share_gpu, init, compared_with, check_collectives)
    _check_link_is_slower(plan)
    ranks = WarmRanks(plan)
    try:
        return ranks._run(fn, args, kwargs)
    finally:
        ranks.close(wait=plan.backend == "nccl")  # the next launch may need the memory of the GPU


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
    """Return what was perhaps meant by a call that does not fit: a misspelt option, or ranks."""
    for name in kwargs.keys() - signature.parameters.keys():
        if close := difflib.get_close_matches(name, _OPTIONS, n=1):
            return f". Did you mean {close[0]}=...?"
    if len(args) == 1 and not signature.parameters and isinstance(args[0], int):
        return f". Did you mean world_size={args[0]}? What follows fn is passed on to it"
    return ""


# --- a link must be slower than what it is emulated over ------------------------------------------

_transport: dict[int, float] = {}  # world size -> bytes per second that gloo moves, once it was measured
TRANSPORT_TIMEOUT_S = 60.0


class LinkTooFast(ValueError):
    """A link is faster than the transport over which it is to be emulated."""


def _check_link_is_slower(plan: LaunchPlan) -> None:
    """Refuse a link faster than gloo is between these ranks.

    gloo is measured again before that, because it may have been busy.
    """
    __tracebackhide__ = True
    if (link := plan.link) is None:
        return
    from labkit.link import measure_transport  # which imports torch

    n = plan.world_size
    for _ in range(2):
        if link.bytes_per_s <= _transport.get(n, 0.0):
            return
        with WarmRanks(replace(plan, link=None, timeout_s=TRANSPORT_TIMEOUT_S)) as ranks:
            _transport[n] = max(_transport.get(n, 0.0), min(ranks.run(measure_transport).values))
    if link.bytes_per_s > _transport[n]:
        raise LinkTooFast(
            f"launch: link is {link}, faster than the transport under it: gloo moves {_transport[n] / 1e6:.0f} MB/s between "
            f"{n} ranks on this machine, and an emulated link can only be slower. Take a slower link here, such as "
            "labkit.cost.ETHERNET_1G; the faster ones are for prediction, with labkit.cost"
        )


# --- in a rank, and under torchrun ----------------------------------------------------------------


def device() -> torch.device:
    """Return this rank's device under launch, else the one that parallel/devices.py finds."""
    from labkit.parallel.devices import process_device

    return process_device(rank.current.config.device if rank.current is not None else None)


PROGRESS_EVERY_S = 0.1


def progress(iterable: Iterable[T], desc: str = "") -> Iterator[T]:
    """Go through ``iterable`` and show a bar.

    In ranks: one bar in the cell, as far as the slowest rank.
    """
    total = len(iterable) if isinstance(iterable, Sized) else None
    if rank.current is None:
        from tqdm.auto import tqdm

        yield from tqdm(iterable, desc=desc, disable=static() or os.environ.get("RANK", "0") != "0")
        return
    done, sent = 0, time.monotonic()
    rank.current.send(Progress(desc, 0, total))
    try:
        for item in iterable:
            yield item
            done += 1
            if time.monotonic() - sent > PROGRESS_EVERY_S:
                rank.current.send(Progress(desc, done, total))
                sent = time.monotonic()
    finally:
        rank.current.send(Progress(desc, done, total))


if sys.platform == "win32":
    raise ImportError("labkit.launch needs Linux or macOS; on Windows use WSL (see docs/platforms.md)")
if in_notebook():
    server_handle.forks.start_ahead()  # it imports torch in the background, so the first cell need not wait
