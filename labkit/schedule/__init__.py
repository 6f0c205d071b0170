"""Who computes what in which order: pipeline schedules as data, the ones of the papers, a validator, and torch's CSV.

    schedule = one_f_one_b(n_stages=4, n_micro=8)
    str(schedule.ops[3][1]) == "3B0"      # the second op of rank 3: stage 3, backward, micro-batch 0

A schedule says nothing about time. When each op runs follows from it, and :mod:`labkit.simulate` works that out.
"""

from labkit.schedule.dependencies import Flow, ScheduleError
from labkit.schedule.ops import EVENT_NAMES, Op
from labkit.schedule.papers import (
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from labkit.schedule.schedule import Schedule, flow, validate

__all__ = [
    "EVENT_NAMES",
    "Flow",
    "Op",
    "Schedule",
    "ScheduleError",
    "flow",
    "forward_only",
    "gpipe",
    "interleaved",
    "one_f_one_b",
    "validate",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
]
