"""Draw tables as pictures: timelines, schedules, bars and curves, each with its data and alt text.

    figure = timeline(run.events)
    save(figure, "two_ranks", alt="Both ranks compute at once and meet in one all-reduce.")

panel              an event table as bars in rows
layout             from an event table to such a panel
painter            panels in print
timelines          an event table as a timeline, one over another, several on one time axis with
                   their memory
charts             bars next to each other, and measured points with a predicted curve
marks              the reader's guess in a picture, and lines at values to compare with
figures            a figure by its name, with the words of notebooks/figures.toml
palette            every colour and hatching, of events and of guessed, predicted, measured numbers
picture            a figure as PNG, SVG, CSV and alt text
small_svg          the same SVG in a fifth of the bytes

Simulated and measured tables have the same columns, so one function draws both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.draw.palette import HATCHES, PALETTE, SOURCES, STYLES, darker, style_of
    from labkit.draw.picture import Picture, attach, new_axes, save, show
    from labkit.draw.timelines import overlay, timeline

_MODULES = {
    "HATCHES": "palette",
    "PALETTE": "palette",
    "Picture": "picture",
    "SOURCES": "palette",
    "STYLES": "palette",
    "attach": "picture",
    "darker": "palette",
    "new_axes": "picture",
    "overlay": "timelines",
    "save": "picture",
    "show": "picture",
    "style_of": "palette",
    "timeline": "timelines",
}

__all__ = list(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
