"""Train a small model in a rank, by turns without synchronisation and with buckets that overlap."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from labkit import dp, models
from labkit.launch import progress
from labkit.trace import barrier, span

NARROWER = 8  # all widths of what is trained are divided by this: about 1/64 of the bytes

# --- four models, whole or with all widths divided, and something to train the narrow ones on -----


def gpt2(narrower: int = 1) -> nn.Module:
    """Return GPT-2 with 12 layers. How many heads it has changes neither bytes nor FLOPs."""
    sizes = {"n_embd": 768 // narrower, "vocab_size": 50257 // narrower, "n_positions": 1024 // narrower}
    return models.gpt2("mini", n_layer=12, n_head=4, **sizes)


def bert(narrower: int = 1) -> nn.Module:
    """Return BERT with 12 layers and two classes."""
    width = 768 // narrower
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "vocab_size": 30522 // narrower}
    sizes["max_position_embeddings"] = 512 // narrower
    return models.bert("mini", num_hidden_layers=12, num_attention_heads=4, **sizes)


def convnet(narrower: int = 1) -> nn.Sequential:
    """Return AlexNet without dropout: most FLOPs are in its convolutions, most bytes behind them.

    It is for pictures of 224 × 224, or smaller ones (Krizhevsky 2014, arXiv 1404.5997).
    """
    widths = [3, *(width // narrower for width in (64, 192, 384, 256, 256))]
    layers: list[nn.Module] = []
    for (n_in, n_out), kernel in zip(itertools.pairwise(widths), (11, 5, 3, 3, 3), strict=True):
        stride, padding = (1, kernel // 2) if layers else (4, 2)
        layers += [nn.Conv2d(n_in, n_out, kernel, stride, padding), nn.ReLU()]
        if len(layers) in (2, 5, 12):
            layers.append(nn.MaxPool2d(3, stride=2))
    hidden, side = 4096 // narrower, 6
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(widths[-1] * side**2, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1000 // narrower))


def mlp(narrower: int = 1) -> nn.Sequential:
    """Return nine linear layers with ReLUs between them, seven of them of equal size."""
    widths = [width // narrower for width in (784, *[2048] * 8, 1000)]
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Training(NamedTuple):
    """How a narrow model is trained: who builds it, and a batch of what goes in."""

    build: Callable[[int], nn.Module]
    inputs: Callable[[], torch.Tensor]


TRAININGS = {
    "gpt2": Training(gpt2, lambda: torch.randint(50257 // NARROWER, (12, 64))),
    "bert": Training(bert, lambda: torch.randint(30522 // NARROWER, (16, 64))),
    "convnet": Training(convnet, lambda: torch.randn(128, 3, 112, 112)),
    "mlp": Training(mlp, lambda: torch.randn(2048, 784 // NARROWER)),
}


def _loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the loss of a model that is to repeat its tokens, or to call each sample class 0."""
    y = model(x)
    y = getattr(y, "logits", y)
    return cross_entropy(y.mT, x) if y.dim() == 3 else cross_entropy(y, torch.zeros(len(x), dtype=torch.long))


# --- steps ----------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """What was trained: the bytes of each parameter, and the parameters of each bucket."""

    sizes_bytes: list[int]
    buckets: list[list[int]]


def train(name: str, caps_mb: tuple[float, float] | None, rounds: int) -> Trained:
    """Train ``rounds`` steps without synchronisation; with ``caps_mb``, each second one with it.

    That is the reader's own BucketedDataParallel, with capacities in MiB for the first bucket and
    the others. Spans: ``backward`` and ``wait`` with their step, a mark ``ready`` for each
    gradient, whose ``bucket`` is the number of the parameter, and each bucket's ``all_reduce``.
    """
    training = TRAININGS[name]
    torch.manual_seed(dist.get_rank())
    x, buckets, plain = training.inputs(), list[list[int]](), _marked(training.build(NARROWER))
    ways: list[tuple[nn.Module, Callable[[], None]]] = [(plain, lambda: None)]
    if caps_mb is not None:
        model = _marked(training.build(NARROWER))
        numbers = {name: i for i, (name, _) in enumerate(model.named_parameters())}
        ddp = dp.BucketedDataParallel(model, caps_mb)
        buckets = [[numbers[name] for name in bucket.names] for bucket in ddp.buckets]
        ways.append((ddp, ddp.finish_gradient_synchronization))
    how = "without and with buckets, in turns" if caps_mb else "without synchronisation"
    for step in progress(range(rounds * len(ways)), desc=f"Steps {how}"):
        model, agree = ways[step % len(ways)]
        barrier()
        loss = _loss(model, x)
        with span("backward", step=step):
            loss.backward()
        with span("wait", step=step):
            agree()
        model.zero_grad()
    return Trained([parameter.nbytes for parameter in plain.parameters()], buckets)


def _marked(model: nn.Module) -> nn.Module:
    """Return the model, of which each gradient that is ready leaves a mark in the recording."""
    for i, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(functools.partial(_mark, i))
    return model


def _mark(i: int, _: torch.Tensor) -> None:
    with span("ready", bucket=i):
        pass
