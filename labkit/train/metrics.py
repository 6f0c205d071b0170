"""Measurements of a training run: one result per rank, merged into one, as JSON and CSV.

Warm-up is left out of the averages and named with them: caches, allocators and, on GPUs, kernels
settle in the first steps. With more epochs than ``warmup_epochs`` the first epochs are dropped;
with no more than that, the first ``warmup_steps`` steps of every epoch are.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    import torch


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch on one rank.

    ``steps``, ``samples`` and ``tokens`` are this rank's. The ranks of a pipeline work on the same
    samples, so that of the last stage counts them, and the others count none: sums over ranks are
    right in all modes. Tokens are those of source and target with their end marks, without padding.
    ``seconds`` is the whole epoch's training time: from the first forward to the last optimizer
    step, batches ready-made, validation not in it. ``counted_steps``, ``counted_tokens`` and
    ``counted_seconds`` are of the steps that count: all of the epoch's, or those after its warm-up
    steps. The losses are nats per target token, over all ranks.
    """

    epoch: int
    steps: int
    samples: int
    tokens: int
    seconds: float
    counted_steps: int
    counted_tokens: int
    counted_seconds: float
    training_loss: float
    validation_loss: float


@dataclass(frozen=True)
class TrainingResult:
    """What the result of a rank says in every task: on what it trained what."""

    rank: int
    world_size: int
    backend: str
    device: str
    threads: int
    data_source: str
    parameters: int
    config: dict[str, Any]


@dataclass(frozen=True)
class RankResult(TrainingResult):
    """The result of one rank. ``bleu`` and ``samples`` are the same on every rank.

    ``samples`` are a few test sentences: ``source``, ``reference`` and ``translation``.
    ``gradients`` holds those of the first batch if they were asked for: ``local`` (before
    averaging) and ``averaged``, tensors by parameter name; in a pipeline those of its stages.
    ``layout`` says in a line how the training was shared out.
    """

    epochs: list[EpochMetrics]
    bleu: float | None
    samples: list[dict[str, str]]
    gradients: dict[str, dict[str, torch.Tensor]] | None = field(default=None, repr=False)
    layout: str = ""

    def summary(self) -> dict[str, Any]:
        """Return everything but the gradients, as plain values."""
        return asdict(RankResult(**{**self.__dict__, "gradients": None}))


def merge(results: Sequence[RankResult]) -> dict[str, Any]:
    """Return one result of all ranks': times averaged over ranks, tokens per second summed.

    ``training_time_s`` and ``tokens_per_s`` are ``{"mean", "std", "per_epoch"}``: the mean and the
    sample standard deviation (None for one epoch) are of the epochs that count, ``per_epoch`` has
    all. ``warm_up`` says what was left out. Raises ValueError for no results and for results of
    different runs.
    """
    ranks = sorted(results, key=lambda result: result.rank)
    if not ranks or [r.rank for r in ranks] != list(range(ranks[0].world_size)):
        raise ValueError(f"results of ranks {[r.rank for r in ranks]}, expected one of each rank of a run")
    first = ranks[0]
    by_epoch = list(zip(*(rank.epochs for rank in ranks), strict=True))
    times = [statistics.fmean(e.counted_seconds for e in epoch) for epoch in by_epoch]
    rates = [sum(e.counted_tokens / e.counted_seconds for e in epoch) for epoch in by_epoch]
    dropped = dropped_epochs(len(by_epoch), first.config["warmup_epochs"])
    return {
        "data_source": first.data_source,
        "layout": first.layout,
        "world_size": first.world_size,
        "backend": first.backend,
        "devices": [rank.device for rank in ranks],
        "threads_per_rank": first.threads,
        "parameters": first.parameters,
        "config": first.config,
        "warm_up": _warm_up(by_epoch, dropped),
        "training_time_s": _spread(times, dropped),
        "tokens_per_s": _spread(rates, dropped),
        "samples_per_epoch": [sum(e.samples for e in epoch) for epoch in by_epoch],
        "training_loss": [epoch[0].training_loss for epoch in by_epoch],
        "validation_loss": [epoch[0].validation_loss for epoch in by_epoch],
        "bleu": first.bleu,
        "samples": first.samples,
    }


def dropped_epochs(epochs: int, warmup_epochs: int) -> int:
    """Return how many first epochs do not count: ``warmup_epochs``, or none if that leaves none."""
    return warmup_epochs if epochs > warmup_epochs else 0


def _warm_up(by_epoch: Sequence[Sequence[EpochMetrics]], dropped: int) -> dict[str, Any]:
    steps = max(e.steps for e in by_epoch[0])
    counted = max(e.counted_steps for e in by_epoch[0])
    if dropped:
        rule = "epoch 1 is warm-up, not counted" if dropped == 1 else f"epochs 1 to {dropped} are warm-up, not counted"
    elif counted < steps:
        rule = f"the first {steps - counted} of {steps} steps of an epoch are warm-up, not counted"
    else:
        rule = "no warm-up: every step counts"
    return {"epochs_dropped": dropped, "steps_dropped": steps - counted, "rule": rule}


