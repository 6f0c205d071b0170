"""labkit.simulate: every op starts as soon as it can, which gives the papers' closed forms."""

from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import at_stage, op_of_row, play, schedules, stage_times

from labkit.schedule import interleaved, zero_bubble_v
from labkit.simulate import makespan, simulate


def times_of(events):
    return {op_of_row(row): (row.start_s, row.end_s) for row in events.itertuples(index=False)}


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_op_starts_at_the_first_time_at_which_its_rank_is_free_and_its_input_there(data):
    schedule = data.draw(schedules())
    times, hop = data.draw(stage_times(schedule)), data.draw(st.sampled_from([0.0, 0.125, 2.5]))
    by_hand = play(schedule, lambda op: at_stage(times, op), transfer=lambda op: hop)
    assert times_of(simulate(schedule, **times, hop=hop)) == by_hand


def test_what_stays_on_a_rank_makes_no_hop():
    assert makespan(simulate(interleaved(1, 3, 3), hop=100.0)) == makespan(simulate(interleaved(1, 3, 3)))
    # one micro-batch of ZB-V: three hops down four ranks, and up again; forwards, then backwards;
    # none at the turn
    free, slow = (makespan(simulate(zero_bubble_v(4, 1), hop=hop)) for hop in (0.0, 10.0))
    assert slow - free == 12 * 10.0
