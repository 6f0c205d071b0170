"""Give a stage a graph of its own, and run its backward pass, whole or in two.

    graph = StageGraph(module(enter_graph(x)), x)  # x is a leaf that requires grad
    dx = graph.backward(dy)    # B: the gradients of the input and of all weights
    dx = graph.input_grad(dy)  # I: the input's, for which the previous stage waits
    graph.weight_grad()        # W: the weights', for which nobody waits

Two, because a linear layer y = x·Wᵀ has two products in its backward pass, dx = dy·W and
dW = dyᵀ·x. Both need dy, and neither needs the other. So I follows the path from the output to the
input, leaves the weights out, and keeps dy wherever one is used. W takes it from there (Qi et al.
2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import GradientEdge, get_gradient_edge

Node = Any  # of the autograd graph: an operation of the forward pass, as the backward pass sees it
# The type of the nodes that add to the .grad of a parameter.
LEAF: Any = type(get_gradient_edge(torch.empty(0, requires_grad=True)).node)
# How many bytes of weight gradients W adds to .grad at once, at most: each addition is a call of
# the engine.
MAX_BYTES = 2**24


# --- where the graph begins -----------------------------------------------------------------------


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
        return inputs[0].detach()  # changes in place count for both: also for code that saved the input

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return gradients[0], None  # not reached where the gradient is taken as it comes in


# --- the way back ---------------------------------------------------------------------------------


class StageGraph:
    """Hold the graph of one micro-batch, from a stage's output ``y`` back to its input ``x``.

    ``x`` is a leaf, or None if no gradient of it is wanted. Call ``backward`` once, or
    ``input_grad`` and then ``weight_grad``. Gradients of weights are added to their ``.grad``. The
    graph is kept as edges, not as tensors: the memory of the output is free once that is sent.

    Notes: I and W together give what B does, and run the same hooks as often. What differs:

    - What operations have saved for backward is freed after W, even what only I needed.
    - A ``torch.autograd.Function`` on the path does all its work in I: its backward is one piece.
    - torch.utils.checkpoint computes the activations twice, for I and for W.
    - A hook of an operation on the path (``y.grad_fn.register_hook``, not ``y.register_hook``) does
      not get its weights' part.
    """

    def __init__(self, y: torch.Tensor, x: torch.Tensor | None = None):
        self._output, self._x = get_gradient_edge(y), x
        self._gradient: torch.Tensor | None = None  # of the output
        self._usages: list[Usage] | None = None
        self._shared = False  # whether usages have weights in common

    def backward(self, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute the input's gradient and the weights' from the output's ``gradient``.

        Return the input's; None where the output does not depend on ``x``.
        """
        torch.autograd.backward([self._output], [gradient])
        return None if self._x is None else self._x.grad

    def input_grad(self, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute the input's gradient alone, and return it as :meth:`backward` does."""
        found = None if self._x is None else find_usages(self._output.node, get_gradient_edge(self._x).node)
        if self._x is None or found is None:
            self._gradient = gradient
            return None  # nobody waits for a gradient, so all the work is left to W
        self._usages, self._shared = found
        for usage in self._usages:
            usage.keep_gradients()
        # The engine leaves out what does not lead to x, which are the gradients of the weights.
        torch.autograd.backward([self._output], [gradient], retain_graph=bool(self._usages), inputs=[self._x])
        return self._x.grad

    def weight_grad(self) -> None:
        """Compute the weights' gradients from what :meth:`input_grad` has kept."""
        if self._usages is None:
            torch.autograd.backward([self._output], [self._gradient])
        elif self._usages:
            to_weights = [edge for usage in self._usages for _, edge in usage.to_weights]
            _run_in_backward(to_weights, self._add_gradients)

    def _add_gradients(self) -> None:
        assert self._usages is not None
        # As in B, a weight that is used more than once gets the sum, once: its hooks are for the
        # whole gradient.
        max_bytes = math.inf if self._shared else MAX_BYTES
        waiting: list[tuple[GradientEdge, torch.Tensor]] = []
        n_bytes = 0
        for usage in self._usages:
            waiting += (found := list(usage.gradients()))
            n_bytes += sum(gradient.numel() * gradient.element_size() for _, gradient in found)
            if waiting and (n_bytes > max_bytes or usage is self._usages[-1]):
                edges, gradients = zip(*waiting, strict=True)
                torch.autograd.backward(edges, gradients)
                waiting, n_bytes = [], 0


# --- where the weights are ------------------------------------------------------------------------


class Usage(NamedTuple):
    """An operation on the path from output to input that uses weights.

    ``to_weights`` are the edges that lead off the path, to a weight or to what is computed from
    weights, each with its position among the gradients that the node gives. ``kept`` is empty, and
    after I one tuple: the gradients that the node got.
    """

    node: Node
    to_weights: list[tuple[int, GradientEdge]]
    kept: list[tuple[torch.Tensor | None, ...]]

    def keep_gradients(self) -> None:
        """Have the next pass through the node keep what W needs."""
        kept = self.kept  # a hook that knew its node would keep it alive
        if isinstance(self.node, FunctionCtx):  # a torch.autograd.Function: it gives all gradients at once, in I
            self.node.register_hook(lambda given, _: kept.append(given))  # type: ignore[attr-defined]
        else:
            self.node.register_prehook(kept.append)  # after all other hooks, so W need not run them again

    def gradients(self) -> Iterator[tuple[GradientEdge, torch.Tensor]]:
        """Yield the gradients of ``to_weights``, once, after I: those that the pass asks for."""
        given = self.kept.pop()
        if not isinstance(self.node, FunctionCtx):
            given = self.node(*given)  # the operation alone, without its hooks
        given = given if isinstance(given, tuple) else (given,)
        for position, edge in self.to_weights:
            if (gradient := given[position]) is not None:
                shape = torch.Size(edge.node._input_metadata[edge.output_nr].shape)  # not public, as of torch 2.13
                yield edge, gradient if gradient.shape == shape else gradient.sum_to_size(shape)  # it was broadcast


def find_usages(output: Node, x: Node) -> tuple[list[Usage], bool] | None:
    """Return the operations from ``x`` to ``output`` that use weights; None without a path.

    With them, return whether a weight is used more than once, or something computed from weights
    is.
    """
    edges: dict[Node, Any] = {}  # of each node: the following nodes, each with the number of its output
    above: dict[Node, list[Node]] = {output: []}
    nodes = [output]
    for node in nodes:  # which grows meanwhile
        edges[node] = node.next_functions
        for following, _ in edges[node]:
            if following in above:
                above[following].append(node)
            elif following is not None:
                above[following] = [node]
                if type(following) is not LEAF:
                    nodes.append(following)
    if x not in above:
        return None
    path, ahead = {x}, [x]
    while ahead:
        new = [node for node in above[ahead.pop()] if node not in path]
        path.update(new)
        ahead += new
    not_weights = path | {None}  # None stands where no gradient is wanted
    usages = []
    for node in nodes:
        if node in path:
            found = [(i, GradientEdge(*edge)) for i, edge in enumerate(edges[node]) if edge[0] not in not_weights]
            if found:
                usages.append(Usage(node, found, []))
    return usages, any(len(above[node]) > 1 for node in above if node not in path)


def _run_in_backward(edges: list[GradientEdge], action: Callable[[], None]) -> None:
    """Run ``action`` in a backward pass that is asked for the gradients of ``edges`` alone.

    An operation called in there, ``node(*gradients)``, asks the engine which of its gradients are
    wanted, and computes no others: of a linear layer only dW. (Outside of a pass it would compute
    all: the same result, but more work.) It is one pass, whatever the number of operations, because
    the engine looks at the whole graph below each time it is called.
    """
    anchor: Any = torch.zeros((), requires_grad=True)  # the pass begins and ends here; none of the edges is reached
    anchor.register_hook(lambda _: action())
    torch.autograd.backward([anchor], inputs=[anchor, *edges])
