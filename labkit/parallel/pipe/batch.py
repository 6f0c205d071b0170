"""Check a batch that is given to a pipeline, and cut it into micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

NEEDED_BY = {"x": "stage 0", "target": "the last stage"}


def cut(name: str, batch: torch.Tensor | None, n_micro: int, n_rows: int | None = None) -> list[torch.Tensor]:
    """Return the rows of ``batch`` in ``n_micro`` even parts; the first have one more if need be.

    ``n_rows`` is how many rows the batch of the first step had. Raises, by the batch's ``name``,
    TypeError for anything but a dense tensor, and ValueError for fewer rows than micro-batches or
    another number of rows than ``n_rows``.
    """
    if batch is None:
        raise TypeError(f"{name} is missing: the rank of {NEEDED_BY[name]} needs it in every step, all of its rows")
    _check_tensor(name, batch)
    rows = len(batch) if batch.dim() else 0
    if rows < n_micro:
        raise ValueError(
            f"{name} has {rows} rows (its shape is {tuple(batch.shape)}), and the schedule {n_micro} micro-batches, expected at "
            "least one row for each: give it a bigger batch, or make a schedule with fewer"
        )
    if n_rows not in (None, rows):
        raise ValueError(
            f"{name} has {rows} rows, and the batch of the first step had {n_rows}, expected as many in every step, because "
            "ranks allocate what they receive in advance: leave out the last, smaller batch (drop_last=True), or make another "
            f"ScheduledPipeline for batches of {rows} rows"
        )
    return list(batch.tensor_split(n_micro))


def rows_of(batches: Iterable[Sequence[torch.Tensor]]) -> list[int]:
    """Return how many rows each batch has, from its micro-batches."""
    return [sum(map(len, parts)) for parts in batches]


def agreed_rows(of_ranks: Iterable[Sequence[int]]) -> int:
    """Return how many rows a batch has, from each rank's rows of inputs and targets, 0 for none.

    Raises ValueError if inputs and targets have different numbers of rows.
    """
    x, target = (max(rows) for rows in zip(*of_ranks, strict=True))
    if x and target and x != target:
        raise ValueError(f"x has {x} rows and target {target}, expected as many: target needs a row for each row of x")
    return x or target


def check_no_grad(name: str, parts: list[torch.Tensor]) -> None:
    """Raise ValueError for a batch that requires grad, by its ``name``."""
    if any(part.requires_grad for part in parts):
        raise ValueError(
            f"{name} requires grad, and a pipeline does not give its gradient back: put what computes {name} into stage 0, or "
            f"give {name}.detach()"
        )


def check_input(x: Any) -> None:
    """Raise TypeError for anything but a dense tensor, ValueError for one without rows."""
    _check_tensor("the input", x)
    if not x.dim() or not len(x):
        raise ValueError(
            f"the input has shape {tuple(x.shape)}, expected at least one row: the first dimension is the batch, which is cut "
            "into micro-batches"
        )


def _check_tensor(name: str, batch: Any) -> None:
    if not isinstance(batch, torch.Tensor):
        raise TypeError(f"{name} is a {type(batch).__name__}, expected one tensor whose first dimension is the rows")
    if batch.is_nested or batch.layout is not torch.strided:
        kind = "nested" if batch.is_nested else batch.layout
        raise TypeError(
            f"{name} is a {kind} tensor, whose rows cannot be cut, expected a dense one: make it dense first"
        )


def check_no_transform(what: str) -> None:
    """Raise RuntimeError inside torch.func.grad, vmap and the like, which stages do not see."""
    if torch._C._are_functorch_transforms_active():  # not public, as of torch 2.13
        raise RuntimeError(
            f"{what} was called inside torch.func (grad, jacrev, jvp, vmap ...), which does not reach its stages, so gradients "
            "would be zeros: use backward() or torch.autograd.grad, or the plain module"
        )
