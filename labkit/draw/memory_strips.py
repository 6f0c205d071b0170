"""Count, for a strip under each rank of a schedule, how many micro-batches' activations it keeps.

A rank with v stages runs its share of the model in v parts, so one activation there counts as a
v-th of a micro-batch: the strips of different schedules of one model compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd

from labkit.draw.panel import EventsPanel, Label
from labkit.simulate import activations

ABOVE = 0.06  # between bars and strip, in rows
_PARTS = {2: "½", 3: "⅓", 4: "¼", 5: "⅕", 6: "⅙", 8: "⅛"}


def pieces_of(events: pd.DataFrame, end_s: float) -> pd.DataFrame:
    """Return the pieces of each rank's step function until ``end_s``, a row each.

    Columns: rank, start_s, end_s, kept, of, micro_batches.

    ``kept`` counts activations of a stage, ``of`` the stages of the rank, ``micro_batches`` is
    their quotient. Errors are those of :func:`labkit.simulate.activations`.
    """
    steps = activations(events)
    forwards = events[(events["name"] == "forward").to_numpy()]
    stages = set(zip(forwards["rank"].tolist(), forwards["stage"].tolist(), strict=True))
    rank, time_s, count = (steps[name].to_numpy() for name in ("rank", "time_s", "count"))
    ends_rank = np.diff(rank, append=-1) != 0
    ends = ends_rank | (np.diff(time_s, append=np.nan) != 0)  # of several steps at one time the last counts
    rank, time_s, count, ends_rank = (values[ends] for values in (rank, time_s, count, ends_rank))
    n_stages = Counter(rank for rank, _ in stages)
    of = np.array([n_stages[number] for number in rank.tolist()], dtype="int64")
    pieces = {"rank": rank, "start_s": time_s, "kept": count, "end_s": np.where(ends_rank, end_s, np.roll(time_s, -1))}
    return pd.DataFrame(pieces | {"of": of, "micro_batches": count / of})


def strips_of(
    pieces: pd.DataFrame, panel: EventsPanel, height: float, most: float, cap: float = np.inf
) -> pd.DataFrame:
    """Return the strips of a panel, ``height`` rows each, full for ``most`` micro-batches."""
    # Arrays: a slider's every move comes here, and sums of columns take four times as long.
    rank, left, right, kept = (pieces[name].to_numpy() for name in ("rank", "start_s", "end_s", "micro_batches"))
    bottom = np.array([panel.ranks[number][1] + height for number in rank.tolist()])
    strips = {"left": left, "right": right, "top": bottom - height + ABOVE, "bottom": bottom}
    return pd.DataFrame({**strips, "share": kept / most, "over": kept > cap})


def peaks_of(pieces: pd.DataFrame, panel: EventsPanel, height: float) -> list[Label]:
    """Return the most that each rank keeps beside its strip: ``8``, of two stages ``11 × ½``."""
    most = pieces.groupby("rank")[["kept", "of"]].max()
    rows = zip(most.index, most["kept"], most["of"], strict=True)
    texts = {rank: f"{kept}" if of == 1 else f"{kept} × {_part(of)}" for rank, kept, of in rows}
    return [Label(panel.ranks[rank][1] + height / 2, text) for rank, text in texts.items()]


def unit_of(pieces: Iterable[pd.DataFrame]) -> str:
    """Return a sentence on how activations are counted, where that needs one; else nothing.

    It does where some are those of a part of a rank's share.
    """
    counts = sorted(set().union(*(set(table["of"]) for table in pieces)) - {1})
    parts = " or ".join(f"one of a rank's {of} stages as {_part(of)}" for of in counts)
    return parts and f"Activations count in micro-batches, {parts}."


def _part(of: int) -> str:
    return _PARTS.get(of, f"1/{of}")
