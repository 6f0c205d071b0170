"""Time models in ranks, in turns: ways to train, micro-batches, recomputation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from labkit.launch import device
from labkit.models import gpt2, stages
from labkit.pipe import ScheduledPipeline
from labkit.schedule import one_f_one_b
from labkit.trace import barrier, span, synchronize


def take_turns(make_ways: Callable[[], dict[str, Callable]], batch: Any, together: str, rounds: int = 7) -> dict:
    """Let ways to train take turns, a step each, and return the last loss of each, by its name.

    A way is a function of a batch that returns a loss. Rank 0 takes all of them, the other ranks
    only ``together``, and else wait asleep. A step is a span of its way's name on the lane host.
    """
    quiet, ways, losses = dist.new_group(backend="gloo"), make_ways(), {}
    for name, step in [*ways.items()] * rounds:
        barrier(quiet)
        if dist.get_rank() == 0 or name == together:
            with span(name, "host"):
                losses[name] = step(batch)
                synchronize()  # GPUs are done only now, the optimizer too
    return losses


def time_micro_batches(settings: dict[str, Any], cases: Sequence[tuple[int, int, int]], rounds: int = 7) -> None:
    """Let 1F1B pipelines of one GPT-2 take turns; a case is m, rows and tokens of a row.

    ``settings`` are those of the model, with its ``vocab_size``. Step s is one of case
    s % len(cases).
    """
    own, made = [stages(gpt2("nano", **settings), dist.get_world_size())[dist.get_rank()].to(device())], []
    for m, rows, length in cases:
        plan = one_f_one_b(dist.get_world_size(), m)
        tokens = torch.randint(settings["vocab_size"], (rows, length))
        made.append((ScheduledPipeline(own, plan, _token_loss), tokens))
    for number, (pipeline, tokens) in enumerate(made * rounds):
        pipeline.next_step = number  # of its spans
        barrier()
        pipeline.step(tokens, tokens)


def _token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


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
    not_counted = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        y = forward(x)
    del y
    return sum(n_bytes for at, n_bytes in kept.items() if at not in not_counted) / 1e6
