"""A loss that is no number, after too high a learning rate, stops all ranks with its step."""

from __future__ import annotations

import pytest
from test_train import without_torchrun
from to_do import task

from labkit import train
from labkit.launch import RankError, launch
from labkit.train.glue_task import GlueConfig, glue
from labkit.train.translation_task import TranslateConfig, translate

SHIPPED = {"source": "shipped", "epochs": 2, "batch_size": 16, "learning_rate": 1e30}
TRANSLATE = SHIPPED | {"size": "nano", "vocab_size": 300, "limit": 40, "limit_eval": 4, "bleu": False, "n_layer": 2}


@task("dp.1", "dp.4", "pipe.5")
@pytest.mark.parametrize(
    ("fn", "config"),
    [
        (glue, GlueConfig(**SHIPPED, vocab_size=300, limit=48, limit_eval=8)),
        (translate, TranslateConfig(**TRANSLATE)),
        (translate, TranslateConfig(**TRANSLATE, mode="1f1b")),
    ],
)
def test_a_loss_that_is_no_number_stops_all_ranks_with_the_step_it_began_at(fn, config):
    with pytest.raises(RankError, match=r"the loss is (nan|inf) from step 2 on \(and so did rank 1\)") as stop:
        launch(fn, config, backend="gloo", timeout_s=60)
    assert stop.value.error_type == "FloatingPointError"


@task("dp.1")
def test_a_last_step_that_ruins_the_model_is_seen_in_validation():
    config = TranslateConfig(**TRANSLATE | {"epochs": 1, "limit": 16}, mode="model_parallel")
    with pytest.raises(FloatingPointError, match="the validation loss is nan from step 1 on"):
        translate(config)


def test_so_do_digits_and_the_command_ends_with_that_line_alone(monkeypatch, capfd):
    without_torchrun(monkeypatch)
    expected = r"^rank \d raised FloatingPointError: .* the loss is (nan|inf) from step 2 on \(and so did rank \d\)$"
    with pytest.raises(SystemExit, match=expected):
        train.main(["digits", "--source", "shipped", "--lr", "1e30", "--backend", "gloo"])
    assert "Traceback" not in capfd.readouterr().err
