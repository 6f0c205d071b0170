"""Train the translation task in processes that the reader's own `run_processes` starts."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pandas as pd

from labkit import dp
from labkit.base.formats import loss
from labkit.base.rendezvous import free_port
from labkit.launch import launch
from labkit.train import TranslateConfig, metrics, translate
from labkit.train.translation import Corpus


def train(config: TranslateConfig, corpus: Corpus, world_size: int = 2) -> pd.DataFrame:
    """Return the record of training on gloo and the CPU: a row for each rank and step.

    Its columns are those of :class:`labkit.train.metrics.TrainingResult`'s ``steps``.
    """
    with tempfile.TemporaryDirectory() as folder:
        dp.run_processes(partial(train_as_rank, config, corpus, free_port(), folder), world_size, "gloo")
        return pd.concat([pd.read_pickle(_record(folder, rank)) for rank in range(world_size)], ignore_index=True)


def losses(config: TranslateConfig, corpus: Corpus) -> pd.DataFrame:
    """Return each rank's losses, as a notebook shows them, of run_processes and of launch."""
    launched = launch(translate, config, corpus, world_size=2, backend="gloo").values
    records = {"run_processes": train(config, corpus), "launch": metrics.record(launched)}
    table = pd.concat(records, names=["started by", "row"]).set_index("rank", append=True).droplevel("row")
    return table[["local_loss", "loss"]].map(loss)


def train_as_rank(
    config: TranslateConfig, corpus: Corpus, port: int, folder: str, rank: int, world_size: int, backend: str
) -> None:
    """Train in a process of `run_processes`, and leave this rank's record in ``folder``."""
    dp.setup(rank, world_size, backend, master_port=port)
    result = translate(config, corpus)
    result.steps.to_pickle(_record(folder, rank))


def _record(folder: str, rank: int) -> Path:
    return Path(folder, f"rank {rank}.pickle")
