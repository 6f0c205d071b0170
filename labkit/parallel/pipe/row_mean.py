"""Check that a loss is a mean over rows: only then is the micro-batches' mean loss the batch's.

A mean over valid tokens (``ignore_index``) or with class weights is none: rows with many of them
count more. So in a pipeline's first step the loss of some rows is compared with the mean of theirs,
each by itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from labkit.parallel.pipe.side_effects import without_side_effects

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of output and target; a mean over rows
MAX_PARTS = 64  # of a micro-batch: with more rows than that, a part has several
MAX_NUMBERS = 2**24  # of the rows that are compared at once, for the memory that it takes
REPEATS = 4  # of a comparison, before a difference is taken for more than chance

INSTEAD = (
    "the pipeline takes the mean over micro-batches, so a row must count the same in each. Divide a sum by what is the same "
    'in all of them: cross_entropy(..., reduction="sum") / (len(target) * tokens_per_row), where tokens_per_row is '
    "(target != ignore_index).sum() / len(target) of the whole batch, set before each step"
)


def check_loss_function(loss_fn: object, n_micro: int) -> None:
    """Raise TypeError unless ``loss_fn`` can be called, and ValueError if it says it is a sum.

    A batch that is one micro-batch may have any loss.
    """
    if not callable(loss_fn):
        raise TypeError(
            f"loss_fn is {loss_fn!r}, expected a function of output and target, such as torch.nn.functional.mse_loss"
        )
    # Not a subclass that divides the sum by something.
    of_torch = type(loss_fn).__module__.startswith("torch.nn.")
    if n_micro > 1 and of_torch and getattr(loss_fn, "reduction", None) == "sum":
        raise ValueError(f'loss_fn is {loss_fn} with reduction="sum", expected a mean over rows: {INSTEAD}')


class RowMeanCheck:
    """The comparison of a first step: ``add`` each micro-batch, and in the end ``finish``.

    A micro-batch is compared together with the last row of the one before, so that rows count the
    same across micro-batches, too. It leaves no trace: no random number is used up, the buffers and
    attributes of modules stay what they were, and no span is recorded.

    A loss that cannot be judged passes: one that raises for a row alone or under no_grad, and one
    that gives something else for the same rows each time, as with dropout in it.
    """

    def __init__(self, loss_fn: LossFunction):
        self._loss_fn = loss_fn
        self._last_row: tuple[torch.Tensor, torch.Tensor] | None = None
        self._mistake: str = ""

    def add(self, output: torch.Tensor, target: torch.Tensor, micro_batch: int) -> None:
        """Compare the loss of a micro-batch, and of the row before it, with that of each row."""
        if self._mistake:
            return
        output, target = output.detach(), target.detach()
        rows = _joined(self._last_row, (output, target))
        self._last_row = output[-1:].clone(), target[-1:].clone()
        at_once = max(2, MAX_NUMBERS // max(1, output[0].numel()))
        for start in range(0, max(1, len(rows[0]) - 1), at_once - 1):  # each with the last row of those before
            some = [tensor[start : start + at_once] for tensor in rows]
            if found := _difference(self._loss_fn, *some):
                self._mistake = (
                    f"loss_fn gives {found.whole:.6g} for {len(some[0])} rows up to micro-batch {micro_batch}, and "
                    f"{found.mean:.6g} is the mean of what it gives for each of them, expected the same, because {INSTEAD}"
                )
                return

    def finish(self) -> None:
        """Raise ValueError if the loss is not a mean over rows."""
        if self._mistake:
            raise ValueError(self._mistake)


def _joined(before: tuple[torch.Tensor, torch.Tensor] | None, rows: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return both one below the other, or ``rows`` where they do not fit together."""
    if before and all(a.shape[1:] == b.shape[1:] and a.dtype == b.dtype for a, b in zip(before, rows, strict=True)):
        return tuple(torch.cat(pair) for pair in zip(before, rows, strict=True))  # type: ignore[return-value]
    return rows


# --- the comparison -------------------------------------------------------------------------------


class _Losses(NamedTuple):
    """The loss of some rows, the mean of each row's, and how far rounding may take them apart."""

    whole: float
    mean: float
    tolerance: float

    def differ(self) -> bool:
        """Return whether they are not the same. A row without a loss of its own, NaN, is none."""
        if not math.isfinite(self.whole) or math.isinf(self.mean):
            return False
        return not abs(self.whole - self.mean) <= self.tolerance

    def repeats(self, other: _Losses) -> bool:
        return not any(abs(a - b) > self.tolerance for a, b in zip(self[:2], other[:2], strict=True))


def _difference(loss_fn: LossFunction, output: torch.Tensor, target: torch.Tensor) -> _Losses | None:
    """Return the losses if they differ, each time in the same way: else it is chance."""
    for as_number in (_as_double, torch.clone):
        with contextlib.suppress(Exception), without_side_effects([output.device]):
            in_double = as_number is _as_double
            with torch.autocast(output.device.type, enabled=False) if in_double else contextlib.nullcontext():
                found = _losses(loss_fn, output, target, as_number)
                again = (_losses(loss_fn, output, target, as_number) for _ in range(REPEATS))
                return found if found.differ() and all(each.repeats(found) for each in again) else None
    return None


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, in float64 if it has floats: then what differs is not rounding."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _losses(
    loss_fn: LossFunction, output: torch.Tensor, target: torch.Tensor, as_number: Callable[..., Any]
) -> _Losses:
    n_parts = min(len(output), MAX_PARTS)
    parts = zip(output.tensor_split(n_parts), target.tensor_split(n_parts), strict=True)
    whole = loss_fn(as_number(output), as_number(target))
    of_rows = [len(y) / len(output) * loss_fn(as_number(y), as_number(t)).item() for y, t in parts]
    dtypes = {as_number(output[:0]).dtype, whole.dtype}
    if torch.is_autocast_enabled(output.device.type):
        dtypes.add(torch.get_autocast_dtype(output.device.type))
    # A constant that the loss has from elsewhere is rounded as float32, or as the output.
    rounding = max(math.sqrt(max(map(_eps, dtypes))), _eps(output.dtype), 8 * _eps(torch.float32))
    scale = max(abs(whole.item()), sum(map(abs, of_rows)))
    return _Losses(whole.item(), sum(of_rows), rounding * scale)


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype if dtype.is_floating_point or dtype.is_complex else torch.float32).eps
