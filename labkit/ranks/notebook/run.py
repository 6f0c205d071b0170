"""Hold what comes back of a run on ranks: values, spans and timings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit import stats, trace
from labkit.base.measurement_html import as_html
from labkit.ranks.processes.plan import LaunchPlan

if TYPE_CHECKING:
    import pandas as pd

    from labkit.stats.repeated_times import RepeatedTimes


@dataclass(frozen=True)
class Run:
    """What one function did on every rank.

    ``values``: what it returned, a list in rank order, tensors on the CPU. ``backend``: ``"gloo"``
    or ``"nccl"``. ``devices``: each rank's device, a list of str. ``seconds``: from the call until
    every rank had answered. ``events``: every span of every rank as an event table, in seconds
    since the call. ``timings``: one row per rank and span name.

    As the last line of a cell it shows a header line and the timings. The header says what was
    emulated, and so does ``.attrs["emulated"]`` of both tables, so every table or
    picture of them says so. pd.concat loses it if the tables differ in it.
    """

    values: list[Any]
    seconds: float
    _plan: LaunchPlan
    _rows: list[tuple[Any, ...]]
    _notes: list[str]  # what the ranks emulated

    @property
    def backend(self) -> str:
        return self._plan.backend

    @property
    def world_size(self) -> int:
        return self._plan.world_size

    @property
    def devices(self) -> list[str]:
        return self._plan.devices

    @property
    def has_spans(self) -> bool:
        return bool(self._rows)

    @functools.cached_property
    def header(self) -> str:
        return ". ".join([self._plan.header(self.seconds), *self._notes])

    @functools.cached_property
    def events(self) -> pd.DataFrame:
        emulated = ". ".join(filter(None, [self._plan.emulated, *self._notes]))
        return trace.event_table(self._rows, measured=True, emulated=emulated)

    @functools.cached_property
    def timings(self) -> pd.DataFrame:
        return trace.timings(self.events)

    def repeats(self, by: str = "name", name: str | None = None) -> RepeatedTimes:
        """Return the seconds of each repeat, a column per way: see :func:`labkit.stats.repeats`."""
        return stats.repeats(self.events, by, name)

    def __repr__(self) -> str:
        return f"{self.header}\n{self.timings!r}" if self._rows else f"{self.header}\nno spans were recorded"

    def _repr_html_(self) -> str:
        table = self.timings._repr_html_() if self._rows else "<p>no spans were recorded</p>"  # type: ignore[operator]
        return f"<p>{as_html(self.header)}</p>{table}"
