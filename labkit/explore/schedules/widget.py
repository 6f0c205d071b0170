"""Explore schedules: change them with sliders, compare two, and run them on real ranks."""

from __future__ import annotations

import re
import threading
from typing import Any, NamedTuple

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from labkit import draw
from labkit.base.formats import emulated
from labkit.draw.layout import TimeAxis, time_axis
from labkit.draw.panel import Panel
from labkit.draw.picture import PAGE_IN, house_style
from labkit.explore.events_panel import events_panel
from labkit.explore.explorer import Explorer, RunButtons, table_html
from labkit.explore.schedules import tables
from labkit.explore.schedules.controls import LOOK, ScheduleControls
from labkit.explore.schedules.measure import ScheduleRun, TimedSchedule, run_schedule, seconds_per_unit
from labkit.explore.schedules.state import State, parse
from labkit.explore.schedules.values import Metrics, metrics_of, n_micro_of, timed_schedule
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.schedule import Schedule, find_dependencies
from labkit.simulate.replay import Replay, replay_events

UNITS = "time (units)"


def schedule_explorer(state: str = "") -> ScheduleExplorer:
    """Return the schedule explorer, as ``state`` says: schedules to change, to compare, to run.

        schedule_explorer("1f1b n=4 m=8 F=1 B=2 hop=0.5 vs zb-h1 cap=4")

    What the text may say: :func:`labkit.explore.schedules.state.parse`, also for its errors.
    """
    return ScheduleExplorer(parse(state))


class PredictedSchedule(NamedTuple):
    """A schedule as it should run."""

    schedule: Schedule
    events: pd.DataFrame
    replay: Replay
    metrics: Metrics

    @classmethod
    def of(cls, timed: TimedSchedule) -> PredictedSchedule:
        events, dependencies = timed.simulate(), find_dependencies(timed.schedule)
        start_s, end_s = (events[name].to_numpy() for name in ("start_s", "end_s"))
        replay = Replay(dependencies, np.arange(len(events)), start_s, end_s, 0.0)  # simulate's rows are the ops
        return cls(timed.schedule, events, replay, metrics_of(replay))