def _spread(per_epoch: list[float], dropped: int) -> dict[str, Any]:
    counted = per_epoch[dropped:]
    std = statistics.stdev(counted) if len(counted) > 1 else None
    return {"mean": statistics.fmean(counted), "std": std, "per_epoch": per_epoch}


def save(results: Sequence[RankResult], events: pd.DataFrame, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Write ``merged.json``, ``rank0.json`` …, ``events.csv`` and gradients, where there are any.

    ``model0_gradients.pth`` has rank 0's gradients after averaging, tensors by parameter name;
    ``model0_local_gradients.pth`` those before. A rank of a pipeline has those of its own stages.
    Gives the merged result.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    merged = merge(results)
    write_json(folder / "merged.json", merged)
    for result in results:
        write_json(folder / f"rank{result.rank}.json", result.summary())
        if result.gradients:
            import torch

            torch.save(result.gradients["averaged"], folder / f"model{result.rank}_gradients.pth")
            torch.save(result.gradients["local"], folder / f"model{result.rank}_local_gradients.pth")
    events.to_csv(folder / "events.csv", index=False)
    return merged


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def report(merged: dict[str, Any]) -> str:
    """Return the merged result in a few lines, for a terminal."""
    time, rate = merged["training_time_s"], merged["tokens_per_s"]
    threads = f"{merged['threads_per_rank']} CPU thread{'s' * (merged['threads_per_rank'] > 1)} each"
    lines = [
        ("source", merged["data_source"]),
        ("mode", merged["layout"]),
        ("ranks", f"{merged['world_size']} on {merged['backend']}: {', '.join(merged['devices'])}, {threads}"),
        ("training time", f"{_with_std(time, '.3g')} s an epoch, averaged over ranks ({merged['warm_up']['rule']})"),
        ("tokens per second", f"{_with_std(rate, ',.0f')}, summed over ranks"),
        ("validation loss", f"{merged['validation_loss'][-1]:.4g} nats a target token"),
    ]
    if merged["bleu"] is not None:
        lines.append(("BLEU", f"{merged['bleu']:.2f}"))
    for sample in merged["samples"]:
        lines += [("", ""), ("German", sample["source"]), ("English", sample["reference"])]
        lines.append(("translated", sample["translation"]))
    return "\n".join(f"{name:<18} {value}".rstrip() for name, value in lines)


def table(merged: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """Return named merged results as a table, a row each: time, tokens per second, first loss.

    The columns are run, epoch_s, epoch_std, tokens_per_s, tokens_std, and the first epoch's loss.
    """
    from labkit.base import formats

    rows = []
    for name, result in merged.items():
        time, rate = result["training_time_s"], result["tokens_per_s"]
        loss = formats.loss(result["training_loss"][0])
        rows.append([name, time["mean"], time["std"], rate["mean"], rate["std"], loss])
    return formats.MeasuredTable(
        rows, columns=["run", "epoch_s", "epoch_std", "tokens_per_s", "tokens_std", "first loss"]
    )


def history(results: Sequence[RankResult]) -> pd.DataFrame:
    """Return how a run learned, a row after each epoch: what it took until then, and the losses.

    The columns are epochs, steps, seconds (of training, averaged over ranks), training_loss and
    validation_loss (nats per target token). All epochs are in it, also those of the warm-up. Raises
    as :func:`merge` does.
    """
    from labkit.base import formats

    merge(results)  # refuses what is no run
    by_epoch = list(zip(*(rank.epochs for rank in results), strict=True))
    table = formats.MeasuredTable(
        {
            "epochs": [epoch[0].epoch for epoch in by_epoch],
            "steps": [max(e.steps for e in epoch) for epoch in by_epoch],
            "seconds": [statistics.fmean(e.seconds for e in epoch) for epoch in by_epoch],
            "training_loss": [epoch[0].training_loss for epoch in by_epoch],
            "validation_loss": [epoch[0].validation_loss for epoch in by_epoch],
        }
    )
    table[["steps", "seconds"]] = table[["steps", "seconds"]].cumsum()
    return table


def epochs_to(history: pd.DataFrame, validation_loss: float) -> float:
    """Return after how many epochs a run of :func:`history` first had that loss; infinity if never.

    Between two epochs the loss counts as falling evenly.
    """
    import numpy as np  # here, since every rank imports this module

    least = history["validation_loss"].to_numpy(dtype=float)
    return float(np.interp(-validation_loss, -np.minimum.accumulate(least), history["epochs"], right=np.inf))


def _with_std(spread: dict[str, Any], form: str) -> str:
    return f"{spread['mean']:{form}}" + (f" ± {spread['std']:{form}}" if spread["std"] is not None else "")
