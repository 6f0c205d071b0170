"""The merged result is arithmetic that can be done by hand: averaged over ranks, summed over ranks,
spread over epochs."""

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
from labkit.train.metrics import EpochMetrics, RankResult


def epoch(number: int, seconds: float, tokens: int = 1000, skipped: int = 0) -> EpochMetrics:
    return EpochMetrics(
        epoch=number,
        steps=10,
        samples=50,
        tokens=tokens,
        seconds=seconds + skipped,
        counted_steps=10 - skipped,
        counted_tokens=tokens,
        counted_seconds=seconds,
        training_loss=3.0 / number,
        validation_loss=4.0 / number,
    )


def result(rank: int, epochs: list[EpochMetrics], warmup_epochs: int = 1) -> RankResult:
    config = {"warmup_epochs": warmup_epochs, "warmup_steps": 3}
    return RankResult(rank, 2, "gloo", "cpu", 1, "shipped", 12, config, epochs, 31.5, [])


RUN = [
    result(0, [epoch(1, 9.0), epoch(2, 2.0), epoch(3, 4.0)]),
    result(1, [epoch(1, 9.0), epoch(2, 4.0), epoch(3, 5.0)]),
]


def test_time_is_averaged_over_ranks_and_the_first_epoch_dropped() -> None:
    time = metrics.merge(RUN)["training_time_s"]
    assert time["per_epoch"] == [9.0, 3.0, 4.5]
    assert time["mean"] == pytest.approx(3.75)
    assert time["std"] == pytest.approx(1.5 / 2**0.5)  # two values, 1.5 apart


def test_tokens_per_second_are_summed_over_ranks() -> None:
    rate = metrics.merge(RUN)["tokens_per_s"]
    assert rate["per_epoch"] == pytest.approx([2000 / 9, 500 + 250, 250 + 200])
    assert rate["mean"] == pytest.approx(600)


@pytest.mark.parametrize(
    ("epochs", "rule", "mean_s"),
    [
        (0, "no warm-up: every step counts", (9 + 3 + 4.5) / 3),
        (1, "epoch 1 is warm-up, not counted", (3 + 4.5) / 2),
        (2, "epochs 1 to 2 are warm-up, not counted", 4.5),
    ],
)
def test_the_merged_result_names_its_warm_up(epochs: int, rule: str, mean_s: float) -> None:
    merged = metrics.merge([replace(r, config=r.config | {"warmup_epochs": epochs}) for r in RUN])
    assert merged["warm_up"] == {"epochs_dropped": epochs, "steps_dropped": 0, "rule": rule}
    assert merged["training_time_s"]["mean"] == pytest.approx(mean_s)


def test_a_single_epoch_counts_without_its_first_steps_and_has_no_spread() -> None:
    merged = metrics.merge([result(0, [epoch(1, 2.0, skipped=3)]), result(1, [epoch(1, 4.0, skipped=3)])])
    assert merged["training_time_s"] == {"mean": 3.0, "std": None, "per_epoch": [3.0]}
    assert merged["warm_up"]["rule"] == "the first 3 of 10 steps of an epoch are warm-up, not counted"


def test_the_order_of_the_results_does_not_matter_but_a_missing_rank_does() -> None:
    assert metrics.merge(RUN[::-1]) == metrics.merge(RUN)
    with pytest.raises(ValueError, match=r"results of ranks \[1\], expected one of each rank"):
        metrics.merge(RUN[1:])
    with pytest.raises(ValueError, match=r"results of ranks \[0, 0\]"):
        metrics.merge([RUN[0], RUN[0]])
    with pytest.raises(ValueError, match=r"results of ranks \[\]"):
        metrics.merge([])


def test_what_is_saved_reads_back(tmp_path: Path) -> None:
    events = trace.event_table([(1, "comm", "all_reduce", 0, None, None, None, 64, 0.25, 0.5)], measured=True)
    local, averaged = {"weight": torch.ones(2)}, {"weight": torch.zeros(2)}
    run = [replace(r, gradients={"local": local, "averaged": averaged}) for r in RUN]
    merged = metrics.save(run, events, tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert json.loads((folder / "merged.json").read_text()) == merged == metrics.merge(RUN)
    assert json.loads((folder / "rank1.json").read_text())["epochs"][2]["seconds"] == 5.0
    assert tuple(pd.read_csv(folder / "events.csv").columns) == trace.EVENT_COLUMNS
    assert torch.load(folder / "model1_gradients.pth")["weight"].tolist() == [0, 0]
    assert torch.load(folder / "model1_local_gradients.pth")["weight"].tolist() == [1, 1]


def test_the_report_has_every_number_of_the_assignment() -> None:
    text = metrics.report(metrics.merge(RUN))
    for part in ("shipped", "2 on gloo: cpu, cpu", "3.75 ± 1.06 s", "600 ± 212, summed", "1.333 nats", "31.50"):
        assert part in text
    assert "BLEU" not in metrics.report(metrics.merge([replace(r, bleu=None) for r in RUN]))


def test_the_table_of_named_results_holds_what_was_merged() -> None:
    table = metrics.table({"two ranks": metrics.merge(RUN)})
    assert table[["run", "epoch_s", "tokens_per_s"]].values.tolist() == [["two ranks", 3.75, pytest.approx(600)]]
    assert table["first loss"].tolist() == ["[≈ 3.000]"]


def test_the_history_adds_up_steps_and_the_mean_seconds_of_ranks_warm_up_included() -> None:
    history = metrics.history(RUN)
    assert history.epochs.tolist() == [1, 2, 3]
    assert history.steps.tolist() == [10, 20, 30]
    assert history.seconds.tolist() == [9.0, 12.0, 16.5]
    assert history.validation_loss.tolist() == [4.0, 2.0, pytest.approx(4 / 3)]
    assert history.training_loss.tolist() == [3.0, 1.5, 1.0]
    with pytest.raises(ValueError, match=r"results of ranks \[1\], expected one of each rank"):
        metrics.history(RUN[1:])


@pytest.mark.parametrize(("loss", "epochs"), [(4.0, 1.0), (3.0, 1.5), (2.0, 2.0), (1.0, math.inf)])
def test_a_loss_is_reached_between_two_epochs_or_never(loss: float, epochs: float) -> None:
    assert metrics.epochs_to(metrics.history(RUN), loss) == epochs
