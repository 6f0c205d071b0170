"""Tell whether a rank's other threads can end its waits, or only run beside it.

A progress bar's monitor sleeps in a thread of its own; so do heartbeats and timers. Such a thread
keeps no hang from being named. One that may still send, or release a lock, does. Which it is, its
code says, which is read and never run: from the functions that the thread is in, or was started
with, to what the names in them stand for, and on from there. What cannot be followed counts.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import ChainMap, deque
from collections.abc import Mapping
from types import CodeType, FrameType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from labkit.ranks.faults.frames import is_readers, outwards
from labkit.ranks.messages.message import RANKS, THREADS

MAX_STEPS = 5000  # of the walk through a thread's code
MAX_ITEMS = 100  # of a list or dict that are looked at

_HELPERS = ("/tqdm/_monitor.py", "/torch/utils/data/_utils/pin_memory.py", "/IPython/core/history.py")
_COMMUNICATES = {"backward", "barrier", "broadcast", "isend", "irecv", "all_reduce", "all_gather"}
_RELEASES = {"set", "release", "put", "put_nowait", "notify", "notify_all", "set_result", "set_exception", "start"}
_SIGNALS = {"kill", "killpg", "raise_signal", "pthread_kill", "interrupt_main"}
_ANYTHING = {"exec", "eval", "getattr", "__import__", "import_module", "run_until_complete", "run_forever"}
_OF_RANKS = ("torch.distributed", "torch._C._distributed", "torch.nn", "torch.optim", "torch.utils.data.data")
_ASKS_NOBODY = ("get_", "is_")  # of torch.distributed's functions, such as get_rank
_CALLED = {"__init__", "__call__", "__enter__", "__exit__", "__iter__", "__next__", "__getattr__", "__getitem__"}
_ITEMS: dict[type, Any] = {  # not by a class's own __iter__, which would be executed
    **{kind: kind.__iter__ for kind in (list, tuple, set, frozenset, deque)},
    dict: dict.values,
}
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None))
_SYNCHRONIZE = {"_thread", "threading", "_queue", "queue", "concurrent", "multiprocessing", "asyncio", "logging"}


def beside(
    main: int | None, frames: Mapping[int | None, FrameType], waits: Mapping[int | None, str], in_call: bool
) -> set[int | None]:
    """Return the threads that cannot end what the rank waits for: they only run beside it.

    ``frames`` has the innermost frame of each thread, ``waits`` what it waits for. For a collective
    or message these are all whose code does not lead to torch.distributed; if a lock, a queue or a
    join is waited for, it must not lead to such a thing either.
    """
    known = {each.ident: each for each in threading.enumerate()}
    others = {ident: frame for ident, frame in frames.items() if ident != main and ident in known}
    ends = {ident: leads_to(known[ident], frame) for ident, frame in others.items()}
    for joined in _joined(frames):
        ends.setdefault(joined, set()).add(THREADS)
    by_a_thread = in_call and waits.get(main) == THREADS
    by_a_thread |= any(waits.get(ident) == THREADS for ident, what in ends.items() if RANKS in what)
    return {ident for ident, what in ends.items() if RANKS not in what and not (by_a_thread and THREADS in what)}


def _joined(frames: Mapping[int | None, FrameType]) -> set[int | None]:
    """Return the threads whose end another one waits for."""
    calls = [call for frame in frames.values() for call in outwards(frame) if call.f_code.co_name == "join"]
    found = [call.f_locals.get("self") for call in calls]
    return {each.ident for each in found if isinstance(each, threading.Thread)}


def leads_to(thread: threading.Thread, frame: FrameType) -> set[str]:
    """Return whose waits a thread may end, given its innermost frame: RANKS, THREADS.

    A thread that C++ has made, such as autograd's for a GPU, may come to both.
    """
    if isinstance(thread, threading._DummyThread):
        return {RANKS, THREADS}
    stack = list(outwards(frame))
    if any(each.f_code.co_filename.endswith(_HELPERS) for each in stack):
        own = any(is_readers(each.f_code.co_filename) for each in stack)
        return {RANKS, THREADS} if own else set()
    walk = _Walk(thread)
    try:
        for name in ("_target", "_args", "_kwargs", "function", "args", "kwargs"):  # Timer's are without _
            walk.value(getattr(thread, name, None), frozenset())
        walk.attributes(thread, frozenset({"run"}))
        for each in stack:
            walk.frame(each)
    except Exception:  # such as of an object that is asked for its class, and raises
        return {RANKS, THREADS}
    return walk.found


class _Walk:
    """Goes from code to what its names stand for; ``found`` is what that led to."""

    def __init__(self, thread: threading.Thread) -> None:
        self.found: set[str] = set()
        self._thread = thread
        self._seen: set[tuple[int, int]] = set()
        self._kept: list[Any] = []  # what an id in _seen stands for must stay

    def _is_new(self, obj: Any, names: Any) -> bool:
        key = id(obj), id(names)
        if key in self._seen or len(self.found) == 2:
            return False
        if len(self._seen) > MAX_STEPS:
            self.found |= {RANKS, THREADS}
        self._seen.add(key)
        self._kept += [obj, names]
        return True

    def frame(self, frame: FrameType) -> None:
        """Follow a function that the thread is in; the standard library's only hand on others."""
        module = frame.f_globals.get("__name__", "")
        if _origin(module) == "own":
            self.code(frame.f_code, ChainMap(frame.f_locals, frame.f_globals))
        elif module.startswith(("asyncio.", "torch.distributed")):
            self.found |= {RANKS, THREADS}  # it may go on with what is not on the stack
        elif module.startswith(("concurrent.", "multiprocessing.", "logging")):
            self.found.add(THREADS)  # it hands on what a function returns, or holds a lock
        else:
            self._foreign(module)

    def code(self, code: CodeType, scope: Mapping[str, Any]) -> None:
        """Follow the names of a function's code, as they stand in its scope."""
        names = _names_of(code)
        self._names(names)
        for name in names:
            self.value(scope[name] if name in scope else sys.modules.get(name), names)

    def _names(self, names: frozenset[str]) -> None:
        if names & (_COMMUNICATES | _ANYTHING):
            self.found.add(RANKS)
        if names & (_RELEASES | _SIGNALS | _ANYTHING):
            self.found.add(THREADS)

    def value(self, found: Any, names: frozenset[str]) -> None:
        """Follow what a name stands for, in code that has these ``names``."""
        if isinstance(found, _PLAIN) or not self._is_new(found, names):
            return
        if isinstance(found, functools.partial):
            self.value([found.func, found.args, found.keywords], names)
        elif isinstance(found, MethodType):
            self._function(found.__func__, found.__self__)
            self.value(found.__self__, names)
        elif isinstance(found, FunctionType):
            self._function(found, None)
        elif inspect.isbuiltin(found):
            self._names(frozenset({found.__name__}))
            self.value(found.__self__, frozenset())
        elif inspect.iscoroutine(found) or inspect.isgenerator(found):
            frame = found.cr_frame if inspect.iscoroutine(found) else found.gi_frame
            if frame is not None:
                self.frame(frame)
        elif isinstance(found, ModuleType | type):
            self._module_or_class(found, names)
        else:
            for kind, items_of in _ITEMS.items():
                if isinstance(found, kind):
                    self._items(list(items_of(found)), names)
            self._instance(found, names)

    def _items(self, items: list[Any], names: frozenset[str]) -> None:
        if len(items) > MAX_ITEMS and not all(isinstance(each, _PLAIN) for each in items):
            self.found |= {RANKS, THREADS}
        for each in items[:MAX_ITEMS]:
            self.value(each, names)

    def _function(self, function: Any, owner: Any) -> None:
        if not isinstance(function, FunctionType) or not self._is_new(function, owner):
            return
        if _origin(function.__module__) != "own":
            if not function.__name__.startswith(_ASKS_NOBODY):
                self._foreign(function.__module__)
            return
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        scope = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        if owner is not None and function.__code__.co_argcount:
            scope[function.__code__.co_varnames[0]] = owner
        self.code(function.__code__, ChainMap(scope, function.__globals__))
        self.value([function.__defaults__, function.__kwdefaults__], frozenset())

    def _module_or_class(self, found: Any, names: frozenset[str]) -> None:
        is_module = isinstance(found, ModuleType)
        module = found.__name__ if is_module else found.__module__
        if _origin(module) == "own":
            self.attributes(found, names)
        elif is_module and _origin(module) == "torch":  # of which it may use what asks no other rank
            used = [vars(found)[name] for name in names & vars(found).keys()]
            self._items([each for each in used if callable(each) or isinstance(each, ModuleType)], names)
        else:
            self._foreign(module)

    def _instance(self, found: Any, names: frozenset[str]) -> None:
        modules = [cls.__module__ for cls in type(found).__mro__]
        packages = {module.partition(".")[0] for module in modules}
        if found is not self._thread and (packages & _SYNCHRONIZE or "library" in map(_origin, modules)):
            self.found.add(THREADS)
        for module in modules:
            self._foreign(module)
        self.value(inspect.getattr_static(found, "__wrapped__", None), names)
        if _origin(modules[0]) == "own":
            self.attributes(found, names)
        elif _origin(modules[0]) == "python" and "logging" not in packages:  # such as a queue of what to call
            self._items(list(getattr(found, "__dict__", {}).values()), names)

    def attributes(self, owner: Any, names: frozenset[str]) -> None:
        """Follow the attributes of a module, class or object that code may mean by its names."""
        for name in names | _CALLED:
            found = inspect.getattr_static(owner, name, None)
            if isinstance(found, property):
                self._function(found.fget, owner)
            elif isinstance(found, staticmethod | classmethod | functools.cached_property):
                self._function(getattr(found, "__func__", None) or getattr(found, "func", None), owner)
            elif isinstance(found, FunctionType):
                self._function(found, owner)
            elif isinstance(found, MemberDescriptorType | GetSetDescriptorType):  # of __slots__
                self._items([found.__get__(owner)] if not isinstance(owner, type) else [], names)
            else:
                self.value(found, names)

    def _foreign(self, module: str) -> None:
        if module.startswith(_OF_RANKS) or (_origin(module) == "library" and _uses_torch(module.partition(".")[0])):
            self.found.add(RANKS)


@functools.cache
def _names_of(code: CodeType) -> frozenset[str]:
    """Return all names in a function's code, and in the functions that it makes."""
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    return frozenset(names.union(*(_names_of(each) for each in code.co_consts if isinstance(each, CodeType))))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@functools.cache
def _origin(module: str | None) -> str:
    """Return "own" for a module of the reader's or the lab's, "python", "torch" or "library"."""
    package = (module or "").partition(".")[0]
    if package in sys.stdlib_module_names:
        return "python"
    if package == "torch":
        return "torch"
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "own" if package == "labkit" or is_readers(file) else "library"


def _uses_torch(package: str) -> bool:
    """Return whether a library has imported torch, so that it may know of other ranks."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    return any("torch" in vars(module) for module in modules if isinstance(module, ModuleType))
