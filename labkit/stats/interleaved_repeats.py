"""Read the seconds of each repeat of several ways from the event table."""

from __future__ import annotations

from collections.abc import Iterable
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


def turns(events: pd.DataFrame, ways: Iterable[str], name: str | None = None, warm_up: int = 1) -> RepeatedTimes:
    """Return the seconds of each repeat: a row per round and a column per way.

        seconds = turns(run.events, ["flat", "buckets"])
        seconds.verdict("buckets", "flat")

    Step s belongs to way s % n of n ways. It lasts from the start of its first span to the end of
    its last one, of those that have its number; with ``name`` it is the spans of that name, added
    up. The slowest rank counts. The first ``warm_up`` rounds are left out.

    Raises ValueError where no span has a step (or that name), where the last round lacks a way, and
    where ``warm_up`` leaves no round.
    """
    from labkit.stats.repeated_times import RepeatedTimes  # here, because it loads pandas

    columns = list(ways)
    spans = events[events["step"].notna() & (True if name is None else events["name"] == name)]
    if spans.empty:
        raise ValueError(f"turns: no spans{f' named {name}' if name else ''} with a step")
    steps = spans.assign(seconds=spans["end_s"] - spans["start_s"]).groupby(["step", "rank"])
    seconds = steps["end_s"].max() - steps["start_s"].min() if name is None else steps["seconds"].sum()
    slowest = seconds.groupby("step").max()
    n_rounds, left_over = divmod(len(slowest), len(columns))
    if left_over or slowest.index[-1] != len(slowest) - 1:
        raise ValueError(
            f"turns: {len(slowest)} steps up to number {slowest.index[-1]}, expected whole rounds of {len(columns)}"
        )
    if n_rounds <= warm_up:
        raise ValueError(f"turns: {n_rounds} rounds, of which {warm_up} are to warm up: expected more rounds")
    table = RepeatedTimes(slowest.to_numpy(dtype=float).reshape(n_rounds, len(columns))[warm_up:], columns=columns)
    table.attrs = dict(events.attrs)
    return table


def numbered(events: pd.DataFrame, names: Iterable[str], whole: str = "step") -> pd.DataFrame:
    """Return the events in which the spans of these names have the number of their step.

    That is the number of the span named ``whole`` of their rank that they begin in, a loop's span
    around a step that does not know its number: its own, or else its place among the rank's. What
    begins in no such span has no step. Those spans are left out.
    """
    events = events.reset_index(drop=True)
    is_part, is_whole = events["name"].isin(list(names)), events["name"] == whole
    events.loc[is_part, "step"] = None
    for rank, steps in events[is_whole].sort_values("start_s", kind="stable").groupby("rank"):
        parts = events[is_part & (events["rank"] == rank)]
        places = steps["start_s"].searchsorted(parts["start_s"], side="right") - 1
        inside = (places >= 0) & (parts["start_s"].to_numpy() <= steps["end_s"].to_numpy()[places])
        numbers = steps["step"].where(steps["step"].notna(), list(range(len(steps)))).to_numpy()
        events.loc[parts.index[inside], "step"] = numbers[places[inside]]
    return events[~is_whole]
