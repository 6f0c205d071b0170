"""Hold a picture as data: panels of bars in rows, which a browser draws and Python explains.

A panel has no pixels and no JavaScript in it. :mod:`labkit.draw.painter` prints it,
:mod:`labkit.explore.timeline` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from labkit.base.formats import short

BAR_COLUMNS = ("left", "right", "top", "height", "name", "chunk", "label")
LINK_COLUMNS = ("source", "target", "appear", "vanish", "label")


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


def _nothing(_: float) -> str:
    return ""


@dataclass(frozen=True)
class Panel:
    """Bars in rows, on an axis of time or over columns: what all kinds of panels have.

    ``bars`` has a row per bar and the columns of BAR_COLUMNS: from ``left`` to ``right`` on the
    axis (seconds, or columns), ``top`` and ``height`` in rows from the top of the panel; ``name``
    chooses its colour and hatching (:func:`labkit.draw.style_of`), ``chunk`` how much lighter it
    is; ``label`` is written into it. More columns may be there: ``long``, which is printed in its
    place where all bars have room for it; ``ghost``, true for a bar that is drawn as an outline;
    and ``same``, one number for bars that light up together in all panels of a picture, -1 for
    none.

    ``height`` is that of the panel in rows.

    ``stops`` is where stepping stops, in ascending order. ``explain(i)`` says in a few sentences
    what bar i is and why it is where it is; ``narrate(x)`` says in one line what happens at ``x``.
    """

    bars: pd.DataFrame
    height: float
    rows: Sequence[Label] = ()
    title: str = ""
    facts: str = ""
    marks: Sequence[Mark] = ()
    stops: np.ndarray = field(default_factory=lambda: np.zeros(0))
    explain: Callable[[int], str] = _nothing
    narrate: Callable[[float], str] = _nothing


@dataclass(frozen=True)
class TimedPanel(Panel):
    """Bars that need each other: ``needs[i]`` is the one whose output bar i takes, -1 without one.

    ``critical`` are the numbers of the bars on the critical path.
    """

    needs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="int32"))
    critical: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="int32"))


@dataclass(frozen=True)
class GridPanel(Panel):
    """Cells under ``columns``, labels above them, in place of an axis.

    ``bars`` has ``appear`` and ``vanish`` too, the steps from which on and before which a cell is
    seen. ``links`` are arrows: ``source`` and ``target`` are numbers of bars, seen from step
    ``appear`` until before ``vanish``, with a ``label``. On the way to that step a copy of the
    source moves to the target; where ``appear`` is the same step it moves and there is no arrow.
    ``extent`` is how many columns there is room for, if more than there are.
    """

    columns: Sequence[Label] = ()
    links: pd.DataFrame | None = None
    extent: float = 0.0


@dataclass(frozen=True)
class EventsPanel(Panel):
    """The spans of event tables, for print.

    ``ranks`` says of each rank from where to where its bars are, in rows. ``idle`` is grey behind
    the bars: columns ``left, right, top, bottom``. ``of_ops`` says that the bars are ops of a
    pipeline, which lie side by side. ``strips`` says how much is kept under each rank: columns
    ``left, right, top, bottom, share`` (of the most, 0 to 1); ``peaks`` stand to the right.
    """

    ranks: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    idle: pd.DataFrame | None = None
    of_ops: bool = False
    strips: pd.DataFrame | None = None
    peaks: Sequence[Label] = ()
