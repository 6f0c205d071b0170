"""Convert between the units that people read and those that code computes in: seconds and bytes."""

from __future__ import annotations

UNITS: list[dict[str, float]] = [  # that are taken for each other
    {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0},
    {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
]


def size_of(unit: str) -> float:
    """Return how many seconds or bytes a unit is; 1 for any other, such as ``"times"``."""
    return next((sizes[unit] for sizes in UNITS if unit in sizes), 1.0)
