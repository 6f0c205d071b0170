"""Write what each op of a run lost to each cause, so that the page can replay the run without some.

The losses are those of :func:`labkit.simulate.explain_gap`. The page adds up those that stay, and
lets each op begin as soon as it can then: browser/what_if.js.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from labkit.schedule import Schedule
from labkit.simulate.gap import split_losses, without_delays
from labkit.simulate.measures import op_rows
from labkit.simulate.replay import replay_events, schedule_from_events

_SWITCHES = {  # by cause: what its switch is called, and what happens with the cause off
    "op_time_s": ("op time", "Where all stages are slower by the same factor, ops take as long as in the ideal"),
    "imbalance_s": ("imbalance", "No stage is slower than the others, unless it is in the ideal"),
    "communication_s": ("communication", "What comes from other ranks arrives as fast as in the ideal"),
    "overhead_s": ("overhead", "No more time passes between two ops of a rank than in the ideal"),
    "core_s": ("waiting for cores", "Each op takes as long as is typical of its stage"),
}
_NEED_IDEAL = ("op_time_s", "imbalance_s")
_WITHOUT_IDEAL = (
    "Op time and imbalance show only against an ideal: Timeline(events, ideal=...). Without one, communication "
    "and overhead take nothing when they are off."
)
_COLUMNS = {"duration_s": "duration", "transfer_s": "transfer", "overhead_s": "overhead"}  # the page's names


def what_if(
    measured: pd.DataFrame, ideal: pd.DataFrame | None = None, schedule: Schedule | None = None
) -> dict[str, Any] | None:
    """Return what the switches of a run need, by row of its table, or only a note why it has none.

    None for a run that has no ops of a pipeline.
    """
    tables = {"measured": measured} if ideal is None else {"ideal": ideal, "measured": measured}
    if not all(_has_ops(table) for table in tables.values()):
        return None
    (name, first), *_ = tables.items()
    try:
        schedule = schedule or schedule_from_events(first, name)
        happened = replay_events(schedule, measured, "measured", name)
        should = without_delays(happened) if ideal is None else replay_events(schedule, ideal, "ideal", name)
    except ValueError as error:
        return {"switches": [], "note": f"What if is for one step of a pipeline: {error}."}
    times, losses = split_losses(should, happened)

    def of_rows(values: Any, missing: Any = 0.0) -> np.ndarray:
        rows = np.full(len(measured), missing)
        rows[happened.row] = values
        return rows

    previous = [-1 if op is None else happened.row[op] for op in happened.dependencies.previous_op]
    return {
        "order": happened.row[happened.dependencies.order],
        "previous": of_rows(previous, -1),
        **{_COLUMNS[what]: of_rows(seconds) for what, seconds in times.items()},
        "switches": [
            {
                "label": label,
                "title": title,
                "what": _COLUMNS[losses[cause].what],
                "lost": of_rows(losses[cause].seconds),
            }
            for cause, (label, title) in _SWITCHES.items()
            if ideal is not None or cause not in _NEED_IDEAL
        ],
        "note": "" if ideal is not None else _WITHOUT_IDEAL,
    }


def _has_ops(table: pd.DataFrame) -> bool:
    try:
        op_rows(table)
    except ValueError:
        return False
    return True
