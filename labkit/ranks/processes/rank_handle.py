"""One rank as the notebook sees it: its process, its connection, its output, its answer."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from typing import IO, NamedTuple

from labkit.ranks.faults.errors import RankError
from labkit.ranks.faults.stacks import readable_stacks
from labkit.ranks.messages.connection import allow_until, hang_up, receive_message, send_message
from labkit.ranks.messages.message import (
    Completed,
    Done,
    EndCall,
    Failed,
    GroupState,
    Progress,
    RankState,
    Shown,
    decode,
)
from labkit.ranks.output.rank_output import RankOutput
from labkit.ranks.processes.fork_server import STATUS
from labkit.ranks.processes.server_handle import ServerHandle

SEND_S = 1.0  # how long a rank may take to take a request


class Died(NamedTuple):
    """The rank's process has ended before it answered.

    ``status`` is as waitpid gives it: negative for a signal. ``at_ns`` is when its server noted
    the end (perf_counter).
    """

    status: int
    at_ns: int


def how_it_ended(status: int) -> tuple[str, str]:
    """Return (error type, sentence) for an exit status as waitpid gives it."""
    if status >= 0:
        return f"exit status {status}", f"ended without an answer (exit status {status})"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has a number only
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" and sys.platform == "linux" else ""
    return name, f"was killed by {name}{hint}"


class RankHandle:
    """A rank that was asked for, and perhaps has not begun.

    ``control`` is the socket to its server, ``connection`` the one to the rank itself; a selector
    may wait for both, and for ``output``. ``pid`` is None until it has begun. ``exit_status`` is
    None until it has ended, or its server has ended before it began. ``refused`` says why the
    system made no process for it.
    """

    def __init__(self, rank: int, listener: int, server: ServerHandle):
        self.rank = rank
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.ended_ns = 0
        self.refused: OSError | None = None
        self.answer: Done | Failed | Died | None = None
        self.state: RankState | None = None  # the last that it has said of itself in this call
        self.group_state: GroupState | None = None  # as its last answer has it
        self.completed: Completed | None = None  # its last answer to a question
        self.calls = 0
        self.connection, ranks_end = socket.socketpair()
        output, output_end = os.pipe()
        self.output, self.stacks = RankOutput(output), _unnamed_file()
        try:
            fds = [ranks_end.fileno(), output_end, self.stacks.fileno(), listener]
            self.control = server.start_rank(fds, is_first=rank == 0)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            ranks_end.close()
            os.close(output_end)

    # --- its process ------------------------------------------------------------------------------

    @property
    def never_started(self) -> bool:
        """Whether its server has ended before it could start the rank."""
        return self.exit_status is not None and self.pid is None and self.refused is None

    def poll(self, timeout_s: float = 0.0) -> int | None:
        """Return the exit status, or None while it runs. Waits at most ``timeout_s`` for it."""
        self.control.settimeout(timeout_s)
        while self.exit_status is None:
            try:
                report = self.control.recv(STATUS.size)
            except (BlockingIOError, TimeoutError):
                return None
            except ConnectionResetError:
                report = b""
            number, at_ns = STATUS.unpack(report) if report else (None, time.perf_counter_ns())
            self._note(number, at_ns)
        return self.exit_status

    def _note(self, report: int | None, at_ns: int) -> None:
        """Take what the server reports; None: it has ended, and the rank with it."""
        self.ended_ns = at_ns
        if report is None:
            self.exit_status = -signal.SIGKILL
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)  # what the rank has left in its session
        elif self.pid is not None:
            self.exit_status = report
        elif report > 0:
            self.pid = report
        else:
            self.exit_status, self.refused = 0, OSError(-report, os.strerror(-report))

    def signal(self, number: int) -> None:
        """Send the rank a signal, through its server, which knows whether it is still there."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.control.send(bytes([number]))

    def stack_bytes(self) -> int:
        """Return how much of its stack it has written."""
        return os.fstat(self.stacks.fileno()).st_size

    def stack(self) -> str:
        """Return the stack that faulthandler has written, at a crash or when the time was up."""
        self.stacks.seek(0)
        return readable_stacks(self.stacks.read().decode("utf-8", "replace"))

    # --- its calls and answers --------------------------------------------------------------------

    def begin(self, message: bytes, function: bytes, deadline: float) -> None:
        """Send a call, or as much of it as the rank takes until ``deadline`` (time.monotonic).

        The ``message`` is a pickled CallerEnvironment, and the GroupNumber or None.
        """
        self.answer = Died(self.exit_status, self.ended_ns) if self.exit_status is not None else None
        self.state = None
        self.calls += 1
        self.output.last_lines.clear()
        self.stacks.seek(0)  # the rank has the same file, and goes on writing where it stands here
        self.stacks.truncate()
        self.send(message, function, deadline)

    def send(self, message: bytes, payload: bytes, deadline: float) -> None:
        """Send a message; if the rank does not take it, its silence or its end will say so."""
        allow_until(self.connection, deadline)
        with contextlib.suppress(TimeoutError, BlockingIOError, BrokenPipeError, ConnectionResetError):
            send_message(self.connection, message, payload)

    def end_call(self) -> None:
        """Ask a rank that runs cells to leave the call that it is in."""
        self.send(pickle.dumps(EndCall(self.calls)), b"", time.monotonic() + SEND_S)

    def receive(self, deadline: float) -> Progress | Shown | None:
        """Take the message that has come: return what is to be shown, keep an answer.

        EOFError if there is nothing more to hear: the rank has closed its end, or the rest of a
        message has not come by ``deadline``. RankError if it sends anything but a message.
        """
        try:
            message = decode(*receive_message(self.connection, deadline))
        except TimeoutError:
            raise EOFError from None
        except ValueError:
            raise RankError(self.rank, "no answer", "ended without an answer: it sent something else") from None
        if isinstance(message, Progress | Shown):
            return message
        if isinstance(message, RankState):
            self.state = message if message.calls == self.calls else None
        elif isinstance(message, Completed):
            self.completed = message
        elif message.calls == self.calls:  # else it answers a call that was given up
            self.group_state = message.group_state
            self.answer = message
        return None

    def note_end(self) -> None:
        """Take the last that it has sent; unless that is an answer, it has died."""
        assert self.exit_status is not None
        with contextlib.suppress(EOFError):
            while self.answer is None:
                self.receive(deadline=0.0)  # its answer may have been on its way
        self.answer = self.answer or Died(self.exit_status, self.ended_ns)

    def close(self) -> None:
        """Release the rank: its server ends it, with all that it has started."""
        hang_up(self.control)
        self._close_pipes()

    def _close_pipes(self) -> None:
        hang_up(self.connection)
        self.output.close()
        self.stacks.close()


def _unnamed_file() -> IO[bytes]:
    """Return a file without a name: on Linux in memory, so that no folder need be writable."""
    return os.fdopen(os.memfd_create("labkit"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()
