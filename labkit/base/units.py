"""Convert between the units that people read and those that code computes in: seconds and bytes."""

from __future__ import annotations

from collections.abc import Mapping

KIB, MIB, GIB = 2**10, 2**20, 2**30

UNITS: list[dict[str, float]] = [  # that are taken for each other
    {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0},
    {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB},
]

# To choose from, the largest first.
DURATIONS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
BYTES = {"TiB": 2**40, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}


def size_of(unit: str) -> float:
    """Return how many seconds or bytes a unit is; 1 for any other, such as ``"times"``."""
    return next((sizes[unit] for sizes in UNITS if unit in sizes), 1.0)


def unit_for(value: float, sizes: Mapping[str, float]) -> str:
    """Return the first unit of which ``value`` has at least one, or the last: 5e-5 s are in µs."""
    return next((unit for unit, size in sizes.items() if value >= size), [*sizes][-1])


def bytes_in_words(n_bytes: float) -> str:
    """Return bytes in the unit that fits, such as 1.5 MiB, in three digits or whole ones."""
    unit = unit_for(n_bytes, BYTES)
    number = n_bytes / BYTES[unit]
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
