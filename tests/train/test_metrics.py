"""What a run sums up to is arithmetic on its record that can be done by hand: averaged over ranks,
summed over ranks, spread over epochs."""

from __future__ import annotations

import json
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
    run = (rank, 2, "gloo", "cpu", 1, "generated sentences (shipped)", 12, {}, "GPT-2 nano", "data_parallel", steps)
    return TrainingResult(*run, [4.0, 2.0, 4 / 3], bleu=31.5)


RUN = [result(0), result(1)]


def test_time_is_averaged_over_ranks_and_the_first_epoch_dropped() -> None:
    assert metrics.epoch_seconds(metrics.record(RUN)).to_dict() == {1: 9.0, 2: 3.0, 3: 4.5}
    time = metrics.merge(RUN)["training_time_s"]
    assert time["mean"] == pytest.approx(3.75)
    assert time["std"] == pytest.approx(1.5 / 2**0.5)  # two values, 1.5 apart


def test_tokens_per_second_are_summed_over_ranks() -> None:
    rates = metrics.tokens_per_second(metrics.record(RUN))
    assert rates.to_dict() == pytest.approx({1: 2000 / 9, 2: 500 + 250, 3: 250 + 200})
    assert metrics.merge(RUN)["tokens_per_s"]["mean"] == pytest.approx(600)


def of_one_epoch(run: TrainingResult, n_steps: int) -> TrainingResult:
    return replace(run, steps=run.steps.assign(epoch=1)[:n_steps])


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
    assert merged["training_time_s"]["mean"] == pytest.approx(counted.seconds.sum() / 2 / counted.epoch.nunique())


def test_what_is_saved_reads_back(tmp_path: Path) -> None:
    events = trace.event_table([(1, "comm", "all_reduce", 0, None, None, None, 64, 0.25, 0.5)], measured=True)
    local, averaged = {"weight": torch.ones(2)}, {"weight": torch.zeros(2)}
    run = [replace(r, gradients={"local": local, "averaged": averaged}) for r in RUN]
    folder = tmp_path / "new" / "folder"
    merged = metrics.save(run, events, folder, "labkit train translate --lr 1")
    written = json.loads((folder / "merged.json").read_text())
    assert written.pop("command") == "labkit train translate --lr 1"
    assert written == merged == metrics.merge(RUN)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "steps.csv"), metrics.record(RUN))
    assert tuple(pd.read_csv(folder / "events.csv").columns) == trace.EVENT_COLUMNS
    assert torch.load(folder / "model1_gradients.pth")["weight"].tolist() == [0, 0]
    assert torch.load(folder / "model1_local_gradients.pth")["weight"].tolist() == [1, 1]


def test_the_report_has_every_number_of_the_assignments() -> None:
    text = metrics.report(metrics.merge(RUN))
    for part in ("2 on gloo: cpu, cpu", "3.75 ± 1.06 s", "without 2 of 6 steps", "600 ± 212, summed"):
        assert part in text
    assert "2.3 s, the mean of iterations 2 to 6" in text  # 4, 1, 1, 1.5, 2.5 and 4, 2, 2, 2, 3
    assert (
        "1.333 nats per target token" in text
        and "31.50 on generated sentences (shipped)" in text
        and "accuracy" not in text
    )
    other = metrics.report(
        metrics.merge([replace(r, bleu=None, validation_loss=[], accuracy=[0.5, 0.625]) for r in RUN])
    )
    assert (
        "accuracy           0.5000, 0.6250 on generated sentences (shipped)" in other
        and "BLEU" not in other
        and "validation" not in other
    )
