"""Show a worker thread's queue from a recorded Pipe: task in, compute, result out.

In a notebook:

    events = record_queue(pipe, x)
    queue_table(events)                  # a row per task
    Timeline.of([queue_panel(events)], alt="…")
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from labkit.base.formats import MeasuredTable, emulated
from labkit.draw.layout import time_axis
from labkit.draw.panel import BAR_COLUMNS, Label, Panel

if TYPE_CHECKING:
    import torch

    from labkit.explore.timeline import Timeline
    from labkit.pipe import Pipe

PLACES = ("queued", "forward", "result waits")  # of a task, one after the other, by their events
_ROWS, _ROWS_A_STAGE = ("in the queue", "computing", "result waits"), 3.3  # with a gap between stages
_NOTHING_YET = "Nothing has been put into a queue yet."


def record_queue(pipe: Pipe, x: torch.Tensor, warm_up: int = 2) -> pd.DataFrame:
    """Run ``pipe(x)``, and return when each task was put, taken, done and fetched: an event table.

    Events are ``queued``, ``forward`` and ``result waits``, each with stage and micro-batch, from
    the first put on. ``warm_up`` passes go before it. Backward has no tasks: see the caveats of
    :class:`labkit.pipe.Pipe`.

    Raises what the Pipe raises: TodoError while pipe.3 is to do.
    """
    from labkit.parallel.worker import watch_queues
    from labkit.trace import record

    for _ in range(warm_up):
        pipe(x)
    with record() as recording, watch_queues():
        pipe(x)
    events = recording.events[recording.events["name"].isin(PLACES)].reset_index(drop=True)
    start = events["start_s"].min()
    return events.assign(start_s=events["start_s"] - start, end_s=events["end_s"] - start)


class _Task(NamedTuple):
    """A task's way: put by the caller, taken by the worker, done, its result fetched."""

    stage: int
    micro_batch: int
    times_s: tuple[float, float, float, float]

    @property
    def clock(self) -> int:
        return self.stage + self.micro_batch

    @property
    def durations_ms(self) -> list[float]:
        """How long it queued, was computed, and its result waited."""
        return [1000 * (end_s - start_s) for start_s, end_s in itertools.pairwise(self.times_s)]


def _tasks(events: pd.DataFrame) -> list[_Task]:
    """Return the tasks of recorded queues, in the order in which they were put."""
    keys = ["stage", "micro_batch", "start_s"]
    queued, waiting = (events[events["name"] == name].sort_values(keys).to_dict("records") for name in PLACES[::2])
    if not queued:
        raise ValueError(
            "no task of a queue was recorded: record a Pipe with labkit.explore.record_queue, or under "
            "labkit.parallel.worker.watch_queues()"
        )
    tasks = [
        _Task(task["stage"], task["micro_batch"], (task["start_s"], task["end_s"], result["start_s"], result["end_s"]))
        for task, result in zip(queued, waiting, strict=True)
    ]
    return sorted(tasks, key=lambda task: task.times_s)


def queue_table(events: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task: its clock, and ms that it queued, was computed, and its result waited.

    Raises ValueError for a table without recorded queues.
    """
    rows = [(task.clock, task.stage, task.micro_batch, *task.durations_ms) for task in _tasks(events)]
    columns = ["clock", "stage", "micro_batch", "queued, ms", "computing, ms", "result waits, ms"]
    table = MeasuredTable(rows, columns=columns)
    table.attrs = dict(events.attrs)
    return table


def queue_panel(events: pd.DataFrame) -> Panel:
    """Return a panel with three rows a stage: in the queue, computing, result that waits.

    The number in a bar is its micro-batch. Raises ValueError as :func:`queue_table`.
    """
    tasks = _tasks(events)
    n_stages = 1 + max(task.stage for task in tasks)
    bars = [
        (*times, _ROWS_A_STAGE * task.stage + row + 0.07, 0.86, PLACES[row], 0, str(task.micro_batch))
        for task in tasks
        for row, times in enumerate(itertools.pairwise(task.times_s))
    ]
    numbers = np.arange(len(bars), dtype="int32")
    steps = sorted((step for task in tasks for step in _steps(task)), key=lambda step: step[0])
    clocks = [next(together).times_s[0] for _, together in itertools.groupby(tasks, lambda task: task.clock)]
    return Panel(
        pd.DataFrame(bars, columns=list(BAR_COLUMNS)),
        height=_ROWS_A_STAGE * n_stages - 0.3,
        rows=_labels(n_stages),
        title="Worker threads and their queues",
        needs=np.where(numbers % 3, numbers - 1, -1),
        clocks=np.array(clocks),
        moments=np.unique([time for time, _ in steps]),
        explain=lambda i: _explanation(tasks[i // 3], i % 3, tasks),
        narrate=lambda x: next((text for time, text in reversed(steps) if time <= x), _NOTHING_YET),
    )


def queue_timeline(events: pd.DataFrame) -> Timeline:
    """Return recorded queues as a picture to step through. Raises ValueError as queue_table.

    Where there is no widget, its table has a row a stage: what its tasks waited in all.
    """
    from labkit.draw.painter import panel_figure
    from labkit.explore.static_fallback import StaticForm
    from labkit.explore.timeline import Timeline

    panel, table = queue_panel(events), queue_table(events)
    waited = table.groupby("stage")[["queued, ms", "computing, ms", "result waits, ms"]].sum()
    axis, note = time_axis(float(panel.bars["right"].max())), emulated(events)
    n_stages, n_micro = table["stage"].nunique(), table["micro_batch"].nunique()
    alt = (
        f"The queues of {n_stages} worker threads: {n_micro} micro-batches, each put into a queue, computed, and fetched "
        "once all of its clock are done."
    )
    timeline = Timeline.of([panel], alt=alt, time=axis, note=note)
    timeline.static_form = lambda: StaticForm(panel_figure([panel], axis, note), alt, waited)
    return timeline


def _labels(n_stages: int) -> list[Label]:
    labels = []
    for stage in range(n_stages):
        top = _ROWS_A_STAGE * stage
        labels.append(Label(top + 1.5, f"stage {stage}"))
        labels += [Label(top + row + 0.5, text, small=True) for row, text in enumerate(_ROWS)]
    return labels


# --- in words -------------------------------------------------------------------------------------


def _steps(task: _Task) -> list[tuple[float, str]]:
    i, j = task.micro_batch, task.stage
    texts = (
        f"Task in: micro-batch {i} is put into the queue of stage {j}, in clock {task.clock}.",
        f"The worker thread of stage {j} takes micro-batch {i} and computes it.",
        f"Stage {j} is done with micro-batch {i}: the result waits, the worker looks into its queue.",
        f"Result out: the caller fetches micro-batch {i} from stage {j}.",
    )
    return list(zip(task.times_s, texts, strict=True))


def _explanation(task: _Task, place: int, tasks: list[_Task]) -> str:
    took = f"{task.durations_ms[place]:.4g} ms"
    who = f"Micro-batch {task.micro_batch} on stage {task.stage}, clock {task.clock}"
    if place == 0:
        return f"{who}: {took} in the queue, from put until the worker thread woke up and took it."
    if place == 1:
        return f"{who}: {took} of computing in the worker thread."
    done_s, slowest = max((other.times_s[2], other.stage) for other in tasks if other.clock == task.clock)
    if slowest == task.stage:
        return f"{who}: the result waited {took}. It was the last one of its clock, so the caller woke up for it."
    return (
        f"{who}: the result waited {took}, as compute fetches no result before all tasks of the clock are done: stage "
        f"{slowest} took until {1000 * done_s:.4g} ms."
    )
