"""Pack and read plain data, so that nothing of what an answer's process sends is run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from labkit.base.texts import shorten
from labkit.ranks.messages import NotPlain, loads_plain

MAX_ITEMS = 100_000  # in all that is observed of a case; right answers give a tenth of that
MAX_CHARACTERS = 2_000  # of a text
MAX_BITS = 10_000  # of a whole number


@dataclass(frozen=True)
class Other:
    """Stands for a value that is not plain data, of which only the type is known."""

    type: str

    def __repr__(self) -> str:
        return f"{'an' if self.type[:1].lower() in 'aeiou' else 'a'} {self.type}"


def pack(value: Any) -> Any:
    """Return ``value`` as what pickle takes without naming any class, as deep as it goes.

    None, numbers, strings, lists, dicts and dense tensors of real numbers arrive as they are, a
    tuple or a set as a list, and whatever else there is as an :class:`Other`. So does what is too
    large, so nobody has to wait for it; of a long string, head and tail arrive.
    """
    return _Packer().pack(value)


class _Packer:
    """Packs values that have at most MAX_ITEMS items in all."""

    def __init__(self) -> None:
        self.left = MAX_ITEMS

    def pack(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            return "other", f"whole number of {value.bit_length():,} bits"
        for kind in (bool, int, float):
            if isinstance(value, kind):
                return kind(value)
        if isinstance(value, str):
            return shorten(str(value), MAX_CHARACTERS)
        name = shorten(type(value).__name__, 100)
        raw = isinstance(value, bytes | bytearray | memoryview)
        if isinstance(value, Mapping | Sequence | Set) and not raw:
            if not self._takes(size := len(value)):
                return "other", f"{name} of {size:,} items"
            if isinstance(value, Mapping):
                items = islice(value.items(), size)  # one that says its size may have no end
                return {self.pack(str(key)): self.pack(item) for key, item in items}
            return [self.pack(item) for item in islice(value, size)]
        with suppress(Exception):  # a sparse tensor, say, or one without data
            if not hasattr(value, "untyped_storage"):
                return operator.index(value)  # numpy's whole numbers
            if not self._takes(value.numel()):
                return "other", f"{name} of the shape {tuple(value.shape)}"
            dtype = str(value.dtype).removeprefix("torch.")
            return "tensor", dtype, list(value.shape), value.flatten().tolist()
        return "other", name

    def _takes(self, items: int) -> bool:
        """Return whether there is room for so many more items, and take it."""
        if items > self.left:
            return False
        self.left -= items
        return True


def close(found: Any, expected: Any) -> bool:
    """Return whether an observed tensor, or None, is the expected one, but for rounding."""
    if found is None or expected is None:
        return found is expected
    if getattr(found, "shape", None) != expected.shape:
        return False
    return bool(found.allclose(expected, rtol=1e-9, atol=1e-12))


def times_off(found: Any, mean: Any, n: int, near: Callable[[Any, Any], bool] = close) -> str:
    """Return why a gradient is ``n`` times the mean over ``n`` ranks, or an ``n``-th; else ""."""
    if near(found, mean * n):
        return f"is {n} times too large: it is the sum over {n} ranks. Divide by the world size"
    if near(found, mean / n):
        return f"is {n} times too small: it was divided by the world size twice"
    return ""


def loads(data: bytes | bytearray) -> Any:
    """Return what :func:`pack` was given, of its pickled bytes.

    Raises NotPlain for others, and executes none.
    """
    try:
        return _unpack(loads_plain(data))
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
