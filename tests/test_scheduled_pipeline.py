"""ScheduledPipeline on real ranks: any schedule gives one process's loss and gradients, and its ops
are in the table."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import feeder, ops_of, random_schedules, rank_of
from scheduled_runs import MODELS, ROWS, WIDTH, batch, in_one_process, model, mse, pipeline, train, train_two_by_two
from to_do import task
from torch import nn

from labkit.pipe import ScheduledPipeline
from labkit.schedule import Op, Schedule, gpipe, interleaved, zero_bubble_h1, zero_bubble_v
from labkit.simulate import critical_path
from labkit.trace import record, set_step

pytestmark = task("pipe.5")


def name_of(schedule):
    return f"{schedule.name} {schedule.n_ranks}"


def agrees(values, schedule, kind="blocks", steps=2, rows=ROWS):
    """The losses are on the rank of the last stage alone, and they and all gradients are those of
    one process."""
    trains = any(op.kind != "F" for op in ops_of(schedule))
    loss, expected = in_one_process(kind, schedule.n_stages, steps, trains, rows)
    home, found = rank_of(schedule), {}
    for rank, (losses, of_stages, *_) in enumerate(values):
        found |= of_stages
        if rank == home[schedule.n_stages - 1]:
            torch.testing.assert_close(torch.stack(losses), loss.expand(steps), rtol=1e-9, atol=1e-9)
        else:
            assert losses == [None] * steps
    assert set(found) == set(expected)
    for stage in expected:
        for mine, plain in zip(found[stage], expected[stage], strict=True):
            # A stage that got no gradient in one process may have got zeros.
            torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-9) if plain is not None else none_or_zero(mine)


def none_or_zero(gradient):
    assert gradient is None or not gradient.any()


# --- the same as in one process -------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks, examples", [(2, 15), (4, 8)])
def test_any_schedule_that_can_run_runs(n_ranks, examples, ranks):
    @settings(max_examples=examples, deadline=None)
    @given(random_schedules(n_ranks))
    def holds(schedule):
        agrees(ranks(n_ranks).run(train, schedule).values, schedule)

    holds()


@settings(max_examples=20, deadline=None)
@given(random_schedules(ranks=1), st.integers(0, 6))
def test_a_schedule_of_one_rank_runs_without_a_process_group_and_rows_that_do_not_divide_weigh_alike(schedule, more):
    rows = schedule.n_micro + more
    agrees([train(schedule, rows=rows)], schedule, rows=rows)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "blocks"])
@pytest.mark.parametrize("schedule", [interleaved(2, 4, 2), zero_bubble_v(2, 4)], ids=name_of)
def test_whatever_the_stages_are_like_it_is_as_in_one_process(schedule, kind, ranks):
    values = ranks(2).run(train, schedule, kind).values
    agrees(values, schedule, kind)
    assert all(torch.equal(x, batch(kind)[0]) for _, _, x in values)  # a stage that changes it has a copy


def test_two_pipelines_side_by_side_train_as_one_process_on_the_whole_batch(ranks):
    schedule = zero_bubble_h1(2, 3)
    values = ranks(4).run(train_two_by_two, schedule, rows=12).values
    loss, expected = in_one_process("blocks", 2, rows=12)
    torch.testing.assert_close((values[1][0] + values[3][0]) / 2, loss)
    assert values[0][0] is values[2][0] is None
    for rank, (_, found) in enumerate(values):
        assert set(found) == {rank % 2}
        torch.testing.assert_close(found[rank % 2], expected[rank % 2])


# --- the table ------------------------------------------------------------------------------------


def test_every_message_is_a_send_and_a_recv_in_the_lane_comm_with_its_bytes(ranks):
    schedule, home = zero_bubble_v(2, 4), rank_of(zero_bubble_v(2, 4))
    events = ranks(2).run(train, schedule, rows=8).events
    comm = events[events["lane"] == "comm"]
    pairs = [(source, op) for op in ops_of(schedule) if (source := feeder(schedule, op))]
    pairs = [(source, op) for source, op in pairs if home[op.stage] != home[source.stage]]
    sent = [("send", *source[1:]) for source, _ in pairs] + [("recv", *op[1:]) for _, op in pairs]
    assert sorted(zip(comm["name"], comm["stage"], comm["micro_batch"], strict=True)) == sorted(2 * sent)  # two steps
    assert set(comm["bytes"]) == {2 * WIDTH * 8}  # two rows of doubles


def test_ops_have_the_step_that_the_loop_has_set_and_none_where_it_has_set_none():
    pipe, (x, target) = one_rank(), batch()
    with record() as recording:
        pipe.step(x, target)
        for number in (7, 8):
            set_step(number)
            pipe.step(x, target)
    ops = recording.events[recording.events["lane"] == "compute"]
    assert Counter(ops["step"].fillna(-1).tolist()) == dict.fromkeys((-1, 7, 8), len(ONE_RANK.ops[0]))
    with pytest.raises(ValueError, match=r"twice, .*call labkit\.trace\.set_step\(n\) before each step"):
        critical_path(ONE_RANK, ops)


# --- refused before anything is sent --------------------------------------------------------------
#
# What a rank finds by itself is tried on a schedule of one rank, which needs no other process.

ONE_RANK = interleaved(1, 4, 2)


def one_rank(loss_fn=mse):
    return pipeline(ONE_RANK, model("blocks", 2), loss_fn)


def ones(rows):
    return torch.ones(rows, WIDTH, dtype=torch.float64)


def under_no_grad():
    with torch.no_grad():
        one_rank().step(*batch())


def made(stages=None, schedule=ONE_RANK, loss_fn=mse, group=None):
    return lambda: ScheduledPipeline(stages or [nn.ReLU()] * 2, schedule, loss_fn, group)


F_AND_W = Schedule([[Op("F", 0, 0), Op("W", 0, 0)]])
REFUSED = {
    "x is missing: the rank of stage 0 needs it in every step": lambda: one_rank().step(None, ones(8)),
    "target is missing: the rank of the last stage needs it": lambda: one_rank().step(ones(8), None),
    "x is a list, expected one tensor whose first dimension is": lambda: one_rank().step([1.0] * 8, ones(8)),
    "x has 0 rows (its shape is ())": lambda: one_rank().step(torch.tensor(1.0), ones(8)),
    "x has 8 rows and target 9, expected as many": lambda: one_rank().step(ones(8), ones(9)),
    "or give x.detach()": lambda: one_rank().step(ones(8).requires_grad_(), ones(8)),
    "gradients are switched off: call step outside of torch": under_no_grad,
    "rank 0 was given 1 stages, expected 2: of the 2 stages": made([nn.ReLU()]),
    "stages has a builtin_function_or_method in it": made([nn.ReLU(), torch.relu]),
    "stages has a NoneType in it, expected a list": lambda: ScheduledPipeline(None, ONE_RANK, mse),
    "schedule is a str, expected a Schedule, such as one_f_one_b": made(schedule="1F1B"),
    "GPipe is for 2 ranks, and there are 1 here: make it for 1": made([nn.ReLU()], gpipe(2, 4)),
    "loss_fn is None, expected a function of output and target": made(loss_fn=None),
    "0W0: it needs 0I0": made([nn.ReLU()], F_AND_W),
    "process_group is a list, expected what torch.distributed.new": made(group=[0, 1]),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_pipeline_or_a_batch_that_cannot_be_right_is_refused(sentence):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
        REFUSED[sentence]()
    assert sentence in str(error.value)


# --- the loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss_fn, message",
    [
        (lambda y, t: (y - t).square(), r"loss_fn gave shape \(3, 6\), expected a tensor with one number"),
        (lambda y, t: mse(y, t).item(), "loss_fn gave a float, expected a tensor with one number"),
        (lambda y, t: mse(y, t).detach(), "loss_fn gave a loss that requires no grad, though the output"),
    ],
)
def test_a_loss_that_leads_nowhere_is_refused_with_stage_and_micro_batch(loss_fn, message):
    with pytest.raises(ValueError, match=message) as caught:
        one_rank(loss_fn).step(*batch())
    assert caught.value.__notes__ == ["in the loss of stage 1, micro-batch 0"]


def test_a_step_after_one_that_failed_is_refused_and_what_loss_fn_was_given_is_said():
    pipe = one_rank(lambda y, t: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        pipe.step(*batch())
    assert caught.value.__notes__[0] == "loss_fn was given an output of shape (3, 6) and a target of (3, 6)"
    with pytest.raises(RuntimeError, match=r"an earlier step of this ScheduledPipeline has failed.* launch again"):
        pipe.step(*batch())
