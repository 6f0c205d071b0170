"""The notebook's side of a set of ranks: start them, hand them calls, listen, and end them."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from labkit.base.interrupts import uninterrupted
from labkit.ranks import servers
from labkit.ranks.cell_output import show
from labkit.ranks.errors import NCCL_ADVICE, LaunchTimeout, RankError, check_loopback, explain_os_error, how_it_ended
from labkit.ranks.member import Member
from labkit.ranks.protocol import Died, Done, Failed
from labkit.ranks.rank_config import CallerEnvironment, RankConfig
from labkit.ranks.rank_process import STACKS_SIGNAL
from labkit.ranks.states import is_stopped, stopped_servers

GRACE_S = 0.25  # after a first failure, how long to listen for the one that caused it
STACKS_S = 1.0  # how long a rank may take to write its stack
EXIT_S = 2.0  # how long a rank may take to leave by itself
DRAIN_S = 2.0  # how long to go on reading what a rank has printed once it has answered
WAKE_S = 0.5  # so often a thread that waits for ranks looks whether it is to stop

NOT_YET_STARTED = "not started yet: the server that starts ranks is still importing torch and other packages"
NOT_ASKED_FOR = "not started yet: asking for so many ranks took all the time there was"
NO_STACK_YET = "no Python stack: still starting"
STOPPED = "no Python stack: its process is stopped by a signal (SIGSTOP, or Ctrl-Z in its terminal)"
STOPPED_SERVER = (
    "not started yet: process {0}, from which ranks are started, is stopped by a signal (SIGSTOP). Let it go on: "
    "kill -CONT {0}"
)


class ServerUnusable(Exception):
    """The fork server died, or CUDA is in use in it: ranks must be fresh interpreters."""


class Call(NamedTuple):
    """What ranks are to run, and until when: ``timeout_s`` from ``since`` (time.monotonic)."""

    caller: CallerEnvironment
    function: bytes  # pickled, with its arguments
    since: float
    timeout_s: float


class CellDisplay(NamedTuple):
    """Where to show what ranks do while they run: the lines they print, and their progress."""

    lines: Callable[[int, list[str]], None]
    progress: Callable[..., None]


class Ranks:
    """``world_size`` running ranks.

    ``config(rank, port)`` says where each one stands. Always close().

    Raises LaunchTimeout if asking for them alone takes until ``timeout_s`` after ``since``
    (time.monotonic).
    """

    def __init__(self, world_size: int, config: Callable[[int, int], RankConfig], since: float, timeout_s: float):
        self.world_size, self.config = world_size, config
        self.members: list[Member] = []
        self.in_step, self._owner = True, os.getpid()
        self._start(servers.forks if servers.forks.usable else servers.fresh, since, timeout_s)

    def _start(self, server: servers.Server, since: float, timeout_s: float) -> None:
        """Ask for all ranks, and tell each where it stands. Nobody waits until they are there.

        Hundreds take a while: between two of them there is time for an interrupt, and for the end.
        """
        self._server, self._selector = server, selectors.DefaultSelector()
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=self.world_size) as listener:
                check_loopback()
                for rank in range(self.world_size):
                    if time.monotonic() > since + timeout_s:
                        stacks = dict.fromkeys(range(self.world_size), NOT_ASKED_FOR)
                        raise LaunchTimeout(timeout_s, stacks, began=False)
                    with uninterrupted():
                        self.members.append(Member(rank, listener.fileno(), server))
                port = listener.getsockname()[1]
            for member in self.members:
                member.channel.send(pickle.dumps((self.config(member.rank, port), timeout_s)))
                # Functions, not methods: in a circle with their selector, ranks would outlive who
                # used them.
                self._selector.register(member.output, selectors.EVENT_READ, (Ranks._hear_output, member))
                self._selector.register(member.channel, selectors.EVENT_READ, (Ranks._hear_messages, member))
                self._selector.register(member.process, selectors.EVENT_READ, (Ranks._hear_end, member))
        except BaseException as error:
            self.close(kill=True)
            if isinstance(error, OSError):
                explain_os_error(error, self.world_size)
            raise

    # --- one call ---------------------------------------------------------------------------------

    def run(self, call: Call, display: CellDisplay) -> list[Done]:
        """Run a call on every rank.

        Return what each has answered, in rank order; values stay pickled.

        Raises RankError or LaunchTimeout; the ranks are unusable then, and close(kill=True) is due.
        """
        __tracebackhide__ = True
        try:
            return self._run(call, display)
        except ServerUnusable:  # none of them has started, so they may as well be started in another way
            if why := self._server.has_died():
                show(f"labkit: {why}\n")
            self.close(kill=True)
            self._start(servers.fresh, call.since, call.timeout_s)
            return self._run(call, display)

    def _run(self, call: Call, display: CellDisplay) -> list[Done]:
        __tracebackhide__ = True
        caller = pickle.dumps(call.caller)
        for member in self.members:
            member.begin(caller, call.function)
            self._watch(member)
        try:
            self._listen_until(call.since + call.timeout_s, display)
            stacks = self._stacks() if self._first_failure() is None and self._unanswered() else None
        finally:
            self._drain(display)
        if (failure := self._first_failure()) is not None:
            raise failure
        if stacks is not None:
            began = any(member.process.pid for member in self.members)
            advice = NCCL_ADVICE if self.config(0, 0).backend == "nccl" else ""
            raise LaunchTimeout(call.timeout_s, stacks, began, advice)
        answers = [member.answer for member in self.members if isinstance(member.answer, Done)]
        self.in_step = len({answer.group_state for answer in answers}) == 1 and answers[0].group_state is not None
        return answers

    def _unanswered(self) -> list[Member]:
        return [member for member in self.members if member.answer is None]

    def _listen_until(self, deadline: float, display: CellDisplay) -> None:
        """Listen until all have answered, or the time is up; a moment longer after a failure."""
        failed = False
        while self._unanswered() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left_s, WAKE_S)):
                hear, member = key.data
                hear(self, member, display)
            if not failed and any(isinstance(member.answer, Failed | Died) for member in self.members):
                failed, deadline = True, min(deadline, time.monotonic() + GRACE_S)

    def _hear_output(self, member: Member, display: CellDisplay) -> None:
        lines, _ = member.read_output()
        if lines:
            display.lines(member.rank, lines)
        if member.output_closed:
            self._selector.unregister(member.output)

    def _hear_messages(self, member: Member, display: CellDisplay) -> None:
        member.channel.flush()
        try:
            progress = member.receive()
        except EOFError:  # its process has ended or is about to
            self._selector.unregister(member.channel)
            status = member.process.poll(EXIT_S)
            member.has_gone(-signal.SIGKILL if status is None else status)
            return
        self._watch(member)
        if progress is not None:
            display.progress(member.rank, *progress)

    def _watch(self, member: Member) -> None:
        """Wait for the channel to take more, too, as long as there is something left to send."""
        if member.gone is None:
            key = self._selector.get_key(member.channel)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.channel.sending else 0)
            if key.events != events:
                self._selector.modify(member.channel, events, key.data)

    def _hear_end(self, member: Member, display: CellDisplay) -> None:
        if (status := member.process.poll()) is None:  # the news was that it has begun
            return
        if member.process.refused is not None:
            explain_os_error(member.process.refused, self.world_size)
            raise member.process.refused
        nobody_has_started = status == servers.NEVER_STARTED and all(m.process.pid is None for m in self.members)
        if nobody_has_started and self._server.fork:
            raise ServerUnusable
        self._selector.unregister(member.process)
        member.has_gone(status)

    def _first_failure(self) -> RankError | None:
        """Return the failure that caused the others: a death, before the first exception."""
        for member in self.members:
            if isinstance(member.answer, Died):
                error_type, sentence = how_it_ended(member.answer.status, member.last_lines)
                return RankError(member.rank, error_type, sentence, member.stack(), member.last_lines)
        failures = {m.rank: m.answer for m in self.members if isinstance(m.answer, Failed)}
        if not failures:
            return None
        first = min(failures.values(), key=lambda failure: failure.at_ns)
        raised = f"{first.error_type}: {first.message}"
        rank, *alike = [r for r, failure in failures.items() if f"{failure.error_type}: {failure.message}" == raised]
        others = f" (and so did rank {', '.join(map(str, alike))})" if alike else ""
        return RankError(rank, first.error_type, f"raised {raised}{others}", failures[rank].traceback)

    def _stacks(self) -> dict[int, str]:
        """Return every rank's Python stack, now."""
        stuck = [member for member in self._unanswered() if member.process.pid is not None]
        for member in stuck:
            member.process.signal(STACKS_SIGNAL)
        end, sizes = time.monotonic() + STACKS_S, [-1]
        while stuck and time.monotonic() < end:  # until every stack is there and none grows any more
            time.sleep(0.05)
            previous, sizes = sizes, [os.fstat(member.stacks.fileno()).st_size for member in stuck]
            if sizes == previous and all(sizes):
                break
        held = stopped_servers() if any(member.process.pid is None for member in self.members) else []
        not_yet = STOPPED_SERVER.format(held[0]) if held else NOT_YET_STARTED
        return {member.rank: _where(member, not_yet) for member in self.members}

    def _drain(self, display: CellDisplay) -> None:
        end = time.monotonic() + DRAIN_S  # something that a rank started may go on printing
        for member in self.members:
            lines, more = member.read_output()
            while more and time.monotonic() < end:
                further, more = member.read_output()
                lines += further
            if not more:
                lines += member.read_unfinished_line()
            if lines:
                display.lines(member.rank, lines)

    # --- the end ----------------------------------------------------------------------------------

    def __del__(self) -> None:
        # Nobody has closed them, and now nobody can. (When Python ends, their server sees to it.)
        if self.members and self._owner == os.getpid() and not sys.is_finalizing():
            self.close(kill=True)

    def close(self, kill: bool = False, wait: bool = True) -> None:
        """End the ranks: by themselves if they can soon, otherwise, or with ``kill``, at once.

        ``wait=False`` leaves that to their server, which sees to it whatever becomes of the
        notebook.
        """
        with uninterrupted():
            members, self.members = self.members, []
            self._selector.close()
            for member in members:
                if kill:
                    member.process.signal(signal.SIGKILL)
                member.channel.close()
            if kill or wait:
                # One that has not begun never will: its server finds that nobody waits for it.
                running = [m for m in members if m.process.poll() is None and m.process.pid is not None]
                for member in _still_running(running):
                    member.process.signal(signal.SIGKILL)
                _still_running(running)
            for member in members:
                member.close()


def _still_running(members: list[Member]) -> list[Member]:
    """Return those that have not left by themselves once all have had ``EXIT_S`` for it."""
    end = time.monotonic() + EXIT_S
    return [member for member in members if member.process.poll(max(0.0, end - time.monotonic())) is None]


def _where(member: Member, not_yet: str) -> str:
    """Return where a rank is when the time is up; ``not_yet`` if it has not started."""
    if member.answer is not None:
        return "finished"
    if member.process.pid is None:
        return not_yet
    if is_stopped(member.process.pid):
        return STOPPED
    return member.stack() or NO_STACK_YET
