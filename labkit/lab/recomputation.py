"""Time a stage that keeps its activations, and one that recomputes them: for notebook 08."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.lab.kept_memory import kept_for_backward
from labkit.launch import Run, device
from labkit.stats import Interval
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


class Recomputation:
    """What :func:`time_recomputation` measured, in backward passes of a stage that keeps all.

    ``mb`` are the MB that each way keeps for backward.
    """

    def __init__(self, run: Run):
        self.mb: dict[str, float] = run.values[0]
        self._seconds = run.repeats()

    @functools.cached_property
    def again(self) -> Interval:
        """A backward pass that recomputes."""
        return self._seconds.ratio("backward, recomputed", "backward, kept")

    @functools.cached_property
    def forward(self) -> float:
        """A forward pass."""
        return self._seconds.ratio("forward, kept", "backward, kept").median

    @property
    def parts(self) -> dict[str, float]:
        """A backward pass that recomputes, by what it does: medians, and what neither explains."""
        inside = self._seconds.ratio("stage in backward, recomputed", "backward, kept").median
        return {"backward": 1.0, "forward": inside, "neither": self.again.median - 1 - inside}


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
