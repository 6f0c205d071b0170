"""Count the bytes that this process's sockets moved, by the kernel's counters of each connection.

    with observe() as seen:
        dist.all_reduce(x)
    seen.sent_bytes, seen.received_bytes

The counters of the loopback interface would not do: Jupyter and every other program of the machine
talk there too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Address(NamedTuple):
    """One end of a connection."""

    host: str
    port: int


@dataclass(frozen=True)
class Connection:
    """What one TCP connection of this process moved, payload only.

    ``store``: it leads to or from the rendezvous store.
    """

    own: Address
    peer: Address
    sent_bytes: int
    received_bytes: int
    store: bool


class _Seen(NamedTuple):
    connections: tuple[Connection, ...]
    ended: tuple[Address, ...]


class Traffic:
    """What :func:`observe` gives, for reading once the block is over.

    ``connections``: one :class:`Connection` for each that was open at the end of the block, idle
    ones too, the store's too. ``sent_bytes``, ``received_bytes``: their totals without the store's.
    ``ended``: the peers of connections that were open at the start and not at the end. Their
    counters went with them, so the totals lack what they moved.
    """

    def __init__(self) -> None:
        self._seen: _Seen | None = None

    @property
    def connections(self) -> tuple[Connection, ...]:
        return self._finished().connections

    @property
    def ended(self) -> tuple[Address, ...]:
        return self._finished().ended

    @property
    def sent_bytes(self) -> int:
        return sum(connection.sent_bytes for connection in self.connections if not connection.store)

    @property
    def received_bytes(self) -> int:
        return sum(connection.received_bytes for connection in self.connections if not connection.store)

    def _finished(self) -> _Seen:
        if self._seen is None:
            raise RuntimeError("observe(): what was seen can be read once the with block is over")
        return self._seen


@contextlib.contextmanager
def observe() -> Iterator[Traffic]:
    """Count the bytes that this process's TCP connections move in the block. Meant for a rank.

    Bytes are payload as TCP counts it: without TCP's and IP's headers, and without what was sent
    again because it was lost. Sent bytes count as soon as the kernel has taken them, acknowledged
    or not; received bytes as soon as they have arrived, read or not. So a peer that is ahead may
    have its next message in ``received_bytes`` already, or its first one before the block began;
    ``sent_bytes`` is all this rank's own doing. To make sums over ranks agree, have the ranks meet
    before and after, by way of the store, whose connections are not in the totals: those with
    MASTER_PORT at either end.

    A connection opened in the block counts from its first byte. One that is closed in the block is
    in ``ended``, and one both opened and closed there is not seen at all. What passes no TCP socket
    is not seen either: shared memory, NVLink, InfiniBand, which NCCL prefers.

    Raises NotImplementedError, before the block runs, where :func:`available` is False: the kernel
    has no such counters.
    """
    if lacking := _lacking():
        raise NotImplementedError(
            f"observe: {lacking}, and bytes are counted per TCP socket by Linux 4.19 and newer only. "
            "Run this on such a machine (on macOS or Windows: in a Linux virtual machine), or skip it where "
            "labkit.trace.traffic.available() is False"
        )
    traffic, before = Traffic(), _open_connections()
    try:
        yield traffic
    finally:
        after = _open_connections()
        traffic._seen = _Seen(
            connections=tuple(_since(before.get(inode), connection) for inode, connection in after.items()),
            ended=tuple(connection.peer for inode, connection in before.items() if inode not in after),
        )


def available() -> bool:
    """Return whether :func:`observe` works here: it takes Linux 4.19 or newer, with /proc."""
    return _lacking() is None


def _since(before: Connection | None, now: Connection) -> Connection:
    if before is None:
        return now
    sent, received = now.sent_bytes - before.sent_bytes, now.received_bytes - before.received_bytes
    return replace(now, sent_bytes=sent, received_bytes=received)


# --- the kernel's counters ------------------------------------------------------------------------

_DESCRIPTORS = "/proc/self/fd"

# struct tcp_info, include/uapi/linux/tcp.h: tcpi_state at 0, tcpi_bytes_received at 128,
# tcpi_notsent_bytes at 144, tcpi_bytes_sent at 200, tcpi_bytes_retrans at 208. The kernel fills it
# under the socket's lock, so they fit together.
_TCP_INFO = struct.Struct("=B 127x Q 8x I 52x Q Q")

# States of a connection, include/net/tcp_states.h.
_FIN_WAIT1, _CLOSE_WAIT, _LAST_ACK, _CLOSING = 4, 8, 9, 11


def _lacking() -> str | None:
    """Return what this system lacks for reading the counters, as a clause; None if nothing."""
    if not hasattr(socket, "TCP_INFO"):
        return f"this system ({sys.platform}) has no TCP_INFO"
    if not os.path.isdir(_DESCRIPTORS):
        return f"this system ({sys.platform}) has no {_DESCRIPTORS}"
    size = 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        size = len(_tcp_info(probe))
    if size < _TCP_INFO.size:
        return f"this kernel ({os.uname().release}) gives {size} bytes of TCP_INFO where {_TCP_INFO.size} were expected"
    return None


def _open_connections() -> dict[int, Connection]:
    """Return every TCP connection of this process with what it has moved so far, by its inode.

    No later socket gets the same inode.
    """
    found = {}
    for name in os.listdir(_DESCRIPTORS):
        if sock := _second_handle(int(name)):
            with sock, contextlib.suppress(OSError):  # UDP, or no peer: it listens, or its connection is over
                if connection := _connection(sock):
                    found[os.fstat(sock.fileno()).st_ino] = connection
    return found


def _second_handle(fd: int) -> socket.socket | None:
    """Return the socket of a descriptor, by a descriptor of its own; None if there is none.

    Of its own, so that no other thread can close it, and have it stand for something else, while it
    is looked at.
    """
    try:
        own = os.dup(fd)
    except OSError as error:
        if error.errno == errno.EBADF:  # closed since it was listed
            return None
        raise
    try:
        # Without SOCK_NONBLOCK the handle would apply socket.setdefaulttimeout to the socket, under
        # its owner's hands.
        return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=own)
    except OSError:  # a file, a pipe
        os.close(own)
        return None


def _connection(sock: socket.socket) -> Connection | None:
    """Return the socket's ends and counters; None if it is not an internet socket.

    Raises OSError if it is not TCP or has no peer.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    own, peer = _address(sock.getsockname()), _address(sock.getpeername())
    store_port = os.environ.get("MASTER_PORT")
    sent, received = _payload(_tcp_info(sock))
    return Connection(own, peer, sent, received, store_port in (str(own.port), str(peer.port)))


def _address(name: tuple[Any, ...]) -> Address:
    host, port, *_ = name
    return Address(host.removeprefix("::ffff:"), port)  # the prefix marks IPv4 on an IPv6 socket


def _tcp_info(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)


def _payload(tcp_info: bytes) -> tuple[int, int]:
    """Return the bytes sent and received since the connection was opened.

    ``tcpi_bytes_acked`` would be simpler and is not exact: acknowledgements may come 40 ms late,
    and the one that opens a connection counts as a byte.
    """
    state, received, not_yet_sent, sent, sent_again = _TCP_INFO.unpack(tcp_info)
    # The FIN that ends a direction of the connection counts as a byte, both while it waits and once
    # it is received.
    own_fin_waits = state in (_FIN_WAIT1, _LAST_ACK, _CLOSING) and not_yet_sent > 0
    fin_received = state in (_CLOSE_WAIT, _LAST_ACK, _CLOSING)
    return sent - sent_again + not_yet_sent - own_fin_waits, received - fin_received
