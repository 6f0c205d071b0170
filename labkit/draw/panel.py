"""Hold an event table that is laid out: bars in rows, which :mod:`labkit.draw.painter` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from labkit.base.formats import short

BAR_COLUMNS = ("left", "right", "top", "height", "name", "chunk", "label")


class Label(NamedTuple):
    """A word beside a row or above a column: ``at`` is its middle, in rows or in columns."""

    at: float
    text: str
    small: bool = False


class Mark(NamedTuple):
    """A line from top to bottom at ``x``, such as the end of a run, with what it says."""

    x: float
    text: str
    dashed: bool = False


@dataclass(frozen=True)
class TimeAxis:
    """How a picture writes time: the label of the axis, the unit, how many of it make a second."""

    label: str
    unit: str
    per_second: float

    def __call__(self, seconds: float) -> str:
        return f"{short(seconds * self.per_second)} {self.unit}".strip()


@dataclass(frozen=True)
class EventsPanel:
    """The spans of event tables as bars in rows, ``height`` rows high.

    ``bars`` has a row per bar and the columns of BAR_COLUMNS: from ``left`` to ``right`` in
    seconds, ``top`` and ``height`` in rows from the top of the panel; ``name`` chooses its colour
    and hatching (:func:`labkit.draw.style_of`), ``chunk`` how much lighter it is; ``label`` is
    written into it, or ``long``, if that is there and all bars have room for it.

    ``ranks`` says of each rank from where to where its bars are, in rows. ``idle`` is grey behind
    the bars: columns ``left, right, top, bottom``. ``of_ops`` says that the bars are ops of a
    pipeline, which lie side by side. ``strips`` says how much is kept under each rank: columns
    ``left, right, top, bottom, share`` (of the most, 0 to 1); ``peaks`` stand to the right.
    """

    bars: pd.DataFrame
    height: float
    rows: Sequence[Label]
    ranks: Mapping[int, tuple[float, float]]
    of_ops: bool
    title: str = ""
    facts: str = ""
    marks: Sequence[Mark] = ()
    idle: pd.DataFrame | None = None
    strips: pd.DataFrame | None = None
    peaks: Sequence[Label] = ()
