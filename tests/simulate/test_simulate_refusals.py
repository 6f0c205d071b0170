"""labkit.simulate refuses what it cannot read, by table, column, op, rank or time."""

import functools
import math

import numpy as np
import pandas as pd
import pytest

from labkit.cost import ddp_step
from labkit.schedule import Op, Schedule, ScheduleError, gpipe, one_f_one_b, zero_bubble_h1
from labkit.simulate import (
    activations,
    bubble_fraction,
    by_stage,
    critical_path,
    explain_gap,
    explain_idle,
    explain_step,
    makespan,
    simulate,
    steps_of,
)
from labkit.trace import event_table

SCHEDULE = gpipe(2, 2)
EVENTS = simulate(SCHEDULE)
STEPS = pd.concat([EVENTS.assign(step=step) for step in (0, 1)])
STEP = ddp_step(1.0, [2.0, 1.0], 0.5, [100, 100], [[1], [0]], 2, 0.0, 100.0, host_s=0.25)
TWO_RANKS = pd.concat([STEP, STEP.assign(rank=1)], ignore_index=True)
SENT = event_table([(0, "comm", "all_reduce", None, None, None, 0, 8, 0.0, 1.0)])
WORK = event_table([(0, "compute", "work", None, None, None, None, None, 1.0, 1.0)])


def swapped(name):
    """The table with the times of micro-batches 0 and 1 of ``name`` on rank 0 exchanged."""
    changed, times = EVENTS.copy(), ["start_s", "end_s"]
    rows = EVENTS.index[(EVENTS["name"] == name) & (EVENTS["rank"] == 0)]
    changed.loc[rows, times] = EVENTS.loc[rows[::-1], times].to_numpy()
    return changed


def without(name):
    return STEP[STEP["name"] != name]


def idle(rank, time):
    return explain_idle(SCHEDULE, EVENTS, rank, time)


NOT_THE_SCHEDULE = [
    (EVENTS.drop(index=3), "events lacks 0B1, which is in the schedule"),
    (simulate(zero_bubble_h1(2, 2)), "events has 0I0, which is not in the schedule"),
    (pd.concat([EVENTS, EVENTS.assign(step=1)]), "events has 0F0 twice, .*: call labkit.trace.set_step.n."),
    (EVENTS.assign(rank=0), "events has 1F0 on rank 0, and .* has it on rank 1; .*by_stage"),
    (EVENTS.assign(rank=1 - EVENTS["rank"]), "0F0 on rank 1, and the schedule has it on rank 0$"),
    (swapped("forward"), "0F1 before 0F0 on rank 0, and the schedule has 0F0 first$"),
    (swapped("backward"), "0B1 before 0B0 on rank 0, and .* has 0B0 first; a Pipe runs"),
    (EVENTS.assign(end_s=EVENTS["end_s"] + 0.5), "0F1 on rank 0 begin before 0F0 has ended"),
    (EVENTS.assign(lane="comm"), "events has no op of a pipeline"),
]
NO_PAIR = [
    (simulate(one_f_one_b(2, 2)), EVENTS, ValueError, ".F1 before .B0 .*, and ideal has .B0 first"),
    (EVENTS, simulate(gpipe(3, 2)), ValueError, "measured has 2F0, which is not in ideal"),
    (STEPS, EVENTS, ValueError, "ideal has 0F0 twice"),
    (EVENTS.assign(rank=EVENTS["rank"] * 2), EVENTS, ValueError, "no op on rank 1, but on 2"),
    (EVENTS.iloc[1:], EVENTS, ScheduleError, "0F0"),
]
ANOTHER_STEP = [
    (STEP, without("optimizer"), None, "measured has no span named optimizer, which predicted"),
    (without("forward"), STEP, None, "predicted .* named forward, which measured has in step 0 of"),
    (STEP[STEP["lane"] == "comm"], STEP, None, "predicted has no span named forward, backward, opt"),
    (STEP, without("all_reduce"), None, "measured has no span in the lane comm .* torch's DDP"),
    (STEP, TWO_RANKS[:-1], None, "1 spans named all_reduce in step 0 of rank 1 and 2 on"),
    (STEP, pd.concat([TWO_RANKS, STEP.assign(step=1)]), None, "step 1 on some ranks only"),
    (STEP, STEP, [0, 7], "measured has no step 7, expected some of its steps, 0"),
    (STEP, STEP, [], "steps is empty"),
]
SECONDS = r"is .*, expected a finite number of seconds, more than 0"
NO_TIMES = [
    *[(time, ValueError, SECONDS) for time in (math.nan, np.array(-2.0), [1.0, 0])],
    *[(time, TypeError, SECONDS) for time in ("1.0", None, [1.0, "1"], np.ones((2, 2)))],
    (np.ones(5), ValueError, "has . times, expected one"),
]
HOP = "^hop is .*, expected a finite number of seconds"
EMPTY = event_table([])
CALLS = [
    (lambda: makespan(EMPTY), ValueError, "^events is empty, expected spans in it"),
    (lambda: bubble_fraction(EVENTS.drop(columns="end_s")), ValueError, "^events lacks the columns end_s, exp"),
    (lambda: activations(EVENTS.assign(end_s=math.nan)), ValueError, "^events: row 0 is from 0 to nan s, exp"),
    (lambda: critical_path(SCHEDULE, SCHEDULE), TypeError, "^events is of type Schedule, expected an event ta"),
    (functools.partial(explain_gap, EVENTS, EMPTY), ValueError, "^measured is empty"),
    (functools.partial(makespan, SENT), ValueError, "no spans in the lane compute, expected some: its lanes are comm"),
    (functools.partial(bubble_fraction, WORK), ValueError, "take 0 s"),
    (functools.partial(activations, WORK), ValueError, "no op of a pipeline, expected spans"),
    (functools.partial(by_stage, WORK), ValueError, "no row with a stage"),
    (functools.partial(steps_of, EVENTS.assign(step=None)), ValueError, "without a step, .*trace.set_step.n. before"),
    *[
        (functools.partial(explain, SCHEDULE, events), ValueError, message)
        for events, message in NOT_THE_SCHEDULE
        for explain in (critical_path, functools.partial(explain_idle, rank=0, time=0.0))
    ],
    *[(functools.partial(explain_gap, *tables), error, message) for *tables, error, message in NO_PAIR],
    *[(functools.partial(explain_step, *given), ValueError, message) for *given, message in ANOTHER_STEP],
    (functools.partial(idle, 2, 0.0), ValueError, "^rank is 2, expected one of the 2"),
    (functools.partial(idle, 0, 9.1), ValueError, "^time is 9.1, expected a time in the run"),
    (functools.partial(idle, 0, "1"), TypeError, "^time is '1', expected a time in the run, from 0.0 to 9.0 s"),
    *[
        (functools.partial(simulate, SCHEDULE, weight_grad=times), error, rf"^weight_grad(\[\d\])? {message}")
        for times, error, message in NO_TIMES
    ],
    (functools.partial(simulate, SCHEDULE, hop=-0.5), ValueError, f"{HOP}, 0"),
    (functools.partial(simulate, SCHEDULE, hop=[0.1, 0.2]), TypeError, HOP),
    (functools.partial(simulate, Schedule([[Op("B", 0, 0), Op("F", 0, 0)]])), ScheduleError, "0B0"),
    (functools.partial(simulate, SCHEDULE.ops), TypeError, "schedule is a list, expected a Schedule"),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_what_does_not_fit_together_or_cannot_be_is_refused_by_what_is_wrong_with_it(call, error, message):
    with pytest.raises(error, match=message):
        call()
