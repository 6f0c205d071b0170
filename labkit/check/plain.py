"""Plain data as text, so that what an answer's process says can be read without running anything of it."""

from __future__ import annotations

import base64
import json
import operator
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


def dumps(value: Any) -> str:
    """Return ``value`` as text: None, numbers, strings, lists, dicts and strided tensors, as deep as it goes.

    A tuple or a set becomes a list. Whatever else there is becomes an :class:`Other`.
    """
    return json.dumps(_packed(value))


def loads(text: str) -> Any:
    """Return what :func:`dumps` was given. Whatever the text is, nothing in it is executed."""
    return _unpacked(json.loads(text))


def _packed(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"dict": [[_packed(key), _packed(item)] for key, item in value.items()]}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [_packed(item) for item in value]
    if hasattr(value, "untyped_storage"):
        with suppress(Exception):  # sparse, quantized, or without data
            return {"tensor": _packed_tensor(value)}
    with suppress(Exception):  # numpy's whole numbers
        return operator.index(value)
    return {"other": type(value).__name__}


def _packed_tensor(tensor: Any) -> list[Any]:
    from labkit.base.tensors import as_bytes, laid_out

    content = as_bytes(laid_out(tensor.detach().cpu())).numpy().tobytes() if tensor.numel() else b""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [dtype, list(tensor.shape), base64.b64encode(content).decode("ascii")]


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {_hashable(_unpacked(key)): _unpacked(item) for key, item in content}
    return _tensor(*content) if kind == "tensor" else Other(str(content))


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _tensor(dtype: str, shape: list[int], content: str) -> Any:
    import torch

    kind = vars(torch).get(dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype")
    data = bytearray(base64.b64decode(content))
    return (
        torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape) if data else torch.empty(shape, dtype=kind)
    )
