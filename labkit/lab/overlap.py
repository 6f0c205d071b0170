"""Train a small GPT-2 with several ways to agree on gradients, in turns: what notebook 04 measures.

A way takes a model, and returns the model to train and a function to call after backward:

    launch(train_in_turns, {"no sync": no_sync, "DDP": lambda model: (DDP(model), lambda: None)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist

from labkit import dp
from labkit.launch import device
from labkit.models import gpt2
from labkit.stats import turns
from labkit.trace import barrier, span

PARTS = "forward", "backward", "wait", "optimizer"  # of a step, its spans
BY_CONSTRUCTION = "; a message takes what the formula says, by construction"
BATCH = 8, 64  # sequences, and tokens of each
_VOCABULARY = 512

SyncMethod = Callable[[torch.nn.Module], tuple[Any, Callable[[], object]]]


def small_gpt2() -> Any:
    """Return the model that notebook 04 trains: 4 layers, 3.5 MB of parameters."""
    return gpt2("mini", n_layer=4, n_embd=128, vocab_size=_VOCABULARY, n_positions=BATCH[1])


def train_in_turns(ways: Mapping[str, SyncMethod], rounds: int = 10) -> None:
    """Train a model each way, step by step: step number s belongs to way number s % len(ways).

    So a slow moment of the machine hits all ways alike. Spans: forward, backward, wait, optimizer.
    """
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(_VOCABULARY, BATCH).to(device())
    pairs = [way(small_gpt2().to(device())) for way in ways.values()]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model, _ in pairs]
    for step in range(rounds * len(pairs)):
        (model, sync_gradients), optimizer = pairs[step % len(pairs)], optimizers[step % len(pairs)]
        barrier()
        with span("forward", step=step):
            loss = torch.nn.functional.cross_entropy(model(tokens).logits.mT, tokens)
        with span("backward", step=step):
            loss.backward()
        with span("wait", step=step):
            sync_gradients()
        with span("optimizer", step=step):
            optimizer.step()
            optimizer.zero_grad()


def no_sync(model: torch.nn.Module) -> tuple[torch.nn.Module, Callable[[], object]]:
    """Let each rank go its own way. Each gradient leaves a span "ready", its number as bucket."""

    def mark(i: int, _: torch.Tensor) -> None:
        with span("ready", bucket=i):
            pass

    for i, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(partial(mark, i))
    return model, lambda: None


def average_buckets(model: torch.nn.Module, buckets: Sequence[Sequence[int]]) -> None:
    """Average the gradients after the backward pass, each bucket with one all_reduce."""
    parameters: Any = list(model.parameters())
    for k, bucket in enumerate(buckets):
        gradients = [parameters[i].grad for i in bucket]
        buffer = torch.cat([gradient.flatten() for gradient in gradients])
        with span("all_reduce", lane="comm", bucket=k, bytes=buffer.nbytes):
            dist.all_reduce(buffer)
        buffer /= dist.get_world_size()
        for gradient, mean in zip(gradients, buffer.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def overlapped(model: torch.nn.Module, **options: Any) -> tuple[torch.nn.Module, Callable[[], object]]:
    """Wrap the model in the reader's own BucketedDataParallel (dp.7)."""
    wrapped = dp.BucketedDataParallel(model, **options)
    return wrapped, wrapped.finish_gradient_synchronization


class ComputeTimes(NamedTuple):
    """What a prediction starts from: forward, when a gradient is ready in backward, optimizer."""

    forward_s: float
    ready_s: list[float]
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step without sync."""
        return self.forward_s + max(self.ready_s) + self.optimizer_s


def compute_times(events: pd.DataFrame, ways: Iterable[str], first: str = "no sync") -> ComputeTimes:
    """Return medians of the way without sync, which is the ``first`` of ``ways``."""
    names = list(ways)
    forward_s, optimizer_s = (turns(events, names, name)[first].median() for name in ("forward", "optimizer"))
    own = events[events["rank"] == 0]
    marks = own[own["name"] == "ready"].reset_index()
    backward = own[(own["name"] == "backward") & (own["step"] % len(names) == 0)]["start_s"].to_numpy()
    n_gradients = marks["bucket"].nunique()
    seconds = marks["start_s"] - backward[marks.index // n_gradients]
    ready_s = seconds[marks.index >= n_gradients].groupby(marks["bucket"]).median()  # without the first round
    return ComputeTimes(float(forward_s), ready_s.tolist(), float(optimizer_s))


def steps_of(ways: Iterable[str], way: str, rounds: int = 10) -> range:
    """Return the numbers of a way's steps, without those of the first round."""
    names = list(ways)
    return range(len(names) + names.index(way), rounds * len(names), len(names))


def typical_step(events: pd.DataFrame, ways: Iterable[str], way: str) -> int:
    """Return the number of the way's step whose backward is nearest to the median."""
    backward_s = turns(events, list(ways), "backward")[way]
    return steps_of(ways, way, len(backward_s) + 1)[int((backward_s - backward_s.median()).abs().to_numpy().argmin())]
