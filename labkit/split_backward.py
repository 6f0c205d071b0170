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

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.stage_node import LEAF

Node = Any  # of the autograd graph: an operation of the forward pass, as the backward pass sees it


class StageGraph:
    """The graph of one micro-batch, from a stage's output ``y`` back to its input ``x``: a leaf, or None if none is wanted.

    It is kept as edges, not as tensors: the memory of the output is free once that is sent. Gradients of weights are added
    to their ``.grad``. Either ``whole`` is called, or ``towards_input`` and then ``towards_weights``, once.
    """

    def __init__(self, y: torch.Tensor, x: torch.Tensor | None = None):
        self._output, self._x = get_gradient_edge(y), x
        self._gradient: torch.Tensor | None = None  # of the output
        self._usages: list[Usage] | None = None
        self._kept: list[list[torch.Tensor | None]] = []  # for each usage the gradients of its outputs

    def whole(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """From the output's gradient the input's, and the weights'. None where the output does not depend on ``x``."""
        torch.autograd.backward([self._output], [gradient])
        return None if self._x is None else self._x.grad

    def towards_input(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """From the output's gradient the input's alone. None where the output does not depend on ``x``."""
        self._gradient = gradient
        if self._x is not None:
            self._usages = find_usages(self._output, get_gradient_edge(self._x).node)
        if self._usages is None:
            return None  # nobody waits for a gradient, so all the work is left to W
        edges = [edge for usage in self._usages for edge in usage.outputs]
        # The engine leaves out what leads to none of these, which are the gradients of the weights.
        found = torch.autograd.grad([self._output], [self._x, *edges], [gradient], retain_graph=True, allow_unused=True)
        gradients = iter(found[1:])
        self._kept = [[next(gradients) for _ in usage.outputs] for usage in self._usages]
        return found[0]

    def towards_weights(self) -> None:
        """The weights' gradients, from what :meth:`towards_input` has kept."""
        if self._usages is None:
            torch.autograd.backward([self._output], [self._gradient])
            return
        times = Counter(node for usage in self._usages for node in usage.below)
        shared = [usage for usage in self._usages if any(times[node] > 1 for node in usage.below)]
        if shared:
            # Going down from one usage, the engine would pass the other ones, and count them twice. So once more from the top.
            weights = list({id(weight): weight for usage in shared for weight in usage.weights}.values())
            torch.autograd.backward([self._output], [self._gradient], retain_graph=True, inputs=weights)
        for usage, gradients in zip(self._usages, self._kept, strict=True):
            found = [pair for pair in zip(usage.outputs, gradients, strict=True) if pair[1] is not None]
            if found and usage not in shared:
                edges, values = zip(*found, strict=True)
                torch.autograd.backward(edges, values, inputs=usage.weights)


class Usage(NamedTuple):
    """An operation on the path from output to input that has weights below it, too.

    ``outputs`` are its own outputs, as edges; ``below`` are the nodes between it and its ``weights``, with theirs.
    """

    outputs: list[GradientEdge]
    below: set[Node]
    weights: list[torch.Tensor]


def find_usages(output: GradientEdge, x: Node) -> list[Usage] | None:
    """The operations between ``output`` and ``x`` where weights come in. None if no path leads from one to the other."""
    outputs: dict[Node, dict[int, GradientEdge]] = {output.node: {output.output_nr: output}}
    above: dict[Node, list[Node]] = {output.node: []}
    ahead: list[Node] = [output.node]
    while ahead:
        node = ahead.pop()
        for following, number in _followers(node):
            if following not in above:
                outputs[following], above[following] = {}, []
                ahead.append(following)
            outputs[following][number] = GradientEdge(following, number)
            above[following].append(node)
    if x not in above:
        return None
    path = _reached([x], above.__getitem__)
    usages = []
    for node in path:
        beside = [following for following, _ in _followers(node) if following not in path]
        below = _reached(beside, lambda node: [following for following, _ in _followers(node)])
        if weights := [leaf.variable for leaf in below if leaf.name() == LEAF]:
            usages.append(Usage(list(outputs[node].values()), below, weights))
    return usages


def _followers(node: Node) -> list[tuple[Node, int]]:
    """The nodes to which ``node`` passes gradients on, each with the number of its output that they are of."""
    return [(following, number) for following, number in node.next_functions if following is not None]


def _reached(start: list[Node], steps: Callable[[Node], list[Node]]) -> set[Node]:
    """All nodes to which steps lead from ``start``, with these."""
    reached, ahead = set(start), list(start)
    while ahead:
        new = set(steps(ahead.pop())) - reached
        reached |= new
        ahead += new
    return reached
