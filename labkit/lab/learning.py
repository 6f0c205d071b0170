"""Train the translation task with several seeds at once, for notebook 03: a process for each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from labkit.launch import workers
from labkit.train import TranslateConfig, metrics, translate
from labkit.train.metrics import RankResult
from labkit.train.translation import Corpus


def learn(configs: Mapping[str, TranslateConfig], corpus: Corpus, seeds: int = 2) -> dict[str, list[pd.DataFrame]]:
    """Return each config's :func:`labkit.train.metrics.history`, a table for each seed.

    The processes know nothing of each other, and share the machine: their seconds say little.
    """
    with workers(seeds, init=False, threads=1) as processes:
        runs = {name: processes.run(_of_seed, config, corpus).values for name, config in configs.items()}
    return {name: [metrics.history([result]) for result in results] for name, results in runs.items()}


def _of_seed(config: TranslateConfig, corpus: Corpus) -> RankResult:
    return translate(replace(config, seed=int(os.environ["RANK"])), corpus)
