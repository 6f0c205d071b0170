"""ScheduledPipeline on real ranks: any schedule gives one process's loss and gradients, and its ops
are in the table."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import EVENT_NAMES, feeder, op_of_row, ops_of, random_schedules, rank_of
from scheduled_runs import (
    MODELS,
    ROWS,
    WIDTH,
    batch,
    in_one_process,
    model,
    mse,
    pipeline,
    train,
    train_and_evaluate,
    train_two_by_two,
)
from to_do import task
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss

from labkit.parallel.stage import MeanLoss, cut
from labkit.pipe import ScheduledPipeline
from labkit.schedule import (
    Op,
    Schedule,
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)

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


@pytest.mark.parametrize("switch", [None, torch.no_grad, torch.inference_mode], ids=["plain", "no_grad", "inference"])
def test_a_second_pipeline_of_the_same_stages_evaluates_on_batches_of_another_size(switch, ranks):
    plain, losses = nn.Sequential(*model("blocks", 2)), []
    x, target = batch(rows=7)
    for _ in range(2):
        plain.zero_grad()
        mse(plain(batch()[0]), batch()[1]).backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(mse(plain(x), target).detach())
    found = ranks(2).run(train_and_evaluate, one_f_one_b(2, 4), forward_only(2, 3), switch).values
    assert found[0] == [None, None]
    torch.testing.assert_close(torch.stack(found[1]), torch.stack(losses))
    assert not found[1][0].requires_grad


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


@pytest.mark.parametrize("schedule", [one_f_one_b(2, 4), gpipe(2, 1), zero_bubble_h2(4, 8)], ids=name_of)
def test_every_op_is_a_span_once_a_step_in_the_order_of_the_schedule_and_gradients_add_up(schedule, ranks):
    run = ranks(schedule.n_ranks).run(train, schedule, steps=3)
    agrees(run.values, schedule, steps=3)
    events = run.events
    compute = events[events["name"].isin(EVENT_NAMES.values())].sort_values("start_s")
    assert set(compute["lane"]) == {"compute"}
    for (rank, step), rows in compute.groupby(["rank", "step"]):
        assert [op_of_row(row) for row in rows.itertuples()] == schedule.ops[rank] and step in (0, 1, 2)
    assert len(compute) == 3 * len(ops_of(schedule))


def test_every_message_is_a_send_and_a_recv_in_the_lane_comm_with_its_bytes(ranks):
    schedule, home = zero_bubble_v(2, 4), rank_of(zero_bubble_v(2, 4))
    events = ranks(2).run(train, schedule, rows=8).events
    comm = events[events["lane"] == "comm"]
    found = {
        name: sorted(zip(*(rows[label] for label in ("rank", "stage", "micro_batch", "step")), strict=True))
        for name, rows in comm.groupby("name")
    }
    takes = [
        (source, op)
        for op in ops_of(schedule)
        if (source := feeder(schedule, op)) and home[op.stage] != home[source.stage]
    ]
    for name, ends in (("send", [source for source, _ in takes]), ("recv", [op for _, op in takes])):
        expected = [(home[op.stage], op.stage, op.micro_batch, step) for op in ends for step in range(2)]
        assert found.pop(name) == sorted(expected)
    assert found == {} and set(comm["bytes"]) == {2 * WIDTH * 8}  # two rows of doubles


# --- refused before anything is sent --------------------------------------------------------------
#
# What a rank finds by itself is tried on a schedule of one rank, which needs no other process.

ONE_RANK = interleaved(1, 4, 2)


def one_rank(loss_fn=mse):
    return pipeline(ONE_RANK, model("blocks", 2), loss_fn)


def ones(rows):
    return torch.ones(rows, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(
    "x, target, error, message",
    [
        (None, ones(8), TypeError, "x is missing: the rank of stage 0 needs it in every step"),
        (ones(8), None, TypeError, "target is missing: the rank of the last stage needs it"),
        ([1.0] * 8, ones(8), TypeError, "x is a list, expected one tensor whose first dimension is the rows"),
        (torch.tensor(1.0), ones(8), ValueError, r"x has 0 rows \(its shape is \(\)\)"),
        (ones(8), ones(9), ValueError, "x has 8 rows and target 9, expected as many"),
        (ones(8).requires_grad_(), ones(8), ValueError, r"x requires grad, and a pipeline .* or give x.detach\(\)"),
    ],
)
def test_a_batch_that_cannot_be_right_is_refused_and_the_next_one_is_taken(x, target, error, message):
    pipe = one_rank()
    with pytest.raises(error, match=message):
        pipe.step(x, target)
    assert pipe.step(ones(8), ones(8)) > 0


def test_gradients_that_are_switched_off_are_missed_at_once():
    pipe = one_rank()
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"gradients are switched off: call step outside of torch"):
        pipe.step(*batch())
    assert pipe.step(*batch()) > 0


@pytest.mark.parametrize(
    "stages, schedule, loss_fn, group, error, message",
    [
        ([nn.ReLU()], ONE_RANK, mse, None, ValueError, "rank 0 was given 1 stages, expected 2: of the 2 stages"),
        ([nn.ReLU(), torch.relu], ONE_RANK, mse, None, TypeError, "stages has a builtin_function_or_method in it"),
        (None, ONE_RANK, mse, None, TypeError, "stages has a NoneType in it, expected a list with an nn.Module"),
        ([nn.ReLU()] * 2, "1F1B", mse, None, TypeError, "schedule is a str, expected a Schedule, such as one_f_one_b"),
        ([nn.ReLU()], gpipe(2, 4), mse, None, ValueError, "GPipe is for 2 ranks, and there are 1 here: make it for 1, or"),
        ([nn.ReLU()] * 2, ONE_RANK, None, None, TypeError, "loss_fn is None, expected a function of output and target"),
        ([nn.ReLU()], Schedule([[Op("F", 0, 0), Op("W", 0, 0)]]), mse, None, ValueError, "0W0: it needs 0I0"),
        ([nn.ReLU()] * 2, ONE_RANK, mse, [0, 1], TypeError, "process_group is a list, expected what torch.distributed.new"),
    ],
)  # fmt: skip
def test_a_pipeline_that_cannot_be_right_is_refused(stages, schedule, loss_fn, group, error, message):
    with pytest.raises(error, match=message):
        ScheduledPipeline(stages, schedule, loss_fn, group)


# --- the loss -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 20))
def test_every_row_is_in_one_micro_batch_in_order_and_none_has_two_more_than_another(n_micro, more):
    batch = torch.arange(2 * (n_micro + more)).reshape(-1, 2)
    parts = cut("x", batch, n_micro)
    sizes = list(map(len, parts))
    assert torch.equal(torch.cat(parts), batch) and len(parts) == n_micro
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1 <= sizes[-1]


@pytest.mark.parametrize("loss_fn", [mse, l1_loss, cross_entropy, lambda y, t: mse(y, t).reshape(1)])
@settings(max_examples=15, deadline=None)
@given(n_micro=st.integers(1, 5), more=st.integers(0, 7))
def test_the_parts_add_up_to_the_mean_over_all_rows_and_so_do_their_gradients(loss_fn, n_micro, more):
    generator = torch.Generator().manual_seed(n_micro + 10 * more)
    output, target = torch.randn(2, n_micro + more, 3, generator=generator, dtype=torch.float64)
    whole, parts = output.clone().requires_grad_(), output.clone().requires_grad_()
    loss_fn(whole, target).backward()
    loss = MeanLoss(loss_fn, cut("target", target, n_micro))
    for number, part in enumerate(parts.tensor_split(n_micro)):
        loss(part, number).backward()
    torch.testing.assert_close(loss.total(), loss_fn(output, target).squeeze())
    torch.testing.assert_close(parts.grad, whole.grad)
    assert not loss.total().requires_grad


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
