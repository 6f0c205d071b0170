"""How a number is written in a notebook, so that a test knows what may differ from machine to machine.

``[~ 0.034 s]`` is a measurement or a fact about this machine: it differs everywhere, and the notebook test hides it.
``[≈ 0.7627]`` depends on a device's arithmetic (a loss): compared exactly on CPUs, hidden on a GPU.
Everything else in an output is compared to the letter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

FACT_WIDTH = 44


def measured(value: float, unit: str = "", width: int = 9) -> str:
    """A measured number at fixed width: ``[~    0.034 s]``. Four significant digits; ``width`` characters for the number."""
    number = f"{value:.4g}"
    if "e" in number and abs(value) >= 1:  # 1.234e+04 is what %g makes of 12340
        number = f"{value:.0f}"
    return f"[~ {number:>{width}}{unit and ' ' + unit}]"


def fact(text: object, width: int = FACT_WIDTH) -> str:
    """A fact about this machine at fixed width, such as a device's name: ``[~ gloo on CPU      ]``. Longer text is kept."""
    return f"[~ {text!s:<{width}}]"


def loss(value: float) -> str:
    """A number that depends on a device's arithmetic, at four significant digits: ``[≈ 0.7627]``."""
    return f"[≈ {value:#.4g}]"


class MeasuredTable(pd.DataFrame):
    """A DataFrame whose floating-point columns are measurements: it prints them through :func:`measured`.

    Counts, names and labels print as they are. Selecting, sorting and grouping keep the class.
    """

    @property
    def _constructor(self) -> Callable[..., MeasuredTable]:
        return MeasuredTable

    def _formatters(self) -> dict[Any, Any]:
        return {name: measured for name, kind in self.dtypes.items() if pd.api.types.is_float_dtype(kind)}

    def __repr__(self) -> str:
        return self.to_string(formatters=self._formatters(), max_rows=60)

    def _repr_html_(self) -> str:
        return self.to_html(formatters=self._formatters(), max_rows=60, border=0, notebook=True)
