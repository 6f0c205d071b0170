"""Small modules that many tests build their models of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Do(nn.Module):
    """A module that does ``function`` to its input."""

    def __init__(self, function: Callable[[torch.Tensor], Any]):
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Fail(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ArithmeticError("in the backward of Fail")
