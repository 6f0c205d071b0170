"""Run a training in plain torch and under each way, and put the verdicts into a table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from labkit.base import formats
from labkit.launch import LaunchTimeout, RankError, launch
from labkit.parity import rank, verdict
from labkit.parity.judge import judge
from labkit.parity.record import Record, read
from labkit.parity.request import find_ways, make_training
from labkit.parity.training import Batch, Cut, Training, rows_of
from labkit.parity.truth import Facts, find_truth
from labkit.parity.ways import Way

DEFAULT_WAYS = ("average_gradients", "BucketedDataParallel", "ShardedOptimizer", "ShardedModel")
WHOLE = Cut()
PLAIN_S = 120.0  # for plain torch, whose rank may be the first to import it


@dataclass(frozen=True)
class Parity:
    """Which ways train a model as plain torch does: a row for each in ``table``.

    Its columns: ``verdict``; ``difference``, the largest one, relative to the largest entry of its
    tensor; ``tolerance``, which is relative too; ``torch's own``, how far that way of torch's is
    off, if it was among them; ``seconds``. ``seconds`` is what all took. As the last line of a cell
    it shows a header line and the table.
    """

    table: pd.DataFrame
    header: str
    seconds: float

    def __repr__(self) -> str:
        numbers = repr(self.table.drop(columns="verdict")).splitlines()  # verdicts are sentences, so they come last
        lines = zip(numbers, ["verdict", "", *self.table.verdict], strict=True)
        return "\n".join([self.header, *(f"{line}  {verdict}".rstrip() for line, verdict in lines)])

    def _repr_html_(self) -> str:
        page: Any = self.table
        return f"<p>{formats.as_html(self.header)}</p>{page._repr_html_()}"


def compare(
    build: Callable[[], nn.Module],
    batch: Batch | Callable[[int], Batch],
    loss: Callable[[Any, Any], torch.Tensor],
    ways: Iterable[Any] = DEFAULT_WAYS,
    world_size: int = 2,
    steps: int = 3,
    optimizer: tuple[type[torch.optim.Optimizer], dict[str, Any]] = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    dtype: torch.dtype | None = None,
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None,
    timeout_s: float = 30,
    output: Callable[[Any], torch.Tensor] | None = None,
) -> Parity:
    """Train a model for a few steps in plain torch and under each way, and compare.

        compare(lambda: nn.Linear(8, 2), (x, y), nn.functional.mse_loss, ways=["DDP"])

    Arguments:

    - ``build()`` makes a new plain module each time. Before that torch, numpy and random are
      seeded, alike on all ranks; for ways that take rank 0's weights the other ranks get another
      seed, or a missing broadcast could not be seen.
    - ``batch``: ``(inputs, target)``, each a tensor, or a tuple or dict of what the module takes;
      or a function that returns that for a step, counted from 0. The first dimension of each tensor
      is the rows. Data-parallel ways get each rank's rows, by tensor_split; pipelines get all.
    - ``loss(output, target)``: one number. ``output=`` may take a tensor out of what the module
      returns, such as ``lambda result: result.logits``.
    - ``ways``: names, or pairs of a name and a dict of options. The lab's: average_gradients,
      BucketedDataParallel, ShardedOptimizer, ShardedModel, Pipe, ScheduledPipeline (its option
      ``schedule``). Torch's: DDP, fully_shard, ZeroRedundancyOptimizer, pipelining (``schedule``,
      by torch's name, and ``n_micro``). Your own: a function ``(module, optimizer) -> step``, where
      ``step(inputs, target)`` does all up to the optimizer's step, and returns the loss or None; if
      it has them, ``step.parameters()`` and ``step.gradients()`` return whole tensors by name.
      Options of a function are ``whole_batch`` (no shards) and ``broadcasts`` (it takes rank 0's
      weights).
    - ``dtype``: the one to train in. By default float64 if model and batch can be converted.
    - ``stages(module)``: for pipelines, modules in order that share its Parameters. Neighbours are
      joined to as many stages as there are to be. An nn.Sequential needs none.
    - ``timeout_s``: seconds that a way may take.

    What is right is what one of two plain trainings does, on one rank: with the whole batch, or
    with its shards or micro-batches in turn, each with random numbers and BatchNorm of its own. A
    way that agrees with the second alone is "right, but the batch is not the mean of its shards".
    Losses and gradients are compared, then parameters.

    All runs on the CPU, over gloo. Each way has ranks of its own, so one that fails or hangs costs
    its own row. Raises TypeError or ValueError, before any of those ranks starts, for what cannot
    be compared, and RankError for what plain torch raises.
    """
    __tracebackhide__ = True
    began = time.perf_counter()
    training = make_training(build, batch, loss, steps, optimizer, dtype, stages, output)
    found = find_ways(ways, training, world_size)
    with tempfile.TemporaryDirectory(prefix="labkit-parity-") as folder:
        facts, truths = _train_plainly(training, found, Path(folder), max(timeout_s, PLAIN_S))
        training = replace(training, dtype=facts.dtype)
        rows = [_row(training, way, facts, truths, timeout_s) for way in found]
    _add_torchs_own(rows, found)
    return _parity(rows, training, facts, world_size, time.perf_counter() - began)


Truths = dict[Cut, list[Record]]  # of plain torch, by how it cut the batch


def _train_plainly(training: Training, ways: list[Way], folder: Path, timeout_s: float) -> tuple[Facts, Truths]:
    """Train in plain torch, on the whole batch and by each way's parts. Records lie in ``folder``.

    Raises ValueError for a training that cannot be compared.
    """
    __tracebackhide__ = True
    cuts = list(dict.fromkeys([WHOLE, *(way.cut for way in ways)]))
    n_stages = max(way.n_stages for way in ways)
    facts: Facts = _on_ranks(find_truth, (training, cuts, n_stages, folder), 1, timeout_s)
    if facts.refused:
        raise ValueError(facts.refused)
    return facts, {cut: _records(folder / str(i), 0, len(training.batches)) for i, cut in enumerate(cuts)}


def _on_ranks(fn: Callable[..., Any], args: tuple[Any, ...], n_ranks: int, timeout_s: float) -> Any:
    __tracebackhide__ = True
    return launch(fn, *args, world_size=n_ranks, backend="gloo", timeout_s=timeout_s).values[0]


def _records(folder: Path, number: int, steps: int) -> list[Record]:
    """Return a rank's records, from 0 on, as far as it has come."""
    found = (read(folder, number, step) for step in range(steps + 1))
    return [record for record in found if record is not None]


