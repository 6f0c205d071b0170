"""Given code under ScheduledPipeline: a stage, which works on one micro-batch after another.

    stage = Stage(module, number=1)
    y = stage.forward(0, x)                    # F of micro-batch 0
    dx = stage.backward(0, dy)                 # B
    dx = stage.input_grad(0, dy)               # or I, and later
    stage.weight_grad(0)                       # W

Each is a span with the numbers of step, stage and micro-batch. What the module raises gets a note
(``add_note``) with the stage and the micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn

from labkit.parallel.graph_entry import enter_graph
from labkit.parallel.split_backward import StageGraph
from labkit.parallel.stage_errors import check_output, noted
from labkit.trace import span

Loss = Callable[[torch.Tensor, int], torch.Tensor]


class Stage:
    """Stage ``number`` of a pipeline. Gradients of its parameters add up in their ``.grad``.

    The last stage is given a ``loss``: from an output and the number of its micro-batch it gives a
    tensor with one element, which replaces the output; backward starts there, with 1. ``step`` is a
    label of the spans. ``device`` is that of the module's parameters or buffers, and the CPU where
    it has none.
    """

    def __init__(self, module: nn.Module, number: int):
        self.module, self.number, self.step = module, number, 0
        self.loss: Loss | None = None
        tensors = itertools.chain(module.parameters(), module.buffers())
        self.device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        self._graphs: dict[int, StageGraph] = {}  # by micro-batch

    def forward(self, micro_batch: int, x: torch.Tensor) -> torch.Tensor:
        """Return the module's output for ``x``, or its loss. The graph is kept for backward.

        Where ``x`` requires grad, backward gives its gradient; the output requires grad if it is to
        get one. Under torch.no_grad nothing is kept. Raises TypeError if the module returns
        anything but one tensor.
        """
        with self._span("forward", micro_batch):
            # Micro-batches of stage 0 are views of one batch: changed in place, all of them would
            # count as changed.
            x, wanted = x.detach().clone() if self.number == 0 else x.detach(), x.requires_grad
            x.requires_grad_(wanted and torch.is_grad_enabled())
            with noted("forward", self.number, micro_batch):
                y = self.module(enter_graph(x) if x.requires_grad else x)
                check_output(y, self.number, micro_batch)
            if self.loss:
                with noted("loss", self.number, micro_batch):
                    y = self.loss(y, micro_batch)
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

    def _span(self, name: str, micro_batch: int) -> span:
        return span(name, device=self.device, step=self.step, stage=self.number, micro_batch=micro_batch)
