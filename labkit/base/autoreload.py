"""Have ``%autoreload`` leave every function as its file has it, with its lines.

IPython 9 compiles an edited function by itself, from text without comments, so a traceback shows
wrong lines, and below a decorator the decorator's file. And an edited method under a decorator,
such as ``@torch.no_grad()``, goes on as it was, without a word.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_IN_A_CLASS = "__autoreload_class__."  # IPython's own, in which it compiles a method


def complete_reloads() -> None:
    """Have IPython's autoreload go on with :func:`update_functions`, in this process."""
    from IPython.extensions import autoreload

    _follow(autoreload, "superreload", lambda module, *_: module)
    with contextlib.suppress(ImportError):  # before IPython 9 there was only the one above
        from IPython.extensions.deduperreload.deduperreload import DeduperReloader

        _follow(DeduperReloader, "maybe_reload_module", lambda _, module: module)


def _follow(owner: Any, name: str, module_of: Callable[..., ModuleType]) -> None:
    reload = getattr(owner, name)
    if hasattr(reload, "__wrapped__"):
        return

    @functools.wraps(reload)
    def call(*args: Any, **options: Any) -> Any:
        if done := reload(*args, **options):
            with contextlib.suppress(Exception):  # a cell must run, whatever a module of it is like
                update_functions(module_of(*args))
        return done

    setattr(owner, name, call)


def update_functions(module: ModuleType) -> None:
    """Give all functions that a module has made, whoever holds them, the code in its file now."""
    file = Path(module.__file__ or "")
    codes: dict[str, list[CodeType]] = defaultdict(list)
    for code in _within(compile(file.read_bytes(), str(file), "exec", dont_inherit=True)):
        codes[code.co_qualname].append(code)
    for function in gc.get_referrers(vars(module)):
        if isinstance(function, FunctionType):
            _update(function, module, codes)


def _within(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _within(each)


def _update(function: FunctionType, module: ModuleType, codes: dict[str, list[CodeType]]) -> None:
    old = function.__code__
    name = function.__qualname__ if old.co_qualname.startswith(_IN_A_CLASS) else old.co_qualname
    alike = codes.get(name, []) if "<lambda>" not in name else []
    if len(alike) > 1:  # a property's, or those of an if
        alike = [code for code in alike if inspect.getargs(code) == inspect.getargs(old)]
    if len(alike) != 1 or alike[0].co_freevars != old.co_freevars:
        return
    function.__code__ = alike[0]
    with contextlib.suppress(AttributeError):  # a property's, or a function inside another
        now = inspect.unwrap(operator.attrgetter(name)(module))
        function.__defaults__, function.__kwdefaults__ = now.__defaults__, now.__kwdefaults__
