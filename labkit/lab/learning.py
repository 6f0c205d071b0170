"""Train the translation task with several seeds at once, for notebook 03: a process for each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from labkit.launch import workers
from labkit.train import TranslateConfig, translate
from labkit.train.translation import Corpus


def learn(configs: Mapping[str, TranslateConfig], corpus: Corpus, seeds: int = 2) -> dict[str, list[pd.DataFrame]]:
    """Return how each config learned, a table for each seed, with a row after each epoch.

    Its columns are ``epochs`` and ``validation_loss``, in nats per target token. The processes know
    nothing of each other, and share the machine.
    """
    with workers(seeds, init=False, threads=1) as processes:
        return {name: processes.run(_of_seed, config, corpus).values for name, config in configs.items()}


def _of_seed(config: TranslateConfig, corpus: Corpus) -> pd.DataFrame:
    losses = translate(replace(config, seed=int(os.environ["RANK"])), corpus).validation_loss
    return pd.DataFrame({"epochs": range(1, len(losses) + 1), "validation_loss": losses})
