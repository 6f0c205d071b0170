"""Write panels and event tables as the page reads them: columns as bytes, colours by name.

The page lays event tables out (browser/events.js), and explains their bars (browser/explain.js).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.draw.layout import TimeAxis, from_zero, row_word
from labkit.draw.palette import THEMES, darker, in_theme, label_ground, shade, styles_of, text_colour, words_of
from labkit.draw.panel import GridPanel, Panel, TimedPanel
from labkit.schedule import Schedule
from labkit.simulate.measures import check_events
from labkit.simulate.replay import attribute_delays, replay_events, schedule_from_events
from labkit.trace import EVENT_COLUMNS

_TYPES = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u1": "u1"}  # numpy's, by the browser's names
_NUMBERS = {"rank": "i4", "stage": "i4", "micro_batch": "i4", "bucket": "i4", "bytes": "f8"}
_KINDS = {
    **dict.fromkeys(("left", "right"), "f8"),
    **dict.fromkeys(("top", "height", "appear", "vanish"), "f4"),
    **dict.fromkeys(("source", "target", "same"), "i4"),
    **dict.fromkeys(("style", "chunk"), "u1"),
}


def scene_of(
    panels: Sequence[Panel | EventTables],
    *,
    time: TimeAxis | None = None,
    alt: str,
    title: str = "",
    narration: str = "",
    note: str = "",
    numbers: str = "",
    opens_at: int = 0,
    version: int = 0,
    memory: bool = False,
    cap: float | None = None,
    pipeline: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return panels on one axis as a message: without a ``time`` it is the columns of grids.

    ``alt`` says what the picture shows to readers who cannot see it. ``title`` stands over a file
    of it, ``narration`` over the picture, a ``note`` and ``numbers``, in HTML, below. A grid opens
    at the step ``opens_at``. Panels of bars bring their sentences; of event tables the page makes
    them, with ``memory`` also how many micro-batches' activations each rank keeps, and where that
    is over ``cap``. What a ``pipeline`` shows the page works out itself: browser/schedules.js.
    """
    drawn = [panel for panel in panels if isinstance(panel, Panel)]
    names = set().union(*(panel.names if isinstance(panel, EventTables) else panel.bars["name"] for panel in panels))
    chunks = [panel.n_chunks if isinstance(panel, EventTables) else _n_chunks(panel) for panel in panels]
    styles = styles_message(names, max(chunks, default=1))
    number_of = {style["name"]: number for number, style in enumerate(styles)}
    timed = [panel for panel in drawn if isinstance(panel, TimedPanel)]
    steps = {
        "clock": _steps(drawn, [panel.clocks for panel in drawn]),
        "moment": _steps(timed, [panel.moments for panel in timed]),
    }
    return {
        "version": version,
        "alt": alt,
        "title": title,
        "narration": narration,
        "note": note,
        "numbers": numbers,
        "pipeline": pipeline,
        "steps": steps,
        "opens_at": opens_at if time is None and len(steps["clock"]) > 1 else -1,
        "axis": _axis(time),
        "clock": next((panel.clock for panel in timed if len(panel.clocks)), "clock"),
        "styles": styles,
        "memory": memory,
        "cap": cap,
        "panels": [panel.message() if isinstance(panel, EventTables) else _panel(panel, number_of) for panel in panels],
    }


def _n_chunks(panel: Panel) -> int:
    return 1 + (int(panel.bars["chunk"].max()) if len(panel.bars) else 0)


def _steps(panels: Sequence[Panel], stops: Sequence[np.ndarray]) -> list[str]:
    """Return what panels say at each of their stops."""
    return [_narration(panels, x) for x in sorted(set().union(*(each.tolist() for each in stops)))]


def _narration(panels: Sequence[Panel], x: float) -> str:
    told = [(panel.title, text) for panel in panels if (text := panel.narrate(x))]
    return " ".join(f"{title}: {text}" if len(told) > 1 and title else text for title, text in told)


def styles_message(names: Collection[str], n_chunks: int) -> list[dict[str, Any]]:
    """Return how the bars of these names look, for so many stages of a rank."""
    return [
        {
            "name": name,
            "words": words_of(name),
            "hatch": style.hatch,
            "fills": {
                theme: [_fill(in_theme(style.colour, theme), k, n_chunks) for k in range(n_chunks)] for theme in THEMES
            },
        }
        for name, style in styles_of(names).items()
    ]


def _panel(panel: Panel, number_of: dict[str, int]) -> dict[str, Any]:
    timed = panel if isinstance(panel, TimedPanel) else TimedPanel(panel.bars, panel.height)  # with nothing of these
    grid = panel if isinstance(panel, GridPanel) else GridPanel(panel.bars, panel.height)
    links = grid.links
    style = [number_of[name] for name in panel.bars["name"].tolist()]
    return {
        "title": panel.title,
        "facts": panel.facts,
        "axis": _axis(timed.axis),
        "height": float(panel.height),
        "rows": [list(label) for label in panel.rows],
        "columns": [list(label) for label in grid.columns],
        "marks": [list(mark) for mark in panel.marks],
        "bars": _columns({**panel.bars, "style": style}),
        "labels": panel.bars["label"].tolist(),
        "needs": column(timed.needs, "i4"),
        "critical": column(timed.critical, "i4"),
        "clocks": column(panel.clocks, "f8"),
        "moments": column(timed.moments, "f8"),
        "sentences": [panel.explain(bar) for bar in range(len(panel.bars))],
        "links": None if links is None else {"columns": _columns(links), "labels": links["label"].tolist()},
    }


