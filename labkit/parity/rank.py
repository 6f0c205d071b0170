"""Train under a way on a rank, and write down each step. A refusal has a type of its own."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

import labkit
from labkit.base.consequence import as_consequence, is_consequence
from labkit.parity.record import Record, copies, write
from labkit.parity.training import DRAWS, Training, seed
from labkit.parity.ways import Way

LAB = str(Path(labkit.__path__[0]))


class Refused(Exception):
    """The lab has refused a training in a sentence of its own."""


def train(training: Training, way: Way, folder: Path) -> None:
    """Train on this rank, and write a record of each step into ``folder``."""
    try:
        _train(training, way, folder)
    except Exception as error:
        if not _is_sentence(error):
            raise
        refused = Refused(str(error))
        raise (as_consequence(refused) if is_consequence(error) else refused) from error


def _train(training: Training, way: Way, folder: Path) -> None:
    rank = dist.get_rank()
    module = training.module(rank if way.kind.broadcasts else 0)
    if way.kind.broadcasts:  # also of a build that seeds itself, or copies a module
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(rank)
    on_rank = way.kind.start(training, module, **way.options)
    write(folder, rank, 0, Record(None, {}, copies(on_rank.parameters())))
    seed(DRAWS + rank)
    for step in range(len(training.batches)):
        batch = training.batch(step)
        inputs, target = way.cut.parts(batch)[rank] if way.shards else batch
        if on_rank.optimizer is not None:
            on_rank.optimizer.zero_grad()
        loss = on_rank.step(inputs, target)
        gradients = copies(on_rank.gradients())
        if on_rank.optimizer is not None:
            on_rank.optimizer.step()
        record = Record(None if loss is None else loss.item(), gradients, copies(on_rank.parameters()))
        write(folder, rank, step + 1, record)


def _is_sentence(error: Exception) -> bool:
    """Return whether a line of the lab's that says ``raise`` has raised it, not torch."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0)
    return frame.filename.startswith(LAB) and line.strip().startswith("raise")
