"""Explore schedules: change them with sliders, compare two, and run them on real ranks."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import ipywidgets
import numpy as np
import pandas as pd

from labkit import draw
from labkit.base.formats import emulated
from labkit.draw.layout import time_axis
from labkit.draw.painter import panel_figure
from labkit.draw.timelines import overlay_panel
from labkit.explore.events_message import EventTables
from labkit.explore.explorer import Explorer, RunButtons, table_html
from labkit.explore.schedules import tables
from labkit.explore.schedules.controls import LOOK, ScheduleControls
from labkit.explore.schedules.measure import ScheduleRun, TimedSchedule, run_schedules
from labkit.explore.schedules.orders import UNITS, pipeline_message, schedule_library
from labkit.explore.schedules.state import PRESETS, State, parse
from labkit.explore.schedules.values import Metrics, metrics_of, n_micro_of, timed_schedule
from labkit.explore.static_fallback import StaticForm
from labkit.explore.timeline import Timeline
from labkit.schedule import Schedule, find_dependencies
from labkit.simulate.replay import Replay, replay_events


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
        self.text.layout.flex = "1 1 auto"
        self.presets = {
            name: _button(name, text, partial(setattr, self.text, "value", text)) for name, text in PRESETS.items()
        }
        self.copy = _button("Copy state", "Copy the call that shows this again", self._copy)
        self.every_bubble = ipywidgets.ToggleButton(description="other definitions of the bubble", layout=_auto())
        self.runner = RunButtons("Run it", self._run, self.say)
        self.state, self.runs = state, list[ScheduleRun]()
        self._showing = threading.RLock()  # the kernel's thread, that of its widgets, that of a run
        presets = ipywidgets.HBox([*self.presets.values()], layout=ipywidgets.Layout(flex_flow="row wrap"))
        text = ipywidgets.HBox([self.text, self.copy])
        super().__init__([presets, self.controls, text, self.runner, timeline, self.table, self.every_bubble], timeline)
        self.controls.on_change(self.guarded(self._read_controls))
        self.text.observe(self.guarded(self._read_text), "value")
        self.every_bubble.observe(self.guarded(self._show_table), "value")
        times = {key: self.controls.sliders[key] for key in ("F", "I", "W", "hop")}
        for slider in times.values():
            slider.continuous_update = False  # while it is dragged the page draws
            slider.add_class(f"labkit-{slider.model_id}")
        timeline.sliders = {key: slider.model_id for key, slider in times.items()}
        timeline.library = lambda: None if self.runs else schedule_library(self.state)
        self._predict()

    # --- what should happen -----------------------------------------------------------------------

    def _read_controls(self) -> None:
        self._show_state(self.controls.read(self.state))

    def _read_text(self) -> None:
        state = parse(self.text.value)
        if state != self.state:
            self.controls.set(state)
        self._show_state(state)

    def _copy(self) -> None:
        self.timeline.send({"copy": f'schedule_explorer("{self.state}")'})

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
            panels = [EventTables(name, {"": each.events}, [each.replay]) for name, each in self.predicted.items()]
            pipeline = pipeline_message(self.state, (each.schedule for each in self.predicted.values()))
            facts = {name: tables.facts(each.metrics, axis) for name, each in self.predicted.items()}
            words: dict[str, Any] = {"alt": self._alt(), "said": self._sentence(), "title": self._title(facts)}
            self.timeline.show(panels, memory=True, cap=self.state.cap, time=axis, pipeline=pipeline, **words)
            self._metrics, self._axis = {name: each.metrics for name, each in self.predicted.items()}, axis
            self._show_table()

    def _metrics_table(self, every_bubble: bool = False) -> pd.DataFrame:
        table = tables.metrics(self._metrics, self._axis, self.state.cap, every_bubble)
        if self.runs:
            intervals = [text for run in self.runs for text in ("", tables.steps_interval(run))]
            table.loc["makespan of all steps: median (95 % interval)"] = intervals
        return table

    def _show_table(self) -> None:
        with self._showing:
            gaps = "".join(tables.gap_as_html(run.schedule.name, run.gap) for run in self.runs)
            self.table.value = table_html(self._metrics_table(self.every_bubble.value), index=True) + gaps

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
        return f"Timeline of {self._size()}: {', '.join(ends)}."

    def _title(self, facts: Mapping[str, str], source: str = "") -> str:
        return f"{self._size()}{source}: {'; '.join(f'{name}, {each}' for name, each in facts.items())}"

    def _size(self) -> str:
        n, m = self.state.n_ranks, n_micro_of(self.state)
        return f"{n} rank{'s' * (n > 1)} and {m} micro-batch{'es' * (m > 1)}"

    # --- what does happen -------------------------------------------------------------------------

    def run(self) -> list[ScheduleRun]:
        """Run what is shown on real ranks, lay it under what should happen, and return it.

        Two schedules take turns on the same ranks. Raises as
        :func:`labkit.explore.schedules.measure.run_schedules`.
        """
        state = self.state
        runs = run_schedules(*(timed_schedule(state, choice) for choice in state.choices))
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
        """Say how the runs compare, and what their notes say, each sentence once."""
        sentences = (sentence for run in self.runs for sentence in re.split(r"(?<=\.) ", run.note))
        return " ".join([f"{tables.comparison(self.runs)}.", *dict.fromkeys(sentences)])

    def _show_runs(self) -> None:
        """Show what happened under what should have."""
        ends_s = [table["end_s"].max() for run in self.runs for table in (run.ideal, run.measured)]
        axis, found, facts = time_axis(float(max(ends_s))), dict[str, Metrics](), dict[str, str]()
        for run in self.runs:
            name = run.schedule.name
            for source, table in (("predicted", run.ideal), ("measured", run.measured)):
                found[f"{name}, {source}"] = metrics_of(replay_events(run.schedule, table))
            facts[name] = tables.facts(found[f"{name}, measured"], axis)
        panels = [EventTables.of(run.measured, run.schedule, run.ideal, run.schedule.name) for run in self.runs]
        alt, note = f"{self._alt()} Measured runs lie under it.", emulated(*(run.measured for run in self.runs))
        title = self._title(facts, ", predicted and measured")
        self.timeline.show(
            panels, memory=True, cap=self.state.cap, time=axis, alt=alt, note=note, said=self._notes(), title=title
        )
        self._metrics, self._axis = found, axis
        self._show_table()

    # --- in print ---------------------------------------------------------------------------------

    def static_form(self) -> StaticForm:
        """Return schedules and metrics; after a run, that run under its prediction, and the gap."""
        if not self.runs:
            shown = {name: each.events for name, each in self.predicted.items()}
            return StaticForm(draw.timeline(shown, time_label=UNITS), self._alt(), self._metrics_table())
        drawn = [overlay_panel(run.ideal, run.measured, title=run.schedule.name) for run in self.runs]
        panels, axes, data = zip(*drawn, strict=True)
        longest = min(axes, key=lambda axis: axis.per_second)
        figure = panel_figure(panels, longest, emulated(*(run.measured for run in self.runs)), data)
        return StaticForm(figure, self._alt(), tables.gaps({run.schedule.name: run.gap for run in self.runs}))


def _button(name: str, tooltip: str, action: Callable[[], None]) -> ipywidgets.Button:
    button = ipywidgets.Button(description=name, tooltip=tooltip, layout=_auto())
    button.on_click(lambda _: action())
    return button


def _auto() -> ipywidgets.Layout:
    return ipywidgets.Layout(width="auto", align_self="flex-start")
