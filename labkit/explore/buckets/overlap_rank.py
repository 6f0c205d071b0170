"""Train a small model in a rank, by turns without synchronisation and with buckets that overlap."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from labkit import dp, models
from labkit.explore.buckets.gradients import (
    CLASSES,
    CONVOLUTIONS,
    HIDDEN,
    LAST_SIDE,
    MLP_WIDTHS,
    SMALL,
    SMALL_BERT,
    SMALL_GPT2,
    SMALL_TOKENS,
)
from labkit.trace import barrier, span

# --- the models, whole or narrower, and something to train them on --------------------------------


def convnet(narrower: int = 1) -> nn.Sequential:
    """Return AlexNet without dropout, its widths divided by ``narrower``."""
    layers: list[nn.Module] = []
    n_in = 3
    for layer in CONVOLUTIONS:
        n_out, kernel = layer.channels // narrower, layer.kernel
        layers += [nn.Conv2d(n_in, n_out, kernel, stride=4 if n_in == 3 else 1, padding=min(kernel // 2, 2)), nn.ReLU()]
        if layer.place in (0, 3, 10):
            layers.append(nn.MaxPool2d(3, stride=2))
        n_in = n_out
    hidden = HIDDEN // narrower
    layers += [nn.AdaptiveAvgPool2d(LAST_SIDE), nn.Flatten(), nn.Linear(n_in * LAST_SIDE**2, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES // narrower))


def mlp(narrower: int = 1) -> nn.Sequential:
    """Return linear layers with ReLUs between them, their widths divided by ``narrower``."""
    widths = [width // narrower for width in MLP_WIDTHS]
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Training(NamedTuple):
    """How a small model is trained: who builds it, what goes in, and its loss."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _token_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(tokens).logits.mT, tokens)


def _class_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return cross_entropy(getattr(y, "logits", y), torch.zeros(len(x), dtype=torch.long))


def _tokens(rows: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (rows, SMALL_TOKENS))


TRAININGS = {
    "gpt2": Training(
        lambda: models.gpt2("mini", **SMALL_GPT2), lambda: _tokens(12, SMALL_GPT2["vocab_size"]), _token_loss
    ),
    "bert": Training(
        lambda: models.bert("mini", **SMALL_BERT), lambda: _tokens(16, SMALL_BERT["vocab_size"]), _class_loss
    ),
    "convnet": Training(lambda: convnet(SMALL), lambda: torch.randn(128, 3, 112, 112), _class_loss),
    "mlp": Training(lambda: mlp(SMALL), lambda: torch.randn(2048, MLP_WIDTHS[0] // SMALL), _class_loss),
}


# --- steps ----------------------------------------------------------------------------------------


def train(name: str, caps_mb: tuple[float, float] | None, rounds: int) -> list[list[int]]:
    """Train ``rounds`` steps without synchronisation; with ``caps_mb``, each second one with it.

    That is the reader's own BucketedDataParallel, with capacities in MiB for the first bucket and
    the others. Spans: ``backward`` and ``wait`` with their step, a mark ``ready`` for each
    gradient, whose ``bucket`` is the number of the parameter, and each bucket's ``all_reduce``.
    Returns the parameters of each bucket.
    """
    training = TRAININGS[name]
    torch.manual_seed(dist.get_rank())
    x, mark = training.inputs(), _Mark()
    ways: list[tuple[nn.Module, Callable[[], None]]] = [(mark.watched(training.build()), lambda: None)]
    buckets: list[list[int]] = []
    if caps_mb is not None:
        model = mark.watched(training.build())
        numbers = {name: i for i, (name, _) in enumerate(model.named_parameters())}
        ddp = _bucketed(model, *caps_mb)
        buckets = [[numbers[name] for name in bucket.names] for bucket in ddp.buckets]
        ways.append((ddp, ddp.finish_gradient_synchronization))
    for step in range(rounds * len(ways)):
        model, agree = ways[step % len(ways)]
        mark.step = step
        barrier()
        loss = training.loss(model, x)
        with span("backward", step=step):
            loss.backward()
        with span("wait", step=step):
            agree()
        model.zero_grad()
    return buckets


class _Mark:
    """Leaves a mark in the recording whenever a gradient is ready."""

    step = 0

    def watched(self, model: nn.Module) -> nn.Module:
        for i, parameter in enumerate(model.parameters()):
            parameter.register_post_accumulate_grad_hook(functools.partial(self._ready, i))
        return model

    def _ready(self, i: int, _: Any) -> None:
        with span("ready", step=self.step, bucket=i):
            pass


def _bucketed(model: nn.Module, first_cap_mb: float, cap_mb: float) -> dp.BucketedDataParallel:
    # It takes one capacity for all buckets; another one for the first is only in its defaults.
    with mock.patch.multiple(dp, FIRST_CAP_MB=first_cap_mb, DEFAULT_CAP_MB=cap_mb):
        return dp.BucketedDataParallel(model)
