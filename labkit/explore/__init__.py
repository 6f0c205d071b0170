"""Explore schedules, buckets and rings in a notebook: pictures to change, to step through, to run.

    Timeline(simulate(one_f_one_b(4, 8)))

scene           a picture as data: panels of bars in rows
events_panel    event tables as a panel that explains itself
timeline        the one widget that shows panels
explorer        the frame of all explorers
page            the same as a file that needs no kernel
wire, browser   what the browser gets, and what it does with it
fallback        picture and table where there is no browser

schedules       the schedule explorer: controls, two schedules, metrics, a run
state           what it shows, as a line of text
schedule_values from a state to schedules and their times; metrics
measure         a schedule run on real ranks, beside its ideal
pipeline_rank   what each of these ranks does
puzzle          schedules to build by hand: a board, levels, hints

gradients       sizes of a model's gradients, and when backward makes them
reducer         a backward pass with buckets, step by step
bucket_panels   the same as panels
buckets         bucket_explorer: sliders over them
overlap_run     buckets on real ranks; overlap_rank is what a rank does
worker_queue    a worker thread's queue, from a recorded Pipe
panel_figure    panels in print

cells           grids of cells that change from step to step
rings           the ring, the parameter server and the naive ring, step by step
recorded_ring   the reader's own ring, as it was recorded in real ranks
collectives_seen  seven collectives, as real ranks saw them
placement_map   where the parts of a model live; placement_rank weighs them in a rank
marked          tensors whose numbers say whose they are
ring_widget     ring_explorer; grid_widgets: collectives and placement to step through

Python decides, JavaScript draws: nothing is worked out in the browser that the engine knows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.explore.buckets import bucket_explorer
    from labkit.explore.gradients import Gradients
    from labkit.explore.grid_widgets import collectives_explorer, placement_explorer
    from labkit.explore.puzzle.widget import schedule_puzzle
    from labkit.explore.ring_widget import ring_explorer
    from labkit.explore.schedules import schedule_explorer
    from labkit.explore.timeline import Timeline
    from labkit.explore.worker_queue import queue_table, queue_timeline, record_queue

# Where each name is. It is loaded when it is first used: ranks come by here on their way to what
# they run, and need neither widgets nor matplotlib.
_HOMES = {
    "Gradients": "gradients",
    "Timeline": "timeline",
    "bucket_explorer": "buckets",
    "collectives_explorer": "grid_widgets",
    "placement_explorer": "grid_widgets",
    "queue_table": "worker_queue",
    "queue_timeline": "worker_queue",
    "record_queue": "worker_queue",
    "ring_explorer": "ring_widget",
    "schedule_explorer": "schedules",
    "schedule_puzzle": "puzzle.widget",
}

__all__ = [
    "Gradients",
    "Timeline",
    "bucket_explorer",
    "collectives_explorer",
    "placement_explorer",
    "queue_table",
    "queue_timeline",
    "record_queue",
    "ring_explorer",
    "schedule_explorer",
    "schedule_puzzle",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
