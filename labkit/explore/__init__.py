"""Explore schedules, buckets and rings in a notebook: pictures to change, to step through, to run.

    Timeline(simulate(one_f_one_b(4, 8)))

scene           a picture as data: panels of bars in rows
events_panel    event tables as a panel that explains itself
timeline        the one widget that shows panels
page            the same as a file that needs no kernel
wire, browser   what the browser gets, and what it does with it
fallback        picture and table where there is no browser

Python decides, JavaScript draws: nothing is worked out in the browser that the engine knows.
"""

from labkit.explore.timeline import Timeline

__all__ = ["Timeline"]
