"""Write event tables as the page reads them: their columns as bytes, with facts about their ops.

The page lays them out (browser/events.js), and explains their bars (browser/explain.js).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from labkit.base.formats import MeasuredTable
from labkit.draw.layout import from_zero, row_word
from labkit.explore.what_if import what_if
from labkit.schedule import Schedule
from labkit.simulate.measures import check_events
from labkit.simulate.replay import attribute_delays, replay_events, schedule_from_events
from labkit.trace import EVENT_COLUMNS

_TYPES = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u1": "u1"}  # numpy's, by the browser's names
_NUMBERS = {"rank": "i4", "stage": "i4", "micro_batch": "i4", "bucket": "i4", "bytes": "f8"}


def column(values: Any, kind: str) -> dict[str, Any]:
    """Return numbers as the page reads them: what kind they are, and their bytes."""
    return {"column": kind, "data": np.ascontiguousarray(values, dtype=_TYPES[kind]).tobytes()}


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
        facts = [_facts(table, schedule, name or "events") for name, table in tables.items()]
        switches = None
        if ideal is not None or isinstance(events, MeasuredTable):
            switches = what_if(tables.get("measured", events), tables.get("predicted"), schedule)
        return cls(title, tables, facts, {"what_if": switches})

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
        tables = [{"title": name, **_event_columns(table), **_written(facts)} for (name, table), facts in pairs]
        about = {"title": self.title, "row": row_word(*self.tables.values())}
        return {**about, "tables": tables, **_written(self.more)}


def _written(value: Any) -> Any:
    """Return a value with its arrays as columns."""
    if isinstance(value, dict):
        return {name: _written(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_written(each) for each in value]
    if isinstance(value, np.ndarray):
        return column(value, "i4" if value.dtype.kind == "i" else "f8")
    return value


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
