"""Call an answer as a cell of a notebook does: no file of check is among those that have called it.

So an answer that looks who calls it finds what it would find in a notebook, and what it does only
for check is not seen.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from copy import copy
from typing import Any

CELL = "<cell>"  # where code says that it stands
OBSERVED = """
def observed(case):
    return leave(typed(case).observe())
"""


def observed(leave: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for ranks: of a case, what it observes, as ``leave`` passes it on."""
    fn: Callable[[Any], Any] = _run(OBSERVED, typed=typed, leave=leave)["observed"]
    return fn


def typed(case: Any) -> Any:
    """Return a case whose methods, and what they call in their module, were typed in a cell."""
    again = copy(case)
    object.__setattr__(again, "__class__", _typed_module(type(case).__module__)[type(case).__name__])
    return again


@functools.cache
def _typed_module(name: str) -> dict[str, Any]:
    return _run(inspect.getsource(sys.modules[name]))


def _run(source: str, **names: Any) -> dict[str, Any]:
    """Return the names of a cell after it has run."""
    names["__name__"] = "__main__"
    exec(compile(source, CELL, "exec", dont_inherit=True), names)
    return names
