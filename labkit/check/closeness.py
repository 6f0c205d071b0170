"""Is an observed gradient the expected one, but for rounding? Or a multiple of it, and why?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
        return f"is {n} times too large: it is the sum over {n} ranks, and no mean"
    if near(found, mean / n):
        return f"is {n} times too small: it was divided by the world size twice"
    return ""
