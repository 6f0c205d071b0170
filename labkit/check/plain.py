"""Plain data, so that what an answer's process says can be read without running anything of it."""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Other:
    """Stands for a value that is no plain data, of which only the type is known."""

    type: str

    def __repr__(self) -> str:
        return f"{'an' if self.type[:1].lower() in 'aeiou' else 'a'} {self.type}"


class NotPlain(ValueError):
    """What was sent is something else than plain data."""


def pack(value: Any) -> Any:
    """Return ``value`` as what pickle takes without naming any class, as deep as it goes.

    None, numbers, strings, lists, dicts and dense tensors of real numbers arrive as they are, a
    tuple or a set as a list, and whatever else there is as an :class:`Other`.
    """
    if value is None:
        return None
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): pack(item) for key, item in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [pack(item) for item in value]
    with suppress(Exception):  # a sparse tensor, say, or one without data
        if hasattr(value, "untyped_storage"):
            return "tensor", str(value.dtype).removeprefix("torch."), list(value.shape), pack(value.flatten().tolist())
        return operator.index(value)  # numpy's whole numbers
    return "other", type(value).__name__


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # nor any function, so there is nothing to call
        raise NotPlain(f"it names {module}.{name}")


def loads(data: bytes | bytearray) -> Any:
    """Return what :func:`pack` was given, of its pickled bytes.

    Raises NotPlain for others, and executes none.
    """
    try:
        return _unpack(_NoClasses(io.BytesIO(data)).load())
    except Exception as error:
        raise NotPlain(str(error)) from None


def _unpack(value: Any) -> Any:
    match value:
        case list():
            return [_unpack(item) for item in value]
        case dict():
            return {key: _unpack(item) for key, item in value.items()}
        case ("tensor", dtype, shape, numbers):
            import torch

            return torch.tensor(numbers, dtype=vars(torch)[dtype]).reshape(shape)
        case ("other", name):
            return Other(str(name))
        case _:
            return value
