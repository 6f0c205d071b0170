"""Make the event table: its columns, rows made into it, and the timings of its spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a rank times spans and makes no tables, so it need not wait for this import
    import pandas as pd

EVENT_COLUMNS = ("rank", "lane", "name", "step", "stage", "micro_batch", "bucket", "bytes", "start_s", "end_s")

LANES = ("compute", "comm", "host")

LABELS = ("step", "stage", "micro_batch", "bucket", "bytes")

_TYPES: dict[str, Any] = {"rank": "int64", "lane": "str", "name": "str", "start_s": "float64", "end_s": "float64"}
_TYPES |= dict.fromkeys(LABELS, "Int64")

# A finished span: (lane, name, step, stage, micro_batch, bucket, bytes, start, end). The two times
# are perf_counter_ns readings, or CUDA events that are turned into such readings once the recording
# is over.
Row = tuple[Any, ...]


def event_table(
    rows: Iterable[Iterable[Any]] | Mapping[str, Any], measured: bool = False, emulated: str = ""
) -> pd.DataFrame:
    """Return a DataFrame with EVENT_COLUMNS and their types from rows in that order.

    Labels are nullable integers.

    With many rows, a mapping of columns is quicker: a column that is missing stays empty, and a
    single value stands in every row. ``start_s`` must be among them.

    ``measured`` says that the times were measured, so they print as measurements do (see
    :mod:`labkit.base.formats`). ``emulated`` says what was not real when they were; it is kept in
    ``.attrs`` and shown with the table and its picture.
    """
    import pandas as pd

    from labkit.base.formats import MeasuredTable

    kind = MeasuredTable if measured else pd.DataFrame
    if isinstance(rows, Mapping):
        n_rows = len(rows["start_s"])
        table = kind({name: _column(rows.get(name), n_rows, _TYPES[name]) for name in EVENT_COLUMNS})
    else:
        table = kind(list(rows), columns=list(EVENT_COLUMNS)).astype(_TYPES)
    if emulated:
        table.attrs["emulated"] = emulated
    return table


def _column(values: Any, n_rows: int, kind: Any) -> Any:
    import pandas as pd

    if values is None or isinstance(values, str | int):
        return pd.array([values], dtype=kind).repeat(n_rows)
    return pd.array(values, dtype=kind)


def rank_events(rows: Iterable[Row], rank: int, origin_ns: int) -> list[tuple[Any, ...]]:
    """Return rows of one rank as rows of the event table, in order of their start.

    Their times are seconds since ``origin_ns``.
    """
    events = [
        (rank, *labels, (start_ns - origin_ns) * 1e-9, (end_ns - origin_ns) * 1e-9)
        for *labels, start_ns, end_ns in rows
    ]
    return sorted(events, key=lambda event: event[-2:])


TIMING_COLUMNS = ("rank", "name", "count", "total_s", "mean_s", "median_s", "min_s", "max_s")


def timings(events: pd.DataFrame) -> pd.DataFrame:
    """Return a row per rank and event name: its count, and total, mean, median, min, max seconds.

    Rows stand in the order in which the names first started on each rank.
    """
    spans = events.assign(duration=events["end_s"] - events["start_s"]).sort_values("start_s", kind="stable")
    groups = spans.groupby(["rank", "name"], sort=False)["duration"]
    table = groups.agg(["count", "sum", "mean", "median", "min", "max"]).reset_index()
    table.columns = list(TIMING_COLUMNS)
    table = type(events)(table.sort_values("rank", kind="stable", ignore_index=True))
    table.attrs = dict(events.attrs)
    return table
