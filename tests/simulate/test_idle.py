"""labkit.simulate.idle: the critical path is as long as the run, and what is waited for is late."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import at_stage, eighths, feeder, op_of_row, play, schedules, stage_times, table_of

from labkit.schedule import Op, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import critical_path, explain_idle, makespan, simulate

pytestmark = pytest.mark.usefixtures("static")


def path_of(schedule, events):
    """Return the ops of the critical path, the seconds they take, and its hops between ranks."""
    rows = list(critical_path(schedule, events).itertuples(index=False))
    hops = sum(a.rank != b.rank for a, b in pairwise(rows))
    return [op_of_row(row) for row in rows], sum(row.end_s - row.start_s for row in rows), hops


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_simulated_makespan_is_the_length_of_its_critical_path(data):
    schedule = data.draw(schedules())
    seconds = st.one_of(eighths, st.floats(0.01, 10.0))  # with rounding and without
    hop = data.draw(st.one_of(st.just(0.0), seconds))
    events = simulate(schedule, **data.draw(stage_times(schedule, seconds)), hop=hop)
    _, length, hops = path_of(schedule, events)
    assert length + hops * hop == pytest.approx(makespan(events), rel=1e-9)


SCHEDULES = [gpipe(3, 4), one_f_one_b(4, 5), interleaved(2, 4, 2), zero_bubble_h1(3, 5), zero_bubble_v(3, 5)]
UNEVEN = {"forward": 1.0, "backward": 2.25, "input_grad": 1.25, "weight_grad": 0.75}


def instants(times, ops):
    """Yield when each idle time of a rank begins, has its middle, and is nearly over; with its next
    op."""
    edges = [0.0] + [edge for op in ops for edge in times[op]] + [max(end for _, end in times.values())]
    for i, (a, b) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
        if a < b:
            yield from ((time, ops[i] if i < len(ops) else None) for time in (a, (a + b) / 2, b - 1 / 64))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("hop", [0.0, 0.5])
def test_at_every_idle_instant_the_op_that_is_waited_for_is_late(schedule, hop):
    events = simulate(schedule, **UNEVEN, hop=hop)
    times = play(schedule, lambda op: at_stage(UNEVEN, op), transfer=lambda op: hop)
    codes = set()
    for rank, ops in enumerate(schedule.ops):
        for time, op in instants(times, ops):
            idle = explain_idle(schedule, events, rank, time)
            codes.add(idle.code)
            assert idle.op == op and str(idle) == idle.sentence
            assert idle.waits_for == (op and feeder(schedule, op))
            if op is None:
                assert idle.code == "done"
            elif times[idle.waits_for][1] > time:
                assert idle.code == ("activation" if op.kind == "F" else "gradient")
            else:
                assert idle.code == "hop" and f"under way until {times[op][0]:g} s" in idle.sentence
    assert codes == {"activation", "gradient", "done"} | ({"hop"} if hop else set())


def why(schedule, rank, time, **times):
    return str(explain_idle(schedule, simulate(schedule, **times), rank, time))


def test_sentences_name_the_op_that_is_waited_for_and_why_it_is_late():
    assert why(gpipe(3, 2), 2, 1.25, hop=0.5) == (
        "rank 2 waits for 1F0, the activation of micro-batch 0 from rank 1; it is late because the activation of micro-batch 0 "
        "from rank 0 is under way to rank 1 until 1.5 s"
    )
    assert why(gpipe(9, 1), 8, 0.0) == (
        "rank 8 waits for 7F0, the activation of micro-batch 0 from rank 7; it is late because rank 7 waits for 6F0, "
        "5 more ranks wait likewise, rank 1 waits for 0F0 and rank 0 is busy with 0F0 until 1 s"
    )
    assert why(one_f_one_b(2, 3), 0, 2.0).endswith("it is late because rank 1 is busy with it until 4 s")
    assert why(gpipe(2, 1), 1, 4.0) == "rank 1 has nothing left to do: its last op, 1B0, ended at 4 s"
    assert why(gpipe(2, 1), 1, 1.0) == "rank 1 is not idle: it is busy with 1F0 until 2 s"


def test_a_rank_that_has_all_it_needs_and_does_not_begin_shows_overhead_on_the_tables_clock():
    schedule, late = one_f_one_b(2, 3), Op("F", 0, 1)
    times = play(schedule, lambda op: 1.0, overhead=lambda op: 0.25 * (op == late))
    events = table_of(schedule, times, origin=10.0)
    idle = explain_idle(schedule, events, 0, 11.125)
    assert (idle.code, idle.op, idle.waits_for) == ("overhead", late, None)
    assert idle.sentence == "rank 0 has all that 0F1 needs, and begins it only at [~     11.25 s]"
    assert re.search(r"until \[~ +\S+ s\]$", str(explain_idle(schedule, events, 1, 10.5)))
    with pytest.raises(ValueError, match=r"time is 0\.0, expected a time in the run, from 10.0 to "):
        explain_idle(schedule, events, 0, 0.0)


@pytest.mark.parametrize("unit", [0.1, 1 / 3, 0.7])
def test_at_a_time_where_an_op_ends_or_begins_rounding_changes_no_reason(unit):
    """Oracle: the same schedule in whole units, whose sums are exact."""
    schedule = zero_bubble_h1(4, 8)
    whole, parts = (simulate(schedule, *(each * k for each in (7, 4, 2, 2)), hop=k) for k in (1, unit))
    for time in sorted({*whole["start_s"], *whole["end_s"]}):
        for rank in range(4):
            exact, found = explain_idle(schedule, whole, rank, time), explain_idle(schedule, parts, rank, time * unit)
            assert (found.code, found.op, found.waits_for) == (exact.code, exact.op, exact.waits_for), (rank, time)
