"""Send bytes over a connection and receive them: a message, and a payload that is not copied."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

_HEADER = struct.Struct("!QQ")  # the lengths of message and payload
MAX_WAIT_S = 1e6  # days; the timeout of a socket cannot be infinite
_PIECE = 1 << 20

Buffer = bytes | bytearray


def send_message(connection: socket.socket, message: Buffer, payload: Buffer = b"") -> None:
    """Send a message and its payload, for as long as the connection's timeout allows."""
    connection.sendall(_HEADER.pack(len(message), len(payload)) + message)
    connection.sendall(payload)


def receive_message(connection: socket.socket, deadline: float | None = None) -> tuple[bytearray, bytearray]:
    """Return the next message and its payload, waiting for them, if need be for ever.

    EOFError once the other end is closed, TimeoutError if they have not come whole by ``deadline``
    (time.monotonic).
    """
    message, payload = _HEADER.unpack(_receive_exactly(connection, _HEADER.size, deadline))
    return _receive_exactly(connection, message, deadline), _receive_exactly(connection, payload, deadline)


def _receive_exactly(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    """Return so many bytes. They take as much memory as has come, whatever was said to come."""
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            allow_until(connection, deadline)
        try:
            piece = connection.recv(min(_PIECE, size - len(data)))
        except BlockingIOError:
            raise TimeoutError from None
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise EOFError
        data += piece
    return data


def allow_until(connection: socket.socket, deadline: float) -> None:
    """Let what is sent and received take until ``deadline`` (time.monotonic)."""
    connection.settimeout(min(max(deadline - time.monotonic(), 0.0), MAX_WAIT_S))


def hang_up(connection: socket.socket) -> None:
    """Close a connection for every process that holds a copy of this end of it.

    A fork of this process (a data loader's) may hold one.
    """
    with contextlib.suppress(OSError):  # the other end is closed already
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
