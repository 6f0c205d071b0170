"""Running a schedule on real ranks: the same ops as the ideal, on one clock, and what was not real
is said."""

import statistics

import pytest
from to_do import task

from labkit import launch
from labkit.explore.schedules import measure
from labkit.explore.schedules.measure import run_schedules
from labkit.schedule import ScheduleError, gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.simulate import TimedSchedule, makespan
from labkit.simulate.replay import replay_events

KEYS = ["rank", "name", "stage", "micro_batch"]


def check_run(run):
    """Both tables have the same ops in the same order, begin at 0, and the gap adds up."""
    for table in (run.ideal, run.measured):
        assert table["start_s"].min() == 0
        replay_events(run.schedule, table)  # one step of this schedule, in its order
    ideal, measured = (table[KEYS].sort_values(KEYS, ignore_index=True) for table in (run.ideal, run.measured))
    assert (ideal.to_numpy() == measured.to_numpy()).all()
    assert run.gap["total_s"].sum() == pytest.approx(makespan(run.measured) - makespan(run.ideal))


@task("pipe.5")
@pytest.mark.parametrize("schedule", [one_f_one_b(3, 3), zero_bubble_v(2, 3), gpipe(1, 2)])
def test_what_ran_is_the_schedule_with_stages_that_sleep(schedule):
    (run,) = run_schedules(TimedSchedule(schedule), unit_s=0.001, emulated=True)
    check_run(run)
    ranks = "1 rank" if schedule.n_ranks == 1 else f"{schedule.n_ranks} ranks"
    assert run.note.startswith(f"Ran on {ranks} that slept instead of computing (")
    assert "a unit of time was 1 ms." in run.note
    assert run.measured.attrs["emulated"] == run.gap.attrs["emulated"]
    assert makespan(run.ideal) == pytest.approx(0.001 * makespan(TimedSchedule(schedule).simulate()))


@task("pipe.5")
@pytest.mark.parametrize("make", [one_f_one_b, zero_bubble_h1])
def test_what_ran_is_the_schedule_with_stages_that_multiply_matrices(make, monkeypatch):
    monkeypatch.setattr(measure.machine, "cores", lambda: 2)
    (run,) = run_schedules(TimedSchedule(make(2, 3)), unit_s=0.001)
    check_run(run)
    assert run.note.startswith("Ran on 2 ranks that multiplied matrices (2 cores here)")
    assert "emulated" not in run.measured.attrs


@task("pipe.5")
def test_the_prediction_has_the_times_that_stages_took_between_the_rounds_not_those_asked_for(monkeypatch):
    run_on_ranks, ran = measure.run_on_ranks, []
    monkeypatch.setattr(
        measure, "run_on_ranks", lambda *given, **options: ran.append(run_on_ranks(*given, **options)) or ran[0]
    )
    (run,) = run_schedules(TimedSchedule(one_f_one_b(1, 3)), unit_s=0.001, emulated=False)
    alone = ran[0].events.query("step == -1")
    forward_s, backward_s = (
        (ops["end_s"] - ops["start_s"]).tolist()
        for ops in (alone[alone["name"] == kind] for kind in ("forward", "backward"))
    )
    assert len(forward_s) == len(backward_s) == measure.ROUNDS and len(alone) == 2 * measure.ROUNDS
    assert makespan(run.ideal) == pytest.approx(3 * (statistics.median(forward_s) + statistics.median(backward_s)))


def test_what_cannot_run_is_refused_before_any_rank_starts(monkeypatch):
    monkeypatch.setattr(launch, "launch", lambda *_, **__: pytest.fail("ranks were started"))
    schedule = gpipe(2, 2)
    with pytest.raises(ScheduleError, match="does not come before it"):
        run_schedules(TimedSchedule(type(schedule)([ops[::-1] for ops in schedule.ops])))
    with pytest.raises(ValueError, match="forward is -1, expected"):
        run_schedules(TimedSchedule(schedule, forward=-1), unit_s=0.01)


@pytest.mark.parametrize(("cores", "n", "sleep"), [(2, 2, False), (2, 3, True), (1, 2, True), (8, 8, False)])
def test_stages_sleep_where_ranks_outnumber_cores(cores, n, sleep, monkeypatch):
    given = []
    monkeypatch.setattr(measure.machine, "cores", lambda: cores)
    monkeypatch.setattr(
        measure, "_measure", lambda timed, emulated: given.append(emulated) or (timed, [[timed[0].simulate()]])
    )
    run_schedules(TimedSchedule(gpipe(n, 2)))
    run_schedules(TimedSchedule(gpipe(n, 2), hop=1))  # which is a link's, and wants small messages
    assert given == [sleep, True]
