"""What a run sums up to is arithmetic on its record that can be done by hand: averaged over ranks,
summed over ranks, spread over epochs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from labkit import trace
from labkit.train import metrics
from labkit.train.metrics import TrainingResult
from labkit.train.trainer import Step

SECONDS = {  # of the two steps of an epoch, by rank
    0: [(5.0, 4.0), (1.0, 1.0), (1.5, 2.5)],
    1: [(5.0, 4.0), (2.0, 2.0), (2.0, 3.0)],
}


def result(rank: int) -> TrainingResult:
    """Three epochs of two steps of 500 tokens; rank 0 has 30 targets a step at a loss of 1, rank 1
    10 at a loss of 3, half of it in the last epoch."""
    rows = []
    for epoch, both in enumerate(SECONDS[rank], start=1):
        for seconds in both:
            local, targets, share = (1.0, 30, 1.5) if rank == 0 else (3.0, 10, 1.5)
            scale = 0.5 if epoch == 3 else 1.0
            rows.append(Step(rank, len(rows) + 1, epoch, share * scale, local * scale, targets, 500, seconds))
    steps = pd.DataFrame(rows, columns=Step._fields)
    run = (rank, 2, "gloo", "cpu", 1, "generated sentences (shipped)", 12, {}, "GPT-2 nano", "data_parallel", 2, steps)
    return TrainingResult(*run, [4.0, 2.0, 4 / 3], bleu=31.5)


RUN = [result(0), result(1)]


def test_time_is_averaged_over_ranks_and_the_first_epoch_dropped() -> None:
    assert metrics.epoch_seconds(metrics.record(RUN), 2).to_dict() == {1: 9.0, 2: 3.0, 3: 4.5}
    time = metrics.merge(RUN)["training_time_s"]
    assert time["mean"] == pytest.approx(3.75)
    assert time["std"] == pytest.approx(1.5 / 2**0.5)  # two values, 1.5 apart


def test_tokens_per_second_are_summed_over_ranks() -> None:
    rates = metrics.tokens_per_second(metrics.record(RUN))
    assert rates.to_dict() == pytest.approx({1: 2000 / 9, 2: 500 + 250, 3: 250 + 200})
    assert metrics.merge(RUN)["tokens_per_s"]["mean"] == pytest.approx(600)


def of_one_epoch(run: TrainingResult, n_steps: int) -> TrainingResult:
    return replace(run, steps=run.steps.assign(epoch=1)[:n_steps], steps_per_epoch=n_steps)


@pytest.mark.parametrize(
    ("run", "left"),
    [
        (RUN, [3, 4, 5, 6]),
        ([of_one_epoch(each, 6) for each in RUN], [4, 5, 6]),
        ([of_one_epoch(each, 2) for each in RUN], [2]),
    ],
)
def test_warm_up_is_the_first_epoch_or_where_there_is_no_other_three_steps_but_never_all(
    run: list[TrainingResult], left: list[int]
) -> None:
    counted = metrics.without_warm_up(metrics.record(run))
    assert counted.step.tolist() == left * 2
    merged = metrics.merge(run)
    assert merged["warm_up_steps"] == merged["steps"] - len(left)
    assert merged["steps"] == len(run[0].steps)


def steady(n_ranks: int, n_steps: int, steps_per_epoch: int = 0) -> list[TrainingResult]:
    """A step a second, of 100 tokens over all ranks."""
    rows = [
        (0, n, 1 + (n - 1) // (steps_per_epoch or n_steps), 1.0, 1.0, 10, 100 // n_ranks, 1.0)
        for n in range(1, n_steps + 1)
    ]
    steps = pd.DataFrame([Step(*row) for row in rows], columns=Step._fields)
    run = replace(RUN[0], world_size=n_ranks, steps_per_epoch=steps_per_epoch or n_steps)
    return [replace(run, rank=rank, steps=steps.assign(rank=rank)) for rank in range(n_ranks)]


def test_an_epoch_is_a_whole_one_however_many_of_its_steps_were_timed() -> None:
    # Eight steps of a second on one device, four on two: two times as fast, and not five.
    one, two = metrics.merge(steady(1, 8)), metrics.merge(steady(2, 4))
    assert (one["training_time_s"]["mean"], two["training_time_s"]["mean"]) == (8.0, 4.0)
    assert one["tokens_per_s"]["mean"] == two["tokens_per_s"]["mean"] == 100.0
    assert "8 s an epoch of 8 steps" in metrics.report(one) and "without 3 of 8" in metrics.report(one)
    # Ended in its third epoch of eight steps after one of them, or in its first.
    for n_steps in (17, 5):
        assert metrics.merge(steady(1, n_steps, 8))["training_time_s"]["mean"] == 8.0


def test_an_epochs_loss_weighs_each_target_alike() -> None:
    # 30 targets at 1 and 10 at 3 have a mean of 1.5, where the mean of the ranks would be 2
    assert metrics.training_loss(metrics.record(RUN)).to_dict() == {1: 1.5, 2: 1.5, 3: 0.75}


def test_a_rank_without_targets_does_not_spoil_the_loss() -> None:
    idle = result(1).steps.assign(local_loss=math.nan, targets=0)
    assert metrics.training_loss(metrics.record([RUN[0], replace(RUN[1], steps=idle)])).tolist() == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([100.0, *[1.0] * 20, *[2.0] * 19, *[50.0] * 9], (20 + 38) / 39), ([3.0], 3.0), ([9.0, 1.0, 3.0], 2.0)],
)
def test_seconds_per_iteration_are_those_of_forty_without_the_first(seconds: list[float], expected: float) -> None:
    steps = pd.DataFrame({"step": range(1, len(seconds) + 1), "seconds": seconds})
    assert metrics.seconds_per_iteration(steps) == pytest.approx(expected)


def test_the_order_of_the_results_does_not_matter_but_a_missing_rank_does() -> None:
    assert metrics.merge(RUN[::-1]) == metrics.merge(RUN)
    for results, ranks in ((RUN[1:], "1"), ([RUN[0], RUN[0]], "0, 0"), ([], "")):
        with pytest.raises(ValueError, match=rf"results of ranks \[{ranks}\], expected one of each rank"):
            metrics.merge(results)


def test_what_is_saved_reads_back(tmp_path: Path) -> None:
    events = trace.event_table([(1, "comm", "all_reduce", 0, None, None, None, 64, 0.25, 0.5)], measured=True)
    local, averaged = {"weight": torch.ones(2)}, {"weight": torch.zeros(2)}
    run = [replace(r, gradients={"local": local, "averaged": averaged}) for r in RUN]
    folder = tmp_path / "new" / "folder"
    metrics.save(run, events, folder, "labkit train translate --lr 1")
    written = json.loads((folder / "merged.json").read_text())
    assert written.pop("command") == "labkit train translate --lr 1"
    assert written == metrics.merge(RUN)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "steps.csv"), metrics.record(RUN))
    assert tuple(pd.read_csv(folder / "events.csv").columns) == trace.EVENT_COLUMNS
    assert torch.load(folder / "model1_gradients.pth")["weight"].tolist() == [0, 0]
    assert torch.load(folder / "model1_local_gradients.pth")["weight"].tolist() == [1, 1]


def test_ranks_with_different_threads_are_not_told_as_the_first_one() -> None:
    merged = metrics.merge([RUN[0], replace(RUN[1], threads=4)])
    assert merged["threads_per_rank"] == [1, 4] and "[1, 4] CPU threads each" in metrics.report(merged)
    assert "1 CPU thread each" in metrics.report(metrics.merge(RUN))


def test_the_report_has_every_number_of_the_assignments() -> None:
    text = metrics.report(metrics.merge([replace(r, config={"batch_size": 33}) for r in RUN]))
    assert "batch              32 in a step: 16 on each of 2 ranks" in text
    for part in ("2 on gloo: cpu, cpu", "3.75 ± 1.06 s", "without 2 of 6", "600 ± 212, summed"):
        assert part in text
    assert "2.3 s, the mean of iterations 2 to 6" in text  # 4, 1, 1, 1.5, 2.5 and 4, 2, 2, 2, 3
    assert "1.333 nats per target token" in text and "31.50 on generated sentences (shipped)" in text
    judged = metrics.merge([replace(r, bleu=None, validation_loss=[], accuracy=[0.5, 0.625]) for r in RUN])
    other = metrics.report(judged)
    assert "accuracy           0.5000, 0.6250 on generated sentences (shipped)" in other
    assert "accuracy" not in text and "BLEU" not in other and "validation" not in other


def test_a_run_that_only_judges_has_no_times() -> None:
    merged = metrics.merge([replace(r, steps=r.steps[:0], accuracy=[0.5]) for r in RUN])
    assert merged["training_time_s"] == {"mean": None, "std": None} and merged["seconds_per_iteration"] is None
    assert "training time" not in metrics.report(merged) and "0.5000" in metrics.report(merged)