class ScheduleExplorer(Explorer):
    """Controls, one or two schedules on one time axis, their metrics, and a run on real ranks.

    Values can be set from Python: ``explorer.text.value`` to a whole state, or
    ``explorer.controls.sliders["m"].value = 16``; ``explorer.state`` is what is shown.
    ``explorer.run()`` runs it in the cell that calls it; the button does so in a thread.
    ``explorer.runs`` has what was measured, until a control moves.
    """

    def __init__(self, state: State):
        self.controls, self.table, timeline = ScheduleControls(state), ipywidgets.HTML(), Timeline()
        self.text = ipywidgets.Text(str(state), description="state", continuous_update=False, **LOOK)
        self.text.layout.width = "auto"
        self.runner = RunButtons("Run it", self._run, self.say)
        self.state, self.runs = state, list[ScheduleRun]()
        self._showing = threading.RLock()  # the kernel's thread, that of its widgets, that of a run
        super().__init__([self.controls, self.text, self.runner, timeline, self.table], timeline)
        self.controls.on_change(self.guarded(self._read_controls))
        self.text.observe(self.guarded(self._read_text), "value")
        self._predict()

    # --- what should happen -----------------------------------------------------------------------

    def _read_controls(self) -> None:
        self._show_state(self.controls.read(self.state))

    def _read_text(self) -> None:
        state = parse(self.text.value)
        if state != self.state:
            self.controls.set(state)
        self._show_state(state)

    def _show_state(self, state: State) -> None:
        with self._showing:
            if state != self.state:
                self.state, self.runs = state, []
                self.text.value = str(state)
                self._predict()

    def _predict(self) -> None:
        """Show what should happen."""
        with self._showing:
            each_timed = [timed_schedule(self.state, choice) for choice in self.state.choices]
            self.predicted = {timed.schedule.name: PredictedSchedule.of(timed) for timed in each_timed}
            axis = time_axis(max(each.metrics.makespan_s for each in self.predicted.values()), UNITS)
            panels = [self._panel(name, each, axis) for name, each in self.predicted.items()]
            self.timeline.show(panels, time=axis, alt=self._alt(), said=self._sentence())
            self.table.value = table_html(self._metrics_table(), index=True)

    def _panel(self, name: str, each: PredictedSchedule, axis: TimeAxis) -> Panel:
        facts, most_kept = tables.facts(each.metrics, axis), max(one.metrics.peak for one in self.predicted.values())
        about: dict[str, Any] = {"title": name, "facts": facts, "memory": True, "cap": self.state.cap}
        return events_panel(each.events, each.schedule, time=axis, most_kept=most_kept, replay=each.replay, **about)

    def _metrics_table(self) -> pd.DataFrame:
        found = {name: each.metrics for name, each in self.predicted.items()}
        return tables.metrics(found, time_axis(1.0, UNITS), self.state.cap)

    def _sentence(self) -> str:
        """Return how long each takes, and what is not as it was asked for."""
        state, parts = self.state, []
        if (shown := n_micro_of(state)) != state.n_micro:
            why = f"interleaved 1F1B on {state.n_ranks} ranks cannot share out {state.n_micro} evenly"
            parts.append(f"{shown} micro-batches: {why}")
        parts += [f"{name}: makespan {each.metrics.makespan_s:g}" for name, each in self.predicted.items()]
        for name, each in self.predicted.items():
            if state.cap and each.metrics.peak > state.cap:
                parts.append(f"{name} keeps {each.metrics.peak:g}, over the cap of {state.cap:g}")
        return "; ".join(parts) + "."

    def _alt(self) -> str:
        ends = [f"{name} ends at {each.metrics.makespan_s:g}" for name, each in self.predicted.items()]
        n, m = self.state.n_ranks, n_micro_of(self.state)
        return f"Timeline of {n} rank{'s' * (n > 1)} and {m} micro-batch{'es' * (m > 1)}: {', '.join(ends)}."

    # --- what does happen -------------------------------------------------------------------------

    def run(self) -> list[ScheduleRun]:
        """Run what is shown on real ranks, lay it under what should happen, and return it.

        Raises as :func:`labkit.explore.schedules.measure.run_schedule`.
        """
        state = self.state
        timed = [timed_schedule(state, choice) for choice in state.choices]
        unit_s = seconds_per_unit(*timed)
        runs = [run_schedule(*each, unit_s=unit_s) for each in timed]
        with self._showing:
            if state == self.state:
                self.runs = runs
                self._show_runs()
        return runs

    def _run(self) -> str:
        """Do what the button does, and return what is to be said then."""
        runs = self.run()
        if self.runs is not runs:
            return "The controls have moved while it ran, so the run is not shown: run again."
        return self._notes()

    def _notes(self) -> str:
        """Return the notes of all runs, each sentence once."""
        sentences = (sentence for run in self.runs for sentence in re.split(r"(?<=\.) ", run.note))
        return " ".join(dict.fromkeys(sentences))

    def _show_runs(self) -> None:
        """Show what happened under what should have."""
        cap, ends_s = self.state.cap, [table["end_s"].max() for run in self.runs for table in (run.ideal, run.measured)]
        axis, found, panels, gaps = time_axis(float(max(ends_s))), dict[str, Metrics](), list[Panel](), ""
        for run in self.runs:
            name = run.schedule.name
            for source, table in (("predicted", run.ideal), ("measured", run.measured)):
                found[f"{name}, {source}"] = metrics_of(replay_events(run.schedule, table))
            facts = tables.facts(found[f"{name}, measured"], axis)
            about: dict[str, Any] = {"time": axis, "title": name, "facts": facts, "memory": True, "cap": cap}
            panels.append(events_panel(run.measured, run.schedule, run.ideal, **about))
            gaps += tables.gap_as_html(name, run.gap)
        alt, note = f"{self._alt()} Measured runs lie under it.", emulated(*(run.measured for run in self.runs))
        self.timeline.show(panels, time=axis, alt=alt, note=note, said=self._notes())
        self.table.value = table_html(tables.metrics(found, axis, cap), index=True) + gaps

    # --- in print ---------------------------------------------------------------------------------

    def static_form(self) -> StaticForm:
        """Return schedules and metrics; after a run, that run under its prediction, and the gap."""
        if not self.runs:
            shown = {name: each.events for name, each in self.predicted.items()}
            return StaticForm(draw.schedules(shown, time_label=UNITS), self._alt(), self._metrics_table())
        n_rows = sum(run.schedule.n_ranks for run in self.runs)
        with house_style():
            size = (PAGE_IN, 1.0 * len(self.runs) + 0.5 * n_rows)
            figure, axes = plt.subplots(len(self.runs), figsize=size, layout="constrained", squeeze=False)
        for run, ax in zip(self.runs, axes.flat, strict=True):
            draw.overlay(run.ideal, run.measured, ax=ax)
            ax.set_title(run.schedule.name, loc="left", fontweight="bold")
        return StaticForm(figure, self._alt(), tables.gaps({run.schedule.name: run.gap for run in self.runs}))
