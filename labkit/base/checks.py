"""Check an argument and say what was given and what was expected: numbers, counts, bytes and seconds."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable


def check_number(name: str, value: object, holds: Callable[..., bool], expected: str) -> None:
    """TypeError unless ``value`` is a real number (a bool is not), ValueError unless ``holds(value)``."""
    message = f"{name} is {value!r}, expected {expected}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not holds(value):
        raise ValueError(message)


def check_counts(**counts: int) -> None:
    """TypeError for a count that is no int, ValueError for one below 1, by its name."""
    for name, count in counts.items():
        message = f"{name} is {count!r}, expected a whole number, 1 or more"
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(message)
        if count < 1:
            raise ValueError(message)


def not_negative(value: float) -> bool:
    return 0 <= value < math.inf  # false for NaN, as every comparison with it


def whole_and_not_negative(value: float) -> bool:
    return not_negative(value) and value == int(value)


def at_least_one(value: float) -> bool:
    return value >= 1 and isinstance(value, numbers.Integral)


SECONDS = "a finite number of seconds, 0 or more: write 50 µs as 50e-6"

BYTES = "a finite number of bytes, 0 or more, such as tensor.nbytes"

WHOLE_BYTES = "a whole number of bytes, 0 or more, such as tensor.nbytes"

WORLD_SIZE = "a whole number of ranks, 1 or more, such as dist.get_world_size()"
