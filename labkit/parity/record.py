"""Write down what each rank has at each step: in files, so that it is there if the rank dies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch


class Record(NamedTuple):
    """The loss and the gradients of a step, before the optimizer's, and the parameters after it.

    Tensors are whole, by their names. Record 0 has the parameters that the training begins with.
    """

    loss: float | None
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


def write(folder: Path, rank: int, step: int, record: Record) -> None:
    """Write a record; ``step`` counts from 1."""
    unfinished = folder / f"{rank}.unfinished"
    torch.save(tuple(record), unfinished)
    os.replace(unfinished, _path(folder, rank, step))


def read(folder: Path, rank: int, step: int) -> Record | None:
    """Return a record, None if the rank has not come so far."""
    path = _path(folder, rank, step)
    return Record(*torch.load(path, mmap=True)) if path.exists() else None


def _path(folder: Path, rank: int, step: int) -> Path:
    return folder / f"{rank}-{step}.pt"


def copies(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Return copies of those that are there, dense and on the CPU."""
    return {name: _dense(tensor).cpu().clone() for name, tensor in tensors.items() if tensor is not None}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
