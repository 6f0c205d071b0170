"""Format numbers for a notebook, so that a test knows what may differ from machine to machine.

``[~ 0.034 s]`` is a measurement or a fact about this machine: it differs everywhere, and the
notebook test hides it. ``[≈ 0.7627]`` depends on a device's arithmetic (a loss): compared exactly
on CPUs, hidden on a GPU. Everything else in an output is compared to the letter.

The brackets belong to the text form of stored notebooks (LABKIT_STATIC=1). In their HTML such a
number stands alone, in a style of its own: see :mod:`labkit.base.measurement_html`, whose names are
here as well. In a terminal and in a live cell a number is a number, without either.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas as pd

from labkit.base.measurement_html import Lines, as_html, say, style_measurements
from labkit.base.notebook import static

__all__ = [
    "Lines",
    "MeasuredSeries",
    "MeasuredTable",
    "as_html",
    "emulated",
    "fact",
    "loss",
    "measured",
    "say",
    "short",
]

_MAX_ROWS = 100  # more than there are guesses in the course
_ROUND = str.maketrans("[]", "()")


def measured(value: float, unit: str = "", width: int = 9) -> str:
    """Format a measured number at fixed width: ``[~    0.034 s]``.

    It has four significant digits, fewer where these do not fit; ``width`` is that of the number,
    in characters.
    """
    number = next((short for n in (4, 3, 2) if len(short := f"{value:.{n}g}") <= width), f"{value:.4g}")
    if "e" in number and abs(value) >= 1:  # 1.234e+04 is what %g makes of 12340
        number = f"{value:.0f}"
    return _marked("~", f"{number:>{width}}{unit and ' ' + unit}")


def short(value: float, digits: int = 4) -> str:
    """Write a number in ``digits`` significant digits, no exponent, as the page does: 33000."""
    return format(Decimal(f"{value + 0.0:.{digits}g}"), "f")


def fact(text: object, width: int = 44) -> str:
    """Format a fact about this machine at fixed width, such as a device: ``[~ gloo on CPU      ]``.

    Longer text is kept. Whatever it says stays inside the brackets: square ones in it become round,
    and line ends become spaces.
    """
    return _marked("~", f"{' '.join(str(text).translate(_ROUND).splitlines()):<{width}}")


def loss(value: float | str) -> str:
    """Format what depends on a device's arithmetic, a number to four digits: ``[≈ 0.7627]``."""
    return _marked("≈", value if isinstance(value, str) else f"{value:#.4g}")


def _marked(sign: str, text: str) -> str:
    """Return text in the brackets of a stored notebook, and anywhere else on its own."""
    return f"[{sign} {text}]" if static() else text.strip()


def emulated(*tables: pd.DataFrame, note: str = "") -> str:
    """Return the note under a picture of these tables: ``note``, and what was emulated in them."""
    emulations = [table.attrs["emulated"] for table in tables if table.attrs.get("emulated")]
    return (
        ". ".join(dict.fromkeys([note.removesuffix("."), *emulations] if note else emulations)) if emulations else note
    )


class MeasuredTable(pd.DataFrame):
    """A DataFrame whose floating-point columns are measurements, printed by :func:`measured`.

    Counts, names and labels print as they are. Selecting, sorting and grouping keep the class. What
    was emulated while they were measured, ``.attrs["emulated"]``, stands under the table. A table
    of strings, such as :func:`measured` makes, has the text that pandas gives it. In HTML all
    measurements are numbers in a style.
    """

    @property
    def _constructor(self) -> Callable[..., MeasuredTable]:
        return MeasuredTable

    @property
    def _constructor_sliced(self) -> Callable[..., MeasuredSeries]:
        return MeasuredSeries

    def _formatters(self) -> dict[Any, Callable[[Any], str]]:
        kinds = {name: kind for name, kind in self.dtypes.items() if _may_be_measured(kind)}
        return dict.fromkeys(kinds, _measured_if_float)

    def __repr__(self) -> str:
        with_floats = any(_has_floats(column) for _, column in self.items())
        with pd.option_context("display.max_colwidth", None):  # a cell that is cut off loses its closing bracket
            text = (
                self.to_string(formatters=self._formatters(), max_rows=_MAX_ROWS) if with_floats else super().__repr__()
            )
        return "\n".join([text, *self._emulated()])

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            table = self.to_html(formatters=self._formatters(), max_rows=_MAX_ROWS, border=0, notebook=True)
        return "".join([style_measurements(table), *(f"<p>{as_html(text)}</p>" for text in self._emulated())])

    def _emulated(self) -> list[str]:
        return [text for text in [emulated(self)] if text]


class MeasuredSeries(pd.Series):
    """A column or a row of a :class:`MeasuredTable`: its floats print as measurements too."""

    @property
    def _constructor(self) -> Callable[..., MeasuredSeries]:
        return MeasuredSeries

    @property
    def _constructor_expanddim(self) -> Callable[..., MeasuredTable]:
        return MeasuredTable

    def __repr__(self) -> str:
        return repr(pd.Series([_measured_if_float(value) for value in self], index=self.index, name=self.name))

    def _repr_html_(self) -> str:
        return MeasuredTable(self.to_frame("" if self.name is None else self.name))._repr_html_()


def _may_be_measured(kind: Any) -> bool:
    """Return whether a column may hold floats: also a mixed one, as those of a transposed table."""
    return pd.api.types.is_float_dtype(kind) or pd.api.types.is_object_dtype(kind)


def _has_floats(column: pd.Series) -> bool:
    """Return whether a column has a float in it. In one of strings, NaN is what is missing."""
    if pd.api.types.is_float_dtype(column.dtype):
        return True
    return _may_be_measured(column.dtype) and any(isinstance(value, float) and value == value for value in column)


def _measured_if_float(value: Any) -> str:
    return measured(value) if isinstance(value, float) else str(value)
