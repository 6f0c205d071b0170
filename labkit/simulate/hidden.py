"""Split a data-parallel step: compute, communication that hides under it, and what is exposed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.base.formats import MeasuredTable
from labkit.simulate.measures import check_events

PARTS = ("compute", "hidden communication", "exposed communication")
_WAIT = "wait"  # a span around what a rank waits for: no work of its own


def hidden_and_exposed(events: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of a step in which a rank only computes, also sends, and does not compute.

    Every instant from a step's first span to the end of its last one is in one of these:

    =====================  =========================================================================
    compute                it computes, and nothing of its own is on its way
    hidden communication   it computes while a span of the lane comm is open
    exposed communication  it does not compute: it waits for messages, or packs them
    =====================  =========================================================================

    It computes in spans of the lane compute that have a step; one named ``wait`` is none. What has
    no step, such as a bucket on its way, counts where it happens.

    Columns: step, and the three parts in seconds, means over ranks; a row per step. It prints as
    measured where ``events`` does, and carries its ``.attrs``.

    Raises TypeError for what is no table, ValueError for an empty one and where no span has a step.
    """
    events = check_events(events, "events", ["rank", "lane", "name", "step", "start_s", "end_s"])
    if events["step"].isna().all():
        raise ValueError("no span of events has a step, expected them on forward, backward and what else computes")
    rows = []
    for rank, own in events.groupby("rank"):
        sent = own[own["lane"] == "comm"]
        rows += [(rank, step, *_parts(spans, sent)) for step, spans in own.groupby("step")]
    table = pd.DataFrame(rows, columns=["rank", "step", *PARTS]).groupby("step")[list(PARTS)].mean().reset_index()
    result = MeasuredTable(table) if isinstance(events, MeasuredTable) else table
    result.attrs = dict(events.attrs)
    return result


def _parts(step: pd.DataFrame, sent: pd.DataFrame) -> tuple[float, float, float]:
    """Return the seconds of each of PARTS in one rank's step."""
    begin_s, end_s = step["start_s"].min(), step["end_s"].max()
    computed = step[(step["lane"] == "compute") & (step["name"] != _WAIT)]
    times = np.concatenate(
        [[begin_s, end_s], *(table[["start_s", "end_s"]].to_numpy().ravel() for table in (computed, sent))]
    )
    times = np.unique(times.clip(begin_s, end_s))
    computing, sending = (_covered(table, times) for table in (computed, sent))
    lengths = np.diff(times)
    return tuple(float(lengths[chosen].sum()) for chosen in (computing & ~sending, computing & sending, ~computing))  # type: ignore[return-value]


def _covered(spans: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """Tell of each stretch from one of ``times`` to the next whether a span is open in it."""
    start_s, end_s = (spans[name].to_numpy(dtype=float)[:, None] for name in ("start_s", "end_s"))
    return np.asarray(((start_s <= times[:-1]) & (times[1:] <= end_s)).any(axis=0))
