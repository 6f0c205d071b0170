"""Explore schedules: change them in a form, compare two, and run them on real ranks."""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Any

import pandas as pd
import traitlets

from labkit import draw
from labkit.base.formats import emulated, short
from labkit.draw.layout import time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.timelines import overlay_panel
from labkit.explore.event_tables import EventTables
from labkit.explore.explorer import Explorer
from labkit.explore.html_table import table_html
from labkit.explore.run_buttons import RunButtons
from labkit.explore.schedules import tables
from labkit.explore.schedules.measure import ScheduleRun, run_schedules
from labkit.explore.schedules.orders import LIBRARY, UNIT_AXIS, pipeline_message, schedule_form, schedule_library
from labkit.explore.schedules.state import State, parse
from labkit.explore.schedules.values import n_micro_of, timed_schedule
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.simulate import TimedSchedule, makespan
from labkit.simulate.simulator import UNITS


def schedule_explorer(state: str = "") -> ScheduleExplorer:
    """Return the schedule explorer, as ``state`` says: schedules to change, to compare, to run.

        schedule_explorer("1f1b n=4 m=8 F=1 B=2 hop=0.5 vs zb-h1 cap=4")

    What the text may say: :func:`labkit.explore.schedules.state.parse`, also for its errors.
    """
    return ScheduleExplorer(parse(state))


class ScheduleExplorer(Explorer):
    """A form, one or two schedules on one time axis, their metrics, and a run on real ranks.

        explorer = schedule_explorer("1f1b n=4 m=8 vs gpipe")
        explorer.state = "zb-h1 n=4 m=8"         # as its form does
        explorer.observe(print, "state")

    ``explorer.run()`` runs it in the cell that calls it; the button does so in a thread.
    ``explorer.runs`` has what was measured, until a control moves. A text that is not a state
    raises :class:`labkit.explore.schedules.state.StateError`.
    """

    state = traitlets.Unicode()

    def __init__(self, state: State):
        timeline = Timeline()
        self.runner = RunButtons("Run it", self._run, self.say)
        self.runs = list[ScheduleRun]()
        self._showing = threading.RLock()  # the kernel's thread, that of its widgets, that of a run
        super().__init__([self.runner, timeline], timeline)
        timeline.form = {"schedules": schedule_form() | {"library": LIBRARY.read_bytes()}}
        timeline.library = self._library
        timeline.on_control = self.guarded(self._take)
        self.state = str(state)

    @traitlets.validate("state")
    def _normalized(self, proposal: dict[str, Any]) -> str:
        return str(parse(proposal["value"]))

    def _take(self, _: str, state: str) -> None:
        """Take the state that the page shows."""
        before, self.state = self.state, state
        if self.runs and self.state == before:  # away and back: the page no longer shows the run
            self._predict()

    @traitlets.observe("state")
    def _predict(self, _: object = None) -> None:
        """Show what should happen."""
        with self._showing:
            self.runs = []
            self.timeline.show([], time=UNIT_AXIS, alt=f"Timeline of {self._size()}.", pipeline=self._pipeline())

    # --- what should happen -----------------------------------------------------------------------

    @property
    def _parsed(self) -> State:
        return parse(self.state)

    def _timed(self) -> list[TimedSchedule]:
        state = self._parsed
        return [timed_schedule(state, choice) for choice in state.choices]

    def _pipeline(self) -> dict[str, Any]:
        return pipeline_message(self._parsed, (timed.schedule for timed in self._timed()))

    def _library(self) -> dict[str, Any] | None:
        return None if self.runs else schedule_library(self._parsed)

    def _alt(self) -> str:
        ends = [f"{timed.schedule.name} ends at {short(makespan(timed.simulate()))}" for timed in self._timed()]
        return f"Timeline of {self._size()}: {', '.join(ends)}."

    def _size(self) -> str:
        state = self._parsed
        n, m = state.n_ranks, n_micro_of(state)
        return f"{n} rank{'s' * (n > 1)} and {m} micro-batch{'es' * (m > 1)}"

    # --- what does happen -------------------------------------------------------------------------

    def run(self) -> list[ScheduleRun]:
        """Run what is shown on real ranks, lay it under what should happen, and return it.

        Two schedules take turns on the same ranks. Raises as
        :func:`labkit.explore.schedules.measure.run_schedules`.
        """
        state = self.state
        runs = run_schedules(*self._timed())
        with self._showing:
            if state == self.state:
                self.runs = runs
                self._show_runs()
        return runs

    def _run(self) -> str:
        """Do what the button does, and return what the line below the picture says then."""
        runs = self.run()
        if self.runs is not runs:
            return "The controls have moved while it ran, so the run is not shown: run again."
        return self._notes()

    def _notes(self) -> str:
        """Say how the runs compare, and what their notes say, each sentence once."""
        sentences = (sentence for run in self.runs for sentence in re.split(r"(?<=\.) ", run.note))
        return " ".join([f"{tables.comparison(self.runs)}.", *dict.fromkeys(sentences)])

    def _show_runs(self) -> None:
        """Show what happened under what should have."""
        ends_s = [makespan(table) for run in self.runs for table in (run.ideal, run.measured)]
        panels = [EventTables.of(run.measured, run.schedule, run.ideal, run.schedule.name) for run in self.runs]
        intervals = pd.DataFrame({run.schedule.name: [tables.steps_interval(run)] for run in self.runs})
        intervals.index = ["makespan of all steps: median (95 % interval)"]
        gaps = "".join(tables.gap_as_html(run.schedule.name, run.gap) for run in self.runs)
        self.timeline.show(
            panels,
            time=time_axis(max(ends_s)),
            alt=f"{self._alt()} Measured runs lie under it.",
            note=emulated(*(run.measured for run in self.runs)),
            narration=self._notes(),
            title=f"{self._size()}, predicted and measured",
            numbers=table_html(intervals) + gaps,
            memory=True,
            cap=self._parsed.cap,
            pipeline=self._pipeline(),
        )

    # --- in print ---------------------------------------------------------------------------------

    def static_form(self) -> StaticForm:
        """Return schedules and metrics; after a run, that run under its prediction, and the gap."""
        if not self.runs:
            steps = {timed.schedule.name: timed.simulate() for timed in self._timed()}
            metrics = tables.metrics(self._timed(), self._parsed.cap)
            return StaticForm(self._alt(), metrics, partial(draw.timeline, steps, time_label=UNITS))
        drawn = [overlay_panel(run.ideal, run.measured, title=run.schedule.name) for run in self.runs]
        panels, axes, data = zip(*drawn, strict=True)
        longest = min(axes, key=lambda axis: axis.per_second)
        note = emulated(*(run.measured for run in self.runs))
        gaps = tables.gaps({run.schedule.name: run.gap for run in self.runs})
        return StaticForm(self._alt(), gaps, partial(panel_figure, panels, longest, note, data))
