"""Explore schedules, buckets and rings in a notebook: pictures to change, to step through, to run.

    Timeline(simulate(one_f_one_b(4, 8)))

scene           a picture as data: panels of bars in rows
events_panel    event tables as a panel that explains itself
timeline        the one widget that shows panels
page            the same as a file that needs no kernel
wire, browser   what the browser gets, and what it does with it
fallback        picture and table where there is no browser

explorer        the frame of all explorers
gradients       sizes of a model's gradients, and when backward makes them
reducer         a backward pass with buckets, step by step
bucket_panels   the same as panels
buckets         bucket_explorer: sliders over them
overlap_run     buckets on real ranks; overlap_rank is what a rank does
worker_queue    a worker thread's queue, from a recorded Pipe
panel_figure    panels in print

Python decides, JavaScript draws: nothing is worked out in the browser that the engine knows.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.explore.buckets import bucket_explorer
    from labkit.explore.timeline import Timeline
    from labkit.explore.worker_queue import queue_table, queue_timeline, record_queue

_HOMES = {
    "Timeline": "timeline",
    "bucket_explorer": "buckets",
    "queue_table": "worker_queue",
    "queue_timeline": "worker_queue",
    "record_queue": "worker_queue",
}

__all__ = ["Timeline", "bucket_explorer", "queue_table", "queue_timeline", "record_queue"]


def __getattr__(name: str) -> Any:
    """Import what is asked for. Ranks come by here too, and need neither widgets nor pictures."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
