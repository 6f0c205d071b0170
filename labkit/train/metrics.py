"""Sum up a training run from its record, a row per step and rank; write it as JSON and CSV.

Warm-up is left out of the averages: caches, allocators and, on GPUs, kernels settle in the first
steps. The seconds of an epoch are those of a step that counts, times the steps of a whole epoch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.base.files import write_atomically

if TYPE_CHECKING:
    import torch

TIMED_ITERATIONS = 40  # of which the first does not count, as in the assignment


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The result of one rank, in every task: where it trained what, and what came of it.

    - ``steps``: the record. A row per step, with the columns of
      :class:`labkit.train.trainer.Step`.
    - ``steps_per_epoch``: of a whole epoch, also where the last one was cut short.
    - ``validation_loss`` (nats per target) or ``accuracy``: after each epoch, over all ranks.
    - ``layout``: how the training was shared out, in a line.
    - ``bleu`` and ``samples``: of the test sentences, the same on every rank. A sample is a
      ``source``, a ``reference`` and a ``translation``.
    - ``gradients``: of the first batch, if they were asked for: ``local`` (before averaging) and
      ``averaged``, tensors by parameter name.
    - ``fingerprints``: of all parameters, before and after.
    """

    rank: int
    world_size: int
    backend: str
    device: str
    threads: int
    data_source: str
    parameters: int
    config: dict[str, Any]
    model: str
    layout: str
    steps_per_epoch: int
    steps: pd.DataFrame = field(repr=False)
    validation_loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    bleu: float | None = None
    samples: list[dict[str, str]] = field(default_factory=list)
    gradients: dict[str, dict[str, torch.Tensor]] | None = field(default=None, repr=False)
    fingerprints: tuple[str, str] | None = None


# --- the record -----------------------------------------------------------------------------------


def record(results: Sequence[TrainingResult]) -> pd.DataFrame:
    """Return the rows of all ranks as one table.

    Raises ValueError for no results and for results of different runs.
    """
    ranks = sorted(results, key=lambda result: result.rank)
    if not ranks or [r.rank for r in ranks] != list(range(ranks[0].world_size)):
        raise ValueError(f"results of ranks {[r.rank for r in ranks]}, expected one of each rank of a run")
    return pd.concat([result.steps for result in ranks], ignore_index=True)


