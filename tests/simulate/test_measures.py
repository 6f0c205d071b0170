"""labkit.simulate.measures: makespan, bubble and activations, simulated or measured."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.base.formats import MeasuredTable
from labkit.schedule import forward_only, gpipe, zero_bubble_h1
from labkit.simulate import (
    activations,
    bubble_fraction,
    by_stage,
    critical_path,
    explain_gap,
    explain_step,
    makespan,
    peak_activations,
    simulate,
    steps_of,
)
from labkit.trace import event_table


def spans(*computed, lane="compute", name="work"):
    return event_table([(rank, lane, name, None, None, None, None, None, a, b) for rank, a, b in computed])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 6)), min_size=1))
def test_the_bubble_is_what_one_counts_second_by_second(drawn):
    computed = [(rank, start, start + length) for rank, start, length in drawn]
    busy = {(rank, second) for rank, start, end in computed for second in range(start, end)}
    ranks, seconds = {rank for rank, _, _ in computed}, range(min(c[1] for c in computed), max(c[2] for c in computed))
    assert makespan(spans(*computed)) == len(seconds)
    assert bubble_fraction(spans(*computed)) == pytest.approx(1 - len(busy) / (len(ranks) * len(seconds)))


def test_waiting_and_the_hosts_work_are_no_work_and_a_rank_that_only_waits_is_idle_all_the_time():
    others = pd.concat([spans((0, 0, 9), (1, 0, 3), lane="comm"), spans((1, 0, 9), lane="host")])
    for computed, bubble in ((spans((0, 2, 4), (1, 3, 4)), 1 / 4), (spans((0, 2, 4)), 1 / 2)):
        table = pd.concat([computed, others])
        assert makespan(table) == 2 and bubble_fraction(table) == bubble


def three_steps(durations=(5.0, 1.0, 3.0)):
    """Steps of that makespan each, one after the other, with something else between them."""
    ops = spans(*((0, 100.0 * i, 100.0 * i + each) for i, each in enumerate(durations)), name="forward")
    ops = ops.assign(step=range(len(durations)), stage=0, micro_batch=0)
    others = spans(*((0, 100.0 * i - 1, 100.0 * i + 50) for i in range(len(durations))), name="step", lane="host")
    return pd.concat([ops, others, spans((0, 60.0, 99.0), name="optimizer")]).sample(frac=1, random_state=1)


def test_ops_are_told_apart_by_their_step_on_all_ranks():
    events = three_steps()
    steps = steps_of(events)
    assert [makespan(step) for step in steps] == [5.0, 1.0, 3.0]
    assert all((step["name"] == "forward").all() for step in steps)
    late = events.assign(rank=1, start_s=events["start_s"] + 2, end_s=events["end_s"] + 2)  # a rank that begins later
    both = steps_of(pd.concat([events, late]))
    assert [(len(step), makespan(step)) for step in both] == [(2, 7.0), (2, 3.0), (2, 5.0)]


@pytest.mark.parametrize("schedule", [forward_only(3, 4), gpipe(3, 4), zero_bubble_h1(3, 4)])
def test_a_step_that_is_run_twice_keeps_as_many_activations_as_once_with_and_without_numbers(schedule):
    once = simulate(schedule)
    late = once.assign(start_s=once["start_s"] + 100, end_s=once["end_s"] + 100)
    for numbers in ((None, None), (0, 1)):
        twice = pd.concat([each.assign(step=number) for each, number in zip((once, late), numbers, strict=True)])
        assert peak_activations(twice.astype({"step": "Int64"})) == peak_activations(once)


@pytest.mark.parametrize(
    "read",
    [
        by_stage,
        activations,
        lambda events: critical_path(gpipe(2, 2), events),
        lambda events: explain_gap(simulate(gpipe(2, 2)), events),
        lambda events: explain_step(events, events.assign(step=0)),
    ],
    ids=["by_stage", "activations", "critical_path", "explain_gap", "explain_step"],
)
def test_what_is_read_off_a_measured_table_prints_as_measured_and_says_what_was_emulated(read):
    simulated = simulate(gpipe(2, 2))
    measured = event_table(simulated.to_dict("list"), measured=True, emulated="emulated link: slow")
    assert type(read(simulated)) is pd.DataFrame
    assert isinstance(read(measured), MeasuredTable) and read(measured).attrs["emulated"] == "emulated link: slow"
