"""In every mode the training is that of one process: same batches, losses, gradients, each token
counted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from to_do import task

from labkit.train import TranslateConfig, metrics, translate
from labkit.train.translation import Corpus, Example

needs_pipe = task("dp.1", "pipe.1", "pipe.2", "pipe.3", "pipe.4")


def examples(n: int) -> list[Example]:
    """Of different lengths, and as many targets: a mean over rows is far from a mean over
    targets."""
    return [Example([3 + i % 7] * (1 + i % 3) + [1], [4 + i % 5] * (1 + 3 * (i % 4)) + [2]) for i in range(n)]


# Batches of 8 and of 3, which has fewer rows than there are micro-batches; so has validation.
CORPUS = Corpus("made up", "", 12, examples(11), examples(14)[11:], [], [])
SETTINGS: dict[str, Any] = {"size": "nano", "n_layer": 4, "max_length": 32, "batch_size": 8, "bleu": False}


def config(mode: str = "data_parallel", **settings: Any) -> TranslateConfig:
    return TranslateConfig(**(SETTINGS | {"mode": mode, "epochs": 3, "learning_rate": 0.05} | settings))


@pytest.fixture(scope="module")
def alone() -> metrics.TrainingResult:
    return translate(config(save_gradients=True), CORPUS)


@pytest.mark.parametrize(
    "mode", [pytest.param("model_parallel", marks=task("dp.1")), pytest.param("pipeline_parallel", marks=needs_pipe)]
)
def test_one_process_with_three_devices_trains_as_with_one(mode: str, alone: metrics.TrainingResult) -> None:
    result = translate(config(mode, n_devices=3, save_gradients=True), CORPUS)
    assert alone.validation_loss[-1] < 0.8 * alone.validation_loss[0]  # or a lost gradient would not be seen
    assert result.steps.loss.tolist() == pytest.approx(alone.steps.loss.tolist(), rel=1e-4)
    assert result.validation_loss == pytest.approx(alone.validation_loss, rel=1e-4)
    assert result.device == "cpu:0, cpu:1, cpu:2" and f"{mode}: 3 virtual devices in one process" in result.layout
    assert result.steps.tokens.sum() == 3 * sum(map(len, CORPUS.train))
    assert result.gradients and alone.gradients
    averaged = (each.gradients["averaged"].values() for each in (result, alone))
    for ours, expected in zip(*averaged, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
