"""Split a data-parallel step: compute, communication that hides under it, and what is exposed."""

from __future__ import annotations

from typing import NamedTuple

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
        computed = own["step"].notna() & (own["lane"] == "compute") & (own["name"] != _WAIT)
        working, sent = _Spans.of(own[computed]), _Spans.of(own[own["lane"] == "comm"])
        number = own.loc[computed, "step"].to_numpy(dtype=int)
        ends = own.groupby("step").agg(begin_s=("start_s", "min"), end_s=("end_s", "max"))
        for step, begin_s, end_s in ends.itertuples():
            rows.append((rank, step, *_parts(begin_s, end_s, working.where(number == step), sent)))
    table = pd.DataFrame(rows, columns=["rank", "step", *PARTS]).groupby("step")[list(PARTS)].mean().reset_index()
    result = MeasuredTable(table) if isinstance(events, MeasuredTable) else table
    result.attrs = dict(events.attrs)
    return result


class _Spans(NamedTuple):
    start_s: np.ndarray
    end_s: np.ndarray

    @classmethod
    def of(cls, events: pd.DataFrame) -> _Spans:
        return cls(events["start_s"].to_numpy(dtype=float), events["end_s"].to_numpy(dtype=float))

    def where(self, chosen: np.ndarray) -> _Spans:
        return _Spans(self.start_s[chosen], self.end_s[chosen])

    def cover(self, times_s: np.ndarray) -> np.ndarray:
        """Tell of each stretch from one of ``times_s`` to the next whether a span is open in it."""
        inside = (self.start_s[:, None] <= times_s[:-1]) & (times_s[1:] <= self.end_s[:, None])
        return np.asarray(inside.any(axis=0))


def _parts(begin_s: float, end_s: float, working: _Spans, sent: _Spans) -> list[float]:
    """Return the seconds of each of PARTS from ``begin_s`` to ``end_s``, on one rank."""
    sent = sent.where((sent.end_s > begin_s) & (sent.start_s < end_s))
    times_s = np.unique(np.concatenate([[begin_s, end_s], *working, *sent]).clip(begin_s, end_s))
    computing, sending = working.cover(times_s), sent.cover(times_s)
    lengths_s = np.diff(times_s)
    return [float(lengths_s[chosen].sum()) for chosen in (computing & ~sending, computing & sending, ~computing)]