def without_warm_up(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that count: those after the first epoch.

    Where there is no other, that without its first three steps, but for one at least.
    """
    later = steps[steps.epoch > 1]
    number = steps.groupby("rank").cumcount()
    return later if len(later) else steps[number >= min(3, number.max())]


def epoch_seconds(steps: pd.DataFrame, steps_per_epoch: int) -> pd.Series:
    """Return the seconds of a whole epoch at the pace of each epoch's ``steps``, over all ranks."""
    return steps_per_epoch * steps.groupby(["epoch", "rank"]).seconds.mean().groupby("epoch").mean()


def tokens_per_second(steps: pd.DataFrame) -> pd.Series:
    """Return the tokens per second in each epoch's steps, summed over ranks."""
    sums = steps.groupby(["epoch", "rank"])[["tokens", "seconds"]].sum()
    return (sums.tokens / sums.seconds).groupby("epoch").sum()


def training_loss(steps: pd.DataFrame) -> pd.Series:
    """Return the mean loss per target of each epoch, in which each target weighs the same."""
    sums = (steps.local_loss * steps.targets).groupby(steps.epoch).sum()
    return sums / steps.groupby("epoch").targets.sum()


def seconds_per_iteration(steps: pd.DataFrame) -> float:
    """Return the mean over the first 40 iterations without the first, as the assignment has it."""
    counted = steps.step.between(min(2, steps.step.max()), TIMED_ITERATIONS)
    return float(steps[counted].seconds.mean())


# --- a run in a few numbers -----------------------------------------------------------------------


def merge(results: Sequence[TrainingResult]) -> dict[str, Any]:
    """Return one result of all ranks': times averaged over ranks, tokens per second summed.

    ``training_time_s`` and ``tokens_per_s`` are ``{"mean", "std"}`` over the epochs that count (the
    sample standard deviation, None for one epoch). Raises as :func:`record` does.
    """
    steps = record(results)
    first = min(results, key=lambda result: result.rank)
    counted = without_warm_up(steps)
    losses = steps.loss[steps["rank"] == 0]
    threads = [result.threads for result in sorted(results, key=lambda result: result.rank)]
    return {
        "data_source": first.data_source,
        "model": first.model,
        "parameters": first.parameters,
        "layout": first.layout,
        "world_size": first.world_size,
        "backend": first.backend,
        "devices": [result.device for result in sorted(results, key=lambda result: result.rank)],
        "threads_per_rank": threads[0] if len(set(threads)) == 1 else threads,
        "config": first.config,
        "steps": len(losses),
        "steps_per_epoch": first.steps_per_epoch,
        "warm_up_steps": len(losses) - int((counted["rank"] == 0).sum()),
        "training_time_s": _spread(epoch_seconds(counted, first.steps_per_epoch)),
        "tokens_per_s": _spread(tokens_per_second(counted)),
        "seconds_per_iteration": seconds_per_iteration(steps) if len(steps) else None,
        "mean_losses": losses.tolist(),
        "training_loss": training_loss(steps).tolist(),
        "validation_loss": first.validation_loss,
        "accuracy": first.accuracy,
        "bleu": first.bleu,
        "samples": first.samples,
    }


def _spread(per_epoch: pd.Series) -> dict[str, float | None]:
    mean, std = per_epoch.agg(["mean", "std"])
    return {"mean": None if np.isnan(mean) else float(mean), "std": None if np.isnan(std) else float(std)}


def save(results: Sequence[TrainingResult], events: pd.DataFrame, folder: Path, command: str) -> None:
    """Write ``merged.json``, ``steps.csv``, ``events.csv`` and gradients, where there are any.

    ``merged.json`` is :func:`merge`, and the ``command`` that trained.
    ``model0_gradients.pth`` has rank 0's gradients after averaging, tensors by parameter name;
    ``model0_local_gradients.pth`` those before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": command} | merge(results), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / "merged.json", text.encode())
    for result in results:
        if result.gradients:
            import torch

            model = folder / f"model{result.rank}"
            torch.save(result.gradients["averaged"], f"{model}_gradients.pth")
            torch.save(result.gradients["local"], f"{model}_local_gradients.pth")
    record(results).to_csv(folder / "steps.csv", index=False)
    events.to_csv(folder / "events.csv", index=False)


def report(merged: dict[str, Any]) -> str:
    """Return the merged result in a few lines, for a terminal."""
    time, rate, source = merged["training_time_s"], merged["tokens_per_s"], merged["data_source"]
    n_threads, where = merged["threads_per_rank"], ", ".join(merged["devices"])
    threads = f"{n_threads} CPU thread{'s' * (n_threads != 1)} each"
    lines = [
        ("source", source),
        ("model", f"{merged['model']}, {merged['parameters']:,} parameters"),
        ("mode", merged["layout"]),
        ("ranks", f"{merged['world_size']} on {merged['backend']}: {where}, {threads}"),
    ]
    if batch_size := merged["config"].get("batch_size"):
        of_a_rank, n_ranks = batch_size // merged["world_size"], merged["world_size"]
        shared = f": {of_a_rank} on each of {n_ranks} ranks" if n_ranks > 1 else ""
        lines.append(("batch", f"{of_a_rank * n_ranks} in a step{shared}"))
    if n := merged["steps"]:
        warm_up = f"at the pace of its steps without {merged['warm_up_steps']} of {n}, which are warm-up"
        last = min(n, TIMED_ITERATIONS)
        timed = f"the mean of iterations 2 to {last}" if n > 1 else "the first iteration"
        an_epoch = f"{_with_std(time, '.3g')} s an epoch of {merged['steps_per_epoch']} steps, averaged over ranks"
        lines += [
            ("training time", f"{an_epoch} ({warm_up})"),
            ("tokens per second", f"{_with_std(rate, ',.0f')}, summed over ranks"),
            ("per iteration", f"{merged['seconds_per_iteration']:.4g} s, {timed}"),
        ]
    if losses := merged["validation_loss"]:
        lines.append(("validation loss", f"{losses[-1]:.4g} nats per target token"))
    if merged["accuracy"]:
        shares = ", ".join(f"{share:.4f}" for share in merged["accuracy"])
        lines.append(("accuracy", f"{shares} on {source}"))
    if merged["bleu"] is not None:
        lines.append(("BLEU", f"{merged['bleu']:.2f} on {source}"))
    for sample in merged["samples"]:
        lines += [("", ""), ("source", sample["source"]), ("reference", sample["reference"])]
        lines.append(("translated", sample["translation"]))
    return "\n".join(f"{name:<18} {value}".rstrip() for name, value in lines)


def _with_std(spread: dict[str, Any], form: str) -> str:
    return " ± ".join(f"{number:{form}}" for number in spread.values() if number is not None)
