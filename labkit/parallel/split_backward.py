"""The backward pass of a stage, whole or in two parts: towards its input first, towards its weights later.

    graph = StageGraph(module(enter(x)), x)    # x is a leaf that requires grad
    dx = graph.whole(dy)                       # B: the gradients of the input and of all weights
    dx = graph.towards_input(dy)               # I: the input's gradient, for which the stage before waits
    graph.towards_weights()                    # W: those of the weights, for which nobody waits

A linear layer y = x·Wᵀ has two products in its backward pass, dx = dy·W and dW = dyᵀ·x. Neither needs the other, both need dy.
So I goes down the path from the output to the input, leaves the weights aside, and keeps dy wherever one is used. W
takes it from there (Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.parallel.stage_node import LEAF

Node = Any  # of the autograd graph: an operation of the forward pass, as the backward pass sees it
# Weight gradients wait in W, up to so many bytes of them, to be added to what is there: each addition is a call of the engine.
MOST_BYTES = 2**24


class StageGraph:
    """The graph of one micro-batch, from a stage's output ``y`` back to its input ``x``: a leaf, or None if none is wanted.

    It is kept as edges, not as tensors: the memory of the output is free once that is sent. Gradients of weights are added
    to their ``.grad``. Either ``whole`` is called, or ``towards_input`` and then ``towards_weights``, once.

    I and W together give what B does, and run the same hooks as often. What differs:

    - What operations have saved for backward is let go after W, also what only I needed.
    - A ``torch.autograd.Function`` on the path does all its work in I: its backward is one piece.
    - torch.utils.checkpoint computes the activations twice, for I and for W.
    - A hook of an operation on the path (``y.grad_fn.register_hook``, not ``y.register_hook``) does not get its weights' part.
    """

    def __init__(self, y: torch.Tensor, x: torch.Tensor | None = None):
        self._output, self._x = get_gradient_edge(y), x
        self._gradient: torch.Tensor | None = None  # of the output
        self._usages: list[Usage] | None = None
        self._shared = False  # whether usages have weights in common

    def whole(self, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """From the output's gradient the input's, and the weights'. None where the output does not depend on ``x``."""
        torch.autograd.backward([self._output], [gradient])
        return None if self._x is None else self._x.grad

    def towards_input(self, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """From the output's gradient the input's alone. None where the output does not depend on ``x``."""
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

    def towards_weights(self) -> None:
        """The weights' gradients, from what :meth:`towards_input` has kept."""
        if self._usages is None:
            torch.autograd.backward([self._output], [self._gradient])
        elif self._usages:
            beside = [edge for usage in self._usages for _, edge in usage.beside]
            _in_a_pass_towards(beside, self._add_gradients)

    def _add_gradients(self) -> None:
        assert self._usages is not None
        # As in B, a weight that is used more than once gets the sum, once: its hooks are for the whole gradient.
        most_bytes = math.inf if self._shared else MOST_BYTES
        waiting: list[tuple[GradientEdge, torch.Tensor]] = []
        n_bytes = 0
        for usage in self._usages:
            waiting += (found := list(usage.gradients()))
            n_bytes += sum(gradient.numel() * gradient.element_size() for _, gradient in found)
            if waiting and (n_bytes > most_bytes or usage is self._usages[-1]):
                edges, gradients = zip(*waiting, strict=True)
                torch.autograd.backward(edges, gradients)
                waiting, n_bytes = [], 0


# --- where the weights are -------------------------------------------------------------------------------------------


class Usage(NamedTuple):
    """An operation on the path from output to input that has weights beside it.

    ``beside`` are the edges that lead off the path, to a weight or to what is computed from weights, each with its place among
    the gradients that the node gives. ``kept`` is one tuple after I: the gradients that the node got, in the end.
    """

    node: Node
    beside: list[tuple[int, GradientEdge]]
    kept: list[tuple[torch.Tensor | None, ...]]

    def keep_gradients(self) -> None:
        """Have the next pass through the node leave in ``kept`` what W needs."""
        kept = self.kept  # a hook that knew its node would keep it alive
        if isinstance(self.node, FunctionCtx):  # a torch.autograd.Function: it gives all gradients at once, in I
            self.node.register_hook(lambda given, _: kept.append(given))  # type: ignore[attr-defined]
        else:
            self.node.register_prehook(kept.append)  # after all other hooks, so W need not run them again

    def gradients(self) -> Iterator[tuple[GradientEdge, torch.Tensor]]:
        """What goes to ``beside``; which it is that the node computes, the pass around it says. Once, after I."""
        given = self.kept.pop()
        if not isinstance(self.node, FunctionCtx):
            given = self.node(*given)  # the operation alone, without its hooks
        given = given if isinstance(given, tuple) else (given,)
        for place, edge in self.beside:
            if (gradient := given[place]) is not None:
                shape = torch.Size(edge.node._input_metadata[edge.output_nr].shape)  # not public, as of torch 2.13
                yield edge, gradient if gradient.shape == shape else gradient.sum_to_size(shape)  # it was broadcast


def find_usages(output: Node, x: Node) -> tuple[list[Usage], bool] | None:
    """The operations between ``output`` and ``x`` where weights come in. None if no path leads from one to the other.

    With them, whether a weight is used more than once, or something computed from weights is.
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
    not_beside = path | {None}  # None stands where no gradient is wanted
    usages = []
    for node in nodes:
        if node in path:
            beside = [(place, edge) for place, edge in enumerate(edges[node]) if edge[0] not in not_beside]
            if beside:
                usages.append(Usage(node, [(place, GradientEdge(*edge)) for place, edge in beside], []))
    return usages, any(len(above[node]) > 1 for node in above if node not in path)


def _in_a_pass_towards(edges: list[GradientEdge], action: Callable[[], None]) -> None:
    """Run ``action`` in a backward pass that is asked for the gradients of ``edges``, and for no others.

    An operation called in there, ``node(*gradients)``, asks the engine which of its gradients are wanted, and computes no other
    ones: of a linear layer only dW. (Outside of a pass it would compute all: the same result, but more work.) And it is one
    pass, whatever the number of operations: the engine looks at the whole graph below each time it is called.
    """
    anchor: Any = torch.zeros((), requires_grad=True)  # the pass begins and ends here; none of the edges is reached
    anchor.register_hook(lambda _: action())
    torch.autograd.backward([anchor], inputs=[anchor, *edges])
