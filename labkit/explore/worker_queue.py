"""Record the queues of a Pipe's worker threads: task in, compute, result out.

In a notebook:

    events = record_queue(pipe, x)
    Timeline(events)                  # a row per stage and lane
    timings(events)                   # how long its tasks queued, were computed, and waited in all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    import torch

    from labkit.pipe import Pipe

PLACES = ("queued", "forward", "result waits")  # of a task, one after the other, by their events


def record_queue(pipe: Pipe, x: torch.Tensor, warm_up: int = 2) -> pd.DataFrame:
    """Run ``pipe(x)``, and return when each task was put, taken, done and fetched: an event table.

    Events are ``queued``, ``forward`` and ``result waits``, each with stage and micro-batch, from
    the first put on; ``rank`` is the stage, as each has a thread. ``warm_up`` passes go before it.
    Backward has no tasks: see the caveats of :class:`labkit.pipe.Pipe`.

    Raises what the Pipe raises: TodoError while pipe.3 is to do.
    """
    from labkit.parallel.pipe.task_waits import watch_queues
    from labkit.simulate import by_stage
    from labkit.trace import record

    for _ in range(warm_up):
        pipe(x)
    with record() as recording, watch_queues():
        pipe(x)
    events = by_stage(recording.events[recording.events["name"].isin(PLACES)])
    first_put_s = events["start_s"].min()
    return events.assign(start_s=events["start_s"] - first_put_s, end_s=events["end_s"] - first_put_s)


def waits_ms(events: pd.DataFrame) -> dict[str, float]:
    """Return how many ms micro-batches wait in all, by place: ``"in the queue of stage 0"``."""
    from labkit.trace import timings

    total_s = timings(events).set_index(["name", "rank"])["total_s"]
    places = {"in the queue of stage {}": "queued", "finished, after stage {}": "result waits"}
    return {
        place.format(stage): 1000 * total_s[name, stage]
        for place, name in places.items()
        for stage in sorted(events["rank"].unique())
    }