# --- a way's row ----------------------------------------------------------------------------------


def _row(training: Training, way: Way, facts: Facts, truths: Truths, timeout_s: float) -> dict[str, Any]:
    """Run a way on ranks of its own, and return its row of the table."""
    began, failed, found = time.perf_counter(), "", None
    with tempfile.TemporaryDirectory(prefix="labkit-parity-") as name:
        try:
            _on_ranks(rank.train, (training, way, Path(name)), way.n_ranks, timeout_s)
        except (RankError, LaunchTimeout) as error:
            failed = verdict.failure(error)
        seconds = time.perf_counter() - began
        ranks = [_records(Path(name), number, len(training.batches)) for number in range(way.n_ranks)]
        if all(len(records) > 1 for records in ranks):
            by = [truths[cut] for cut in dict.fromkeys([WHOLE, way.cut])]
            found = judge(ranks, by, facts.tolerance.relative)
    return {
        "way": way.label,
        "verdict": verdict.sentence(failed, found, way, facts, rows_of(training.batches[0])),
        "difference": found.largest if found else "",
        "tolerance": f"{facts.tolerance.relative:.1e}",
        "torch's own": "",
        "seconds": seconds,
    }


# --- all of them ----------------------------------------------------------------------------------


def _add_torchs_own(rows: list[dict[str, Any]], ways: list[Way]) -> None:
    """Write into each row how far off the way of torch's is that does the same, if it ran."""
    off = {way.kind.name: row["difference"] for way, row in zip(ways, rows, strict=True) if row["difference"] != ""}
    for way, row in zip(ways, rows, strict=True):
        own = way.kind.torchs_own
        row["torch's own"] = f"{own} {formats.measured(off[own])}" if own and own in off else ""


def _parity(rows: list[dict[str, Any]], training: Training, facts: Facts, world_size: int, seconds: float) -> Parity:
    table = formats.MeasuredTable(rows).set_index("way")
    options = "".join(f", {key}={value}" for key, value in training.options.items())
    steps = len(training.batches)
    header = (
        f"{world_size} rank{'s' * (world_size != 1)}, {steps} step{'s' * (steps != 1)} of "
        f"{training.optimizer_class.__name__}{options}, on the CPU. Right is within {facts.tolerance} of plain torch. "
        f"{formats.measured(seconds, 's')}"
    )
    return Parity(table, header, seconds)