def _axis(axis: TimeAxis | None) -> dict[str, Any] | None:
    return {"label": axis.label, "unit": axis.unit, "per_second": axis.per_second} if axis else None


def _columns(table: Mapping[Any, Any] | pd.DataFrame) -> dict[str, Any]:
    return {name: column(table[name], kind) for name, kind in _KINDS.items() if name in table}


def _fill(colour: str, chunk: int, n_chunks: int) -> dict[str, str]:
    colour = shade(colour, chunk, n_chunks)
    return {"colour": colour, "edge": darker(colour), "plate": label_ground(colour), "ink": text_colour(colour)}


# --- event tables ---------------------------------------------------------------------------------


def column(values: Any, kind: str) -> list[Any]:
    """Return numbers as the page reads them: what kind they are, and their bytes."""
    return [kind, np.ascontiguousarray(values, dtype=_TYPES[kind]).tobytes()]


class EventTables(NamedTuple):
    """Event tables that the page lays out one over the other, by what they are: see :func:`of`.

    ``facts`` has for each table further columns. Where it is a run these are ``needs``, the row
    whose output an op takes, and ``waited_for``, the row that it waited for: -1 without one, and
    for anything but an op. ``more`` are other fields of the panel: browser/events.js.
    """

    title: str
    tables: Mapping[str, pd.DataFrame]
    facts: list[dict[str, np.ndarray]]
    more: Mapping[str, Any] = {}

    @classmethod
    def of(
        cls, events: pd.DataFrame, schedule: Schedule | None = None, ideal: pd.DataFrame | None = None, title: str = ""
    ) -> EventTables:
        """Return an event table to be shown, with ``ideal`` over it if given; both begin at 0 then.

        With a ``schedule``, or where the table is one step of a pipeline, ops know what they need
        and why they are late.

        Raises ValueError for a table that cannot be drawn, or that is not one step of ``schedule``.
        """
        given = {"": events} if ideal is None else {"predicted": ideal, "measured": events}
        tables = {
            name: pd.DataFrame(
                check_events(table, f"Timeline({'ideal' if name == 'predicted' else 'events'})", EVENT_COLUMNS)
            )
            for name, table in given.items()
        }
        for name, table in tables.items():
            table.attrs = dict(given[name].attrs)
        if ideal is not None:
            tables = {name: from_zero(table) for name, table in tables.items()}
        return cls(title, tables, [_facts(table, schedule, name or "events") for name, table in tables.items()])

    @property
    def names(self) -> set[str]:
        """The names of all events."""
        return set().union(*(table["name"].unique() for table in self.tables.values()))

    @property
    def n_chunks(self) -> int:
        """How many stages the rank has that has most, 1 without any."""
        return max(1, *(int(table.groupby("rank")["stage"].nunique().max()) for table in self.tables.values()))

    def message(self) -> dict[str, Any]:
        pairs = zip(self.tables.items(), self.facts, strict=True)
        tables = [{"title": name, **_event_columns(table), **_integers(facts)} for (name, table), facts in pairs]
        return {"title": self.title, "row": row_word(*self.tables.values()), "tables": tables, **self.more}


def _integers(facts: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: column(values, "i4") for name, values in facts.items()}


def _event_columns(table: pd.DataFrame) -> dict[str, Any]:
    """Return an event table's columns, -1 where there is nothing; names and lanes by number."""
    columns: dict[str, Any] = {name: column(table[name], "f8") for name in ("start_s", "end_s")}
    for name, kind in _NUMBERS.items():
        columns[name] = column(table[name].to_numpy(dtype=float, na_value=-1), kind)
    for name, values in (("name", "names"), ("lane", "lanes")):
        numbers, found = pd.factorize(table[name])
        columns |= {name: column(numbers, "i4"), values: found.tolist()}
    return columns


def _facts(table: pd.DataFrame, schedule: Schedule | None, what: str) -> dict[str, np.ndarray]:
    """Return the facts of a table that is one step, none where it is not (unless it has to be)."""
    try:
        replay = replay_events(schedule or schedule_from_events(table, what), table, what)
    except ValueError:
        if schedule is not None:
            raise
        return {}
    facts = {}
    for name, ops in (("needs", replay.dependencies.input_op), ("waited_for", attribute_delays(replay).waited_for)):
        facts[name] = np.full(len(table), -1)
        facts[name][replay.row] = [-1 if op is None else replay.row[op] for op in ops]
    return facts
