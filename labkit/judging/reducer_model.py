"""The small model on which dp.7 is tried, the situations that it is brought into, and its gradients in a single process."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

ROWS, WIDTH = 4, 4
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 8
CAP_MB = 0.6 * LAYER_BYTES / 2**20  # reached by a layer's bias and weight together, so each layer has a bucket
Gradients = dict[str, "torch.Tensor | None"]


class Situation(NamedTuple):
    """Steps of training, of ``layers`` registered in that order. ``what`` says in words what is special.

    ``steps``: for each step its backward passes; for each pass the layers that each rank's rows go through, in that order.
    All passes of a step but the last run inside no_sync.
    """

    what: str
    layers: str
    steps: list[list[tuple[str, str, str]]]


def _alike(route: str) -> tuple[str, str, str]:
    return (route, route, route)


SITUATIONS = {
    "plain": Situation("where all ranks do the same", "abfc", [[_alike("abfc")]] * 3),
    "order": Situation(
        "where ranks use their layers in different orders", "abc", [[("abc", "cab", "bca")], [("cba", "abc", "bac")]]
    ),
    "unused": Situation(
        "where each rank leaves out another layer",
        "abc",
        [[("ab", "ac", "abc")], [("ac", "ab", "bc")], [("a", "b", "c")]],
    ),
    "accumulated": Situation(
        "where two backward passes inside no_sync come first", "abc", [[_alike("abc")] * 3, [_alike("abc")] * 3]
    ),
    "used earlier": Situation(
        "where layers are used inside no_sync, and not in the last backward pass",
        "abc",
        [[("ab", "ac", "abc"), _alike("a")], [("abc", "ab", "c"), _alike("b")]],
    ),
    "mixed": Situation("with a tied weight and a layer in bfloat16", "atfh", [[_alike("hatf")]] * 2),
}


class Layers(nn.Module):
    """Layers named by letters, in float64: ``f`` is frozen, ``t`` has the weight of ``a``, ``h`` is in bfloat16."""

    def __init__(self, letters: str):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            for letter in letters:
                layer = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16 if letter == "h" else torch.float64)
                self.add_module(letter, layer.requires_grad_(letter != "f"))
        if "t" in letters:
            self.get_submodule("t").register_parameter("weight", self.get_submodule("a").get_parameter("weight"))

    def forward(self, rows: torch.Tensor, route: str) -> torch.Tensor:
        for letter in route:
            layer = self.get_submodule(letter)
            rows = torch.tanh(layer(rows.to(next(layer.parameters()).dtype))).double()
        return rows


def loss(model: nn.Module, route: str, rank: int, step: int, number: int) -> torch.Tensor:
    """The mean loss over one rank's rows in one pass, through the layers of ``route``."""
    generator = torch.Generator().manual_seed(1000 * step + 100 * number + rank)
    rows, targets = torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return nn.functional.mse_loss(model(rows, route), targets)


def gradients(model: nn.Module) -> Gradients:
    """A copy of each parameter's gradient, or None, by name."""
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


def of_a_single_process(situation: Situation, step: int, ranks: list[int]) -> Gradients:
    """The gradient of the mean of these ranks' losses, summed over the passes of one step, computed without any of dp.7."""
    model = Layers(situation.layers)
    for number, routes in enumerate(situation.steps[step]):
        for rank in ranks:
            (loss(model, routes[rank], rank, step, number) / len(ranks)).backward()
    return gradients(model)
