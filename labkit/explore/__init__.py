"""Explore schedules, buckets and rings in a notebook: pictures to change, to step through, to run.

    Timeline(simulate(one_f_one_b(4, 8)))

schedules      schedule_explorer: change schedules, compare two, run them
puzzle         schedule_puzzle: build one by hand
buckets        bucket_explorer: a model's gradients in buckets, and when they are sent
grids          ring_explorer, fill_ring, collectives_explorer
worker_queue   record_queue: a Pipe's tasks while they wait

timeline             the one widget that shows every picture: event tables, panels
panel                bars in rows, as data
scene_message        what the page gets; event_tables: tables with facts about their ops
what_if              what a measured run lost to each cause, for the switches over its picture
browser              what the page does with it: it lays out, draws and explains
form_explorer        a picture over a form, of which every control is a trait
explorer             what all explorers share
run_buttons          a run on real ranks that a button starts; rank_run: how it is launched
html_table           numbers under a picture
standalone_html      the same as a file that needs no kernel
static_fallback      picture and table where there is no browser

Python hands over tables and orders, the page draws and explains them: live, while the kernel is
busy, and in a file. Four things are worked out twice, so that nothing waits: when ops run
(browser/earliest_times.js), why a rank is idle (browser/analysis.js), what a text of a state says
(browser/schedule_state.js), and which op of a puzzle may come next (browser/puzzle.js). What holds
them equal to Python is tests/explore: test_page_facts, test_what_if, schedules/test_state and
puzzle/test_puzzle_page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.explore.buckets.widget import bucket_explorer
    from labkit.explore.grids.ring_answer import fill_ring
    from labkit.explore.grids.widget import collectives_explorer, ring_explorer
    from labkit.explore.puzzle.widget import schedule_puzzle
    from labkit.explore.schedules.widget import schedule_explorer
    from labkit.explore.timeline import Timeline
    from labkit.explore.worker_queue import record_queue

_MODULES = {
    "Timeline": "timeline",
    "bucket_explorer": "buckets.widget",
    "collectives_explorer": "grids.widget",
    "fill_ring": "grids.ring_answer",
    "record_queue": "worker_queue",
    "ring_explorer": "grids.widget",
    "schedule_explorer": "schedules.widget",
    "schedule_puzzle": "puzzle.widget",
}

__all__ = list(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
