"""Read what one rank prints, in lines, without what torch says of launch's own choices."""

from __future__ import annotations

import os
import re
from collections import deque

MAX_CHUNKS = 64  # of 64 KiB: so much of one rank's output is read before the others have a turn
MAX_LINE_BYTES = 1 << 26  # what is longer goes on in another line
LAST_LINES = 12  # so many of what a rank printed are part of the error if it dies,
LAST_CHARACTERS = 2_000  # and so much of each

# torch 2.9's gloo prints this for every process group.
_GLOO_CONNECTS = rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*"
# NCCL makes a communicator for each pair of ranks that send to each other, as a pipeline wants. And
# without being told a barrier's GPU, it takes the one that launch gave the rank.
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


def _as_seen(line: bytes) -> str:
    """Return a line as a terminal shows it: after ``\\r`` it is overwritten from its start."""
    seen = ""
    for part in line.decode("utf-8", "replace").split("\r"):
        seen = part + seen[len(part) :]
    return seen


def _is_erased(line: bytes) -> bool:
    """Return whether a line was overwritten with spaces, as tqdm does with ``leave=False``."""
    return b"\r" in line and not _as_seen(line).strip()


class RankOutput:
    """The reading end of the pipe that a rank prints into: a selector may wait for it.

    ``last_lines`` are the last that it printed. ``closed``: no process can print into it any more.
    """

    def __init__(self, pipe: int):
        self._pipe, self._partial_line = pipe, b""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.closed = False
        os.set_blocking(pipe, False)

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> tuple[list[str], bool]:
        """Return the lines printed since the last call, and whether there is more.

        An unfinished line is kept for later.
        """
        data, more = [self._partial_line], True
        while more and len(data) <= MAX_CHUNKS:
            try:
                chunk = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                more = False
            else:
                data.append(chunk)
                more, self.closed = bool(chunk), not chunk
        *lines, partial = b"".join(data).split(b"\n")
        shown, overwrites, tail = partial.rpartition(b"\r")  # only what is seen of it is kept
        self._partial_line = (_as_seen(shown).encode() if overwrites else b"") + overwrites + tail
        if len(self._partial_line) > MAX_LINE_BYTES:
            lines, self._partial_line = [*lines, self._partial_line], b""
        return self._readable(lines), more

    @property
    def overwritten(self) -> str:
        """The unfinished line, if it is one that the rank overwrites, as tqdm does."""
        return _as_seen(self._partial_line) if b"\r" in self._partial_line else ""

    def read_unfinished_line(self) -> list[str]:
        """Return the line that will not be finished any more, if there is one."""
        line, self._partial_line = self._partial_line, b""
        return self._readable([line] if line else [])

    def _readable(self, lines: list[bytes]) -> list[str]:
        texts = [_as_seen(line) for line in lines if not _is_chatter(line) and not _is_erased(line)]
        self.last_lines.extend(text[-LAST_CHARACTERS:] for text in texts)
        return texts

    def close(self) -> None:
        os.close(self._pipe)
