"""Time a stage that keeps its activations, and one that recomputes them: for notebook 08."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.lab.kept_memory import kept_for_backward
from labkit.launch import device
from labkit.trace import span


def time_recomputation(stage: nn.Module, x: torch.Tensor, rounds: int = 12) -> dict[str, float]:
    """Run ``stage`` both ways in turns, and return the MB that each keeps for backward."""
    stage, x = stage.to(device()), x.to(device()).requires_grad_()
    kept = {}
    for _ in range(rounds):
        for way in ("kept", "recomputed"):
            inside = _Spanned(stage, way)
            with span(f"forward, {way}"):
                y = checkpoint(inside, x, use_reentrant=False) if way == "recomputed" else inside(x)
            inside.phase = "backward"
            with span(f"backward, {way}"):
                y.backward(y.detach())
    for way in ("kept", "recomputed"):
        forward: Any = stage if way == "kept" else lambda x: checkpoint(stage, x, use_reentrant=False)
        kept[way] = kept_mb(forward, x, stage.parameters())
    return kept


class _Spanned(nn.Module):
    """A stage whose call is a span that names the phase it happens in."""

    def __init__(self, stage: nn.Module, way: str):
        super().__init__()
        self.stage, self.way, self.phase = stage, way, "forward"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with span(f"stage in {self.phase}, {self.way}"):
            y: torch.Tensor = self.stage(x)
            return y


def kept_mb(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, weights: Any) -> float:
    """Return the MB that autograd keeps of ``forward(x)`` for backward, without the weights."""
    with kept_for_backward(weights) as kept:
        y = forward(x)
    del y
    return kept.n_bytes / 1e6
