"""Cells that live on ranks: run one after another, and keep their variables there.

    ranks = Ranks(decide(world_size=4))
    ranks.run_cell("x = dist.get_rank()", "cell 1")
    ranks["x"]                                       # [0, 1, 2, 3]

A fault costs the cell, not the state: the ranks leave the cell, form a new process group, and keep
their variables.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import linecache
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.base.interrupts import uninterrupted
from labkit.base.measurement_html import as_html
from labkit.base.texts import listed
from labkit.ranks.faults.errors import LaunchTimeout, RankError
from labkit.ranks.faults.stacks import where_ranks_are
from labkit.ranks.messages import pickling
from labkit.ranks.messages.caller_environment import CallerEnvironment
from labkit.ranks.messages.message import Done
from labkit.ranks.notebook import rank_status
from labkit.ranks.notebook.idle import VARIABLE, IdleLimit
from labkit.ranks.notebook.run import Run
from labkit.ranks.notebook.warm_ranks import spans
from labkit.ranks.output.cell_output import CellDisplay, show
from labkit.ranks.processes.plan import LaunchPlan
from labkit.ranks.processes.pool import LaunchCall, RankPool
from labkit.ranks.processes.rank_handle import how_it_ended

if TYPE_CHECKING:
    import pandas as pd

MAX_PRINTED = 1_000_000  # characters of what each rank prints in a cell that are shown
LEAVE_CELL_S = 5.0  # how long a rank may take to leave a cell before it is replaced
FORM_GROUP_S = 30.0  # how long ranks may take to form a process group


class CellRun(NamedTuple):
    """What a cell did: its ``run``, and what each rank has shown, by rank and in order.

    ``run.values`` are the texts of each rank's last expression, ``""`` where there is none. What is
    ``shown`` are dicts: ``{"kind": "display" | "result", "data": {mime type: text}, "metadata":
    {mime type: dict}}``. The last expression is the one of kind ``"result"``. Pictures are base64,
    as in a notebook file. Widgets' live views are left out.
    """

    run: Run
    shown: dict[int, list[dict[str, Any]]]


class Ranks:
    """Ranks that cells run on, one after the other. Variables stay on them.

    ``plan`` is theirs (its ``timeout_s`` that of each cell), ``last`` the :class:`Run` of the last
    cell. ``autoreload`` is the mode of IPython's ``%autoreload`` that they keep to.
    """

    def __init__(self, plan: LaunchPlan, idle_s: float = math.inf):
        """Start the ranks, and wait until they have their process group.

        ``idle_s`` after the last cell they are ended, and the next cell starts new ones.
        """
        self.plan = replace(plan, cells=True)
        self.last: Run | None = None
        self.autoreload = "0"
        self._names: dict[int, list[str]] = {}  # of variables, as last heard, by rank
        self._pool: RankPool | None = None
        self._idle = IdleLimit(idle_s, self._end_idle)
        self._ended_idle = ""  # what to say of ranks that were ended because nobody used them
        self._start()

    def _start(self) -> None:
        self._pool = RankPool(self.plan, time.monotonic())
        try:
            with self._idle.use():
                self._form_group()
        except BaseException as error:
            self.stop()
            error.add_note("\nThe ranks have formed no process group, so they were ended.")
            raise

    def _end_idle(self) -> None:
        if self._pool is not None:
            lost = listed(dict.fromkeys(name for names in self._names.values() for name in names))
            ended = f"these ranks were idle for {self._idle.limit_s / 60:g} minutes ({VARIABLE}), so they were ended"
            self._ended_idle = ended + f", and with them {lost}" * bool(lost)
            self._close()

    def _start_if_ended_idle(self) -> None:
        """Start new ranks in place of those that were ended because nobody used them."""
        if self._ended_idle:
            show(f"labkit: {self._ended_idle}. New ones start.\n")
            self._ended_idle, self._names = "", {}
            self._start()

    @property
    def world_size(self) -> int:
        return self.plan.world_size

    def __repr__(self) -> str:
        if self._pool is None:
            return self._ended_idle or "stopped"
        return f"{self.plan.header()}\n{rank_status.marked(self.status())!r}"

    def _repr_html_(self) -> str:
        if self._pool is None:
            return f"<p>{self._ended_idle or 'stopped'}</p>"
        return f"<p>{as_html(self.plan.header())}</p>{rank_status.marked(self.status())._repr_html_()}"

    def run_cell(self, source: str, file: str, on: Sequence[int] | None = None) -> CellRun:
        """Run a cell on all ranks, or ``on`` some, and wait for them.

        ``source`` is the cell's whole text, ``file`` the name under which tracebacks have it. A
        ``%%ranks`` in its first line is skipped, so that line numbers are those of the notebook's
        cell. What ranks print appears as they print it.

        Raises SyntaxError and ValueError (ranks that are not there) before any rank begins;
        RankError, LaunchTimeout and KeyboardInterrupt when the ranks have left the cell. Their
        variables are kept then. Notes of the error (``__notes__``) say what became of the ranks and
        their process group, and its attribute ``shown`` is what they had shown until then, as in a
        CellRun.
        """
        __tracebackhide__ = True
        from labkit.ranks.notebook import shell  # here, because it loads torch and IPython

        with self._idle.use():
            self._start_if_ended_idle()
            ranks = self._checked(on)
            check_syntax(shell.code_of(source), file)
            return self._run_checked(source, file, ranks)

    def _run_checked(self, source: str, file: str, ranks: list[int]) -> CellRun:
        __tracebackhide__ = True
        from labkit.ranks.notebook import shell

        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        since, start_ns = time.monotonic(), time.perf_counter_ns()
        with CellDisplay(MAX_PRINTED) as display:
            answers = self._call(shell.run_cell, source, file, self.autoreload, ranks=ranks, display=display)
        seconds = time.monotonic() - since
        values = {rank: pickling.loads(answer.value) for rank, answer in answers.items()}
        self._names |= {rank: names for rank, (_, names) in values.items()}
        self.last = Run([text for text, _ in values.values()], seconds, self.plan, *spans(answers, start_ns))
        with uninterrupted():
            self._form_group_if_out_of_step()
        return CellRun(self.last, display.bundles)

    def __getitem__(self, name: str) -> list[Any]:
        """Return a variable's value of each rank, leaving out ranks that have ended.

        KeyError names the ranks that lack it, TypeError says why it cannot be sent here.
        """
        __tracebackhide__ = True
        from labkit.ranks.notebook import shell

        if not isinstance(name, str):
            raise TypeError(
                f"ranks[{name!r}]: expected the name of a variable: ranks['x'] is its value on each rank, a list, and "
                "ranks['x'][0] that of rank 0"
            )

        found = self._values(shell.value, name)
        if missing := {rank: each for rank, (state, each) in found.items() if state == "missing"}:
            near = difflib.get_close_matches(name, sorted(set().union(*missing.values())), n=3)
            who = "no rank has" if len(missing) == self.world_size else f"{_ranks(missing)} lack{_s(missing)}"
            raise KeyError(f"{who} a variable {name!r}" + (f". Did you mean {listed(near, 'or')}?" if near else ""))
        for rank, (state, each) in found.items():
            if state == "unsent":
                raise TypeError(f"{name!r} of rank {rank} cannot be sent here: {each}")
        return [pickling.loads(each) for _, each in found.values()]

    def push(self, **values: Any) -> None:
        """Set variables on all ranks. TypeError names what cannot be sent."""
        __tracebackhide__ = True
        from labkit.ranks.notebook import shell

        try:
            packed = pickling.dumps(values)
        except Exception as error:
            raise TypeError(f"push: this cannot be sent to the ranks: {pickling.explain(values, error)}") from None
        self._names |= self._values(shell.push, packed)

    def fits(self, plan: LaunchPlan) -> bool:
        """Return whether these are the ranks of this plan, and all are there."""
        return self._pool is not None and self.plan == replace(plan, cells=True) and not self._ended()

    def names(self) -> list[str]:
        """Return the names of all variables that are on any rank."""
        from labkit.ranks.notebook import shell

        if self._pool is not None:
            with contextlib.suppress(RankError, LaunchTimeout):  # then as last heard
                self._names |= self._values(shell.names)
        return list(dict.fromkeys(name for names in self._names.values() for name in names))

    def status(self) -> pd.DataFrame:
        """Return a row for each rank: ``rank, pid, device, memory_mb, names, doing``."""
        return rank_status.status(self._running(), self.plan.devices, self._names)

    def restart(self, *ranks: int) -> None:
        """Start some ranks anew, or all, with no variables. The others keep theirs.

        Ranks that have ended are started anew in any case: without them there is no process group.
        """
        __tracebackhide__ = True
        for rank in ranks:
            self._check_rank(rank)
        some = sorted({*ranks, *self._ended()} if ranks else range(self.world_size))
        with self._idle.use(), uninterrupted():  # a group that is half formed is of no use
            self._running().replace(some)
            self._names |= {rank: [] for rank in some}
            formed = self._form_group_anyhow()
        if len(some) < self.world_size:
            show(f"labkit: {formed}\n")

    def complete(self, code: str, cursor: int, timeout_s: float = 0.5) -> list[str]:
        """Return what may stand for the word before ``cursor``, as rank 0's shell completes it.

        The word has its dots, as in ``torch.one``, and so have those returned. There are none if
        the rank does not answer in time.
        """
        from labkit.ranks.notebook import shell

        if self._pool is None:
            return []
        answer = self._pool.ask(0, shell.complete, code, cursor, timeout_s=timeout_s)
        return answer.matches if answer is not None else []

    def stop(self) -> None:
        """End the ranks. They cannot be used after that."""
        self._idle.stop()
        self._close()

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(kill=True)

    # --- calls ------------------------------------------------------------------------------------

    def _running(self) -> RankPool:
        if self._pool is None:
            raise RuntimeError(f"{self._ended_idle or 'these ranks were stopped'}; start new ones")
        return self._pool

    def _checked(self, on: Sequence[int] | None) -> list[int]:
        """Return the ranks that a cell is to run on. RankError if one has ended."""
        __tracebackhide__ = True
        ranks = sorted(set(on)) if on is not None else list(range(self.world_size))
        for rank in ranks:
            self._check_rank(rank)
        for rank in ranks:
            if (status := self._ended().get(rank)) is not None:
                error_type, sentence = how_it_ended(status)
                others = sorted(self._ended().keys() - {rank})
                as_well = f"; so {'has' if len(others) == 1 else 'have'} {_ranks(others)}" if others else ""
                raise RankError(rank, error_type, f"{sentence} before this cell{as_well}. {_restart([rank, *others])}")
        return ranks

    def _check_rank(self, rank: int) -> None:
        __tracebackhide__ = True
        if not isinstance(rank, int) or not 0 <= rank < self.world_size:
            last = self.world_size - 1
            raise ValueError(f"there is no rank {rank!r}: these are rank {f'0 to {last}' if last else '0'}")

    def _ended(self) -> dict[int, int]:
        """Return the exit status of each rank that is not there any more."""
        return {h.rank: status for h in self._running().handles if (status := h.poll()) is not None}

    def _values(self, fn: Callable[..., Any], *args: Any) -> dict[int, Any]:
        """Return what each rank that is there answers."""
        __tracebackhide__ = True
        with self._idle.use(), CellDisplay() as display:
            ended = self._ended()
            ranks = [rank for rank in range(self.world_size) if rank not in ended]
            answers = self._call(fn, *args, ranks=ranks, display=display)
        return {rank: pickling.loads(answer.value) for rank, answer in answers.items()}

    def _call(self, fn: Callable[..., Any], *args: Any, ranks: list[int], display: CellDisplay) -> dict[int, Done]:
        """Return each rank's answer. After an error all have left the call, and are usable."""
        __tracebackhide__ = True
        call = self._packed(fn, args, self.plan.timeout_s)
        try:
            return dict(zip(ranks, self._running().run(call, display, ranks), strict=True))
        except BaseException as error:
            error.shown = display.bundles  # type: ignore[attr-defined]
            with contextlib.suppress(KeyboardInterrupt), uninterrupted():  # one more says nothing new
                if isinstance(error, KeyboardInterrupt):
                    stacks = self._running().stacks()
                    error.add_note("\n" + where_ranks_are({rank: stacks[rank] for rank in ranks}))
                error.add_note(f"\n{self._recover(display)}")
            raise

    def _packed(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> LaunchCall:
        packed = pickling.dumps_call(fn, args, {})
        return LaunchCall(CallerEnvironment.here(), packed, time.monotonic(), timeout_s)

    # --- after a fault ----------------------------------------------------------------------------

    def _recover(self, display: CellDisplay) -> str:
        """Have all ranks leave the cell and be in one group again. Return what became of them."""
        pool = self._running()
        lines = ["Variables are kept."]
        if stuck := [handle.rank for handle in pool.end_call(display, LEAVE_CELL_S)]:
            lines = [
                f"{_ranks(stuck).capitalize()} could not be interrupted within {LEAVE_CELL_S:.0f} s, as in a call of C code."
            ]
            lines.append(self._replace(sorted({*stuck, *self._ended()})))  # those that have ended as well
        ended = sorted(self._ended())
        if ended:
            left = "The other ranks keep their variables." if len(ended) < self.world_size else "No rank is left."
            lines = [f"{left} {_restart(ended)}"]
        elif not pool.in_step:
            before = pool.handles[:]
            formed = self._form_group_anyhow()
            partial = "A tensor whose collective was ended may hold part of a result."
            lines = [*lines, partial, formed] if pool.handles == before else [*lines[1:], formed]
        return " ".join(filter(None, lines))

    def _replace(self, ranks: list[int]) -> str:
        """Start ranks anew. Return what was lost."""
        lost = self._lost(ranks)
        self._running().replace(ranks)
        self._names |= {rank: [] for rank in ranks}
        return lost

    def _lost(self, ranks: list[int]) -> str:
        """Return what is lost where ranks are started anew."""
        lost = [f"{names} of rank {rank}" for rank in ranks if (names := ", ".join(self._names.get(rank, [])))]
        were = "was" if len(ranks) == 1 else "were"
        return f"{_ranks(ranks).capitalize()} {were} started anew, so {'; '.join(lost) or 'what a cell had left there'} is lost."

    def _form_group_if_out_of_step(self) -> None:
        if not self._running().in_step and not self._ended():
            show(f"labkit: the cell left the process group out of step. {self._form_group_anyhow()}\n")

    def _form_group_anyhow(self) -> str:
        """Form a group, if need be with new ranks. Return what the reader has to know of it."""
        try:
            old = self._form_group()
        except (RankError, LaunchTimeout):
            lost = self._lost(list(range(self.world_size)))
            self._close()
            self._start()
            return f"The ranks could not form a new process group. {lost}"
        again = f" {listed(sorted(old))} {'belongs' if len(old) == 1 else 'belong'} to the old one: make it anew."
        return "The ranks are in a new process group." + again * bool(old)

    def _form_group(self) -> set[str]:
        """Have all ranks form a new process group. Return the names that hold an old one."""
        from labkit.ranks.notebook import shell

        pool = self._running()
        pool.want_new_group()
        starting = any(handle.calls == 0 for handle in pool.handles)
        patience_s = max(FORM_GROUP_S, self.plan.timeout_s) if starting else FORM_GROUP_S
        answers = pool.run(self._packed(shell.holders, (), patience_s), CellDisplay())
        held = [shell.Holders(*pickling.loads(answer.value)) for answer in answers]
        self._names = {rank: each.names for rank, each in enumerate(held)}
        return {name for each in held for name in each.old}


def check_syntax(code: str, file: str) -> None:
    """Raise the SyntaxError that ranks would."""
    __tracebackhide__ = True
    from IPython.core.inputtransformer2 import TransformerManager

    compile(TransformerManager().transform_cell(code), file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _ranks(ranks: Any) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed(map(str, sorted(ranks)))}"


def _s(ranks: Any) -> str:
    return "s" * (len(ranks) == 1)


def _restart(ranks: list[int]) -> str:
    return f"Bring {'it' if len(ranks) == 1 else 'them'} back, without variables: %ranks restart {' '.join(map(str, ranks))}"
