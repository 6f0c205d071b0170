"""Check an argument, and say what was given and what was expected."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable


def check_number(name: str, value: object, holds: Callable[..., bool], expected: str) -> None:
    """Raise TypeError unless ``value`` is a real number, ValueError unless ``holds(value)``.

    A bool does not count as one.
    """
    message = f"{name} is {value!r}, expected {expected}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not holds(value):
        raise ValueError(message)


def check_counts(**counts: int) -> None:
    """Raise TypeError for a count that is not an int, ValueError for one below 1, by its name."""
    for name, count in counts.items():
        message = f"{name} is {count!r}, expected a whole number, 1 or more"
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(message)
        if count < 1:
            raise ValueError(message)


def check_seconds(name: str, value: float) -> None:
    """Raise TypeError or ValueError unless ``value`` is a finite time, 0 or more."""
    check_number(name, value, _not_negative, "a finite number of seconds, 0 or more: write 50 µs as 50e-6")


def check_bytes(name: str, value: float) -> None:
    """Raise TypeError or ValueError unless ``value`` is a finite number of bytes, 0 or more."""
    check_number(name, value, _not_negative, "a finite number of bytes, 0 or more, such as tensor.nbytes")


def check_whole_bytes(name: str, value: float) -> None:
    """Raise TypeError or ValueError unless ``value`` is a whole number of bytes, 0 or more."""
    expected = "a whole number of bytes, 0 or more, such as tensor.nbytes"
    check_number(name, value, lambda value: _not_negative(value) and value == int(value), expected)


def check_world_size(world_size: int) -> None:
    """Raise TypeError or ValueError unless ``world_size`` is a whole number of ranks, 1 or more."""
    expected = "a whole number of ranks, 1 or more, such as dist.get_world_size()"
    check_number("world_size", world_size, lambda value: is_whole(value) and value >= 1, expected)


def is_whole(value: float) -> bool:
    """Return whether ``value`` is of an integer type: 2, or numpy's 2, but not 2.0 nor True."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _not_negative(value: float) -> bool:
    return 0 <= value < math.inf  # false for NaN, as every comparison with it
