"""The messages between the notebook and a rank: what they say, and how they travel.

A message goes over a connection with a payload after it, which is not copied. The notebook reads
what a rank sends without running any of its code.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import numbers
import operator
import pickle
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

_HEADER = struct.Struct("!8sQQ")  # a mark, and the lengths of message and payload
_MARK = b"labkit\r\n"  # what somebody else writes into the connection begins otherwise
LONGEST_MESSAGE, LONGEST_PAYLOAD = 1 << 30, 1 << 44  # bytes; what claims to be longer is none of ours
LONGEST_WAIT_S = 1e6  # days; the timeout of a socket cannot be infinite
_PIECE = 1 << 20

Buffer = bytes | bytearray


class NoMessage(Exception):
    """A rank has sent something that is no message: the text is what came."""


class NotPlain(ValueError):
    """What was sent is something else than plain data."""


# --- what a rank sends ----------------------------------------------------------------------------


class Progress(NamedTuple):
    """How far a rank has come in a loop that :func:`labkit.launch.progress` watches."""

    desc: str
    done: int
    total: int | None


class Done(NamedTuple):
    """The function has returned ``value``, which stays pickled until somebody wants it."""

    rows: list[tuple[Any, ...]]  # of spans, see labkit.trace
    notes: list[str]  # what was emulated
    group_state: tuple[int, ...] | None  # see Rank._group_state
    value: Buffer = b""


class Failed(NamedTuple):
    """The function, or the way to it, has raised: the exception as text, and when it was caught."""

    at_ns: int
    error_type: str
    message: str
    traceback: str
    is_consequence: bool  # of another rank's, which is the one to report


class Place(NamedTuple):
    """A line of the reader's code, and the columns of the call in it, where they are known."""

    file: str
    line: int
    left: int = 0
    right: int = 0

    def call(self) -> str:
        """Return the source of the call, "" where it is not known."""
        line = linecache.getline(self.file, self.line).encode()
        return line[self.left : self.right].decode(errors="replace")


NOWHERE = Place("", 0)


class Begun(NamedTuple):
    """A collective or message that a rank has begun: the ``number``-th of its group.

    ``ranks`` are those of its group. A message has a ``peer``, by its number in the group, -1 for
    any, and a ``tag``; its number is how many there were of this kind, to or from this peer.
    ``root`` is the rank that a collective goes to or comes from, -1 where it is not known.
    """

    group: str
    ranks: Sequence[int]
    number: int
    name: str
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    done: bool
    place: Place
    peer: int | None = None
    tag: int = 0
    at_ns: int = 0
    root: int = -1


class RankState(NamedTuple):
    """A rank that has stood still since ``since_ns``, and still did at ``at_ns`` (perf_counter).

    ``place`` is where, ``function`` that of torch.distributed in which it is, if any, and ``root``
    the rank that it names as source or destination there, -1 if it names none. ``wait`` is "gpu"
    where it waits for its GPU, "lock" where it waits for a thread of its own, and "call" where the
    call at ``place`` is what it is in.
    ``goes_on``: it, or a thread of it, sleeps or waits for a time only. ``unknown`` says why its
    collectives are not known, if they are not.
    """

    calls: int  # of the notebook, so far
    in_call: bool  # else it has returned from the last
    since_ns: int
    at_ns: int
    place: Place
    function: str
    root: int
    wait: str
    goes_on: bool
    begun: Sequence[Begun]
    unknown: str

    def whole(self) -> RankState:
        """Return the same as it was before it was sent as plain tuples."""
        begun = [Begun(*each)._replace(place=Place(*each[7])) for each in self.begun]
        return self._replace(place=Place(*self.place), begun=begun)


Message = Progress | Done | Failed | RankState
_CLASSES = {cls.__name__: cls for cls in (Progress, Done, Failed, RankState)}


def encode(message: Message) -> bytes:
    """Return a message as bytes: the name of its class, and its fields, which are plain data."""
    buffer = io.BytesIO()
    _PlainPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump((type(message).__name__, tuple(message)))
    return buffer.getvalue()


def decode(data: Buffer) -> Message:
    """Return the message that these bytes are; nothing of them is executed.

    Raises NoMessage if they are something else.
    """
    try:
        name, fields = loads_plain(data)
        return _CLASSES[name](*fields)
    except Exception as error:
        raise NoMessage(f"{bytes(data[:60])!r}: {type(error).__name__}: {error}") from None


# --- plain data -----------------------------------------------------------------------------------


class _PlainPickler(pickle.Pickler):
    """Turns other libraries' numbers and texts, such as a numpy integer, into Python's own."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, str):
            return str, (str.__str__(obj),)
        if hasattr(type(obj), "__index__"):
            return int, (operator.index(obj),)
        if isinstance(obj, numbers.Real):
            return float, (float(obj),)
        if isinstance(obj, tuple):  # a NamedTuple
            return tuple, (tuple(obj),)
        return NotImplemented


class _PlainUnpickler(pickle.Unpickler):
    """Calls nothing but int, float, str and tuple, though a pickle may name any callable."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in ("int", "float", "str", "tuple"):
            return {"int": int, "float": float, "str": str, "tuple": tuple}[name]
        raise NotPlain(f"it names {module}.{name}")


def loads_plain(data: Buffer) -> Any:
    """Return the plain data that was pickled: None, numbers, strings, tuples, lists and dicts.

    Raises NotPlain for other bytes, and executes none.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # unpickling what is no pickle raises nearly anything
        raise NotPlain(str(error)) from None


# --- over a connection ----------------------------------------------------------------------------


def send(connection: socket.socket, message: Buffer, payload: Buffer = b"") -> None:
    """Send a message and its payload, for as long as the connection's timeout allows."""
    connection.sendall(_HEADER.pack(_MARK, len(message), len(payload)) + message)
    connection.sendall(payload)


def receive(connection: socket.socket, deadline: float | None = None) -> tuple[bytearray, bytearray]:
    """Return the next message and its payload, waiting for them, if need be for ever.

    EOFError once the other end is closed, TimeoutError if they have not come whole by ``deadline``
    (time.monotonic). NoMessage, with what came, if something else came.
    """
    header = _receive_exactly(connection, _HEADER.size, deadline)
    mark, message, payload = _HEADER.unpack(header)
    if mark != _MARK or message > LONGEST_MESSAGE or payload > LONGEST_PAYLOAD:
        raise NoMessage(repr(bytes(header)))
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
    connection.settimeout(min(max(deadline - time.monotonic(), 0.0), LONGEST_WAIT_S))


def hang_up(connection: socket.socket) -> None:
    """Close a connection for every process that holds a copy of this end of it.

    A fork of this process (a data loader's) may hold one.
    """
    with contextlib.suppress(OSError):  # the other end is closed already
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
