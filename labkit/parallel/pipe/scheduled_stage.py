"""Given code under ScheduledPipeline: a stage, the micro-batches it works on, and their loss.

    stage = Stage(module, number=1)
    y = stage.forward(0, x)                    # F of micro-batch 0
    dx = stage.backward(0, dy)                 # B
    dx = stage.input_grad(0, dy)               # or I, and later
    stage.weight_grad(0)                       # W

Each is a span with the numbers of stage and micro-batch. What the module raises gets a note
(``add_note``) with the stage and the micro-batch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

from labkit.parallel.pipe.agreement import check_together
from labkit.parallel.pipe.row_mean import LossFunction, RowMeanCheck
from labkit.parallel.pipe.sequence_layers import check_sequence_layers
from labkit.parallel.pipe.split_backward import StageGraph, enter_graph
from labkit.trace import span

# --- a stage --------------------------------------------------------------------------------------

Loss = Callable[[torch.Tensor, int], torch.Tensor]  # of an output and the number of its micro-batch


class Stage:
    """Stage ``number`` of a pipeline. Gradients of its parameters add up in their ``.grad``.

    The last stage is given a ``loss``: a function of an output and the number of its micro-batch.
    It returns a tensor with one element, which replaces the output, and backward starts there.
    ``check_loss``, if there is one, is called with the same, outside of the span. If micro-batch 0
    has ``check_rows`` rows, ``finish_check`` raises for it what
    :func:`labkit.parallel.pipe.sequence_layers.check_sequence_layers` does.
    ``device`` is that of the module's parameters or buffers, and the CPU where it has none.
    """

    def __init__(self, module: nn.Module, number: int):
        self.module, self.number = module, number
        self.loss: Loss | None = None
        self.check_loss: Callable[[torch.Tensor, int], None] | None = None
        tensors = itertools.chain(module.parameters(), module.buffers())
        self.device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        self.check_rows = 0
        self._mistake: ValueError | None = None
        self._graphs: dict[int, StageGraph] = {}  # by micro-batch

    def forward(self, micro_batch: int, x: torch.Tensor) -> torch.Tensor:
        """Return the module's output for ``x``, or its loss. The graph is kept for backward.

        If ``x`` requires grad, backward returns its gradient. If the output requires grad, it is to
        get one. Under torch.no_grad nothing is kept. Raises TypeError if the module returns
        anything but one tensor.
        """
        if micro_batch == 0 and x.dim() and len(x) == self.check_rows:
            self._check_layers(x)
        with self._span("forward", micro_batch):
            # Micro-batches of stage 0 are views of one batch: if one were changed in place, all
            # would count as changed.
            own = x.detach().clone() if self.number == 0 else x.detach()
            x = own.requires_grad_(x.requires_grad)
            with noted("forward", self.number, micro_batch):
                y = self.module(enter_graph(x) if x.requires_grad else x)
                check_output(y, self.number, micro_batch)
            output = y if self.check_loss else None
            if self.loss:
                with noted("loss", self.number, micro_batch):
                    y = self.loss(y, micro_batch)
        if self.check_loss and output is not None:
            self.check_loss(output, micro_batch)
        if y.requires_grad:
            self._graphs[micro_batch] = StageGraph(y, x if x.requires_grad else None)
        return y.detach().requires_grad_(y.requires_grad)

    def backward(self, micro_batch: int, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute the input's gradient and the parameters' from the output's; a loss has none.

        Return the input's; None where it needs no gradient, or the output does not depend on it.
        """
        with self._span("backward", micro_batch), noted("backward", self.number, micro_batch):
            graph = self._graphs.pop(micro_batch, None)
            return graph.backward(gradient) if graph else None

    def input_grad(self, micro_batch: int, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute the input's gradient alone, and return it as :meth:`backward` does."""
        with self._span("input_grad", micro_batch), noted("input gradient", self.number, micro_batch):
            graph = self._graphs.get(micro_batch)
            return graph.input_grad(gradient) if graph else None

    def weight_grad(self, micro_batch: int) -> None:
        """Compute the parameters' gradients, from what :meth:`input_grad` has kept."""
        with self._span("weight_grad", micro_batch), noted("weight gradient", self.number, micro_batch):
            if graph := self._graphs.pop(micro_batch, None):
                graph.weight_grad()

    def _check_layers(self, x: torch.Tensor) -> None:
        self._mistake = None
        try:
            check_sequence_layers([self.module], [self.device], x, self.number)
        except ValueError as mistake:
            self._mistake = mistake

    def finish_check(self) -> None:
        """Raise what was found where the layers were checked."""
        if self._mistake:
            raise self._mistake

    def _span(self, name: str, micro_batch: int) -> span:
        return span(name, device=self.device, stage=self.number, micro_batch=micro_batch)


# --- errors that name stage and micro-batch -------------------------------------------------------


@contextlib.contextmanager
def noted(what: str, stage: int, micro_batch: int) -> Iterator[None]:
    """Add to an exception raised in the block a note of where it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the {what} of stage {stage}, micro-batch {micro_batch}")
        raise


def check_output(y: Any, stage: int, micro_batch: int) -> None:
    """Raise TypeError unless a stage returned one tensor."""
    if not isinstance(y, torch.Tensor):
        raise TypeError(
            f"stage {stage} returned a {type(y).__name__} for micro-batch {micro_batch}, expected one tensor: have the last "
            "module of the stage pack what the next one needs into one, or cut elsewhere"
        )


# --- what a batch adds to the stages ---


@contextlib.contextmanager
def checked_step(stages: Collection[Stage], loss: MeanLoss | None, group: Any) -> Iterator[None]:
    """Raise at the end of a step, on all ranks of ``group``, what stages and loss were refused for.

    If the block raises, or this does, the stages' gradients are put back as they were.
    """
    parameters = [parameter for stage in stages for parameter in stage.module.parameters()]
    gradients = [parameter.grad for parameter in parameters]
    before = [None if gradient is None else gradient.clone() for gradient in gradients]
    try:
        yield
        checked: list[Stage | MeanLoss] = [*stages, *([loss] if loss else [])]
        check_together(lambda: [each.finish_check() for each in checked], group, "stages and loss_fn")
    except BaseException:
        for parameter, gradient, value in zip(parameters, gradients, before, strict=True):
            parameter.grad = gradient if gradient is None or value is None else gradient.copy_(value)
        raise


# --- and its loss from theirs ---------------------------------------------------------------------


class MeanLoss:
    """The loss of each micro-batch as its part of the batch's: the parts add up to it."""

    def __init__(self, loss_fn: LossFunction, targets: list[torch.Tensor]):
        self._loss_fn, self._targets = loss_fn, targets
        self._row_mean = RowMeanCheck(loss_fn)
        self._rows = sum(map(len, targets))
        self._parts: list[torch.Tensor] = []

    def __call__(self, output: torch.Tensor, micro_batch: int) -> torch.Tensor:
        """Return the part of micro-batch ``micro_batch``.

        Raises ValueError if the target has another number of rows than the output, if the loss is
        not one number, or if no gradient leads from it back to the output.
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
        part = loss * (len(target) / self._rows)
        self._parts.append(part.detach())
        return part

    def check(self, output: torch.Tensor, micro_batch: int) -> None:
        """Compare the loss of a micro-batch with that of its rows. See :class:`RowMeanCheck`."""
        self._row_mean.add(output, self._targets[micro_batch].to(output.device), micro_batch)

    def finish_check(self) -> None:
        """Raise ValueError if the loss was not a mean over rows where it was compared."""
        self._row_mean.finish()

    def total(self) -> torch.Tensor:
        """Return the batch's loss: the mean over all rows."""
        return torch.stack(self._parts).sum()
