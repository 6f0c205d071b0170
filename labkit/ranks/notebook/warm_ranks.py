"""Warm ranks: pack a call, have a pool of ranks run it, unpack their answers into a Run."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from labkit import trace
from labkit.ranks.faults.errors import RankError
from labkit.ranks.messages import pickling
from labkit.ranks.messages.caller_environment import CallerEnvironment
from labkit.ranks.messages.message import Done
from labkit.ranks.notebook.run import Run
from labkit.ranks.output.cell_output import CellDisplay, show
from labkit.ranks.processes.plan import LaunchPlan, decide
from labkit.ranks.processes.pool import LaunchCall, RankPool


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

        ``max_printed`` characters of what each rank prints are shown.
        """
        self._plan, self._decode, self._max_printed = plan, decode, max_printed
        self.timeout_s = plan.timeout_s  # of each run
        self._ranks: RankPool | None = None
        self._open = True
        self._turn = threading.Lock()  # one call after another, from whatever threads

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Run:
        """Run ``fn(*args, **kwargs)`` on every rank.

        A rank keeps its modules and globals from one run to the next.

        Raises what :func:`launch` raises. After a RankError or a LaunchTimeout, and after a
        function that left the process group out of step, the next run has new ranks.
        """
        __tracebackhide__ = True  # IPython shows the reader's frames, not this one
        if not self._open:
            raise RuntimeError("workers: these ranks ended with their with block; start new ones")
        check_call(fn, args, kwargs, options=())
        return self._run(fn, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """Run a call that has been checked. Nothing starts before it is packed."""
        __tracebackhide__ = True
        with self._turn:
            return self._run_now(fn, args, kwargs)

    def _run_now(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        __tracebackhide__ = True
        since, start_ns = time.monotonic(), time.perf_counter_ns()
        packed = pickling.dumps_call(fn, args, kwargs)
        call = LaunchCall(CallerEnvironment.here(), packed, since, self.timeout_s)
        try:
            with CellDisplay(self._max_printed) as display:
                answers = self._started(since).run(call, display)
        except BaseException:
            self._end(kill=True)
            raise
        seconds = time.monotonic() - since
        rows, notes = spans(dict(enumerate(answers)), start_ns)
        return Run(self._values(answers), seconds, self._plan, rows, notes)

    def _values(self, answers: Sequence[Done]) -> list[Any]:
        """Return each rank's value. RankError, with those of the others, if one cannot be had."""
        __tracebackhide__ = True
        values: dict[int, Any] = {}
        lost: list[tuple[int, str, str]] = []
        for rank, answer in enumerate(answers):
            try:
                values |= {} if answer.unsent else {rank: self._decode(answer.value)}
                lost += (
                    [(rank, "TypeError", f"returned what cannot be sent back: {answer.unsent}")]
                    if answer.unsent
                    else []
                )
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                lost.append((rank, type(error).__name__, f"returned what cannot be made again here: {what}"))
        if lost:
            rank, error_type, message = lost[0]
            alike = f" (and so did rank {', '.join(str(each) for each, *_ in lost[1:])})" * (len(lost) > 1)
            refused = RankError(rank, error_type, message + alike)
            refused.values = values
            raise refused
        return list(values.values())

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


def spans(answers: Mapping[int, Done], start_ns: int) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return the spans of what each rank has answered, since ``start_ns``, and what it emulated."""
    rows = [row for i, answer in answers.items() for row in trace.rank_events(answer.rows, i, start_ns)]
    return rows, list(dict.fromkeys(note for answer in answers.values() for note in answer.notes))


_OPTIONS = tuple(inspect.signature(decide).parameters)  # which launch and workers take, too


def check_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Sequence[str] = _OPTIONS) -> None:
    """Refuse a call that could not work on any rank; ``options`` are the caller's."""
    __tracebackhide__ = True
    if not callable(fn):
        raise TypeError(f"launch: fn is {fn!r}, expected a function to run on each rank (without calling it yourself)")
    name = getattr(fn, "__name__", repr(fn))
    if (kind := _lazy(fn)) is not None:
        raise TypeError(
            f"launch: {name} is {kind}: to call it runs none of its lines. Launch a function that goes through it and returns "
            "what it gives: list(...) of a generator, asyncio.run(...) of a coroutine"
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins tell nothing of their parameters
        return
    bound = fn.keywords if isinstance(fn, functools.partial) else {}
    if taken := [option for option in options if option in signature.parameters and option not in bound]:
        raise TypeError(
            f"launch: {name} has a parameter named {taken[0]!r}, which launch itself takes. "
            f"Bind it first: launch(functools.partial({name}, {taken[0]}=...), ...)"
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = _hint(signature, args, kwargs, options)
        raise TypeError(f"launch: {name}{signature} cannot be called with what was given: {error}{hint}") from None


def check_names(options: Iterable[str], what: str) -> None:
    """Refuse a name that is not an option of launch."""
    __tracebackhide__ = True
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise TypeError(f"{what}: there is no option {unknown[0]!r}{_meant(unknown[0], _OPTIONS)}")


def _meant(name: str, options: Sequence[str]) -> str:
    """Return which option was perhaps meant by a name; else ""."""
    close = difflib.get_close_matches(name, options, n=1)
    return f". Did you mean {close[0]}=...?" if close else ""


def _lazy(fn: Any) -> str | None:
    """Return what a call of ``fn`` would give instead of running it, if so."""
    for each in (fn, inspect.getattr_static(type(fn), "__call__", None)):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            return "a generator function"
        if inspect.iscoroutinefunction(each):
            return "a coroutine function (async def)"
    return None


def _hint(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], options: Sequence[str]) -> str:
    """Return what was perhaps meant by a call that does not fit: a misspelt option, or ranks."""
    for name in kwargs.keys() - signature.parameters.keys():
        if meant := _meant(name, options):
            return meant
    if options and len(args) == 1 and not signature.parameters and isinstance(args[0], int):
        return f". Did you mean world_size={args[0]}? What follows fn is passed on to it"
    return ""
