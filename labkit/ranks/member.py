"""One rank as the notebook sees it: its process, its channel, its output, its answer."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections import deque
from typing import IO

from labkit.ranks.channel import Channel
from labkit.ranks.errors import RankError
from labkit.ranks.protocol import Died, Done, Failed, NoMessage, Progress, decode
from labkit.ranks.servers import Server
from labkit.ranks.tracebacks import readable_stacks

MOST_CHUNKS = 64  # of 64 KiB: so much of one rank's output is read before the others have a turn
LONGEST_LINE = 1 << 26  # bytes; what is longer goes on in another line
LAST_LINES = 12  # so many of what a rank printed are part of the error if it dies,
LAST_CHARACTERS = 2_000  # and so much of each

# gloo of torch 2.9 prints this for every process group.
_GLOO_CONNECTS = rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*"
# NCCL has a communicator for each pair of ranks that send to each other: that is what a pipeline
# wants. And where nothing has told it a barrier's GPU, it takes the one that launch gave the rank.
_NCCL_CHOOSES = (
    rb".*\[W.* ProcessGroupNCCL\.cpp:\d+\] .*"
    rb"(An unbatched P2P op \(send/recv\) .* In lazy initialization mode, .*|Guessing device ID based on global rank\..*)"
)
_CHATTER = re.compile(rb"|".join([_GLOO_CONNECTS, _NCCL_CHOOSES]))
# torch prints this on every rank that another one has left alone: 25 lines, which hide the reason.
_CPP_STACK = re.compile(rb"frame #\d+: .* \(0x[0-9a-f]+ in .*\)|<omitting python frames>")


def _is_chatter(line: bytes) -> bool:
    wants_stacks = os.environ.get("TORCH_SHOW_CPP_STACKTRACES") == "1"
    return bool(_CHATTER.fullmatch(line) or (not wants_stacks and _CPP_STACK.fullmatch(line)))


def _unnamed_file() -> IO[bytes]:
    """Return a file that no folder has: on Linux in memory, so it needs none to be writable."""
    return os.fdopen(os.memfd_create("labkit"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


class Member:
    """One rank as the notebook sees it: its process, its channel, its output, its answer."""

    def __init__(self, rank: int, listener: int, server: Server):
        self.rank = rank
        mine, theirs = socket.socketpair()
        self.channel = Channel(mine)
        self.output, output_write = os.pipe()
        self.stacks = _unnamed_file()
        os.set_blocking(self.output, False)
        self.partial_line = b""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.output_closed = False
        self.answer: Done | Failed | Died | None = None
        self.gone: Died | None = None
        try:
            self.process = server.start([theirs.fileno(), output_write, self.stacks.fileno(), listener])
        except BaseException:
            self._close_pipes()
            raise
        finally:
            theirs.close()
            os.close(output_write)

    def begin(self, caller: bytes, call: bytes) -> None:
        """Send a call, as much of it as fits for now."""
        self.answer = self.gone
        self.last_lines.clear()
        self.channel.send(caller, call)

    def receive(self) -> Progress | None:
        """Take the next message if all of it has come: return progress, keep an answer.

        EOFError once the rank has closed its end. RankError if it sends what is no message.
        """
        try:
            if (received := self.channel.receive()) is None:
                return None
            message = decode(received[0])
        except NoMessage as error:
            raise RankError(
                self.rank,
                "NoMessage",
                f"wrote {error} into its connection to the notebook, which is for the lab's messages: the code in this rank "
                "has written to a file descriptor that is not its own",
            ) from None
        if isinstance(message, Progress):
            return message
        self.answer = message._replace(value=received[1]) if isinstance(message, Done) else message
        return None

    def has_gone(self, status: int) -> None:
        """Take note that its process has ended, perhaps before it answered."""
        self.gone = Died(status)
        with contextlib.suppress(EOFError):
            while self.answer is None and self.receive() is not None:
                pass  # its answer may have been on its way
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
        """Return the line that nobody will finish any more, if there is one."""
        line, self.partial_line = self.partial_line, b""
        return self._readable([line] if line else [])

    def _readable(self, lines: list[bytes]) -> list[str]:
        texts = [line.decode("utf-8", "replace") for line in lines if not _is_chatter(line)]
        self.last_lines.extend(text[-LAST_CHARACTERS:] for text in texts)
        return texts

    def stack(self) -> str:
        """Return what faulthandler has written: the stack at a crash, or when the time was up."""
        self.stacks.seek(0)
        return readable_stacks(self.stacks.read().decode("utf-8", "replace"))

    def close(self) -> None:
        """Let go of the rank, and of all that connects the notebook to it."""
        self.process.close()
        self._close_pipes()

    def _close_pipes(self) -> None:
        self.channel.close()
        os.close(self.output)
        self.stacks.close()
