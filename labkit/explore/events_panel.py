"""Turn event tables into a panel: bars, what each op needs, and why it is where it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd

from labkit.draw.layout import Part, TimeAxis, from_zero, lay_out, prepare, row_word
from labkit.draw.memory_strips import pieces_of, strips_of
from labkit.draw.panel import Label, Mark, Panel
from labkit.explore.event_explanations import EventExplainer, ReplayedRun, replayed_run
from labkit.schedule import EVENT_KINDS, Schedule
from labkit.simulate.replay import Replay

_HEIGHTS = {"": 1.0, "predicted": 0.6, "measured": 1.0}  # of rows
_STRIP = 0.5  # rows, under each rank
_MAX_CLOCKS = 5000
_MAX_MICRO_BATCHES, _FIRST_BUCKET = 2**14, 2**30


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
    parts = [Part(name, _HEIGHTS[name], table) for name, table in tables.items()]
    panel, row = lay_out(parts, strip=_STRIP if memory else 0.0), row_word(*tables.values())
    runs: list[ReplayedRun | None] = [ReplayedRun.of(replay, time)] if replay else []
    runs = runs or [replayed_run(table, schedule, name, time, row) for name, table in tables.items()]
    explainer = EventExplainer(tables, runs, time, row)
    happened = list(tables.values())[-1]
    more, strips, peaks = {"idle": partial(explainer.explain_idle, panel.bars)}, None, list[Label]()
    if memory:
        pieces = pieces_of(happened, float(happened["end_s"].max()), replay)
        strips, peaks = _strips(pieces, panel, cap, most_kept)
        more["kept"] = partial(explainer.explain_kept, pieces, cap)
    return dataclasses.replace(
        panel,
        bars=panel.bars.assign(same=np.concatenate([_same(table) for table in tables.values()])),
        title=title,
        facts=facts,
        marks=_marks(tables) if ideal is not None else [],
        needs=explainer.needs,
        critical=explainer.critical,
        strips=strips,
        peaks=peaks,
        clocks=_clocks(happened),
        moments=np.unique(panel.bars[["left", "right"]].to_numpy()),
        explain=explainer.explain,
        narrate=explainer.narrate,
        explain_more=more,
    )


def _marks(tables: Mapping[str, pd.DataFrame]) -> list[Mark]:
    return [Mark(float(table["end_s"].max()), f"{name} ends", name == "predicted") for name, table in tables.items()]


def _same(events: pd.DataFrame) -> np.ndarray:
    """Return a number of each op and bucket, else -1: halves of a backward pass are one op."""
    number = {name: events[name].to_numpy(dtype=float, na_value=-1) for name in ("stage", "micro_batch", "bucket")}
    is_op = events["name"].isin(EVENT_KINDS) & (number["stage"] >= 0) & (number["micro_batch"] >= 0)
    of_op = 2 * (_MAX_MICRO_BATCHES * number["stage"] + number["micro_batch"]) + (events["name"] != "forward")
    return np.select([is_op, number["bucket"] >= 0], [of_op, _FIRST_BUCKET + number["bucket"]], -1)


def _clocks(events: pd.DataFrame) -> np.ndarray:
    """Return the ends of the clocks: one is as long as the shortest kind of op, by its median."""
    start, end, name = (events[column].to_numpy() for column in ("start_s", "end_s", "name"))
    computed = (events["lane"] == "compute").to_numpy()
    counts = computed if computed.any() else ~computed
    medians = [float(np.median((end - start)[counts & (name == kind)])) for kind in set(name[counts])]
    clock = min((median for median in medians if median > 0), default=0.0)
    first, last = float(start.min()), float(end.max())
    count = round((last - first) / clock) if clock else 0
    if not 1 <= count <= _MAX_CLOCKS:
        return np.zeros(0)
    return first + clock * np.arange(count + 1)


def _strips(
    pieces: pd.DataFrame, panel: Panel, cap: float | None, most_kept: float | None
) -> tuple[pd.DataFrame, list[Label]]:
    """Return what each rank keeps as a strip under it, and its peak to stand beside it."""
    rank, kept = (pieces[name].to_numpy() for name in ("rank", "micro_batches"))
    most = max(float(kept.max()), cap or 0.0, most_kept or 0.0)
    peaks = {number: kept[rank == number].max() for number in np.unique(rank).tolist()}
    labels = [Label(panel.ranks[number][1] + _STRIP / 2, f"{peak:g}") for number, peak in peaks.items()]
    return strips_of(pieces, panel, _STRIP, most, cap or np.inf), labels
