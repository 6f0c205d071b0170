"""What the tests on a GPU share: a place for the numbers that they measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, float, str], None]:
    """measured(what, value, unit): a number for benchmarks/RESULTS.md. benchmarks/on_gpu.py
    collects them."""

    def note(what: str, value: float, unit: str) -> None:
        record_property("measured", {"what": what, "value": float(value), "unit": unit})

    return note
