"""One rank as the notebook sees it: its process, its connection, its output, its answer."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections import deque
from typing import IO, NamedTuple

from labkit.ranks import messages
from labkit.ranks.errors import RankError, readable_stacks
from labkit.ranks.messages import Done, Failed, NoMessage, Progress, RankState
from labkit.ranks.servers import Server

MOST_CHUNKS = 64  # of 64 KiB: so much of one rank's output is read before the others have a turn
LONGEST_LINE = 1 << 26  # bytes; what is longer goes on in another line
LAST_LINES = 12  # so many of what a rank printed are part of the error if it dies,
LAST_CHARACTERS = 2_000  # and so much of each

# torch 2.9's gloo prints this for every process group.
_GLOO_CONNECTS = rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*"
# NCCL makes a communicator for each pair of ranks that send to each other, as a pipeline wants. And
# if nobody has told it a barrier's GPU, it takes the one that launch gave the rank.
_NCCL_CHOOSES = (
    rb".*\[W.* ProcessGroupNCCL\.cpp:\d+\] .*"
    rb"(An unbatched P2P op \(send/recv\) .* In lazy initialization mode, .*|Guessing device ID based on global rank\..*)"
)
_CHATTER = re.compile(rb"|".join([_GLOO_CONNECTS, _NCCL_CHOOSES]))
# torch prints this on every rank that another one has left alone: 25 lines that hide the reason.
_CPP_STACK = re.compile(rb"frame #\d+: .* \(0x[0-9a-f]+ in .*\)|<omitting python frames>")


def _is_chatter(line: bytes) -> bool:
    wants_stacks = os.environ.get("TORCH_SHOW_CPP_STACKTRACES") == "1"
    return bool(_CHATTER.fullmatch(line) or (not wants_stacks and _CPP_STACK.fullmatch(line)))


def _unnamed_file() -> IO[bytes]:
    """Return a file without a name: on Linux in memory, so that no folder need be writable."""
    return os.fdopen(os.memfd_create("labkit"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


class Died(NamedTuple):
    """The rank's process has ended before it answered.

    ``status`` is as waitpid gives it: negative for a signal.
    """

    status: int


class RankHandle:
    """One rank as the notebook sees it: its process, its connection, its output, its answer."""

    def __init__(self, rank: int, listener: int, server: Server):
        self.rank = rank
        self.connection, theirs = socket.socketpair()
        self.output, output_write = os.pipe()
        self.stacks = _unnamed_file()
        os.set_blocking(self.output, False)
        self.partial_line = b""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.output_closed = False
        self.answer: Done | Failed | Died | None = None
        self.gone: Died | None = None
        self.calls = 0
        self.state: RankState | None = None  # the last that it has said of itself in this call
        self._is_cut_off = False  # in the midst of a message, so that what comes next is none
        try:
            self.process = server.start([theirs.fileno(), output_write, self.stacks.fileno(), listener])
        except BaseException:
            self._close_pipes()
            raise
        finally:
            theirs.close()
            os.close(output_write)

    def begin(self, caller: bytes, call: bytes, deadline: float) -> None:
        """Send a call, or as much of it as the rank takes until ``deadline`` (time.monotonic)."""
        self.answer, self.state = self.gone, None
        self.calls += 1
        self.last_lines.clear()
        self.send(caller, call, deadline)

    def send(self, message: bytes, payload: bytes, deadline: float) -> None:
        """Send a message; if the rank does not take it, its silence or its end will say so."""
        messages.allow_until(self.connection, deadline)
        with contextlib.suppress(TimeoutError, BlockingIOError, BrokenPipeError, ConnectionResetError):
            messages.send(self.connection, message, payload)

    def receive(self, deadline: float) -> Progress | None:
        """Take the message that has come: return progress, keep an answer.

        EOFError if there is nothing more to hear: the rank has closed its end, or the rest of a
        message has not come by ``deadline``. RankError if it sends what is no message.
        """
        if self._is_cut_off:
            raise EOFError
        try:
            received, value = messages.receive(self.connection, deadline)
            message = messages.decode(received)
        except TimeoutError:
            self._is_cut_off = True
            raise EOFError from None
        except NoMessage as error:
            raise RankError(
                self.rank,
                "NoMessage",
                f"wrote {error} into its connection to the notebook, which is for the lab's messages: the code in this rank "
                "has written to a file descriptor that is not its own",
            ) from None
        if isinstance(message, Progress):
            return message
        if isinstance(message, RankState):
            with contextlib.suppress(TypeError):  # made up by the code in this rank
                self.state = message.rebuilt() if message.calls == self.calls else None
            return None
        self.answer = message._replace(value=value) if isinstance(message, Done) else message
        return None

    def has_gone(self, status: int) -> None:
        """Note that its process has ended, perhaps before it answered."""
        self.gone = Died(status)
        with contextlib.suppress(EOFError):
            while self.answer is None:
                self.receive(deadline=0.0)  # its answer may have been on its way
        self.answer = self.answer or self.gone

    def read_output(self) -> tuple[list[str], bool]:
        """Return the lines printed since the last call, and whether there is more.

        An unfinished line is kept for later.
        """
        data, more = [self.partial_line], True
        while more and len(data) <= MOST_CHUNKS:
            try:
                chunk = os.read(self.output, 1 << 16)
            except BlockingIOError:
                more = False
            else:
                data.append(chunk)
                more, self.output_closed = bool(chunk), not chunk
        *lines, self.partial_line = b"".join(data).split(b"\n")
        if len(self.partial_line) > LONGEST_LINE:
            lines, self.partial_line = [*lines, self.partial_line], b""
        return self._readable(lines), more

    def read_unfinished_line(self) -> list[str]:
        """Return the line that will not be finished any more, if there is one."""
        line, self.partial_line = self.partial_line, b""
        return self._readable([line] if line else [])

    def _readable(self, lines: list[bytes]) -> list[str]:
        texts = [line.decode("utf-8", "replace") for line in lines if not _is_chatter(line)]
        self.last_lines.extend(text[-LAST_CHARACTERS:] for text in texts)
        return texts

    def stack(self) -> str:
        """Return the stack that faulthandler has written, at a crash or when the time was up."""
        self.stacks.seek(0)
        return readable_stacks(self.stacks.read().decode("utf-8", "replace"))

    def close(self) -> None:
        """Let go of the rank, and of everything that connects the notebook to it."""
        self.process.close()
        self._close_pipes()

    def _close_pipes(self) -> None:
        messages.hang_up(self.connection)
        os.close(self.output)
        self.stacks.close()
