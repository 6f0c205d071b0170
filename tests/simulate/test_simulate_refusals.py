"""labkit.simulate refuses what it cannot read, by table, column, op, rank or time."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from pipelines import EVENT_NAMES

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
    hidden_and_exposed,
    makespan,
    median_step,
    simulate,
    steps_of,
)
from labkit.trace import event_table

SCHEDULE = gpipe(2, 2)
EVENTS = simulate(SCHEDULE)

# --- tables that are not event tables -------------------------------------------------------------

READERS = {
    "makespan": makespan,
    "bubble_fraction": bubble_fraction,
    "activations": activations,
    "by_stage": by_stage,
    "critical_path": lambda events: critical_path(SCHEDULE, events),
    "explain_gap": lambda events: explain_gap(EVENTS, events),
    "the ideal of explain_gap": lambda events: explain_gap(events, EVENTS),
    "explain_step": lambda events: explain_step(STEP, events),
    "the prediction of explain_step": lambda events: explain_step(events, STEP),
    "hidden_and_exposed": hidden_and_exposed,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    "events, error, message",
    [
        (event_table([]), ValueError, "is empty, expected spans in it"),
        (EVENTS.drop(columns="end_s"), ValueError, "lacks the columns end_s, expected"),
        (EVENTS.assign(end_s=math.nan), ValueError, "row 0 is from 0 to nan s, expected"),
        (EVENTS.assign(end_s=0.5), ValueError, "row 1 is from 1 to 0.5 s"),
        (SCHEDULE, TypeError, "is of type Schedule, expected an event table"),
    ],
)
def test_what_is_no_event_table_is_refused(read, events, error, message):
    with pytest.raises(error, match=f"^(events|ideal|predicted|measured):? {message}"):
        read(events)


SENT = event_table([(0, "comm", "all_reduce", None, None, None, 0, 8, 0.0, 1.0)])
WORK = event_table([(0, "compute", "work", None, None, None, None, None, 1.0, 1.0)])


@pytest.mark.parametrize(
    "read, events, message",
    [
        (makespan, SENT, "no spans in the lane compute, expected some: its lanes are comm"),
        (bubble_fraction, SENT, "no spans in the lane compute"),
        (bubble_fraction, WORK, "take 0 s"),
        (activations, WORK, "no op of a pipeline, expected spans"),
        (by_stage, WORK, "no row with a stage"),
        (lambda events: steps_of(events, within="x"), EVENTS, "no op within a span named 'x'"),
        (median_step, [], "no step is given"),
        (hidden_and_exposed, WORK, "no span of events has a step"),
    ],
)
def test_a_table_without_what_is_asked_for_says_what_it_lacks(read, events, message):
    with pytest.raises(ValueError, match=message):
        read(events)


# --- what is not one step of the schedule ---------------------------------------------------------


def swapped(name):
    """The table with the times of micro-batches 0 and 1 of ``name`` on rank 0 exchanged."""
    changed, times = EVENTS.copy(), ["start_s", "end_s"]
    rows = EVENTS.index[(EVENTS["name"] == name) & (EVENTS["rank"] == 0)]
    changed.loc[rows, times] = EVENTS.loc[rows[::-1], times].to_numpy()
    return changed


@pytest.mark.parametrize(
    "events, message",
    [
        (EVENTS.drop(index=3), "events lacks 0B1, which is in the schedule"),
        (simulate(zero_bubble_h1(2, 2)), "events has 0I0, which is not in the schedule"),
        (pd.concat([EVENTS, EVENTS.assign(step=1)]), "events has 0F0 twice, .*: record each"),
        (EVENTS.assign(rank=0), "events has 1F0 on rank 0, and .* has it on rank 1; .*by_stage"),
        (EVENTS.assign(rank=1 - EVENTS["rank"]), "0F0 on rank 1, and the schedule has it on rank 0$"),
        (swapped("forward"), "0F1 before 0F0 on rank 0, and the schedule has 0F0 first$"),
        (swapped("backward"), "0B1 before 0B0 on rank 0, and .* has 0B0 first; a Pipe runs"),
        (EVENTS.assign(end_s=EVENTS["end_s"] + 0.5), "0F1 on rank 0 begin before 0F0 has ended"),
        (EVENTS.assign(lane="comm"), "events has no op of a pipeline"),
    ],
)
def test_events_that_are_not_one_step_of_the_schedule_are_refused_by_op(events, message):
    for explain in (critical_path, lambda *both: explain_idle(*both, rank=0, time=0.0)):
        with pytest.raises(ValueError, match=message):
            explain(SCHEDULE, events)


STEPS = pd.concat([EVENTS.assign(step=step) for step in (0, 1)])


@pytest.mark.parametrize(
    "ideal, measured, error, message",
    [
        (simulate(one_f_one_b(2, 2)), EVENTS, ValueError, ".F1 before .B0 .*, and ideal has .B0 first"),
        (EVENTS, simulate(gpipe(3, 2)), ValueError, "measured has 2F0, which is not in ideal"),
        (EVENTS, STEPS, ValueError, r"measured has 0F0 twice, .*events\[events.step == 0\]"),
        (STEPS, EVENTS, ValueError, "ideal has 0F0 twice"),
        (EVENTS.assign(rank=EVENTS["rank"] * 2), EVENTS, ValueError, "no op on rank 1, but on 2"),
        (EVENTS.iloc[1:], EVENTS, ScheduleError, "0F0"),
    ],
)
def test_two_tables_that_do_not_belong_together_are_refused_by_op(ideal, measured, error, message):
    with pytest.raises(error, match=message):
        explain_gap(ideal, measured)


@pytest.mark.parametrize(
    "rank, time, error, message",
    [
        *[(rank, 0.0, ValueError, "rank is .*, expected one of the 2") for rank in (-1, 2, 1.0, "0")],
        *[(0, time, ValueError, "time is .*, expected a time in the run") for time in (-0.1, 9.1)],
        (0, "1", TypeError, "time is '1', expected a time in the run, from 0.0 to 9.0 s"),
    ],
)
def test_a_rank_and_a_time_outside_the_run_are_refused(rank, time, error, message):
    with pytest.raises(error, match=f"^{message}"):
        explain_idle(SCHEDULE, EVENTS, rank, time)


# --- steps of different kinds ---------------------------------------------------------------------

STEP = ddp_step(1.0, [2.0, 1.0], 0.5, [100, 100], [[1], [0]], 2, 0.0, 100.0, host_s=0.25)
TWO_RANKS = pd.concat([STEP, STEP.assign(rank=1)], ignore_index=True)


def without(name):
    return STEP[STEP["name"] != name]


@pytest.mark.parametrize(
    "predicted, measured, steps, message",
    [
        (STEP, without("optimizer"), None, "measured has no span named optimizer, which predicted"),
        (without("forward"), STEP, None, "predicted .* named forward, which measured has in step 0 of"),
        (STEP[STEP["lane"] == "comm"], STEP, None, "predicted has no span named forward, backward, opt"),
        (STEP, without("all_reduce"), None, "measured has no span in the lane comm .* torch's DDP"),
        (STEP, TWO_RANKS[:-1], None, "1 spans named all_reduce in step 0 of rank 1 and 2 on"),
        (STEP, pd.concat([TWO_RANKS, STEP.assign(step=1)]), None, "step 1 on some ranks only"),
        (STEP, STEP, [0, 7], "measured has no step 7, expected some of its steps, 0"),
        (STEP, STEP, [], "steps is empty"),
        (STEP, STEP.assign(step=pd.NA), [0], "measured has no step 0"),
    ],
)
def test_tables_that_are_not_the_same_kind_of_step_are_refused(predicted, measured, steps, message):
    with pytest.raises(ValueError, match=message):
        explain_step(predicted, measured, steps)


# --- what cannot be simulated ---------------------------------------------------------------------

SECONDS = r"is .*, expected a finite number of seconds, more than 0"


@pytest.mark.parametrize("name", EVENT_NAMES.values())
@pytest.mark.parametrize(
    "times, error, message",
    [
        *[(time, ValueError, SECONDS) for time in (0, math.nan, math.inf, np.array(-2.0))],
        *[(time, TypeError, SECONDS) for time in (True, "1.0", b"1", None, {0: 1.0})],
        *[([1.0, time], ValueError, SECONDS) for time in (0, math.nan)],
        *[([1.0, time], TypeError, SECONDS) for time in (True, "1", [1.0])],
        (np.array([[1.0, 1.0], [1.0, 1.0]]), TypeError, SECONDS),
        *[(times, ValueError, "has . times, expected one") for times in ((1.0,), np.ones(5))],
    ],
)
def test_a_time_that_is_not_positive_or_not_one_per_stage_is_refused(name, times, error, message):
    with pytest.raises(error, match=rf"^{name}(\[\d\])? {message}"):
        simulate(SCHEDULE, **{name: times})


@pytest.mark.parametrize(
    "schedule, hop, error, message",
    [
        *[
            (SCHEDULE, hop, ValueError, "^hop is .*, expected a finite number of seconds, 0")
            for hop in (-0.5, math.inf)
        ],
        (SCHEDULE, [0.1, 0.2], TypeError, "^hop is .*, expected a finite number of seconds"),
        (Schedule([[Op("B", 0, 0), Op("F", 0, 0)]]), 0.0, ScheduleError, "0B0"),
        (SCHEDULE.ops, 0.0, TypeError, "schedule is a list, expected a Schedule"),
    ],
)
def test_a_hop_and_a_schedule_that_cannot_be_are_refused(schedule, hop, error, message):
    with pytest.raises(error, match=message):
        simulate(schedule, hop=hop)
