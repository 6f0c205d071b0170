"""Pickle functions and values: by cloudpickle, with tensors on the CPU.

What cannot be pickled is named.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import marshal
import pickle
import pkgutil
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle

from labkit.base.tensors import as_bytes, laid_out


class _Pickler(cloudpickle.Pickler):
    """cloudpickle; tensors travel as CPU tensors, as the bytes they show, not their storage."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):  # cloudpickle 3.1.3 drops the file name, so source lines
            return marshal.loads, (marshal.dumps(obj),)
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType and _has_a_name(obj):
            # Such as torch.ops. cloudpickle sends it along with a function that uses torch and an
            # .ops of anything, and takes a module whose class is not ModuleType for an object.
            return pkgutil.resolve_name, (obj.__name__,)
        if isinstance(obj, functools._lru_cache_wrapper) and not _is_found(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if (refused := _refused(obj)) is not None:
            raise TypeError(refused)
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(obj, torch.Tensor) or obj.device.type == "meta":
            return super().reducer_override(obj)
        if type(obj) is torch.Tensor and obj.layout is torch.strided and not obj.is_quantized and obj.numel() > 0:
            content = pickle.PickleBuffer(as_bytes(laid_out(obj.detach().to("cpu"))).numpy())
            return _tensor, (content, obj.dtype, obj.shape, obj.requires_grad)
        if obj.device.type != "cpu":
            on_cpu = obj.detach().to("cpu").requires_grad_(obj.requires_grad)
            if isinstance(obj, torch.nn.Parameter):
                on_cpu = torch.nn.Parameter(on_cpu, obj.requires_grad)
            return on_cpu.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def _tensor(content: bytearray, dtype: Any, shape: Any, requires_grad: bool) -> Any:
    """Return the tensor that was sent as these bytes, without a copy; torch would make four."""
    import torch

    tensor = torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape)
    return tensor.requires_grad_(requires_grad) if dtype.is_floating_point or dtype.is_complex else tensor


def _cached(fn: Any, parameters: dict[str, Any]) -> Any:
    """Return a function with a cache of its own, as functools.lru_cache makes it."""
    return functools.lru_cache(**parameters)(fn)


def _is_found(obj: Any) -> bool:
    """Return whether a rank finds it by its name, as it is not a cell's."""
    name = getattr(obj, "__module__", None)
    if name is None or name == "__main__" or name in cloudpickle.list_registry_pickle_by_value():
        return False
    try:
        return pkgutil.resolve_name(f"{name}:{obj.__qualname__}") is obj
    except (ImportError, AttributeError, ValueError):
        return False


_IN_RANKS_ONLY = {
    (
        "torch.nn.parallel.distributed",
        "DistributedDataParallel",
    ): "it needs its process group: send its .module or state_dict()",
    ("tqdm.std", "tqdm"): "a bar belongs to its process: make it in the function, or use labkit.launch.progress",
}


def _refused(obj: Any) -> str | None:
    """Return why an object is of no use where it would arrive, if so."""
    kinds = ((cls.__module__, cls.__qualname__) for cls in type(obj).__mro__)
    return next((_IN_RANKS_ONLY[kind] for kind in kinds if kind in _IN_RANKS_ONLY), None)


def _has_a_name(module: types.ModuleType) -> bool:
    """Return whether it is found by its name: here, and so in a rank too."""
    try:
        return pkgutil.resolve_name(module.__name__) is module
    except (ImportError, AttributeError, ValueError):
        return False


def dumps(obj: Any) -> bytes:
    """Return pickled bytes of anything cloudpickle takes.

    Tensors arrive on the CPU, whatever device they were on. Two tensors that share memory arrive as
    two that do not; one tensor arrives as one, however often it occurs.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    return buffer.getvalue()


loads = pickle.loads


def is_lazy(value: Any) -> bool:
    """Return whether it is a generator or a coroutine, which is closed so that nothing warns."""
    if inspect.iscoroutine(value):
        value.close()
    return inspect.isgenerator(value) or inspect.iscoroutine(value) or inspect.isasyncgen(value)


def dumps_call(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return the call as bytes.

    A function from a module that no rank could import travels by value, like one typed in a cell,
    also in a partial or as an argument.
    """
    try:
        with _by_value([fn, *args, *kwargs.values()]):
            return dumps((fn, args, kwargs))
    except Exception as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        parts = (
            {name: fn}
            | {f"argument {i}": arg for i, arg in enumerate(args)}
            | {f"argument {k!r}": v for k, v in kwargs.items()}
        )
        raise TypeError(f"launch: {name} cannot be sent to the ranks: {explain(parts, error)}") from error


_registering = threading.Lock()  # cloudpickle's registry is one for all threads


@contextlib.contextmanager
def _by_value(parts: list[Any]) -> Iterator[None]:
    """Have the modules of these objects travel by value where no rank could import them."""
    modules = {sys.modules.get(name) for name in _modules_of(parts)} - {None}
    unknown = [module for module in modules if module is not None and not _importable(module)]
    if not unknown:
        yield
        return
    with _registering:
        for module in unknown:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in unknown:
                cloudpickle.unregister_pickle_by_value(module)


def _modules_of(parts: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the modules of objects, and of what a partial binds."""
    for part in parts:
        if isinstance(part, functools.partial):
            yield from _modules_of([part.func, *part.args, *part.keywords.values()])
        elif isinstance(name := getattr(part, "__module__", None), str):
            yield name


def _importable(module: types.ModuleType) -> bool:
    if module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return True  # cloudpickle sends what is defined in __main__ by value anyway; a built-in module is everywhere
    package = module.__name__.partition(".")[0]
    # Ask the finders: importlib's own find_spec would look in sys.modules, which has this module.
    return any(finder.find_spec(package, None) for finder in sys.meta_path)


def explain(parts: dict[str, Any], error: Exception) -> str:
    """Return which part of the named objects cannot be pickled, and why: the innermost one."""
    for name, obj in parts.items():
        if (reason := _failure(obj)) is not None:
            path, culprit, reason = _descend(name, obj, reason, seen=set())
            return f"{path} is a {type(culprit).__module__}.{type(culprit).__qualname__} ({reason})"
    return str(error)


def _failure(obj: Any) -> str | None:
    try:
        dumps(obj)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _descend(path: str, obj: Any, reason: str, seen: set[int]) -> tuple[str, Any, str]:
    seen.add(id(obj))
    if _refused(obj) is not None:  # it says why, and its parts say less
        return path, obj, reason
    for inner_path, inner in _parts(path, obj):
        if id(inner) not in seen and (inner_reason := _failure(inner)) is not None:
            return _descend(inner_path, inner, inner_reason, seen)
    return path, obj, reason


def _parts(path: str, obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that would be pickled along with this one, each with the path to it."""
    if isinstance(obj, types.FunctionType):
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            if cell != types.CellType():  # it has a value
                yield f"{path}'s variable {name}", cell.cell_contents
        for name in obj.__code__.co_names:
            if name in obj.__globals__:
                yield f"{path}'s global {name}", obj.__globals__[name]
    elif isinstance(obj, dict):
        yield from ((f"{path}[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"{path}[{i}]", value) for i, value in enumerate(obj))
    elif hasattr(obj, "__dict__") and not isinstance(obj, type | types.ModuleType):
        yield from ((f"{path}.{key}", value) for key, value in vars(obj).items())
