"""The notebook's side of a set of running ranks: start them, hand them a call, listen, and end them whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Pipe, wait
from typing import IO, Any

from labkit.ranks import fork_server, pickling
from labkit.ranks.protocol import Died, Done, Failed, Hello, Message, NoMessage, Progress, decode
from labkit.ranks.rank import NO_CUDA_AFTER_FORK, STACKS_SIGNAL, Place, Surroundings, readable_stacks

GRACE_S = 0.25  # after a first failure, how long to listen for the one that caused it
STACKS_S = 1.0  # how long a rank may take to write its stack
EXIT_S = 2.0  # how long a rank may take to leave by itself
DRAIN_S = 2.0  # how long to go on reading what a rank has printed once it has answered
MOST_CHUNKS = 64  # of 64 KiB: so much of one rank's output is read before the others have a turn


class RankError(RuntimeError):
    """A rank raised, or died. ``.rank``, ``.error_type`` (the exception's name, or such as ``"SIGKILL"``), ``.traceback``.

    The message is one line; the rank's traceback, with source lines, is shown below it.
    """

    def __init__(self, rank: int, error_type: str, message: str, traceback: str = ""):
        super().__init__(f"rank {rank} {message}")
        self.rank, self.error_type, self.traceback = rank, error_type, traceback
        if traceback:
            self.add_note(f"\n{traceback}")

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the rank's traceback, not the path through this file."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])]


class LaunchTimeout(RuntimeError):
    """The ranks did not finish in time. ``.stacks`` is ``{rank: text}``: where each one was when the time was up."""

    def __init__(self, timeout_s: float, stacks: dict[int, str]):
        super().__init__(
            f"the ranks did not finish within timeout_s={timeout_s:g} s and were ended. "
            "A collective that not every rank joins waits for ever; below is where each rank was."
        )
        self.stacks = stacks
        for rank, stack in stacks.items():
            self.add_note(f"\nrank {rank}:\n{stack}")

    _render_traceback_ = RankError._render_traceback_


class ServerUnusable(Exception):
    """The fork server died, or CUDA is in use in it: ranks must be fresh interpreters instead."""


class _Member:
    """One rank as the notebook sees it: its process, its connection, its output, and what it has answered."""

    def __init__(self, rank: int, listener: int, fresh: bool):
        self.rank = rank
        self.connection, theirs = Pipe()
        self.output, output_write = os.pipe()
        self.stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (unlinked from the start; closed in close())
        os.set_blocking(self.output, False)
        self.partial_line = b""
        self.answer: Done | Failed | Died | None = None
        try:
            fds = [theirs.fileno(), output_write, self.stacks.fileno(), listener]
            self.process = fork_server.start(fds, fresh)
        except BaseException:
            self.close_pipes()
            raise
        finally:
            theirs.close()
            os.close(output_write)

    def close_pipes(self) -> None:
        self.connection.close()
        os.close(self.output)
        self.stacks.close()

    def receive(self) -> Message | None:
        """Return the next message, or None if the rank has closed its end. A Done's value stays pickled."""
        try:
            message = decode(self.connection.recv_bytes())
            return message._replace(value=self.connection.recv_bytes()) if isinstance(message, Done) else message
        except (EOFError, ConnectionResetError):
            return None

    def read_output(self) -> tuple[list[str], bool]:
        """The lines the rank has printed since the last call, and whether that was all. An unfinished line is kept for later."""
        data = [self.partial_line]
        with contextlib.suppress(BlockingIOError):
            while len(data) <= MOST_CHUNKS and (chunk := os.read(self.output, 1 << 16)):
                data.append(chunk)
        *lines, self.partial_line = b"".join(data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines], len(data) <= MOST_CHUNKS

    def stack(self) -> str:
        self.stacks.seek(0)
        return readable_stacks(self.stacks.read().decode("utf-8", "replace"))


class Ranks:
    """``world_size`` running ranks. ``place(rank, port)`` says where each one stands. Always close()."""

    def __init__(self, world_size: int, place: Callable[[int, int], Place]):
        self.members: list[_Member] = []
        try:
            self._start(world_size, place, fresh=False)
        except ServerUnusable:
            self._start(world_size, place, fresh=True)
        self.in_step = True

    def _start(self, world_size: int, place: Callable[[int, int], Place], fresh: bool) -> None:
        try:
            with fork_server.uninterrupted(), socket.create_server(("127.0.0.1", 0), backlog=world_size) as listener:
                for rank in range(world_size):
                    self.members.append(_Member(rank, listener.fileno(), fresh))
                port = listener.getsockname()[1]
            for member in self.members:
                self._greet(member, place(member.rank, port))
        except BaseException:
            self.close(kill=True)
            raise

    def _greet(self, member: _Member, place: Place) -> None:
        wait([member.connection])  # a message, or its end if the process never came to life
        message = member.receive()
        if message is None:
            status = member.process.poll(EXIT_S)
            if status == fork_server.NEVER_STARTED:
                fork_server.server.has_died()
                raise ServerUnusable
            raise RankError(member.rank, *_how_it_ended(status if status is not None else 0), member.stack())
        if message == Hello(NO_CUDA_AFTER_FORK):
            fork_server.server.usable = False
            raise ServerUnusable
        with contextlib.suppress(BrokenPipeError):  # died just now; run() says so
            member.connection.send_bytes(pickling.dumps(place))

    # --- one call ----------------------------------------------------------------------------------------------------

    def run(self, call: bytes, timeout_s: float, on_lines: Any, on_progress: Any) -> list[Done]:
        """Run a pickled call on every rank. Return what each has answered, in rank order; values stay pickled.

        ``on_lines(rank, lines)`` gets what a rank prints, ``on_progress(rank, ...)`` its progress. Raises RankError or
        LaunchTimeout; the ranks are unusable then, and close(kill=True) is due.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout_s
        surroundings = pickling.dumps(Surroundings.here())
        for member in self.members:
            member.answer = None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # died; noticed below
                member.connection.send_bytes(surroundings)
                member.connection.send_bytes(call)
        failed_at = None
        try:
            while any(member.answer is None for member in self.members):
                until = min(deadline, failed_at + GRACE_S) if failed_at else deadline
                if time.monotonic() >= until:
                    break
                self._listen(until - time.monotonic(), on_lines, on_progress)
                if failed_at is None and any(isinstance(m.answer, Failed | Died) for m in self.members):
                    failed_at = time.monotonic()
            failure: RuntimeError | None = self._first_failure()
            if failure is None and any(member.answer is None for member in self.members):
                failure = LaunchTimeout(timeout_s, self._stacks())
        finally:
            self._drain(on_lines)
        if failure is not None:
            raise failure
        answers = [member.answer for member in self.members if isinstance(member.answer, Done)]
        self.in_step = len({answer.group_state for answer in answers}) == 1 and answers[0].group_state is not None
        return answers

    def _listen(self, timeout_s: float, on_lines: Any, on_progress: Any) -> None:
        sources: dict[Any, tuple[str, _Member]] = {}
        for member in self.members:
            sources[member.output] = ("output", member)
            if member.answer is None:
                sources[member.connection] = ("message", member)
                sources[member.process.sentinel] = ("exit", member)
        for source in wait(list(sources), timeout_s):
            kind, member = sources[source]
            if kind == "output":
                lines, _ = member.read_output()
                if lines:
                    on_lines(member.rank, lines)
            elif kind == "message":
                self._hear(member, on_progress)
            elif (
                member.answer is None and (status := member.process.poll()) is not None and not member.connection.poll()
            ):
                member.answer = Died(status)

    def _hear(self, member: _Member, on_progress: Any) -> None:
        try:
            message = member.receive()
        except NoMessage as error:
            raise RankError(member.rank, "NoMessage", str(error)) from None
        if message is None:  # its end is closed, so its process has ended or is about to
            status = member.process.poll(EXIT_S)
            member.answer = Died(-signal.SIGKILL if status is None else status)
        elif isinstance(message, Progress):
            on_progress(member.rank, *message)
        elif isinstance(message, Done | Failed):
            member.answer = message

    def _first_failure(self) -> RankError | None:
        """The failure that caused the others: a death before an exception (peers raise when a rank dies), then the earliest."""
        for member in self.members:
            if isinstance(member.answer, Died):
                return RankError(member.rank, *_how_it_ended(member.answer.status), member.stack())
        failures = {m.rank: m.answer for m in self.members if isinstance(m.answer, Failed)}
        if not failures:
            return None
        first = min(failures.values(), key=lambda failure: failure.at_ns)
        raised = f"{first.error_type}: {first.message}"
        rank, *alike = [r for r, failure in failures.items() if f"{failure.error_type}: {failure.message}" == raised]
        others = f" (and so did rank {', '.join(map(str, alike))})" if alike else ""
        return RankError(rank, first.error_type, f"raised {raised}{others}", failures[rank].traceback)

    def _stacks(self) -> dict[int, str]:
        """Every rank's Python stack, now."""
        stuck = [member for member in self.members if member.answer is None and member.process.pid]
        for member in stuck:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.process.pid or 0, STACKS_SIGNAL)
        end, sizes = time.monotonic() + STACKS_S, [-1]
        while time.monotonic() < end:  # until every stack is there and none grows any more
            time.sleep(0.05)
            previous, sizes = sizes, [os.fstat(member.stacks.fileno()).st_size for member in stuck]
            if sizes == previous and all(sizes):
                break
        return {
            m.rank: "finished" if m.answer else m.stack() or "no Python stack: still starting" for m in self.members
        }

    def _drain(self, on_lines: Any) -> None:
        end = time.monotonic() + DRAIN_S  # something that a rank started may go on printing
        for member in self.members:
            lines, finished = member.read_output()
            while not finished and time.monotonic() < end:
                more, finished = member.read_output()
                lines += more
            if finished and member.partial_line:
                lines.append(member.partial_line.decode("utf-8", "replace"))
                member.partial_line = b""
            if lines:
                on_lines(member.rank, lines)

    # --- the end -----------------------------------------------------------------------------------------------------

    def __del__(self) -> None:
        if self.members:  # nobody has closed them, and now nobody can
            self.close(kill=True)

    def close(self, kill: bool = False) -> None:
        """End the ranks: by themselves if they can within a moment, otherwise, or with ``kill``, at once."""
        with fork_server.uninterrupted():
            members, self.members = self.members, []
            for member in members:
                if kill:
                    member.process.kill()
                member.connection.close()
            end = time.monotonic() + EXIT_S
            for member in members:
                member.process.poll(max(0.0, end - time.monotonic()))
                member.process.kill()  # it, or what it left behind
                member.process.poll(EXIT_S)
                member.process.close()
                member.close_pipes()


def _how_it_ended(status: int) -> tuple[str, str]:
    """(error type, sentence) for an exit status as waitpid gives it."""
    if status < 0:
        name = signal.Signals(-status).name
        hint = " (out of memory?)" if name == "SIGKILL" and sys.platform == "linux" else ""
        return name, f"was killed by {name}{hint}"
    return f"exit status {status}", f"ended with exit status {status} before its function returned"
