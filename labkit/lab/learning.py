"""Train the translation task with several seeds at once, for notebook 03: a process for each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from labkit.base.formats import loss
from labkit.launch import workers
from labkit.stats import Interval
from labkit.train import TranslateConfig, metrics, translate
from labkit.train.translation import Corpus

Learned = dict[str, list[pd.DataFrame]]  # by config, a table for each seed


def learn(configs: Mapping[str, TranslateConfig], corpus: Corpus, seeds: int = 2) -> Learned:
    """Return how each config learned, a table for each seed, with a row after each epoch.

    Its columns are ``epochs`` and ``validation_loss``, in nats per target token. The processes know
    nothing of each other, and share the machine.
    """
    with workers(seeds, init=False, threads=1) as processes:
        return {name: processes.run(_of_seed, config, corpus).values for name, config in configs.items()}


def _of_seed(config: TranslateConfig, corpus: Corpus) -> pd.DataFrame:
    losses = translate(replace(config, seed=int(os.environ["RANK"])), corpus).validation_loss
    return pd.DataFrame({"epochs": range(1, len(losses) + 1), "validation_loss": losses})


def epochs_to(validation_loss: float, learned: Learned) -> pd.DataFrame:
    """Return after how many epochs each seed had that loss: a column per config."""
    return pd.DataFrame(
        {name: [metrics.epochs_to(seed, validation_loss) for seed in seeds] for name, seeds in learned.items()}
    )


def shown(needed: pd.DataFrame) -> pd.DataFrame:
    """Return a table of epochs as a notebook shows losses, as these decide it."""
    return needed.map("{:.1f}".format).map(loss).rename_axis("epochs, by seed")


def over_time(learned: Learned, epoch_s: Sequence[float]) -> dict[str, dict[float, Interval]]:
    """Return the validation losses by seconds, of configs whose epoch takes that long.

    A loss is the median over seeds, from the least to the greatest.
    """
    lines = {}
    for (name, seeds), seconds in zip(learned.items(), epoch_s, strict=True):
        losses = pd.concat(seeds).groupby("epochs")["validation_loss"]
        points = zip(losses.median(), losses.min(), losses.max(), strict=True)
        lines[name] = {epoch * seconds: Interval(*point) for epoch, point in enumerate(points, start=1)}
    return lines
