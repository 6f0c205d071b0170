"""ScheduledPipeline when things go wrong: the right rank says what and where, nobody is waited for,
the next launch works."""

from __future__ import annotations

import pytest
import torch
from pipelines import rank_of
from scheduled_runs import (
    WIDTH,
    Fails,
    batch,
    begin_twice,
    in_one_process,
    masked_in_one_process,
    mse,
    no_such_luck,
    only_steps,
    refused_then_right,
    step_with,
    step_with_attention,
    steps_of_batches,
    train,
)
from to_do import task
from torch import nn

from labkit.launch import RankError
from labkit.schedule import Op, Schedule, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v

pytestmark = task("pipe.5")

SCHEDULE = one_f_one_b(2, 4)


@pytest.fixture
def fails(ranks):
    """fails(n_ranks, function, …): the error of a rank. And afterwards the ranks train as ever."""

    def run(n_ranks, function, *arguments, **options):
        with pytest.raises(RankError) as caught:
            ranks(n_ranks).run(function, *arguments, **options)
        again = one_f_one_b(n_ranks, 4)
        losses = ranks(n_ranks).run(train, again, steps=1).values[-1][0]
        torch.testing.assert_close(losses[0], in_one_process("blocks", n_ranks)[0])
        return caught.value

    return run


# --- in a step ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule, stage, in_backward, rank, what",
    [
        (zero_bubble_v(2, 4), 3, False, 0, "forward"),
        (zero_bubble_h1(2, 4), 0, True, 0, "weight gradient"),
        (one_f_one_b(3, 4), 1, True, 1, "backward"),
    ],
)
def test_a_stage_that_raises_is_named_with_its_micro_batch_on_its_rank(schedule, stage, in_backward, rank, what, fails):
    error = fails(schedule.n_ranks, step_with, schedule, stage, Fails(2, no_such_luck, in_backward))
    assert (error.rank, error.error_type) == (rank, "ArithmeticError")
    assert "no such luck" in str(error) and "raise ArithmeticError" in error.traceback
    assert f"in the {what} of stage {stage}, micro-batch 2" in error.traceback


def tokens_of_length(n):
    return torch.ones(8, n, WIDTH).double(), torch.ones(8, n, WIDTH).double()


def test_a_tensor_of_another_shape_than_in_the_first_step_is_refused_on_its_rank(fails):
    error = fails(2, only_steps, SCHEDULE, [tokens_of_length(n) for n in (5, 5, 4)])
    what = "(2, 4, 6) torch.float64 for micro-batch 0, and gave (2, 5, 6) torch.float64 in the first step"
    assert (error.rank, error.error_type) == (0, "ValueError") and f"stage 0 gives {what}" in str(error)


def test_a_first_batch_that_one_rank_cannot_take_is_refused_on_both_and_the_next_one_may_have_other_rows(ranks):
    rows = [(11, 3), (3, 11), (11, 10), (9, 9)]
    batches = [(batch(rows=x)[0], batch(rows=target)[1]) for x, target in rows]
    few = "ValueError: {} has 3 rows (its shape is (3, 6)), and the schedule 4 micro-batches"
    unequal = "ValueError: x has 11 rows and target 10, expected as many"
    first, last = ranks(2).run(steps_of_batches, SCHEDULE, batches).values
    assert last[0].startswith(few.format("target")) and first[0].startswith(HINT + few.format("target"))
    assert first[1].startswith(few.format("x")) and last[1].startswith(HINT.replace("1", "0") + few.format("x"))
    assert first[2].startswith(unequal) and last[2].startswith(unequal)
    torch.testing.assert_close(last[3], in_one_process("blocks", 2, rows=9)[0])


