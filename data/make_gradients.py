"""Make the gradients of the bucket explorer: how large they are, and when backward makes each.

    python data/make_gradients.py [FILE]   (FILE: by default labkit/explore/buckets/gradients.json)

Names and sizes are those of the real classes, which are built without memory for their weights.
Times are by count of FLOPs on an **assumed** GPU: no machine of ours.

A matrix of n_in × n_out takes 2 · n_in · n_out FLOPs a row forward, and as much again for each of
its two gradients: of the input and of the weight. Sums, for biases, norms and embeddings, count
too; what works on one number at a time (GELU, dropout) does not.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from labkit import models

FILE = Path(__file__).parents[1] / "labkit" / "explore" / "buckets" / "gradients.json"
FLOAT_BYTES = 4  # gradients are float32, as the lab trains
ASSUMED_FLOPS_PER_S = 50e12  # of a data-centre GPU while it computes


def gpt2() -> nn.Module:
    """Return GPT-2 small. How many heads it has changes neither bytes nor FLOPs."""
    return models.gpt2("mini", n_layer=12, n_head=4, n_embd=768, vocab_size=50257, n_positions=1024)


def bert() -> nn.Module:
    """Return BERT base with two classes."""
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512}
    return models.bert("mini", num_hidden_layers=12, num_attention_heads=4, **sizes)


def convnet() -> nn.Sequential:
    """Return AlexNet without dropout: most FLOPs are in its convolutions, most bytes behind them.

    It is for pictures of 224 × 224 (Krizhevsky 2014, arXiv 1404.5997).
    """
    layers: list[nn.Module] = []
    for (n_in, n_out), kernel in zip(itertools.pairwise((3, 64, 192, 384, 256, 256)), (11, 5, 3, 3, 3), strict=True):
        stride, padding = (1, kernel // 2) if layers else (4, 2)
        layers += [nn.Conv2d(n_in, n_out, kernel, stride, padding), nn.ReLU()]
        if len(layers) in (2, 5, 12):
            layers.append(nn.MaxPool2d(3, stride=2))
    layers += [nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(256 * 36, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def mlp() -> nn.Sequential:
    """Return nine linear layers with ReLUs between them, seven of them of equal size."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise((784, *[2048] * 8, 1000)):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Counted(NamedTuple):
    """How a model is counted: its builder, its batch, and the shape of a sample."""

    build: Callable[[], nn.Module]
    title: str
    samples: int
    batch: str
    sample: tuple[int, ...]


MODELS = {
    "gpt2": Counted(gpt2, "GPT-2 small", 8, "8 sequences of 1,024 tokens", (1024,)),
    "bert": Counted(bert, "BERT base", 64, "64 texts of 128 tokens", (128,)),
    "convnet": Counted(convnet, "ConvNet (AlexNet)", 128, "128 images", (3, 224, 224)),
    "mlp": Counted(mlp, "MLP", 4096, "4,096 rows", (784,)),
}


class Piece(NamedTuple):
    """A part of the backward pass: what it computes, up to the gradient that it completes.

    ``numel`` numbers in the parameter, 0 for work that completes none; ``flops`` a sample.
    """

    name: str
    numel: int
    flops: int


def rows_of(model: nn.Module, x: torch.Tensor) -> dict[nn.Module, int]:
    """Return on how many rows each layer works for ``x``: tokens, or places of a picture."""
    rows: dict[nn.Module, int] = {}

    def count(layer: nn.Module, _: object, y: object) -> None:
        if isinstance(y, torch.Tensor):
            rows[layer] = y.shape[2:].numel() if isinstance(layer, nn.Conv2d) else y.shape[:-1].numel()

    for layer in model.modules():
        layer.register_forward_hook(count)
    model(x)
    return rows


def pieces(model: nn.Module, x: torch.Tensor) -> Iterator[Piece]:
    """Yield the pieces in the order of the forward pass, ``x`` being a batch of one sample."""
    rows, seen = rows_of(model, x), set[nn.Parameter]()
    for place, layer in model.named_modules():
        for kind, parameter in layer.named_parameters(recurse=False):
            is_new = parameter not in seen  # GPT-2's output layer is its token embedding once more
            flops = flops_of(layer, parameter, rows[layer], needs_input_grad=bool(seen))
            yield Piece(f"{place}.{kind}", parameter.numel() if is_new else 0, flops)
            seen.add(parameter)
        if place.endswith((".c_attn", ".value")):  # queries times keys, and weights times values
            yield Piece(place, 0, 2 * 2 * 2 * rows[layer] ** 2 * len(layer.weight))


def flops_of(layer: nn.Module, parameter: nn.Parameter, rows: int, needs_input_grad: bool) -> int:
    """Return the FLOPs of backward for a parameter; the data need no gradient."""
    if parameter.dim() == 1:
        return (8 if isinstance(layer, nn.LayerNorm) and parameter is layer.weight else 1) * rows * parameter.numel()
    if isinstance(layer, nn.Embedding):
        return rows * layer.embedding_dim
    return (2 if needs_input_grad else 1) * 2 * rows * parameter.numel()


def gradients_of(name: str) -> list[tuple[str, int, float]]:
    """Return name, bytes and the time from backward's start of each gradient, by parameter."""
    counted = MODELS[name]
    with torch.device("meta"):
        model = counted.build()
        x = torch.zeros(1, *counted.sample, dtype=torch.long if name in ("gpt2", "bert") else torch.float32)
    found, flops = [], 0
    for piece in reversed(list(pieces(model, x))):
        flops += piece.flops
        if piece.numel:
            ready_s = flops * counted.samples / ASSUMED_FLOPS_PER_S
            found.append((piece.name, FLOAT_BYTES * piece.numel, ready_s))
    return found[::-1]


def as_json() -> str:
    """Return all models, a line for each parameter."""
    models = []
    for name, counted in MODELS.items():
        lines = ",\n".join(map(json.dumps, gradients_of(name)))
        source = f"by FLOPs, {counted.batch} at {ASSUMED_FLOPS_PER_S / 1e12:g} TFLOP/s"
        head = f'"title": {json.dumps(counted.title)}, "source": {json.dumps(source)}'
        models.append(f'"{name}": {{{head}, "parameters": [\n{lines}\n]}}')
    return "{" + ",\n".join(models) + "}\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_text(as_json(), encoding="utf-8")
