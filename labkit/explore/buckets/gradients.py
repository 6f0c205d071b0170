"""Say how large a model's gradients are and when the backward pass makes them: by count of FLOPs.

Four models, each whole, and with every width an eighth for a laptop: the same parameters by name
and order, about 1/64 of the bytes. Nothing is built or downloaded here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

FLOAT_BYTES = 4  # gradients are float32, as the lab trains
ASSUMED_FLOPS_PER_S = 50e12  # of a data-centre GPU while it computes; no machine of ours
SMALL = 8  # the small model's widths are so many times narrower


class Piece(NamedTuple):
    """A part of the backward pass: what it computes, up to the gradient that it completes.

    ``numel`` numbers in the parameter, 0 for work that completes none; ``flops`` a sample.
    """

    name: str
    numel: int
    flops: float


@dataclass(frozen=True)
class Gradients:
    """The gradients of a model, by parameter index, and when backward makes each.

    ``ready_s`` counts from the start of backward, which is over at ``backward_s``; ``source`` says
    where these times are from. ``emulated`` says what was not real when they were measured.
    """

    model: str
    names: Sequence[str]
    sizes_bytes: Sequence[int]
    ready_s: Sequence[float]
    source: str

    @property
    def backward_s(self) -> float:
        return max(self.ready_s)

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes_bytes)

    def order(self) -> list[int]:
        """Return the parameters in the order in which their gradients are ready.

        Of two at the same time, the later parameter comes first, as backward goes backwards.
        """
        return sorted(range(len(self.names)), key=lambda i: (self.ready_s[i], -i))

    def lasting(self, backward_s: float) -> Gradients:
        """Return the same gradients from a backward pass that takes ``backward_s`` in all."""
        stretch = backward_s / self.backward_s
        ready_s = [stretch * ready for ready in self.ready_s]
        return Gradients(self.model, self.names, self.sizes_bytes, ready_s, self.source)


# --- the pieces of a model, in the order of its forward pass --------------------------------------

# A matrix of n_in × n_out takes 2 · n_in · n_out FLOPs a row forward and as much again for each of
# its two gradients: of the input and of the weight. Sums, for biases, norms and embeddings, count
# too; what works on one number at a time (GELU, dropout) does not.


def _linear(name: str, rows: int, n_in: int, n_out: int, first: bool = False) -> list[Piece]:
    """Return weight and bias of a layer; the ``first`` one needs no gradient of its input."""
    product = 2.0 * rows * n_in * n_out
    weight = Piece(f"{name}.weight", n_in * n_out, product if first else 2 * product)
    return [weight, Piece(f"{name}.bias", n_out, 1.0 * rows * n_out)]


def _norm(name: str, rows: int, width: int) -> list[Piece]:
    return [Piece(f"{name}.weight", width, 8.0 * rows * width), Piece(f"{name}.bias", width, 1.0 * rows * width)]


def _embedding(name: str, rows: int, n: int, width: int) -> Piece:
    return Piece(f"{name}.weight", n * width, 1.0 * rows * width)


def _attention(name: str, rows: int, width: int) -> Piece:
    """Return queries times keys and weights times values, which have no parameters."""
    return Piece(name, 0, 2 * 2 * 2.0 * rows * rows * width)


def gpt2_pieces(width: int = 768, vocabulary: int = 50257, positions: int = 1024, tokens: int = 1024) -> list[Piece]:
    """Return GPT-2's with 12 layers, as transformers names them; wte is the output layer too."""
    pieces = [_embedding("transformer.wte", tokens, vocabulary, width)]
    pieces += [_embedding("transformer.wpe", tokens, positions, width)]
    for layer in range(12):
        name = f"transformer.h.{layer}"
        pieces += _norm(f"{name}.ln_1", tokens, width)
        pieces += _linear(f"{name}.attn.c_attn", tokens, width, 3 * width)
        pieces += [_attention(f"{name}.attn", tokens, width)]
        pieces += _linear(f"{name}.attn.c_proj", tokens, width, width)
        pieces += _norm(f"{name}.ln_2", tokens, width)
        pieces += _linear(f"{name}.mlp.c_fc", tokens, width, 4 * width)
        pieces += _linear(f"{name}.mlp.c_proj", tokens, 4 * width, width)
    pieces += _norm("transformer.ln_f", tokens, width)
    return [*pieces, Piece("lm_head (wte again)", 0, 4.0 * tokens * width * vocabulary)]


def bert_pieces(width: int = 768, vocabulary: int = 30522, positions: int = 512, tokens: int = 128) -> list[Piece]:
    """Return those of BERT with 12 layers and two classes, as transformers names them."""
    sizes = {"word": vocabulary, "position": positions, "token_type": 2}
    pieces = [_embedding(f"bert.embeddings.{kind}_embeddings", tokens, n, width) for kind, n in sizes.items()]
    pieces += _norm("bert.embeddings.LayerNorm", tokens, width)
    for layer in range(12):
        name = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            pieces += _linear(f"{name}.attention.self.{part}", tokens, width, width)
        pieces += [_attention(f"{name}.attention.self", tokens, width)]
        pieces += _linear(f"{name}.attention.output.dense", tokens, width, width)
        pieces += _norm(f"{name}.attention.output.LayerNorm", tokens, width)
        pieces += _linear(f"{name}.intermediate.dense", tokens, width, 4 * width)
        pieces += _linear(f"{name}.output.dense", tokens, 4 * width, width)
        pieces += _norm(f"{name}.output.LayerNorm", tokens, width)
    return pieces + _linear("bert.pooler.dense", 1, width, width) + _linear("classifier", 1, width, 2)


