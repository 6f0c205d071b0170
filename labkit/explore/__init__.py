"""Explore schedules, buckets and rings in a notebook: pictures to change, to step through, to run.

    Timeline(simulate(one_f_one_b(4, 8)))

scene           a picture as data: panels of bars in rows
events_panel    event tables as a panel that explains itself
timeline        the one widget that shows panels
schedules       the schedule explorer: controls, two schedules, metrics, a run
state           what it shows, as a line of text
schedule_values from a state to schedules and their times; metrics
measure         a schedule run on real ranks, beside its ideal
pipeline_rank   what each of these ranks does
page            the same as a file that needs no kernel
wire, browser   what the browser gets, and what it does with it
cells           grids of cells that change from step to step
rings           the ring, the parameter server and the naive ring, step by step
recorded_ring   the reader's own ring, as real ranks recorded it
collectives_seen  seven collectives, as real ranks saw them
placement_map   which rank keeps which part of a model
marked          tensors whose numbers say whose they are
ring_widget     the ring explorer
grid_widgets    the explorers of collectives and of placement
fallback        picture and table where there is no browser

Python decides, JavaScript draws: nothing is worked out in the browser that the engine knows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.explore.grid_widgets import collectives_explorer, placement_explorer
    from labkit.explore.ring_widget import ring_explorer
    from labkit.explore.schedules import schedule_explorer
    from labkit.explore.timeline import Timeline

__all__ = ["Timeline", "collectives_explorer", "placement_explorer", "ring_explorer", "schedule_explorer"]

# Where each name is. It is loaded when it is first used: ranks come by here on their way to what
# they run, and need neither widgets nor matplotlib.
_HOMES = {
    "Timeline": "timeline",
    "collectives_explorer": "grid_widgets",
    "placement_explorer": "grid_widgets",
    "ring_explorer": "ring_widget",
    "schedule_explorer": "schedules",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
