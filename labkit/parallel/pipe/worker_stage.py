"""Given code under Pipe: a stage's forward and backward as one node of the autograd graph.

Autograd has a node for each operation, and runs them from C++: nothing there knows of stages. So a
stage computes its forward in a graph of its own, which ends at its input, and is in the caller's
graph a single node whose backward, in Python, runs that inner graph. Around it there is room for a
span and for a note on an exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.parallel.pipe.scheduled_stage import check_output, noted
from labkit.parallel.pipe.split_backward import LEAF, enter_graph
from labkit.parallel.pipe.streams import mark_ready, move, wait_until_ready
from labkit.parallel.pipe.worker import this_task
from labkit.trace import span


def run_stage(module: nn.Module, x: torch.Tensor, device: torch.device, stage: int, micro_batch: int) -> torch.Tensor:
    """Return ``module(x)``, with ``x`` moved to ``device`` first.

    ``stage`` and ``micro_batch`` name it in spans, and in a note (``add_note``) on what the module
    raises, in forward or in backward. Output and gradients are those of ``module(x)``, with frozen,
    shared and unused parameters, hooks, in-place operations, and a second backward pass, which
    needs retain_graph. Which leaves a stage has is read off its graph, so a parameter that the
    module uses without owning it gets its gradient too.

    Raises TypeError if the module returns anything but one tensor.

    Caveats:

    - The gradient cannot be differentiated again: RuntimeError with ``create_graph=True``.
    - Where autograd.grad asks for some gradients of a stage, all of them are computed.
    - torch.utils.checkpoint needs ``use_reentrant=False`` in a stage; with True it raises, as it
      does under autograd.grad.
    - A tensor with a graph of its own, which several stages or micro-batches use without it being
      their input, has that graph run once for each of them. torch then raises "backward through the
      graph a second time", unless the pass retains it.
    """
    if task := this_task():
        task.waits.end_at_stage(stage, micro_batch)
    with noted("forward", stage, micro_batch):
        x = move(x, device, stage=stage, micro_batch=micro_batch)
        if stage == 0:
            x = x.clone()  # micro-batches are views of one batch, which a module may not change in place
        entry = enter_graph(x) if torch.is_grad_enabled() and x.requires_grad else x
        inputs = [get_gradient_edge(entry)] if entry is not x else []  # before the module may change it in place
        with span("forward", device=device, stage=stage, micro_batch=micro_batch):
            y = module(entry)
        check_output(y, stage, micro_batch)
        if torch.is_grad_enabled() and y.requires_grad:
            output = get_gradient_edge(y)
            leaves = _leaves(output, inputs)
            y = _StageNode.apply(_InnerGraph(output, inputs, leaves, device, stage, micro_batch), [y], x, *leaves)
        return mark_ready(y)


# --- a graph of its own ---------------------------------------------------------------------------


class _InnerGraph(NamedTuple):
    """The inner graph: its output, the input if it gets a gradient, and the leaves.

    All but the leaves are edges, not tensors: which activations are kept is up to the operations,
    as in the plain module.
    """

    output: GradientEdge
    inputs: list[GradientEdge]
    leaves: list[torch.Tensor]
    device: torch.device
    stage: int
    micro_batch: int

    def backward(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients of the input, or None, and of the leaves."""
        ends: Any = [*self.inputs, *self.leaves]
        # As in the backward pass that got here. There is no public way to ask (torch 2.13).
        retain_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        with (
            noted("backward", self.stage, self.micro_batch),
            _without_hooks(self.leaves),
            span("backward", device=self.device, stage=self.stage, micro_batch=self.micro_batch),
        ):
            found = torch.autograd.grad([self.output], ends, [gradient], retain_graph, allow_unused=True)
        return [*([] if self.inputs else [None]), *found]


class _StageNode(torch.autograd.Function):
    """The node that represents a stage in the caller's graph: from input and leaves to output.

    The output comes in a list, where autograd does not see it: it has a graph already.
    """

    @staticmethod
    def forward(ctx: Any, graph: _InnerGraph, outputs: list[torch.Tensor], *_: torch.Tensor) -> torch.Tensor:
        ctx.graph = graph
        return outputs[0].detach()  # it shares memory and in-place changes

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"backward of stage {ctx.graph.stage} with create_graph=True: the gradient through a pipeline's stage cannot "
                "be differentiated again. Use the plain module for second derivatives"
            )
        return None, None, *ctx.graph.backward(gradients[0])


def _leaves(output: GradientEdge, inputs: list[GradientEdge]) -> list[torch.Tensor]:
    """Return the leaves in which the graph from ``output`` ends before it comes to ``inputs``."""
    leaves: list[torch.Tensor] = []
    seen: set[Any] = {edge.node for edge in inputs}
    ahead: list[Any] = [output.node] if output.node not in seen else []
    while ahead:
        node = ahead.pop()
        if type(node) is LEAF:  # a user's own function may have a variable, too
            leaves.append(node.variable)
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        ahead.extend(new)
    return leaves


@contextlib.contextmanager
def _without_hooks(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Take the hooks off ``leaves`` in the block: they are for the whole gradient, not a part."""
    hooks = [(leaf._backward_hooks, dict(leaf._backward_hooks)) for leaf in leaves if leaf._backward_hooks]
    for kept, _ in hooks:
        kept.clear()
    try:
        yield
    finally:
        for kept, before in hooks:
            kept.update(before)


# --- the end of the pipeline ----------------------------------------------------------------------


def concatenate(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the micro-batches' outputs as one tensor, one below the other.

    Raises ValueError where they do not fit together: another shape but for the number of rows, or
    another dtype.
    """
    for number, output in enumerate(outputs):
        if output.dim() == 0:
            raise ValueError(
                f"the last stage gave a tensor without dimensions for micro-batch {number}, expected one with rows: keep what "
                "sums up a batch, such as a loss, out of the pipeline"
            )
        if (output.shape[1:], output.dtype) != (outputs[0].shape[1:], outputs[0].dtype):
            raise ValueError(
                f"the last stage gave {tuple(output.shape)} {output.dtype} for micro-batch {number} and "
                f"{tuple(outputs[0].shape)} {outputs[0].dtype} for micro-batch 0, expected the same but for the number of rows: "
                "what a stage gives for some rows must not depend on the others"
            )
    return torch.cat([wait_until_ready(output) for output in outputs])
