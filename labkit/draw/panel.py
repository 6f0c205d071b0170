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


def _nothing(_: float) -> str:
    return ""


@dataclass(frozen=True)
class Panel:
    """Bars in rows, on an axis of time or over columns.

    ``bars`` has a row per bar and the columns of BAR_COLUMNS: from ``left`` to ``right`` on the
    axis (seconds, or columns), ``top`` and ``height`` in rows from the top of the panel; ``name``
    chooses its colour and hatching (:func:`labkit.draw.style_of`), ``chunk`` how much lighter it
    is; ``label`` is written into it. Three columns more may be there: ``appear`` and ``vanish``,
    the steps from which on and before which a bar is seen (grids that change from step to step),
    and ``ghost``, true for a bar that is only offered (it is drawn as an outline).

    ``height`` is that of the panel in rows. ``columns`` are labels above the bars; a panel that
    has them has no time axis. ``needs[i]`` is the bar whose output bar i takes, -1 without one.
    ``critical`` are the numbers of the bars on the critical path. ``strips`` says how much is
    kept under each rank: columns ``left, right, top, bottom, share`` (of the most, 0 to 1), and
    perhaps ``over`` for more than a rank may keep. ``idle`` is grey behind the bars: columns
    ``left, right, top, bottom``. ``of_ops`` says that the bars are ops of a pipeline, which lie
    side by side. ``ranks`` says of each rank from where to where its bars are, in rows.

    ``links`` are arrows of a grid: ``source`` and ``target`` are numbers of bars, seen from
    step ``appear`` until before ``vanish``, with a ``label``. ``peaks`` stand to the right of the
    rows.

    ``clocks`` and ``moments`` are where stepping by clock and by event stops, in ascending order.
    ``explain(i)`` says in a few sentences what bar i is and why it is where it is; ``narrate(x)``
    says in one line what happens at ``x``. Both are asked only when a reader wants to know.
    """

    bars: pd.DataFrame
    height: float
    rows: Sequence[Label] = ()
    title: str = ""
    facts: str = ""
    columns: Sequence[Label] = ()
    marks: Sequence[Mark] = ()
    needs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="int32"))
    critical: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="int32"))
    strips: pd.DataFrame | None = None
    idle: pd.DataFrame | None = None
    of_ops: bool = False
    ranks: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    links: pd.DataFrame | None = None
    peaks: Sequence[Label] = ()
    clocks: np.ndarray = field(default_factory=lambda: np.zeros(0))
    moments: np.ndarray = field(default_factory=lambda: np.zeros(0))
    explain: Callable[[int], str] = _nothing
    narrate: Callable[[float], str] = _nothing
