"""labkit.simulate.gap: what was lost is found where it was put, and all of it adds up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import at_stage, ops_of, play, schedules, stage_times, table_of

from labkit.schedule import Op, gpipe, interleaved, one_f_one_b, zero_bubble_h1
from labkit.simulate import explain_gap, makespan, simulate

CAUSES = ["op_time_s", "imbalance_s", "communication_s", "overhead_s", "core_s"]
UNIT = {"forward": 1.0, "backward": 2.0, "input_grad": 1.0, "weight_grad": 1.0}


def disturbed(schedule, times, random, max_s=1.0):
    """A run in which everything takes as much longer than ``times`` as chance will have it."""
    drawn = {op: [random.uniform(0.0, max_s) for _ in range(3)] for op in ops_of(schedule)}
    durations = {op: at_stage(times, op) * (0.7 + drawn[op][0]) for op in drawn}
    return play(schedule, durations.get, lambda op: drawn[op][1], lambda op: 0.3 * drawn[op][2])


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_the_cells_add_up_to_the_difference_of_the_makespans(data):
    schedule, random = data.draw(schedules()), data.draw(st.randoms(use_true_random=False))
    ideal = simulate(schedule, **data.draw(stage_times(schedule)), hop=data.draw(st.sampled_from([0.0, 0.25])))
    measured = table_of(schedule, disturbed(schedule, UNIT, random), origin=random.uniform(0.0, 100.0))
    gap = explain_gap(ideal, measured)
    assert gap.columns.tolist() == ["stage", *CAUSES, "total_s"]
    assert gap["stage"].tolist() == list(range(schedule.n_stages))
    assert gap["total_s"].sum() == pytest.approx(makespan(measured) - makespan(ideal), abs=1e-9)
    assert gap["total_s"].tolist() == pytest.approx(gap[CAUSES].sum(axis=1).tolist(), abs=1e-9)


FOUR = [gpipe(4, 8), one_f_one_b(4, 8), interleaved(2, 4, 2), zero_bubble_h1(4, 8)]
every_schedule = pytest.mark.parametrize("schedule", FOUR, ids=lambda schedule: schedule.name)


def losses(gap):
    """The cells that are not 0, as {(stage, cause): seconds}."""
    table = gap.set_index("stage")[CAUSES]
    return {
        (stage, cause): table.loc[stage, cause] for stage in table.index for cause in CAUSES if table.loc[stage, cause]
    }


@every_schedule
@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("cause", ["imbalance_s", "overhead_s", "core_s"])
def test_what_one_stage_loses_is_found_in_that_stage_and_under_its_cause(schedule, stage, cause):
    """All its ops are twice as slow, or pause before they begin, or one holds everything up."""
    late = Op("F", stage, 0)
    slower = {"imbalance_s": lambda op: at_stage(UNIT, op) * (op.stage == stage), "core_s": lambda op: 3 * (op == late)}
    pause_s = 0.125 if cause == "overhead_s" else 0.0
    more = slower.get(cause, lambda op: 0.0)
    times = play(schedule, lambda op: at_stage(UNIT, op) + more(op), overhead=lambda op: pause_s * (op.stage == stage))
    ideal, measured = simulate(schedule), table_of(schedule, times)
    assert losses(explain_gap(ideal, measured)) == {(stage, cause): pytest.approx(makespan(measured) - makespan(ideal))}


@every_schedule
def test_a_factor_that_all_stages_share_is_op_time_whatever_their_times_and_kinds(schedule):
    times = {"forward": [1.0, 1.5, 2.0, 1.0], "backward": 2.0, "input_grad": [1.0, 1.0, 0.5, 1.0], "weight_grad": 1.0}
    factors = {"forward": 0.75, "backward": 1.25, "input_grad": 1.25, "weight_grad": 0.5}
    ideal = simulate(schedule, **times)
    measured = simulate(schedule, **{name: (factors[name] * np.array(times[name])).tolist() for name in times})
    gap = explain_gap(ideal, measured)
    assert gap[CAUSES[1:]].to_numpy().tolist() == [[0.0] * 4] * len(gap)
    assert gap["op_time_s"].sum() == pytest.approx(makespan(measured) - makespan(ideal))


def test_of_two_stages_one_that_is_slower_or_both_by_different_factors_is_an_imbalance_beyond_the_lower_factor():
    schedule = gpipe(2, 4)
    ideal = simulate(schedule, 1, 2)
    for first, second, common in [(1, 2, 1), (2, 1, 1), (2, 3, 2), (0.5, 1, 0.5)]:
        measured = simulate(schedule, [first, second], [2 * first, 2 * second])
        gap = explain_gap(ideal, measured).sum()
        assert gap["op_time_s"] == pytest.approx((common - 1) * makespan(ideal))
        assert gap["imbalance_s"] == pytest.approx(makespan(measured) - common * makespan(ideal))


@every_schedule
def test_each_cause_is_what_it_adds_to_those_before_it(schedule):
    """A factor, imbalance, hops, pauses, a disturbance: each makespan is played by hand."""
    twice = {name: 2 * time for name, time in UNIT.items()}
    slow = twice | {"forward": [2.0, 3.0, 2.0, 2.0]}
    late = Op("F", 2, 0)
    runs = [
        play(schedule, lambda op: at_stage(UNIT, op)),
        play(schedule, lambda op: at_stage(twice, op)),
        play(schedule, lambda op: at_stage(slow, op)),
        play(schedule, lambda op: at_stage(slow, op), lambda op: 0.25),
        play(schedule, lambda op: at_stage(slow, op), lambda op: 0.25, lambda op: 0.125),
        play(schedule, lambda op: at_stage(slow, op) + 2.0 * (op == late), lambda op: 0.25, lambda op: 0.125),
    ]
    spans = [max(end for _, end in run.values()) for run in runs]
    gap = explain_gap(table_of(schedule, runs[0]), table_of(schedule, runs[-1]))
    assert gap[CAUSES].sum().tolist() == pytest.approx(np.diff(spans).tolist())
