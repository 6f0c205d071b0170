"""What the schedule explorer shows: schedules from a state, four bubbles, peaks, critical paths;
closed forms are those of the papers (see labkit/schedule/papers.py)."""

import pytest

from labkit.explore.schedules.state import SCHEDULES, Choice, State, parse
from labkit.explore.schedules.values import bubbles, metrics_of, n_micro_of, timed_schedule
from labkit.schedule import gpipe, one_f_one_b, validate, zero_bubble_h1, zero_bubble_h2
from labkit.simulate import bubble_fraction, critical_path, makespan, peak_activations, simulate
from labkit.simulate.replay import replay_events

COUNTS = [(n, m) for n in (1, 2, 3, 4, 8) for m in (8, 9, 16)]


def run_of(schedule, *times, **options):
    return replay_events(schedule, simulate(schedule, *times, **options))


def shown(text):
    """The first schedule of a state, and its metrics."""
    state = parse(text)
    timed = timed_schedule(state, state.choice)
    return timed.schedule, metrics_of(run_of(*timed))


# --- four bubbles ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), COUNTS)
@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (1, 2), (0.5, 3)])
def test_bubbles_of_gpipe_and_1f1b_are_the_closed_forms(make, n, m, forward, backward):
    found = bubbles(run_of(make(n, m), forward, backward))
    assert found.fraction == pytest.approx((n - 1) / (m + n - 1))
    assert found.of_ideal == pytest.approx((n - 1) / m)
    assert found.idle_s == pytest.approx((n - 1) * (forward + backward))
    assert found.inside == pytest.approx((n - 1) / (m + n - 1))  # rank 0 begins first and ends last


@pytest.mark.parametrize(("n", "m"), [(2, 8), (4, 8), (8, 16)])
def test_bubbles_of_zero_bubble_schedules_are_the_closed_forms(n, m):
    h1, h2 = (bubbles(run_of(make(n, m), 1.2, 9, 1, 0.5)) for make in (zero_bubble_h1, zero_bubble_h2))
    assert h1.idle_s == pytest.approx((n - 1) * (1.2 + 1 - 0.5))
    assert h1.of_ideal == pytest.approx((n - 1) * (1.2 + 1 - 0.5) / (m * 2.7))
    even = bubbles(run_of(zero_bubble_h2(n, max(m, 2 * n - 1))))
    assert even.inside == pytest.approx(0)  # ranks begin and end one after the other, with no gap between
    assert even.fraction > 0
    assert h2.idle_s < h1.idle_s


def test_the_first_bubble_is_the_one_of_the_lab_also_where_stages_differ():
    events = simulate(one_f_one_b(4, 8), [1, 2, 1, 3], [2, 4, 2, 5], hop=0.3)
    assert bubbles(replay_events(one_f_one_b(4, 8), events)).fraction == pytest.approx(bubble_fraction(events))


def test_the_fourth_bubble_is_that_of_the_rank_that_takes_longest():
    run = run_of(gpipe(2, 2), [1, 3], [1, 3])  # rank 1 computes for 12 without a gap, rank 0 for 4 of 14
    assert run.makespan_s == 14
    assert bubbles(run).inside == pytest.approx(1 - 4 / 14)


def test_ops_that_take_no_time_have_no_bubble():
    events = simulate(gpipe(2, 2)).assign(start_s=0.0, end_s=0.0)
    with pytest.raises(ValueError, match="all ops take 0 s"):
        bubbles(replay_events(gpipe(2, 2), events))


# --- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "peak"), [("gpipe", 8), ("1f1b", 4), ("zb-h1", 4), ("zb-h2", 7), ("zb-v", 4)])
def test_the_peak_is_that_of_the_paper(name, peak):
    assert shown(f"{name} n=4 m=8")[1].peak == peak


def test_the_critical_path_computes_all_the_time_but_for_hops():
    assert shown("1f1b n=4 m=8")[1].critical_share == 1
    assert shown("gpipe n=4 m=8 hop=0.5")[1].critical_share == pytest.approx(33 / 36)


@pytest.mark.parametrize("name", SCHEDULES)
def test_metrics_are_those_of_the_tables(name):
    state = parse(f"{name} n=4 m=8 F=1,2,1,3 I=1 W=0.5,1,1,1 hop=0.25")
    timed = timed_schedule(state, state.choice)
    events = timed.simulate()
    metrics, peaks = metrics_of(run_of(*timed)), peak_activations(events)
    assert metrics.makespan_s == makespan(events)
    assert metrics.critical_ops == len(critical_path(timed.schedule, events))
    assert metrics.peak == max(peaks.values()) * 4 / timed.schedule.n_stages
    assert metrics.peak_rank == min(rank for rank in peaks if peaks[rank] == max(peaks.values()))


# --- from a state to schedules --------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", [1, 2, 5, 16])
@pytest.mark.parametrize("m", [1, 7, 64])
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


def test_every_schedule_computes_the_same_model():
    totals = set()
    for name in list(SCHEDULES)[1:]:
        state = parse(f"{name} n=4 m=8 F=1,1,1,2 I=1,1,1,3 W=2")
        events = timed_schedule(state, state.choice).simulate()
        totals.add(round(float((events["end_s"] - events["start_s"]).sum()), 6))
    assert totals == {8 * (5 + 6 + 8)}


def test_what_is_slow_stays_in_its_place_in_the_model():
    timed = timed_schedule(state := parse("zb-v n=2 m=4 F=1,3"), state.choice)
    assert timed.per_stage("forward") == [0.5, 0.5, 1.5, 1.5]
