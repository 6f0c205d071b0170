"""Work out when it should happen, and explain why: makespan, bubble, activations, idle time, gaps.

    events = simulate(one_f_one_b(n_stages=4, n_micro=8), forward=1.0, backward=2.0)
    makespan(events) == 33.0 and bubble_fraction(events) == 3 / 11

simulator   a schedule and the time each op takes become an event table, the same that a run gives
measures    what an event table says: makespan, bubble, activations
replay      a schedule and its event table op by op: what delayed each op
idle        the critical path, and why a rank is idle at some time
gap         where the time went that a run took longer than it should
step        the same for a step of data-parallel training, and which part of communication hides

A simulated unit of time is one second. Where a forward pass takes 1, pictures call it a unit.
"""

from labkit.simulate.gap import explain_gap
from labkit.simulate.idle import Idle, critical_path, explain_idle
from labkit.simulate.measures import (
    activations,
    bubble_fraction,
    by_stage,
    makespan,
    peak_activations,
    steps_of,
)
from labkit.simulate.simulator import TimedSchedule, simulate
from labkit.simulate.step import explain_step, explain_turns, largest_difference

__all__ = [
    "Idle",
    "TimedSchedule",
    "activations",
    "bubble_fraction",
    "by_stage",
    "critical_path",
    "explain_gap",
    "explain_idle",
    "explain_step",
    "explain_turns",
    "largest_difference",
    "makespan",
    "peak_activations",
    "simulate",
    "steps_of",
]
