"""Pack and read plain data, so that nothing of what an answer's process sends is run."""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


class NotPlain(ValueError):
    """Something other than plain data was sent."""


@dataclass(frozen=True)
class Other:
    """Stands for a value that is not plain data, of which only the type is known."""

    type: str

    def __repr__(self) -> str:
        return f"{'an' if self.type[:1].lower() in 'aeiou' else 'a'} {self.type}"


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
        return {pack(str(key)): pack(item) for key, item in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [pack(item) for item in value]
    with suppress(Exception):  # a sparse tensor, say, or one without data
        if not hasattr(value, "untyped_storage"):
            return operator.index(value)  # numpy's whole numbers
        dtype = str(value.dtype).removeprefix("torch.")
        return "tensor", dtype, list(value.shape), value.flatten().tolist()
    return "other", type(value).__name__


def loads(data: bytes | bytearray) -> Any:
    """Return what :func:`pack` was given, of its pickled bytes.

    Raises NotPlain for others, and executes none.
    """
    try:
        return _unpack(_PlainUnpickler(io.BytesIO(data)).load())
    except Exception as error:  # bytes that are not a pickle raise nearly anything
        raise NotPlain(str(error)) from None


class _PlainUnpickler(pickle.Unpickler):
    """Calls nothing, though a pickle may name anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise NotPlain(f"it names {module}.{name}")


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