class Convolution(NamedTuple):
    """A convolution of the ConvNet: its place in nn.Sequential, kernel, and the sides it gives.

    ``side`` is of the whole model's images and ``small_side`` of the small one's.
    """

    place: int
    channels: int
    kernel: int
    side: int
    small_side: int


CONVOLUTIONS = (  # AlexNet's, of images of 224 × 224 (Krizhevsky 2014, arXiv 1404.5997), or 112 × 112
    Convolution(0, 64, 11, 55, 27),
    Convolution(3, 192, 5, 27, 13),
    Convolution(6, 384, 3, 13, 6),
    Convolution(8, 256, 3, 13, 6),
    Convolution(10, 256, 3, 13, 6),
)
HIDDEN, CLASSES, LAST_SIDE = 4096, 1000, 6  # of its linear layers, and of the picture that they see


def convnet_pieces(narrower: int = 1) -> list[Piece]:
    """Return AlexNet's: most FLOPs are in its convolutions, most bytes in its linear layers."""
    pieces: list[Piece] = []
    n_in = 3
    for layer in CONVOLUTIONS:
        n_out, side = layer.channels // narrower, layer.side if narrower == 1 else layer.small_side
        pieces += _linear(f"{layer.place}", side**2, n_in * layer.kernel**2, n_out, first=not pieces)
        n_in = n_out
    widths = [n_in * LAST_SIDE**2, HIDDEN // narrower, HIDDEN // narrower, CLASSES // narrower]
    for index, n_in, n_out in zip((15, 17, 19), widths[:-1], widths[1:], strict=True):
        pieces += _linear(f"{index}", 1, n_in, n_out)
    return pieces


MLP_WIDTHS = (784, *[2048] * 8, 1000)


def mlp_pieces(narrower: int = 1) -> list[Piece]:
    """Return those of nine linear layers with ReLUs between them, seven of them of equal size."""
    widths = [width // narrower for width in MLP_WIDTHS]
    pairs = enumerate(itertools.pairwise(widths))
    return [piece for i, (n_in, n_out) in pairs for piece in _linear(f"{2 * i}", 1, n_in, n_out, first=i == 0)]


# --- the models to choose from --------------------------------------------------------------------


class Model(NamedTuple):
    """A model of the explorer: its title, its pieces, whole and small, and samples in a batch."""

    title: str
    whole: Callable[[], list[Piece]]
    small: Callable[[], list[Piece]]
    samples: int
    batch: str


SMALL_TOKENS = 64
SMALL_GPT2 = {"n_layer": 12, "n_head": 4, "n_embd": 768 // SMALL, "vocab_size": 50257 // SMALL, "n_positions": 128}
SMALL_BERT = {"num_hidden_layers": 12, "hidden_size": 768 // SMALL, "num_attention_heads": 4, "intermediate_size": 384}
SMALL_BERT |= {"vocab_size": 30522 // SMALL, "max_position_embeddings": 64}

MODELS: dict[str, Model] = {
    "gpt2": Model(
        "GPT-2 small",
        gpt2_pieces,
        lambda: gpt2_pieces(SMALL_GPT2["n_embd"], SMALL_GPT2["vocab_size"], 128, SMALL_TOKENS),
        8,
        "8 sequences of 1,024 tokens",
    ),
    "bert": Model(
        "BERT base",
        bert_pieces,
        lambda: bert_pieces(SMALL_BERT["hidden_size"], SMALL_BERT["vocab_size"], 64, SMALL_TOKENS),
        64,
        "64 texts of 128 tokens",
    ),
    "convnet": Model("ConvNet (AlexNet)", convnet_pieces, lambda: convnet_pieces(SMALL), 128, "128 images"),
    "mlp": Model("MLP", mlp_pieces, lambda: mlp_pieces(SMALL), 4096, "4,096 rows"),
}


def model_named(model: str) -> Model:
    """Return a model of MODELS. Raises ValueError for an unknown name, with those there are."""
    if model not in MODELS:
        raise ValueError(f"model is {model!r}, expected one of {', '.join(MODELS)}")
    return MODELS[model]


def predicted_gradients(
    model: str = "gpt2", small: bool = False, flops_per_s: float = ASSUMED_FLOPS_PER_S
) -> Gradients:
    """Return the gradients of a model of MODELS, their times by the FLOPs before each.

    ``small`` is the model with all widths an eighth. The batch is the same as MODELS says; a batch
    of another size stretches all times alike (:meth:`Gradients.lasting`).
    """
    chosen = model_named(model)
    backwards = (chosen.small if small else chosen.whole)()[::-1]
    ends_s = np.cumsum([piece.flops for piece in backwards]) * chosen.samples / flops_per_s
    made = [(piece, float(end_s)) for piece, end_s in zip(backwards, ends_s, strict=True) if piece.numel][::-1]
    source = f"by FLOPs, {chosen.batch} at {flops_per_s / 1e12:g} TFLOP/s"
    return Gradients(
        f"{chosen.title}, widths ÷ {SMALL}" if small else chosen.title,
        [piece.name for piece, _ in made],
        [FLOAT_BYTES * piece.numel for piece, _ in made],
        [end_s for _, end_s in made],
        source,
    )
