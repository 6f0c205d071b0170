"""Write an event table in Chrome's trace format, which Perfetto opens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labkit.trace.table import LABELS, LANES

if TYPE_CHECKING:
    import pandas as pd


def to_chrome_trace(events: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write the events in Chrome's trace format (JSON), for ui.perfetto.dev or chrome://tracing.

    A process per rank, a thread per lane; labels are the arguments of an event. Times in the file
    are microseconds. The format wants the spans of a thread nested, so a lane whose spans overlap
    in another way gets further threads.
    """
    import pandas as pd

    out: list[dict[str, Any]] = []
    lanes: Iterator[Any] = iter(events.groupby(["rank", "lane"]))
    for (rank, lane), spans in lanes:
        rows = spans.assign(dur=spans["end_s"] - spans["start_s"]).sort_values(
            ["start_s", "dur"], ascending=[True, False]
        )
        tracks: list[list[float]] = []  # of each thread, the ends of the spans that are open
        for event in rows.to_dict("records"):
            thread = _thread_for(tracks, event["start_s"], event["end_s"])
            ids = {"pid": int(rank), "tid": LANES.index(lane) + len(LANES) * thread}
            times = {"ts": event["start_s"] * 1e6, "dur": event["dur"] * 1e6}
            labels = {label: int(event[label]) for label in LABELS if not pd.isna(event[label])}
            out.append({"name": event["name"], "cat": lane, "ph": "X", **ids, **times, "args": labels})
        for thread in range(len(tracks)):
            ids = {"pid": int(rank), "tid": LANES.index(lane) + len(LANES) * thread}
            out += _thread_names(ids, f"rank {rank}", f"{lane} {thread + 1}" if thread else lane)
    with open(path, "w") as file:
        json.dump({"traceEvents": out, "displayTimeUnit": "ms", "otherData": dict(events.attrs)}, file)


def _thread_for(tracks: list[list[float]], start: float, end: float) -> int:
    """Return the first thread on which the span lies next to or inside the others.

    Spans come in the order of their start.
    """
    for thread, open_ends in enumerate(tracks):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends or end <= open_ends[-1]:
            open_ends.append(end)
            return thread
    tracks.append([end])
    return len(tracks) - 1


def _thread_names(ids: dict[str, int], process: str, thread: str) -> list[dict[str, Any]]:
    named = {"process_name": {"name": process}, "thread_name": {"name": thread}}
    order = {"process_sort_index": {"sort_index": ids["pid"]}, "thread_sort_index": {"sort_index": ids["tid"]}}
    return [{"name": name, "ph": "M", **ids, "args": value} for name, value in (named | order).items()]
