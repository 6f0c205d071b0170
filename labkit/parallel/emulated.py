"""Chosen durations: modules that sleep instead of computing, for more ranks than cores.

    layer = nn.Sequential(nn.Linear(256, 256), Sleep(forward_s=0.002, backward_s=0.004))
    stage = EmulatedStage(forward_s=0.01, input_grad_s=0.01, weight_grad_s=0.01)
    ScheduledPipeline([stage], zero_bubble_h1(n_stages=4, n_micro=8), torch.nn.functional.mse_loss)

Real tensors and gradients go through them, and from rank to rank: when a message leaves, and who
waits for whom, is measured. Whatever is recorded meanwhile says that durations were chosen.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from labkit.base.checks import check_number
from labkit.trace import note_emulated

NOTE = "durations chosen (compute sleeps); order and waiting measured"

_SECONDS = "a finite number of seconds, 0 or more: how long it should take"


class Sleep(nn.Module):
    """Hands on a tensor, of any shape, and sleeps: in the forward pass and in the backward pass.

    It stands for compute that takes ``forward_s`` and ``backward_s`` seconds. Behind a layer, the
    layer's gradients are ready once the backward pass has slept. An input that needs no gradient
    has no backward pass, so nobody sleeps in it.

    Raises TypeError for anything but a number, ValueError for a negative or infinite one.
    """

    def __init__(self, forward_s: float, backward_s: float = 0.0):
        super().__init__()
        for name, value in {"forward_s": forward_s, "backward_s": backward_s}.items():
            check_number(name, value, lambda seconds: 0 <= seconds < float("inf"), _SECONDS)
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note_emulated(NOTE)
        sleep_until(time.perf_counter() + self.forward_s)
        y: torch.Tensor = _Sleep.apply(x, self.backward_s)
        return y

    def extra_repr(self) -> str:
        return f"forward_s={self.forward_s}, backward_s={self.backward_s}"


class EmulatedStage(nn.Module):
    """A stage that multiplies by a ``weight`` of 1, and sleeps as long as a real one would compute.

    For a micro-batch that is ``forward_s`` seconds for the forward pass, ``input_grad_s`` for the
    gradient of the input, and ``weight_grad_s`` for that of the weight; a whole backward pass takes
    both. Where the input needs no gradient, that of the weight takes as long as both: in a stage of
    several layers, gradients have to reach the first one all the same. An input is a tensor of
    floats, of any shape, such as (rows, width), and the output has the same.

    Raises TypeError for anything but a number, ValueError for a negative or infinite one.
    """

    def __init__(self, forward_s: float, input_grad_s: float, weight_grad_s: float):
        super().__init__()
        given = {"forward_s": forward_s, "input_grad_s": input_grad_s, "weight_grad_s": weight_grad_s}
        for name, value in given.items():
            check_number(name, value, lambda seconds: 0 <= seconds < float("inf"), _SECONDS)
        self.forward_s, self.input_grad_s, self.weight_grad_s = forward_s, input_grad_s, weight_grad_s
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        note_emulated(NOTE)
        deadline = time.perf_counter() + self.forward_s
        # Each on a path of its own, so that the backward pass can be split between them.
        also_input_s = 0.0 if x.requires_grad else self.input_grad_s
        weight = _Sleep.apply(self.weight, self.weight_grad_s + also_input_s)
        y = _Sleep.apply(x, self.input_grad_s) * weight
        sleep_until(deadline)
        return y

    def extra_repr(self) -> str:
        return f"forward_s={self.forward_s}, input_grad_s={self.input_grad_s}, weight_grad_s={self.weight_grad_s}"


class _Sleep(torch.autograd.Function):
    """The identity, whose gradient takes ``seconds``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        sleep_until(time.perf_counter() + ctx.seconds)
        return gradients[0], None


LATE_S = 200e-6  # time.sleep may be this late


def sleep_until(deadline: float) -> None:
    """Sleep until ``time.perf_counter()`` has reached ``deadline``; watch the clock at the end."""
    while (left := deadline - time.perf_counter()) > 0:
        if left > LATE_S:
            time.sleep(left - LATE_S)
