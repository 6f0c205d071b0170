"""Processes that the reader's run_processes starts train what launch's ranks train."""

from __future__ import annotations

import pytest
from to_do import task

from labkit.lab import by_hand
from labkit.launch import launch
from labkit.train import TranslateConfig, load, metrics, translate


@pytest.mark.slow
@task("dp.1", "dp.2", "dp.4", "dp.8")
def test_losses_do_not_depend_on_what_has_started_the_ranks():
    config = TranslateConfig(source="shipped", size="nano", limit=32, limit_eval=2, batch_size=16, epochs=1, bleu=False)
    corpus = load(config)
    own = by_hand.train(config, corpus)
    launched = metrics.record(launch(translate, config, corpus, world_size=2, backend="gloo").values)
    assert own["rank"].tolist() == launched["rank"].tolist() == [0, 0, 1, 1]
    for column in ("local_loss", "loss"):
        assert own[column].tolist() == pytest.approx(launched[column].tolist(), rel=1e-4)
