"""Hold a picture as data: a panel of bars in rows, which the page draws and Python explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from labkit.draw.panel import Label, Mark

LINK_COLUMNS = ("source", "target", "appear", "vanish", "label")


def _nothing(_: float) -> str:
    return ""


@dataclass(frozen=True)
class Panel:
    """Bars in rows, on an axis of time or, with ``columns``, as the cells of a grid.

    ``bars`` has a row per bar and the columns of :data:`labkit.draw.panel.BAR_COLUMNS`; on a grid
    ``left`` and ``right`` are in columns. More columns may be there: ``same``, one number for bars
    that light up together in all panels of a picture, -1 for none; and of a grid ``appear`` and
    ``vanish``, the steps from which on and before which a cell is seen. ``height`` is that of the
    panel in rows.

    ``stops`` is where stepping stops, in ascending order. ``explain(i)`` says in a few sentences
    what bar i is and why it is where it is; ``narrate(x)`` says in one line what happens at ``x``.
    ``needs[i]`` is the bar whose output bar i takes, -1 without one, and ``critical`` has the
    numbers of the bars on the critical path.

    ``links`` are arrows between cells: ``source`` and ``target`` are numbers of bars, seen from
    step ``appear`` until before ``vanish``, with a ``label``. On the way to that step a copy of the
    source moves to the target; where ``appear`` is the same step it moves and there is no arrow.
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
    needs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="int32"))
    critical: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="int32"))
    columns: Sequence[Label] = ()
    links: pd.DataFrame | None = None
