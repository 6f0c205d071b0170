"""Load a package's names when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``: ``modules`` has for each of its names the module in it.

    Ranks come by a package on their way to what they run, and need neither widgets nor matplotlib.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return __getattr__
