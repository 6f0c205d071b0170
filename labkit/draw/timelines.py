"""Draw event tables: as a timeline, several on one axis, or one over another.

As the last line of a cell:

    timeline({"GPipe": simulate(gpipe(4, 8)), "1F1B": simulate(one_f_one_b(4, 8))})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.base.formats import emulated, short
from labkit.draw.layout import LabelledTable, TimeAxis, from_start, from_zero, lay_out, prepare, time_axis, unit_label
from labkit.draw.painter import panel_figure
from labkit.draw.panel import EventsPanel, Label, Mark
from labkit.schedule import EVENT_NAMES
from labkit.simulate import activations, bubble_fraction, makespan
from labkit.trace import EVENT_COLUMNS

_HEIGHTS = {"predicted": 0.6, "measured": 1.0}  # of rows
_STRIP, _GAP = 0.68, 0.34  # the strip under a rank and the gap below it, in rows
_ABOVE = 0.06  # between bars and strip


def timeline(
    events: pd.DataFrame | Mapping[str, pd.DataFrame],
    ax: Axes | Sequence[Axes] | None = None,
    *,
    note: str = "",
    time_label: str = "",
    colors: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw an event table: a row per rank, in it one per lane; spans that overlap are stacked.

    ``events`` has the columns of ``trace.EVENT_COLUMNS``, times in seconds. A bar shows the number
    of its micro-batch, or else of its bucket, where there is room; where ranks have several stages
    and there is more room, its op, as ``4F0``. The second and further stages of a rank are lighter.
    Where a rank of a pipeline waits is grey, if nothing but its ops is drawn. ``note`` stands under
    the picture, with what was emulated. ``time_label`` names the axis where a second stands for
    something else, such as ``"time (forward passes)"``; of a schedule in units of time it is
    ``"time (units)"``. ``colors`` are colours by name, as matplotlib takes them, in place of the
    lab's.

    Tables by title are drawn one above the other on one time axis, each from 0 on. Steps of
    pipelines, which have micro-batches, come with makespan and bubble. The strip below each rank
    tells of how many micro-batches it keeps the activations, over time, with the peak next to it,
    on one scale for all (:func:`pieces_of`). ``ax`` is then a sequence, axes for each table.

    Raises ValueError for a table that is empty, lacks columns, or has times that are missing or run
    backwards; of several, by its title; for another number of axes, and for colours of what is not
    drawn.
    """
    if isinstance(events, Mapping):
        if not events:
            raise ValueError("timeline(events): expected at least one table by title")
        panels, axis, data = _several(events, time_label)
        note = emulated(*events.values(), note=note)
        return _last(panel_figure(panels, axis, note, data, ax=ax, colors=colors), ax)
    drawn = prepare(events, "timeline(events)")
    shown, axis = from_start(drawn, time_label)
    panel = _with_ops(lay_out([LabelledTable("", 1.0, shown)]), shown)
    if panel.of_ops and (shown["lane"] == "compute").all():
        panel = replace(panel, idle=_idle(panel, shown))
    note, data = emulated(events, note=note), [drawn[list(EVENT_COLUMNS)]]
    return _last(panel_figure([panel], axis, note, data, ax=ax, colors=colors), ax)


def _last(figure: Figure, ax: Any) -> Axes:
    """Return the last axes that were drawn on: those given, or the figure's."""
    last: Axes = figure.axes[-1] if ax is None else np.ravel(ax)[-1]
    return last


