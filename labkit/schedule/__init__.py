"""Say who computes what in which order: pipeline schedules as data, without times.

    schedule = one_f_one_b(n_stages=4, n_micro=8)
    str(schedule.ops[3][1]) == "3B0"   # the second op of rank 3: stage 3, backward, micro-batch 0

ops            what an op is, and the name of its event
schedule       for each rank its ops, in order; whether that can run; torch's CSV of it
papers         GPipe, 1F1B, interleaved 1F1B and the zero-bubble schedules
dependencies   what each op waits for, and when that lets it run
p2p_order      one order for all messages between ranks

When each op runs follows from a schedule, and :mod:`labkit.simulate` works that out.
"""

from labkit.schedule.dependencies import Dependencies, ScheduleError
from labkit.schedule.ops import EVENT_KINDS, EVENT_NAMES, Op
from labkit.schedule.papers import (
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from labkit.schedule.schedule import Schedule, find_dependencies, validate

__all__ = [
    "EVENT_KINDS",
    "EVENT_NAMES",
    "Dependencies",
    "Op",
    "Schedule",
    "ScheduleError",
    "find_dependencies",
    "forward_only",
    "gpipe",
    "interleaved",
    "one_f_one_b",
    "validate",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
]
