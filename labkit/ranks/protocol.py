"""The messages from a rank to the notebook, and how to read them without running its code."""

from __future__ import annotations

import io
import numbers
import operator
import pickle
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """How far a rank has come in a loop that :func:`labkit.launch.progress` watches."""

    desc: str
    done: int
    total: int | None


class Done(NamedTuple):
    """The function has returned.

    ``value`` is what it returned, pickled; only who wants it unpickles it.
    """

    rows: list[tuple[Any, ...]]  # of spans, see labkit.trace
    notes: list[str]  # what was emulated
    group_state: tuple[int, ...] | None  # see Rank._group_state
    value: bytes | bytearray = b""


class Failed(NamedTuple):
    """The function, or the way to it, has raised: the exception as text, and when it was caught."""

    at_ns: int
    error_type: str
    message: str
    traceback: str


class Died(NamedTuple):
    """The rank's process has ended before it answered.

    ``status`` is as waitpid gives it: negative for a signal.
    """

    status: int


Message = Progress | Done | Failed
_CLASSES = {cls.__name__: cls for cls in (Progress, Done, Failed)}
_PLAIN = {cls.__name__: cls for cls in (int, float, str)}


class _PlainPickler(pickle.Pickler):
    """Turns other libraries' numbers and texts, such as a numpy integer, into Python's own."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, str):
            return str, (str.__str__(obj),)
        if hasattr(type(obj), "__index__"):
            return int, (operator.index(obj),)
        if isinstance(obj, numbers.Real):
            return float, (float(obj),)
        return NotImplemented


class _PlainUnpickler(pickle.Unpickler):
    """Knows plain data only.

    A pickle may name any callable; this one calls none but those of _PLAIN.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in _PLAIN:
            return _PLAIN[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


class NoMessage(Exception):
    """A rank has sent something that is no message: the text is what came."""


def encode(message: Message) -> bytes:
    """Return a message as bytes: the name of its class, and its fields, which are plain data."""
    buffer = io.BytesIO()
    _PlainPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump((type(message).__name__, tuple(message)))
    return buffer.getvalue()


def decode(data: bytes | bytearray) -> Message:
    """Return the message that these bytes are; nothing of them is executed.

    Raises NoMessage if they are something else.
    """
    try:
        name, fields = _PlainUnpickler(io.BytesIO(data)).load()
        return _CLASSES[name](*fields)
    except Exception as error:  # unpickling what is no pickle raises nearly anything
        raise NoMessage(f"{bytes(data[:60])!r}: {type(error).__name__}: {error}") from None
