"""ScheduledPipeline when things go wrong: the right rank says what and where, nobody is waited for,
the next launch works."""

from __future__ import annotations

import pytest
import torch
from scheduled_runs import (
    WIDTH,
    Fails,
    batch,
    begin_twice,
    in_one_process,
    mse,
    no_such_luck,
    only_steps,
    step_with,
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


@pytest.mark.parametrize(
    "batches, rank, error_type, message",
    [
        ([(batch()[0], batch(rows=3)[1])], 1, "ValueError", "target has 3 rows (its shape is (3, 6)), and the schedule 4"),
        ([(batch()[0], batch(rows=10)[1])], 1, "ValueError", "the output has shape (3, 6) and the target (2, 6)"),
        (
            [tokens_of_length(n) for n in (5, 5, 4)], 0, "ValueError",
            "stage 0 gives (2, 4, 6) torch.float64 for micro-batch 0, and gave (2, 5, 6) torch.float64 in the first step",
        ),
    ],
)  # fmt: skip
def test_a_batch_that_one_rank_cannot_take_is_refused_there(batches, rank, error_type, message, fails):
    error = fails(2, only_steps, SCHEDULE, batches)
    assert (error.rank, error.error_type) == (rank, error_type) and message in str(error)


def test_fewer_rows_than_in_the_first_step_are_refused_on_both_ends_before_anything_is_sent(ranks):
    rows = [batch(rows=rows) for rows in (11, 10, 11)]  # of 10, the first two micro-batches have as many as of 11
    values = ranks(2).run(steps_of_batches, SCHEDULE, rows).values
    for name, found in zip(("x", "target"), values, strict=True):
        assert found[1].startswith(f"ValueError: {name} has 10 rows, and the batch of the first step had 11")
        assert not isinstance(found[0], str) and not isinstance(found[2], str)  # nothing was on its way, so it goes on


# --- pipelines that cannot begin ------------------------------------------------------------------

STAGE = [nn.ReLU()]
CIRCLE = Schedule([list(map(Op.parse, ops.split())) for ops in ("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")])
HINT = "rank 1 cannot take part in the pipeline, so no rank can. Checking its arguments raised "


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
        (STAGE, CIRCLE, mse, "ScheduleError: rank 0, position 1, 0B0: a deadlock: 0B0 on rank 0 waits for 1B0"),
    ],
)  # fmt: skip
def test_if_one_rank_cannot_begin_none_does_and_all_say_why(stages, schedule, loss_fn, raised, begin_on_two):
    first, second = begin_on_two((STAGE, SCHEDULE, None), (stages, schedule, loss_fn))
    assert second.startswith(raised) and first == f"ValueError: {HINT}{second}"
    if schedule is not SCHEDULE:
        assert begin_on_two((STAGE, schedule, mse), (STAGE, schedule, mse)) == (second, second)


@pytest.mark.parametrize(
    "of_rank_0, of_rank_1", [(SCHEDULE, one_f_one_b(2, 5)), (interleaved(2, 4, 2), zero_bubble_v(2, 4))]
)
def test_ranks_with_different_schedules_are_told_so(of_rank_0, of_rank_1, begin_on_two):
    stages = STAGE * (of_rank_0.n_stages // 2)
    for raised in begin_on_two((stages, of_rank_0, mse), (stages, of_rank_1, mse)):
        assert raised.startswith("ValueError: rank 1 has another schedule than rank 0: give all ranks the same one")