@pytest.mark.parametrize("schedule", [SCHEDULE, zero_bubble_v(2, 4)], ids=lambda schedule: schedule.name)
def test_a_mean_over_valid_numbers_is_refused_on_all_ranks_without_a_trace_and_a_sum_divided_by_the_batches_is_right(
    schedule, ranks
):
    plain, expected = masked_in_one_process(schedule.n_stages)
    home, others = rank_of(schedule)[schedule.n_stages - 1], []
    for rank, (raised, same, loss, of_stages) in enumerate(ranks(2).run(refused_then_right, schedule).values):
        assert same  # gradients as they were
        assert "expected the same, because the pipeline takes the mean over micro-batches" in raised
        others += [raised] if rank != home else []
        for stage, gradients in of_stages.items():
            torch.testing.assert_close(gradients, [1 + gradient for gradient in expected[stage]])
        if rank == home:
            torch.testing.assert_close(loss, plain)
    message = f"ValueError: rank {home} cannot take part in the pipeline, so no rank can. Checking its stages and loss_fn raised"
    assert others and all(raised.startswith(message) for raised in others)


def test_a_layer_that_takes_the_rows_for_a_sequence_is_refused_on_all_ranks(ranks):
    first, second = ranks(2).run(step_with_attention, SCHEDULE).values
    assert first.startswith(
        "ValueError: layer '1.self_attn' of stage 0, a MultiheadAttention with batch_first=False, was"
    )
    assert second == HINT.replace("1", "0").replace("arguments", "stages and loss_fn") + first


def test_fewer_rows_than_in_the_first_step_are_refused_on_both_ends_before_anything_is_sent(ranks):
    rows = [batch(rows=rows) for rows in (11, 10, 11)]  # of 10, the first two micro-batches have as many as of 11
    values = ranks(2).run(steps_of_batches, SCHEDULE, rows).values
    for name, found in zip(("x", "target"), values, strict=True):
        assert found[1].startswith(f"ValueError: {name} has 10 rows, and the batch of the first step had 11")
        assert not isinstance(found[0], str) and not isinstance(found[2], str)  # nothing was on its way, so it goes on


# --- pipelines that cannot begin ------------------------------------------------------------------

STAGE = [nn.ReLU()]
CIRCLE = Schedule([list(map(Op.parse, ops.split())) for ops in ("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")])
HINT = "ValueError: rank 1 cannot take part in the pipeline, so no rank can. Checking its arguments raised "


@pytest.fixture
def begin_on_two(ranks):
    """What two ranks raise that make a pipeline of these arguments. And afterwards they train: they
    are still in step."""

    def run(of_rank_0, of_rank_1):
        (first, _), (second, loss) = ranks(2).run(begin_twice, [of_rank_0, of_rank_1], SCHEDULE).values
        torch.testing.assert_close(loss, in_one_process("blocks", 2)[0])
        return first, second

    return run


@pytest.mark.parametrize(
    "stages, schedule, loss_fn, raised",
    [
        (STAGE * 2, SCHEDULE, mse, "ValueError: rank 1 was given 2 stages, expected 1: of the 2 stages of the schedule 1F1B"),
        (STAGE, SCHEDULE, nn.MSELoss(reduction="sum"), 'ValueError: loss_fn is MSELoss() with reduction="sum", expected a me'),
        (STAGE, CIRCLE, mse, "ScheduleError: rank 0, position 1, 0B0: a deadlock: 0B0 on rank 0 waits for 1B0"),
    ],
)  # fmt: skip
def test_if_one_rank_cannot_begin_none_does_and_all_say_why(stages, schedule, loss_fn, raised, begin_on_two):
    first, second = begin_on_two((STAGE, SCHEDULE, None), (stages, schedule, loss_fn))
    assert second.startswith(raised) and first == f"{HINT}{second}"
    if schedule is not SCHEDULE:
        assert begin_on_two((STAGE, schedule, mse), (STAGE, schedule, mse)) == (second, second)


@pytest.mark.parametrize(
    "of_rank_0, of_rank_1", [(SCHEDULE, one_f_one_b(2, 5)), (interleaved(2, 4, 2), zero_bubble_v(2, 4))]
)
def test_ranks_with_different_schedules_are_told_so(of_rank_0, of_rank_1, begin_on_two):
    stages = STAGE * (of_rank_0.n_stages // 2)
    for raised in begin_on_two((stages, of_rank_0, mse), (stages, of_rank_1, mse)):
        assert raised.startswith("ValueError: rank 1 has another schedule than rank 0: give all ranks the same one")
