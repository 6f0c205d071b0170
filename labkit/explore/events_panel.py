"""Turn event tables into a panel: bars, what each op needs, and why it is where it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from labkit.draw import memory_strips
from labkit.draw.layout import Layout, Part, TimeAxis, from_zero, lay_out, prepare
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, Panel
from labkit.explore.event_explanations import EventExplainer, ReplayedRun, replayed_run
from labkit.schedule import Schedule
from labkit.simulate.replay import Replay

_HEIGHTS = {"": 1.0, "predicted": 0.6, "measured": 1.0}  # of rows
_STRIP = 0.5  # rows, under each rank
_MOST_CLOCKS = 5000


def events_panel(
    events: pd.DataFrame,
    schedule: Schedule | None = None,
    ideal: pd.DataFrame | None = None,
    *,
    time: TimeAxis,
    title: str = "",
    facts: str = "",
    memory: bool = False,
    cap: float | None = None,
    most_kept: float | None = None,
    replay: Replay | None = None,
) -> Panel:
    """Return the panel of an event table, with ``ideal`` over it if given; both begin at 0 then.

    With a ``schedule``, or where the table is one step of a pipeline, bars know what they need and
    why they are late. ``memory`` draws how many micro-batches' activations each rank keeps, and
    ``cap`` is how many there may be; ``most_kept`` are as many as a strip has room for, if panels
    are to be compared. ``replay`` is that of ``events``, where it is known already.

    Raises ValueError for a table that cannot be drawn, or that is not one step of ``schedule``.
    """
    given = {"": events} if ideal is None else {"predicted": ideal, "measured": events}
    tables = {name: prepare(table, name or "Timeline(events)") for name, table in given.items()}
    if ideal is not None:
        tables = {name: from_zero(table) for name, table in tables.items()}
    parts = [Part(name, _HEIGHTS[name], table.assign(start=table["start_s"])) for name, table in tables.items()]
    layout = lay_out(parts, strip=_STRIP if memory else 0.0)
    runs: list[ReplayedRun | None] = [ReplayedRun.of(replay, time)] if replay else []
    runs = runs or [replayed_run(table, schedule, name, time, layout.row) for name, table in tables.items()]
    explainer = EventExplainer(tables, runs, time, layout.row)
    each = [_bars(part.events) for part in parts]
    bars = pd.concat(each, ignore_index=True) if len(each) > 1 else each[0]
    happened = list(tables.values())[-1]
    strips, peaks = _strips(happened, replay, layout, cap, most_kept) if memory else (None, [])
    return Panel(
        bars=bars,
        height=layout.height,
        rows=_labels(layout),
        title=title,
        facts=facts,
        marks=_marks(tables) if ideal is not None else [],
        needs=explainer.needs,
        critical=explainer.critical,
        strips=strips,
        peaks=peaks,
        clocks=_clocks(happened),
        moments=np.unique(bars[["left", "right"]].to_numpy()),
        explain=explainer.explain,
        narrate=explainer.narrate,
    )


def _marks(tables: Mapping[str, pd.DataFrame]) -> list[Mark]:
    return [Mark(float(table["end_s"].max()), f"{name} ends", name == "predicted") for name, table in tables.items()]


def _bars(events: pd.DataFrame) -> pd.DataFrame:
    micro_batch, bucket = (events[name].to_numpy(dtype=float, na_value=np.nan) for name in ("micro_batch", "bucket"))
    numbers = np.where(np.isnan(micro_batch), bucket, micro_batch).tolist()
    labels = ["" if number != number else str(int(number)) for number in numbers]
    columns = [events[name].array for name in ("start_s", "end_s", "top", "height", "name", "chunk")]
    return pd.DataFrame(dict(zip(BAR_COLUMNS, [*columns, labels], strict=True)))


def _labels(layout: Layout) -> list[Label]:
    ranks = [Label((top + bottom) / 2, f"{layout.row} {rank}") for rank, (top, bottom) in layout.ranks.items()]
    return ranks + [Label(middle, text, small=True) for middle, text in layout.lanes if text]


def _clocks(events: pd.DataFrame) -> np.ndarray:
    """Return the ends of the clocks: one is as long as the shortest kind of op, by its median."""
    start, end, name = (events[column].to_numpy() for column in ("start_s", "end_s", "name"))
    computed = (events["lane"] == "compute").to_numpy()
    counts = computed if computed.any() else ~computed
    medians = [float(np.median((end - start)[counts & (name == kind)])) for kind in set(name[counts])]
    clock = min((median for median in medians if median > 0), default=0.0)
    first, last = float(start.min()), float(end.max())
    count = round((last - first) / clock) if clock else 0
    if not 1 <= count <= _MOST_CLOCKS:
        return np.zeros(0)
    return first + clock * np.arange(count + 1)


def _strips(
    events: pd.DataFrame, replay: Replay | None, layout: Layout, cap: float | None, most_kept: float | None
) -> tuple[pd.DataFrame, list[Label]]:
    """Return what each rank keeps as a strip under it, and its peak to stand beside it."""
    end_s = float(events["end_s"].max())
    pieces = memory_strips.pieces_of_replay(replay, end_s) if replay else memory_strips.pieces_of(events, end_s)
    most = max(float(pieces["micro_batches"].max()), cap or 0.0, most_kept or 0.0)
    rank, kept = (pieces[name].to_numpy() for name in ("rank", "micro_batches"))
    tops, bottoms = np.array([layout.strips[number] for number in rank.tolist()]).reshape(-1, 2).T
    strips = pd.DataFrame(
        {
            "left": pieces["start_s"].to_numpy(),
            "right": pieces["end_s"].to_numpy(),
            "top": tops + 0.06,
            "bottom": bottoms,
            "share": kept / most,
            "over": (kept > (cap or np.inf)).astype("uint8"),
        }
    )
    peaks = {number: f"{kept[rank == number].max():g}" for number in np.unique(rank).tolist()}
    return strips, [Label(sum(layout.strips[number]) / 2, peak) for number, peak in peaks.items()]
