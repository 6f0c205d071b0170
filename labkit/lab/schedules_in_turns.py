"""Run several schedules on the same ranks, a step each in turn: what notebook 09 measures last."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pandas as pd
import torch

from labkit.launch import Run, launch
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Schedule
from labkit.simulate import makespan, median_step, steps_of
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier

MakePipeline = Callable[[Schedule], ScheduledPipeline]


def in_turns(make_pipeline: MakePipeline, plans: Sequence[Schedule], rounds: int = 7) -> SchedulesInTurns:
    """Train eight rows of zeros with each schedule, in turns; the first round warms up.

    ``make_pipeline(plan)`` returns the pipeline of a plan on its rank. It runs over gloo, where a
    rank that receives waits, as stages that sleep need it.
    """
    return SchedulesInTurns(
        launch(_take_turns, make_pipeline, plans, rounds, world_size=plans[0].n_ranks, backend="gloo", threads=1), plans
    )


def _take_turns(make_pipeline: MakePipeline, plans: Sequence[Schedule], rounds: int) -> None:
    rows = torch.zeros(8, 16)
    for number, pipeline in enumerate([make_pipeline(plan) for plan in plans] * rounds):
        pipeline.next_step = number  # of its spans
        barrier()
        pipeline.step(rows, rows)


class SchedulesInTurns:
    """Steps of several schedules that took turns: step s is of schedule s % n."""

    def __init__(self, run: Run, plans: Sequence[Schedule]):
        self.run, self.names = run, [plan.name for plan in plans]

    @functools.cached_property
    def _steps(self) -> dict[str, list[pd.DataFrame]]:
        steps, n = steps_of(self.run.events), len(self.names)
        return {name: steps[n + place :: n] for place, name in enumerate(self.names)}  # without the first round

    @functools.cached_property
    def step_s(self) -> RepeatedTimes:
        """Seconds of each step: a row per round, a column per schedule."""
        table = RepeatedTimes({name: [makespan(step) for step in steps] for name, steps in self._steps.items()})
        table.attrs = dict(self.run.events.attrs)
        return table

    def typical(self, name: str) -> pd.DataFrame:
        """Return the step of a schedule with the median time."""
        return median_step(self._steps[name])