def overlay(
    ideal: pd.DataFrame,
    measured: pd.DataFrame,
    ax: Axes | None = None,
    *,
    note: str = "",
    colors: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw what should happen over what did happen, rank by rank on one time axis; both begin at 0.

    Two event tables as for :func:`timeline`, with the same unit of time. Lines mark where each of
    them ends, which is written above. In the picture the first one is called predicted, as in every
    other picture of the lab. ``colors`` are as for :func:`timeline`.
    """
    panel, axis, data = overlay_panel(ideal, measured)
    note = emulated(ideal, measured, note=note)
    return _last(panel_figure([panel], axis, note, [data], ax=ax, colors=colors), ax)


def overlay_panel(
    ideal: pd.DataFrame, measured: pd.DataFrame, title: str = ""
) -> tuple[EventsPanel, TimeAxis, pd.DataFrame]:
    """Return the panel of :func:`overlay`, its axis, and the table that it shows."""
    given = {"predicted": prepare(ideal, "overlay(ideal)"), "measured": prepare(measured, "overlay(measured)")}
    tables = {source: from_zero(table) for source, table in given.items()}
    panel = lay_out([LabelledTable(source, _HEIGHTS[source], table) for source, table in tables.items()])
    ends = {source: float(table["end_s"].max()) for source, table in tables.items()}
    axis = time_axis(max(ends.values()), unit_label(ideal, measured))
    marks = [Mark(end, f"{source} end", source == "predicted") for source, end in ends.items()]
    facts = "   ".join(f"{source} end {axis(end)}" for source, end in ends.items())
    tagged = [table.assign(source=source)[["source", *EVENT_COLUMNS]] for source, table in tables.items()]
    return replace(panel, marks=marks, title=title, facts=facts), axis, pd.concat(tagged, ignore_index=True)


# --- several steps of pipelines on one axis -------------------------------------------------------


def _several(
    tables: Mapping[str, pd.DataFrame], time_label: str
) -> tuple[list[EventsPanel], TimeAxis, list[pd.DataFrame]]:
    """Return a panel a table, their axis, and what they show; of pipelines what tells of these."""
    steps = {str(title): from_zero(prepare(table, f"timeline(events): {title!r}")) for title, table in tables.items()}
    axis = time_axis(
        max(float(events["end_s"].max()) for events in steps.values()), time_label or unit_label(*tables.values())
    )
    if all(events["micro_batch"].isna().all() for events in steps.values()):
        panels = [replace(lay_out([LabelledTable("", 1.0, events)]), title=title) for title, events in steps.items()]
        data = [events.assign(schedule=title)[["schedule", *EVENT_COLUMNS]] for title, events in steps.items()]
        return panels, axis, data
    pieces = {}
    for title, events in steps.items():
        try:
            pieces[title] = pieces_of(events, _end_s(events))
        except ValueError as error:
            raise ValueError(f"timeline(events): {title!r}: {error}") from None
    max_kept = max(float(each["micro_batches"].max()) for each in pieces.values())
    panels = [_step_panel(title, events, pieces[title], max_kept, axis) for title, events in steps.items()]
    data = [
        pd.concat([events, pieces[title].assign(name="activations")], ignore_index=True)
        .assign(schedule=title)[["schedule", *EVENT_COLUMNS, "kept"]]
        .astype({"kept": "Int64"})
        for title, events in steps.items()
    ]
    return panels, axis, data


def _step_panel(title: str, events: pd.DataFrame, pieces: pd.DataFrame, max_kept: float, axis: TimeAxis) -> EventsPanel:
    """Return the panel of a step, with strips that are full for ``max_kept`` micro-batches."""
    panel = _with_ops(lay_out([LabelledTable("", 1.0, events)], gap=_GAP, strip=_STRIP), events)
    peaks: dict[int, float] = pieces.groupby("rank")["micro_batches"].max().to_dict()  # type: ignore[assignment]
    return replace(
        panel,
        title=title,
        facts=f"makespan {axis(makespan(events))}   bubble {100 * bubble_fraction(events):z.1f} %",
        idle=_idle(panel, events),
        strips=_strips_of(pieces, panel, max_kept),
        peaks=[Label(panel.ranks[rank][1] + _STRIP / 2, short(peak)) for rank, peak in peaks.items()],
    )


def _idle(panel: EventsPanel, events: pd.DataFrame) -> pd.DataFrame:
    """Return the ground of a step's ops on each rank, which shows where it waits."""
    bars = panel.bars.assign(bottom=panel.bars["top"] + panel.bars["height"], rank=events["rank"])
    rows = bars[events["lane"] == "compute"].groupby("rank").agg({"top": "min", "bottom": "max"})
    return rows.assign(left=_end_s(events) - makespan(events), right=_end_s(events))


def _with_ops(panel: EventsPanel, events: pd.DataFrame) -> EventsPanel:
    """Return the panel with ops such as 4F0 as long labels, where a rank has several stages."""
    kinds = events["name"].map({name: kind for kind, name in EVENT_NAMES.items()})
    if not events["chunk"].any() or (kinds.isna() | events["micro_batch"].isna()).any():
        return panel
    ops = events["stage"].astype(str) + kinds + events["micro_batch"].astype(str)
    return replace(panel, bars=panel.bars.assign(long=ops.to_numpy()))


def _strips_of(pieces: pd.DataFrame, panel: EventsPanel, max_kept: float) -> pd.DataFrame:
    """Return the strips under the ranks, full for ``max_kept`` micro-batches."""
    bottom = np.array([panel.ranks[rank][1] + _STRIP for rank in pieces["rank"]])
    ends = {"left": pieces["start_s"], "right": pieces["end_s"]}
    share = pieces["micro_batches"] / max_kept
    return pd.DataFrame({**ends, "top": bottom - _STRIP + _ABOVE, "bottom": bottom, "share": share})


def _end_s(events: pd.DataFrame) -> float:
    """Return the end of the last op. Raises ValueError without one."""
    computed = events[events["lane"] == "compute"]
    if computed.empty:
        raise ValueError("it has no spans in the lane compute")
    return float(computed["end_s"].max())


def pieces_of(events: pd.DataFrame, end_s: float) -> pd.DataFrame:
    """Return the pieces of each rank's step function until ``end_s``, a row each.

    Columns: rank, start_s, end_s, kept, micro_batches. ``kept`` counts activations of a stage. A
    rank with v stages runs its share of the model in v parts, so one counts as a v-th of one of the
    ``micro_batches``: different schedules of one model compare. Errors are those of
    :func:`labkit.simulate.activations`.
    """
    steps = activations(events)
    n_stages = events[(events["name"] == "forward").to_numpy()].groupby("rank")["stage"].nunique()
    rank, time_s, count = (steps[name].to_numpy() for name in ("rank", "time_s", "count"))
    ends_rank = np.diff(rank, append=-1) != 0
    ends = ends_rank | (np.diff(time_s, append=np.nan) != 0)  # of several steps at one time the last counts
    rank, time_s, count, ends_rank = (values[ends] for values in (rank, time_s, count, ends_rank))
    pieces = {"rank": rank, "start_s": time_s, "kept": count, "end_s": np.where(ends_rank, end_s, np.roll(time_s, -1))}
    return pd.DataFrame(pieces | {"micro_batches": count / n_stages.loc[rank].to_numpy()})
