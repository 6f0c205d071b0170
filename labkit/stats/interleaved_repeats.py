"""Read the seconds of each repeat of several ways from the event table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from labkit.stats.repeated_times import RepeatedTimes


def repeats(events: pd.DataFrame, by: str = "name", name: str | None = None) -> RepeatedTimes:
    """Return the seconds of each repeat: a row per repeat, a column per value of ``by``.

    ``by`` is a column of the event table: ``"name"``, or a label such as ``"step"`` or ``"bytes"``
    that tells the ways apart. ``name`` keeps only the spans of that name. The slowest rank counts.
    ``repeats(...).median()`` is a number per way.

    Raises ValueError where there are no such spans, or not as many of each way.
    """
    from labkit.stats.repeated_times import RepeatedTimes  # here, because it loads pandas

    spans = events if name is None else events[events["name"] == name]
    spans = spans[spans[by].notna()].sort_values("start_s", kind="stable")
    if spans.empty:
        raise ValueError(f"repeats: no spans{f' named {name}' if name else ''} with a {by}")
    spans = spans.assign(seconds=spans["end_s"] - spans["start_s"], repeat=spans.groupby(["rank", by]).cumcount())
    table = RepeatedTimes(spans.groupby(["repeat", by], sort=False)["seconds"].max().unstack(by))
    if table.isna().any(axis=None):
        counts = ", ".join(f"{value}: {count}" for value, count in table.count().items())
        raise ValueError(f"repeats: not as many repeats of each {by} ({counts})")
    table.attrs = dict(events.attrs)
    return table
