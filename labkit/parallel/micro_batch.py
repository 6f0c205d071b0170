"""Given code under ScheduledPipeline: micro-batches of a batch, and its loss from theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch

NEEDED_BY = {"x": "stage 0", "target": "the last stage"}

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of output and target; a mean over rows


def cut(name: str, batch: torch.Tensor | None, n_micro: int, n_rows: int | None = None) -> list[torch.Tensor]:
    """Return the rows of ``batch`` in ``n_micro`` even parts; the first have one more if need be.

    Raises TypeError for what is no tensor, and ValueError for fewer rows than micro-batches or,
    where ``n_rows`` were there in the first step, another number of them; both by its ``name``.
    """
    if batch is None:
        raise TypeError(f"{name} is missing: the rank of {NEEDED_BY[name]} needs it in every step, all of its rows")
    if not isinstance(batch, torch.Tensor):
        raise TypeError(f"{name} is a {type(batch).__name__}, expected one tensor whose first dimension is the rows")
    rows = len(batch) if batch.dim() else 0
    if rows < n_micro:
        raise ValueError(
            f"{name} has {rows} rows (its shape is {tuple(batch.shape)}), and the schedule {n_micro} micro-batches, expected at "
            "least one row for each: give it a bigger batch, or make a schedule with fewer"
        )
    if n_rows not in (None, rows):
        raise ValueError(
            f"{name} has {rows} rows, and the batch of the first step had {n_rows}, expected as many in every step, as ranks "
            "make room beforehand for what they receive: leave out the last, smaller batch (drop_last=True), or make another "
            f"ScheduledPipeline for batches of {rows} rows"
        )
    return list(batch.tensor_split(n_micro))


def agreed_rows(inputs: list[torch.Tensor], targets: list[torch.Tensor]) -> int | None:
    """Return how many rows the batch has whose micro-batches these are; None where there are none.

    Raises ValueError where both are there and differ.
    """
    rows = [sum(map(len, parts)) for parts in (inputs, targets) if parts]
    if len(set(rows)) > 1:
        raise ValueError(
            f"x has {rows[0]} rows and target {rows[1]}, expected as many: target needs a row for each row of x"
        )
    return rows[0] if rows else None


def check_no_grad(name: str, parts: list[torch.Tensor]) -> None:
    """Raise ValueError for a batch that requires grad, by its ``name``."""
    if any(part.requires_grad for part in parts):
        raise ValueError(
            f"{name} requires grad, and a pipeline does not give its gradient back: put what computes {name} into stage 0, or "
            f"give {name}.detach()"
        )


class MeanLoss:
    """The loss of each micro-batch as its part of the batch's: the parts add up to it."""

    def __init__(self, loss_fn: LossFunction, targets: list[torch.Tensor], check_nan: bool = False):
        self._loss_fn, self._targets, self._check_nan = loss_fn, targets, check_nan
        self._rows = sum(map(len, targets))
        self._parts: list[torch.Tensor] = []

    def __call__(self, output: torch.Tensor, micro_batch: int) -> torch.Tensor:
        """Return the part of micro-batch ``micro_batch``.

        Raises ValueError where the target has another number of rows than the output, or the loss
        is not one number or has lost its way back to the output; FloatingPointError where it is NaN
        and ``check_nan`` was asked for.
        """
        target = self._targets[micro_batch].to(output.device)  # moves it where the last stage is on several devices
        if not output.dim() or len(output) != len(target):
            raise ValueError(
                f"the output has shape {tuple(output.shape)} and the target {tuple(target.shape)}, expected as many rows: "
                "target needs a row for each row of x"
            )
        try:
            loss = self._loss_fn(output, target)
        except Exception as error:
            error.add_note(
                f"loss_fn was given an output of shape {tuple(output.shape)} and a target of {tuple(target.shape)}"
            )
            raise
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
            raise ValueError(f"loss_fn gave {what}, expected a tensor with one number: the mean over the rows")
        if output.requires_grad and not loss.requires_grad:
            raise ValueError(
                "loss_fn gave a loss that requires no grad, though the output does, so no stage would get a gradient: compute it "
                "without detach, item and torch.no_grad"
            )
        if self._check_nan and loss.isnan():
            rest = "the output has NaN in it" if output.isnan().any() else "though the output has none in it"
            raise FloatingPointError(f"the loss is NaN, {rest}")
        part = loss * (len(target) / self._rows)
        self._parts.append(part.detach())
        return part

    def total(self) -> torch.Tensor:
        """Return the batch's loss: the mean over all rows."""
        return torch.stack(self._parts).sum()
