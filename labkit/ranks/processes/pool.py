"""Start all ranks of a launch, hand them calls, listen to them, and end them."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from labkit.base.interrupts import uninterrupted
from labkit.ranks.faults.errors import NCCL_ADVICE, LaunchTimeout
from labkit.ranks.faults.group_state import is_in_step, is_settled
from labkit.ranks.faults.hang import Hang
from labkit.ranks.messages.caller_environment import CallerEnvironment, working_directory
from labkit.ranks.messages.connection import hang_up
from labkit.ranks.messages.message import Completed, Done, Failed, GroupNumber, Progress, Question
from labkit.ranks.output.cell_output import CellDisplay, is_stopped, show
from labkit.ranks.processes import diagnosis, server_handle
from labkit.ranks.processes.plan import LaunchPlan
from labkit.ranks.processes.rank_handle import Died, RankHandle
from labkit.ranks.processes.refusals import check_loopback, explain_refusal
from labkit.ranks.processes.server_handle import ServerHandle

GRACE_S = 0.25  # after a first failure, how long to listen for the one that caused it
EXIT_S = 2.0  # how long a rank may take to end by itself
DRAIN_S = 2.0  # how long to go on reading what a rank has printed once it has answered
WHOLE_S = 5.0  # how long the rest of a message may take, of ranks that run cells
WAKE_S = 0.5  # so often a thread that waits for ranks checks whether it should stop

NOT_ASKED_FOR = "not started yet: timeout_s was over before the server was asked for this rank"


class ServerUnusable(Exception):
    """The fork server died, or CUDA is in use in it: ranks must be fresh interpreters."""


class LaunchCall(NamedTuple):
    """What ranks are to run, and since when its time counts (time.monotonic)."""

    caller: CallerEnvironment
    function: bytes  # with its arguments, pickled
    since: float
    timeout_s: float


class RankPool:
    """The running ranks of a plan. Always close() it.

    Raises LaunchTimeout if asking for them alone takes until ``timeout_s`` after ``since``
    (time.monotonic).
    """

    def __init__(self, plan: LaunchPlan, since: float):
        self.plan, self.in_step, self._owner = plan, True, os.getpid()
        self.handles: list[RankHandle] = []
        self.called: list[RankHandle] = []  # those that the present call is for
        self._questions = 0
        self._group = GroupNumber(0, 0)  # that they are to be in
        self._start(server_handle.forks if server_handle.forks.usable else server_handle.fresh, since)

    def _start(self, server: ServerHandle, since: float) -> None:
        """Ask for all ranks, and tell each where it stands, without waiting until they are there.

        Hundreds take a while, so an interrupt or the deadline can come between two of them.
        """
        self._server, self._selector = server, selectors.DefaultSelector()
        n, deadline = self.plan.world_size, since + self.plan.timeout_s
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=n) as listener:
                check_loopback()
                for rank in range(n):
                    if time.monotonic() > deadline:
                        raise LaunchTimeout(self.plan.timeout_s, dict.fromkeys(range(n), NOT_ASKED_FOR), began=False)
                    with uninterrupted():
                        self.handles.append(RankHandle(rank, listener.fileno(), server))
                self._group = self._group._replace(port=listener.getsockname()[1])
            for handle in self.handles:
                self._introduce(handle, deadline)
        except BaseException as error:
            self.close(kill=True)
            if isinstance(error, OSError):
                explain_refusal(error, n)
            raise

    def _introduce(self, handle: RankHandle, deadline: float) -> None:
        """Tell a rank which of the plan's it is, and listen to it from now on."""
        location = pickle.dumps((working_directory(), list(sys.path)))  # where a rank finds the lab
        handle.send(location, pickle.dumps((self.plan, handle.rank)), deadline)
        # Functions, not methods: in a circle with its selector, the object would outlive its last
        # user.
        self._selector.register(handle.output, selectors.EVENT_READ, (RankPool._hear_output, handle))
        self._selector.register(handle.connection, selectors.EVENT_READ, (RankPool._hear_message, handle))
        self._selector.register(handle.control, selectors.EVENT_READ, (RankPool._hear_server, handle))

    # --- one call ---------------------------------------------------------------------------------

    def run(self, call: LaunchCall, display: CellDisplay, on: Sequence[int] | None = None) -> list[Done]:
        """Run a call on every rank, or ``on`` some.

        Return what each has answered, in rank order; values stay pickled.

        Raises RankError or LaunchTimeout. The ranks are unusable then, and close(kill=True) is due;
        those that run cells are usable after end_call().
        """
        __tracebackhide__ = True
        self.called = [self.handles[rank] for rank in (on if on is not None else range(len(self.handles)))]
        try:
            return self._run(call, display)
        except ServerUnusable:  # none of them has started, so they can still be started in another way
            if why := self._server.note_death():
                show(f"labkit: {why}\n")
            self.close(kill=True)
            self._start(server_handle.fresh, call.since)
            self.called = list(self.handles)
            return self._run(call, display)

    def _run(self, call: LaunchCall, display: CellDisplay) -> list[Done]:
        __tracebackhide__ = True
        deadline = call.since + call.timeout_s
        is_incomplete = self.plan.cells and any(handle.poll() is not None for handle in self.handles)
        message = pickle.dumps((call.caller, None if is_incomplete else self._group))
        with self._whole_messages():
            for handle in self.handles:
                handle.answer = None
            for handle in self.called:
                handle.begin(message, call.function, deadline)
        try:
            hang = self._listen_until(deadline, display)
            stacks = self.stacks() if diagnosis.first_failure(self.handles) is None and self._unanswered() else None
        finally:
            self._drain(display)
        if (failure := diagnosis.first_failure(self.handles)) is not None:
            raise failure
        if stacks is not None:
            began = any(handle.pid for handle in self.handles)
            advice = [NCCL_ADVICE] * (self.plan.backend == "nccl")
            advice += [diagnosis.at_work(self._unanswered())] * (hang is None)
            raise LaunchTimeout(call.timeout_s, stacks, began, " ".join(advice), hang, ended=not self.plan.cells)
        self.in_step = is_in_step([handle.group_state for handle in self.handles])
        return [handle.answer for handle in self.called if isinstance(handle.answer, Done)]

    def stacks(self) -> dict[int, str]:
        """Return every rank's Python stack, now."""
        return diagnosis.stacks(self.handles, self._unanswered(), self._server.pid)

    def _whole_messages(self) -> AbstractContextManager[object]:
        """Have no interrupt cut a message of ranks that are to be used after it."""
        return uninterrupted() if self.plan.cells else nullcontext()

    def _unanswered(self) -> list[RankHandle]:
        return [handle for handle in self.called if handle.answer is None]

    def end_call(self, display: CellDisplay, patience_s: float) -> list[RankHandle]:
        """Have the ranks that are still in a call leave it. Return those that have not in time.

        They are in step only if the failed call has left nothing behind, not even a message.
        """
        self.in_step = self.in_step and not self._unanswered()
        for handle in self._unanswered():
            handle.end_call()
        deadline = time.monotonic() + patience_s
        while self._unanswered() and (left_s := deadline - time.monotonic()) > 0:
            self._hear(left_s, deadline, display)
        self.in_step = self.in_step and is_settled([handle.group_state for handle in self.handles])
        self._drain(display)
        return self._unanswered()

    def want_new_group(self) -> None:
        """Have the ranks form a new process group with the next call."""
        self._group = self._group._replace(number=self._group.number + 1)

    def replace(self, ranks: Sequence[int]) -> None:
        """End some ranks, and start others in their place. With rank 0 goes the store."""
        deadline = time.monotonic() + self.plan.timeout_s
        with socket.create_server(("127.0.0.1", 0), backlog=len(self.handles)) as listener, uninterrupted():
            if 0 in ranks:
                self._group = self._group._replace(port=listener.getsockname()[1])
            old = [self.handles[rank] for rank in ranks]
            for handle in old:
                for each in (handle.output, handle.connection, handle.control):
                    with contextlib.suppress(KeyError):  # it has ended
                        self._selector.unregister(each)
            _end(old, kill=True, wait=True)
            for rank in ranks:
                self.handles[rank] = RankHandle(rank, listener.fileno(), self._server)
                self._introduce(self.handles[rank], deadline)
            self.called = []

    def ask(self, rank: int, answer: Callable[..., Completed], *args: Any, timeout_s: float) -> Completed | None:
        """Ask a rank what it can answer besides a call; None if it does not in time."""
        handle, deadline = self.handles[rank], time.monotonic() + timeout_s
        self._questions += 1
        with uninterrupted():
            handle.send(pickle.dumps(Question(answer, (self._questions, *args))), b"", deadline)
            while (left_s := deadline - time.monotonic()) > 0:
                if not select.select([handle.connection], [], [], left_s)[0]:
                    return None
                try:
                    handle.receive(deadline + WHOLE_S)
                except EOFError:
                    return None
                if handle.completed is not None and handle.completed.number == self._questions:
                    return handle.completed
        return None

    def _listen_until(self, deadline: float, display: CellDisplay) -> Hang | None:
        """Listen until all have answered, or the time is up; a moment longer after a failure.

        What has come is read in any case. Return why the others will never answer, if that is so.
        """
        failed, left_s = False, 1.0
        while self._unanswered() and left_s > 0:
            if is_stopped.get()():
                raise KeyboardInterrupt
            left_s = deadline - time.monotonic()
            self._hear(left_s, deadline, display)
            if not failed and any(isinstance(handle.answer, Failed | Died) for handle in self.handles):
                failed, deadline = True, min(deadline, time.monotonic() + GRACE_S)
            if not failed and (hang := diagnosis.hang(self.handles, self.called)) is not None:
                return hang
        return None

    def _hear(self, left_s: float, deadline: float, display: CellDisplay) -> None:
        """Wait a moment for something to come, and hear it."""
        ready = self._selector.select(min(max(left_s, 0.0), WAKE_S))
        with self._whole_messages():
            for key, _ in ready:
                hear, handle = key.data
                hear(self, handle, deadline, display)

    def _hear_output(self, handle: RankHandle, deadline: float, display: CellDisplay) -> None:
        lines, _ = handle.output.read()
        if lines or handle.output.overwritten:
            display.lines(handle.rank, lines, handle.output.overwritten)
        if handle.output.closed:
            self._selector.unregister(handle.output)

    def _hear_message(self, handle: RankHandle, deadline: float, display: CellDisplay) -> None:
        try:
            # Ranks that run cells stay, so what has begun to come must come whole.
            message = handle.receive(max(deadline, time.monotonic() + WHOLE_S) if self.plan.cells else deadline)
        except EOFError:  # its process has ended or is about to, which its server will report
            self._selector.unregister(handle.connection)
            return
        if isinstance(message, Progress):
            display.progress(handle.rank, message)
        elif message is not None:
            display.shown(handle.rank, message)

    def _hear_server(self, handle: RankHandle, deadline: float, display: CellDisplay) -> None:
        if handle.poll() is None:  # it has begun
            return
        if handle.refused is not None:
            explain_refusal(handle.refused, self.plan.world_size)
            raise handle.refused
        if handle.never_started and self._server.fork and all(each.pid is None for each in self.handles):
            raise ServerUnusable
        self._selector.unregister(handle.control)
        handle.note_end()

    def _drain(self, display: CellDisplay) -> None:
        end = time.monotonic() + DRAIN_S  # something that a rank started may go on printing
        for handle in self.handles:
            lines, more = handle.output.read()
            while more and time.monotonic() < end:
                further, more = handle.output.read()
                lines += further
            if not more:
                lines += handle.output.read_unfinished_line()
            if lines:
                display.lines(handle.rank, lines)

    # --- the end ----------------------------------------------------------------------------------

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # They were not closed, and no longer can be. (When Python ends, their server ends them, and
        # names of this module may be gone.)
        if not _is_finalizing() and self.handles and self._owner == os.getpid():
            self.close(kill=True)

    def close(self, kill: bool = False, wait: bool = True) -> None:
        """End the ranks. They get ``EXIT_S`` to end by themselves, or no time with ``kill``.

        ``wait=False`` leaves that to their server, which does so whatever becomes of the notebook.
        """
        with uninterrupted():
            handles, self.handles = self.handles, []
            self._selector.close()
            _end(handles, kill, wait)


def _end(handles: Sequence[RankHandle], kill: bool, wait: bool) -> None:
    for handle in handles:
        if kill:
            handle.signal(signal.SIGKILL)
        hang_up(handle.connection)
    if kill or wait:
        # One that has not begun never will: its server finds that it is released.
        running = [handle for handle in handles if handle.poll() is None and handle.pid is not None]
        for handle in _still_running(running):
            handle.signal(signal.SIGKILL)
        _still_running(running)
    for handle in handles:
        handle.close()


def _still_running(handles: list[RankHandle]) -> list[RankHandle]:
    """Return those that have not ended by themselves within ``EXIT_S``."""
    end = time.monotonic() + EXIT_S
    return [handle for handle in handles if handle.poll(max(0.0, end - time.monotonic())) is None]
