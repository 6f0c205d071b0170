"""The connection between the notebook and a rank: messages with payloads, a header in front."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque

from labkit.ranks.protocol import NoMessage

_HEADER = struct.Struct("!8sQQ")  # a mark, and the lengths of message and payload
_MARK = b"labkit\r\n"  # what somebody else writes into the connection begins otherwise
LONGEST_MESSAGE, LONGEST_PAYLOAD = 1 << 30, 1 << 44  # bytes; what claims to be longer is none of ours
_PIECE, _MOST_PIECES = 1 << 20, 64  # so much is read of one rank before the others have a turn

Buffer = bytes | bytearray


def send(connection: socket.socket, message: Buffer, payload: Buffer = b"") -> None:
    """Send a message and its payload, however long that takes. The payload is not copied."""
    connection.sendall(_HEADER.pack(_MARK, len(message), len(payload)) + message)
    connection.sendall(payload)


def receive(connection: socket.socket) -> tuple[bytearray, bytearray]:
    """Return the next message and its payload, waiting for them.

    EOFError once the other end is closed.
    """
    _, message, payload = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return _exactly(connection, message), _exactly(connection, payload)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        if not (count := connection.recv_into(left)):
            raise EOFError
        left = left[count:]
    return data


class Channel:
    """The notebook's end of the connection.

    It waits for nothing: it sends what fits and receives what has come.
    """

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.connection = connection
        self._unsent: deque[memoryview] = deque()
        self._received: list[bytearray] = []  # of the message that is coming: header, message, payload
        self._expect(_HEADER.size)

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def sending(self) -> bool:
        """Return whether something is left to send: call :meth:`flush` when there is room."""
        return bool(self._unsent)

    def send(self, message: Buffer, payload: Buffer = b"") -> None:
        """Send a message and its payload, as much as fits for now."""
        header = _HEADER.pack(_MARK, len(message), len(payload))
        self._unsent += [memoryview(part) for part in (header + message, payload) if part]
        self.flush()

    def flush(self) -> None:
        """Send as much as fits of what is left.

        If the other end is closed, :meth:`receive` will say so.
        """
        while self._unsent:
            try:
                count = self.connection.send(self._unsent[0])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()
                return
            self._unsent[0] = self._unsent[0][count:]
            if not self._unsent[0]:
                self._unsent.popleft()

    def receive(self) -> tuple[bytearray, bytearray] | None:
        """Return the next message and its payload if all of them has come.

        EOFError once the other end is closed. NoMessage, with what came, if something else came.
        """
        while self._filled():
            self._received.append(self._part)
            if len(self._received) == 3:
                _, message, payload = self._received
                self._received = []
                self._expect(_HEADER.size)
                return message, payload
            mark, *lengths = _HEADER.unpack(self._received[0])
            if mark != _MARK or lengths[0] > LONGEST_MESSAGE or lengths[1] > LONGEST_PAYLOAD:
                raise NoMessage(repr(bytes(self._received[0])))
            self._expect(lengths[len(self._received) - 1])
        return None

    def _expect(self, size: int) -> None:
        self._part, self._size = bytearray(), size

    def _filled(self) -> bool:
        """Receive more of a part. It grows with what has come, not to what was said to come."""
        for _ in range(_MOST_PIECES):
            if len(self._part) == self._size:
                return True
            try:
                piece = self.connection.recv(min(_PIECE, self._size - len(self._part)))
            except BlockingIOError:
                return False
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError
            self._part += piece
        return len(self._part) == self._size

    def close(self) -> None:
        """Close the connection, also if a fork of this process (a data loader's) holds a copy."""
        hang_up(self.connection)


def hang_up(connection: socket.socket) -> None:
    """Close a connection for every process that holds a copy of this end of it."""
    with contextlib.suppress(OSError):  # the other end is closed already
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
