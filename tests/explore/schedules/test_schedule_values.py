"""The schedules that a state of the explorer says, and the times of their stages."""

import pytest

from labkit.explore.schedules.state import SCHEDULES, Choice, State, parse
from labkit.explore.schedules.tables import metrics
from labkit.explore.schedules.values import n_micro_of, timed_schedule
from labkit.schedule import validate


def test_with_equal_stages_and_no_hop_the_critical_path_computes_all_the_time_in_one_op_a_clock():
    timed = timed_schedule(state := parse("gpipe n=4 m=8"), state.choice)
    assert metrics([timed], cap=None).loc["critical path"].tolist() == ["22 ops, computing 100.0 % of the time"]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", [1, 5, 16])
@pytest.mark.parametrize("m", [1, 64])
def test_at_the_ends_of_its_sliders_every_schedule_can_run(name, n, m):
    for v in (1, 4) if name == "interleaved" else (2,):
        state = State(Choice(name, v), n_ranks=n, n_micro=m)
        timed = timed_schedule(state, state.choice)
        validate(timed.schedule)
        assert (timed.schedule.n_ranks, timed.schedule.n_micro) == (n, n_micro_of(state))


def test_interleaving_takes_the_nearest_number_of_micro_batches_that_divides():
    assert n_micro_of(parse("interleaved n=4 m=8")) == 8
    assert n_micro_of(parse("interleaved n=4 m=9")) == 10  # two rounds of five; as near as 8, and more
    assert n_micro_of(parse("interleaved n=4 m=11")) == 12
    assert n_micro_of(parse("interleaved n=4 m=10")) == 10
    assert n_micro_of(parse("interleaved n=5 m=64")) == 60  # not 65: the slider ends at 64
    assert n_micro_of(parse("gpipe n=4 m=9")) == 9
    assert n_micro_of(parse("gpipe n=4 m=9 vs interleaved")) == 10  # both, or they could not be compared
