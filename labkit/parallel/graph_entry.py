"""Given code under Stage and run_stage: where a stage's own autograd graph begins and ends."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

# The type of the nodes that add to the .grad of a parameter.
LEAF: Any = type(get_gradient_edge(torch.empty(0, requires_grad=True)).node)


def enter_graph(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` again, in the same memory, as the input of a new graph.

    Unlike a leaf that requires grad, or a view, it may be changed in place. If ``x`` is a leaf that
    requires grad, it gets the gradient that arrives there.
    """
    anchor = x if x.is_leaf and x.requires_grad else torch.empty(0, requires_grad=True)
    return _GraphEntry.apply(anchor, [x])


class _GraphEntry(torch.autograd.Function):
    """Give the tensor in ``inputs`` without its graph.

    ``anchor`` requires grad, so that the output does, and gets the output's gradient. The tensor
    comes in a list, where autograd does not see it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # no gradient stays none
        return inputs[0].detach()  # changes in place count for both: whoever saved the input hears of them

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return gradients[0], None  # not reached where the gradient is taken as it comes in
