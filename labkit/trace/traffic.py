"""Count the bytes that this process sends over TCP, by the kernel's counters of its own sockets.

    with observe() as seen:
        dist.all_reduce(x)
    seen.sent_bytes

The counters of the loopback interface would not do: Jupyter and every other program of the machine
talk there too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator


class Traffic:
    """The ``sent_bytes`` that :func:`observe` counted in a block: there once that is over."""

    sent_bytes: int


@contextlib.contextmanager
def observe() -> Iterator[Traffic]:
    """Count the bytes that this process sends over TCP in the block. Meant for a rank.

    They are payload: without TCP's and IP's headers, and without what was sent again because it was
    lost. They count as soon as the kernel has taken them. A connection that is closed in the block
    is left out, and so is all that passes no TCP socket: shared memory, NVLink, InfiniBand, which
    NCCL prefers.

    Raises NotImplementedError, before the block runs, where :func:`available` is False.
    """
    if not available():
        raise NotImplementedError(
            "observe: bytes are counted per TCP socket by Linux 4.19 and newer only. Run this on such a machine, or skip it "
            "where labkit.trace.traffic.available() is False"
        )
    traffic, before = Traffic(), _sent_by_socket()
    try:
        yield traffic
    finally:
        traffic.sent_bytes = sum(sent - before.get(inode, 0) for inode, sent in _sent_by_socket().items())


def available() -> bool:
    """Return whether :func:`observe` works here: it takes Linux 4.19 or newer, with /proc."""
    with contextlib.suppress(OSError, AttributeError), socket.socket() as probe:
        return os.path.isdir(_DESCRIPTORS) and len(_tcp_info(probe)) == _TCP_INFO.size
    return False


# --- the kernel's counters ------------------------------------------------------------------------

_DESCRIPTORS = "/proc/self/fd"

# struct tcp_info, include/uapi/linux/tcp.h: tcpi_notsent_bytes at 144, tcpi_bytes_sent at 200,
# tcpi_bytes_retrans at 208. Simpler would be tcpi_bytes_acked, at 120, but acknowledgements may
# come 40 ms late.
_TCP_INFO = struct.Struct("=144x I 52x Q Q")


def _tcp_info(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)


def _sent_by_socket() -> dict[int, int]:
    """Return the bytes that each TCP socket of this process has sent so far, by its inode."""
    found = {}
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # closed since; a file, a pipe; a socket of another kind
            own = os.dup(int(name))  # nobody else closes this one, and has it stand for something else
            try:
                sock = socket.socket(fileno=own)
            except OSError:
                os.close(own)
                continue
            with sock:
                waiting, sent, sent_again = _TCP_INFO.unpack(_tcp_info(sock))
                found[os.fstat(own).st_ino] = sent - sent_again + waiting
    return found
