"""Small modules that many tests build their models of, inputs for them, and their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Do(nn.Module):
    """A module that does ``function`` to its input and its parts: weights, or modules."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module | torch.Tensor):
        super().__init__()
        self.function, self.n_parts = function, len(parts)
        for number, part in enumerate(parts):
            setattr(self, str(number), part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *(getattr(self, str(number)) for number in range(self.n_parts)))


class Fail(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ArithmeticError("in the backward of Fail")


class Keep(nn.Module):
    """The identity. What it saves for backward is in ``kept``, as weak references to its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Keep.apply(x, self.kept)

    def alive(self) -> int:
        """Return how much of it is still there."""
        return sum(storage() is not None for storage in self.kept)


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        saved = x.clone()
        kept.append(weakref.ref(saved.untyped_storage()))
        ctx.save_for_backward(saved)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] + 0 * ctx.saved_tensors[0], None


def rows(count: int = 5, width: int = 4, seed: int = 0) -> torch.Tensor:
    """Return the same random numbers wherever it is called."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def output_and_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    """Return the output, and the gradients of its squares by the input, if it is of floats, and by
    each parameter."""
    model.zero_grad()
    x = x.clone() if not x.is_floating_point() else x.clone().requires_grad_()
    # In place on an input that requires grad is not allowed, so the model gets what was computed
    # from one.
    output = model(x * 1)
    output.square().sum().backward()
    return [output.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    """Return copies, in the order of the parameters, None where there is no gradient."""
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
