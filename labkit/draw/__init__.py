"""Event table -> matplotlib axes: a timeline, or one over another, in one palette.

    save(timeline(run.events), "two_ranks", alt="Both ranks compute at once and meet in one all-reduce.")

Simulated and measured tables have the same columns, so one function draws both, and :func:`overlay` one over the other.
Pipeline schedules as papers print them are drawn by :mod:`labkit.draw.schedule_figures` (several on one time axis) and
:mod:`labkit.draw.schedule_tables` (as a table).
"""

from labkit.draw.palette import HATCHES, PALETTE, STYLES, darker, style_of
from labkit.draw.picture import Picture, new_axes, save, show
from labkit.draw.schedule_figures import schedules
from labkit.draw.schedule_tables import schedule_table
from labkit.draw.timelines import overlay, timeline

__all__ = [
    "HATCHES",
    "PALETTE",
    "STYLES",
    "Picture",
    "darker",
    "new_axes",
    "overlay",
    "save",
    "schedule_table",
    "schedules",
    "show",
    "style_of",
    "timeline",
]
