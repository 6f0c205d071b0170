"""Give the same work to one worker thread twice, or to two once: for notebook 09."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from labkit.launch import launch
from labkit.parallel.worker import Task, create_workers
from labkit.stats import Interval
from labkit.trace import span


def times_as_fast(works: Mapping[str, Callable[[], object]], rounds: int = 10) -> dict[str, Interval]:
    """Return for each work how many times as fast as one worker two are, if it is done twice.

    The works take turns in a process of one CPU thread. The first round warms up.
    """
    seconds = launch(_take_turns, works, rounds, world_size=1, threads=1).repeats()[1:]
    return {name: seconds.ratio(f"{name}, 1", f"{name}, 2") for name in works}


def _take_turns(works: Mapping[str, Callable[[], object]], rounds: int) -> None:
    pair = create_workers([torch.device("cpu")] * 2)
    for name, work in [*works.items()] * rounds:
        for workers in (pair[:1], pair):
            with span(f"{name}, {len(workers)}", "host"):
                tasks = [Task(work), Task(work)]
                workers[0].put(tasks[0])
                workers[-1].put(tasks[1])
                for task in tasks:
                    task.wait()
