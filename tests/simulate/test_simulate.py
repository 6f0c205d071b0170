"""labkit.simulate: every op starts as soon as it can, which gives the papers' closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import at_stage, op_of_row, play, schedules, stage_times

from labkit.schedule import forward_only, gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_h2, zero_bubble_v
from labkit.simulate import bubble_fraction, makespan, peak_activations, simulate

# --- when ops run ---------------------------------------------------------------------------------


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


# --- closed forms: more of them, of the orders themselves, are in tests/schedule ------------------


@pytest.mark.parametrize(
    "make, backward, total_s, bubble, peaks",
    [
        (forward_only, 2, 11.0, 3 / 11, [8, 8, 8, 8]),
        (gpipe, 1, 22.0, 3 / 11, [8, 8, 8, 8]),
        (gpipe, 2, 33.0, 3 / 11, [8, 8, 8, 8]),
        (one_f_one_b, 1, 22.0, 3 / 11, [4, 3, 2, 1]),
        (one_f_one_b, 2, 33.0, 3 / 11, [4, 3, 2, 1]),
        (zero_bubble_h1, 2, 27.0, 3 / 27, [4, 4, 4, 4]),
        (zero_bubble_h2, 2, 27.0, 3 / 27, [7, 7, 7, 7]),
    ],
)
def test_four_stages_and_eight_micro_batches(make, backward, total_s, bubble, peaks):
    events = simulate(make(4, 8), backward=backward)
    assert (makespan(events), bubble_fraction(events)) == pytest.approx((total_s, bubble))
    assert list(peak_activations(events).values()) == peaks
