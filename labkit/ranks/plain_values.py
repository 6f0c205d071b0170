"""Tell which values a script can spell out, and keep a call without those that it cannot."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

MAX_PARTS = 1000  # of a value that is written as a literal
BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset({", "})")}
LEAVES = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)


class LeftOut(NamedTuple):
    """Stands for a value that a script cannot spell out."""

    description: str


class Call(NamedTuple):
    """A function and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def kept(self) -> Call:
        """Return the call with a :class:`LeftOut` for each argument that no script can have."""
        fn = self.fn
        if isinstance(fn, functools.partial):
            inner = Call(fn.func, fn.args, fn.keywords).kept()
            fn = functools.partial(inner.fn, *inner.args, **inner.kwargs)
        return Call(fn, tuple(map(kept, self.args)), {name: kept(value) for name, value in self.kwargs.items()})


def kept(value: Any) -> Any:
    """Return ``value``, or a :class:`LeftOut` if it is long or has a part that is not plain."""
    todo, n = [value], 1
    while todo:
        item = todo.pop()
        if isinstance(item, LeftOut):
            return item
        inner = parts(item)
        if inner is None and not (is_code(item) or is_leaf(item) or isinstance(item, types.ModuleType)):
            return LeftOut(_described(item) if item is value else f"{_described(value)} with {_described(item)} in it")
        n += len(inner or ())
        if n > MAX_PARTS:
            return LeftOut(f"{_described(value)} of more than {MAX_PARTS} parts")
        todo += inner or ()
    return value


def parts(value: Any) -> list[Any] | None:
    """Return what a container of plain data, a partial or a dataclass is made from; else None."""
    if type(value) is dict:
        return [*value, *value.values()]
    if type(value).__name__ in BRACKETS and type(value).__module__ == "builtins":
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    return fields(value)


def fields(value: Any) -> list[Any] | None:
    """Return the arguments that make a named tuple or a dataclass; else None."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
    return None


def is_leaf(value: Any) -> bool:
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return type(value) in LEAVES or isinstance(value, PurePath) or kind in ("torch.dtype", "torch.device")


def is_code(value: Any) -> bool:
    """Return whether it is a class or a function, also one in a wrapper that tells its name."""
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return True
    return hasattr(value, "__wrapped__") and hasattr(value, "__qualname__")


def is_lambda(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__name__ == "<lambda>"


def _described(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    return f"{'an' if name.lstrip('_')[0] in 'aeiou' else 'a'} {name}{of_shape}"
