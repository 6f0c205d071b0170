"""Show a worker thread's queue from a recorded Pipe: task in, compute, result out.

In a notebook:

    events = record_queue(pipe, x)
    queue_table(events)                  # a row per task
    Timeline.of([queue_panel(events)], alt="…")
"""

from __future__ import annotations

import bisect
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
_ROWS = ("in the queue", "computing", "result waits")


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

    clock: int
    stage: int
    micro_batch: int
    put_s: float
    taken_s: float
    done_s: float
    fetched_s: float


def _tasks(events: pd.DataFrame) -> list[_Task]:
    """Return the tasks of recorded queues, in the order in which they were put."""
    keys = ["stage", "micro_batch"]
    columns = {"queued": ("put_s", "taken_s"), "result waits": ("done_s", "fetched_s")}
    halves = []
    for name, (first, last) in columns.items():
        half = events[events["name"] == name].sort_values("start_s", kind="stable")
        half = half.assign(turn=half.groupby(keys).cumcount())  # of passes recorded one after the other
        halves.append(half.rename(columns={"start_s": first, "end_s": last})[[*keys, "turn", first, last]])
    if halves[0].empty:
        raise ValueError(
            "no task of a queue was recorded: record a Pipe with labkit.explore.record_queue, or under "
            "labkit.parallel.worker.watch_queues()"
        )
    both = halves[0].merge(halves[1], on=[*keys, "turn"], how="inner").sort_values("put_s", kind="stable")
    return [
        _Task(stage + micro_batch, stage, micro_batch, *times)
        for stage, micro_batch, _, *times in zip(*(both[name].tolist() for name in both), strict=True)
    ]


def queue_table(events: pd.DataFrame) -> pd.DataFrame:
    """Return a row per task: its clock, and ms that it queued, was computed, and its result waited.

    Raises ValueError for a table without recorded queues.
    """
    rows = [
        (
            *task[:3],
            1000 * (task.taken_s - task.put_s),
            1000 * (task.done_s - task.taken_s),
            1000 * (task.fetched_s - task.done_s),
        )
        for task in _tasks(events)
    ]
    columns = ["clock", "stage", "micro_batch", "queued, ms", "computing, ms", "result waits, ms"]
    table = MeasuredTable(rows, columns=columns)
    table.attrs = dict(events.attrs)
    return table


def queue_panel(events: pd.DataFrame, title: str = "Worker threads and their queues") -> Panel:
    """Return a panel with three rows a stage: in the queue, computing, result that waits.

    The number in a bar is its micro-batch. Raises ValueError as :func:`queue_table`.
    """
    tasks = _tasks(events)
    n_stages = 1 + max(task.stage for task in tasks)
    bars, needs = [], []
    for task in tasks:
        times = task[3:]
        for row, name in enumerate(PLACES):
            top = 3.3 * task.stage + row + 0.07
            bars.append((times[row], times[row + 1], top, 0.86, name, 0, str(task.micro_batch)))
            needs.append(len(bars) - 2 if row else -1)
    steps = sorted((step for task in tasks for step in _told(task)), key=lambda step: step[0])
    clocks = [tasks[i].put_s for i in range(len(tasks)) if not i or tasks[i].clock != tasks[i - 1].clock]
    return Panel(
        pd.DataFrame(bars, columns=list(BAR_COLUMNS)),
        height=3.3 * n_stages - 0.3,
        rows=_labels(n_stages),
        title=title,
        needs=np.array(needs, dtype="int32"),
        clocks=np.array(clocks),
        moments=np.array(sorted({time for time, _ in steps})),
        explain=lambda i: _explained(tasks[i // 3], i % 3, tasks),
        narrate=lambda x: _narrated(steps, x),
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
    timeline.static_form = lambda: StaticForm(panel_figure([(panel, axis)], note), alt, waited)
    return timeline


def _labels(n_stages: int) -> list[Label]:
    labels = []
    for stage in range(n_stages):
        labels.append(Label(3.3 * stage + 1.5, f"stage {stage}"))
        labels += [Label(3.3 * stage + row + 0.5, text, small=True) for row, text in enumerate(_ROWS)]
    return labels


# --- in words -------------------------------------------------------------------------------------


def _told(task: _Task) -> list[tuple[float, str]]:
    i, j = task.micro_batch, task.stage
    return [
        (task.put_s, f"Task in: micro-batch {i} is put into the queue of stage {j}, in clock {task.clock}."),
        (task.taken_s, f"The worker thread of stage {j} takes micro-batch {i} and computes it."),
        (task.done_s, f"Stage {j} is done with micro-batch {i}: the result waits, the worker looks into its queue."),
        (task.fetched_s, f"Result out: the caller fetches micro-batch {i} from stage {j}."),
    ]


def _narrated(steps: list[tuple[float, str]], x: float) -> str:
    at = bisect.bisect_right([time for time, _ in steps], x)
    return steps[at - 1][1] if at else "Nothing has been put into a queue yet."


def _explained(task: _Task, place: int, tasks: list[_Task]) -> str:
    times = task[3:]
    took = f"{1000 * (times[place + 1] - times[place]):.4g} ms"
    who = f"Micro-batch {task.micro_batch} on stage {task.stage}, clock {task.clock}"
    if place == 0:
        return f"{who}: {took} in the queue, from put until the worker thread woke up and took it."
    if place == 1:
        return f"{who}: {took} of computing in the worker thread."
    slowest = max((other for other in tasks if other.clock == task.clock), key=lambda other: other.done_s)
    if slowest is task:
        return f"{who}: the result waited {took}. It was the last one of its clock, so the caller woke up for it."
    return (
        f"{who}: the result waited {took}, as compute fetches no result before all tasks of the clock are done: stage "
        f"{slowest.stage} took until {1000 * slowest.done_s:.4g} ms."
    )
