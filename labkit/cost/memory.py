"""Work out how big a model fits where: GPT-3's eight sizes, what each keeps in memory, and GPUs.

Arithmetic only: nothing is measured here, and nothing of it depends on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

CONTEXT = 2048  # tokens in a GPT-3 sequence
VOCABULARY = 50257
TRAINING_TOKENS = 300e9  # every GPT-3 size saw as many
GIB = 2**30

# Bytes a parameter takes in mixed-precision training with Adam: bfloat16 weights and gradients; and
# in float32 Adam's two moments and a copy of the weights. Rajbhandari et al. 2020 (ZeRO), arXiv
# 1910.02054, section 3.1.
WEIGHT_BYTES, GRADIENT_BYTES, ADAM_BYTES = 2, 2, 12

GPU_MEMORY_GIB = {"T4": 16, "RTX 4090": 24, "A100": 80, "H200": 141, "8 × H100": 640}  # as the makers state it


@dataclass(frozen=True)
class Size:
    """One row of table 2.1 of Brown et al. 2020, arXiv 2005.14165.

    ``batch_tokens`` is tokens in a batch.
    """

    name: str
    layers: int
    width: int
    heads: int
    batch_tokens: float


GPT3_SIZES = (
    Size("125M", 12, 768, 12, 0.5e6),
    Size("350M", 24, 1024, 16, 0.5e6),
    Size("760M", 24, 1536, 16, 0.5e6),
    Size("1.3B", 24, 2048, 24, 1e6),
    Size("2.7B", 32, 2560, 32, 1e6),
    Size("6.7B", 32, 4096, 32, 2e6),
    Size("13B", 40, 5140, 40, 2e6),
    Size("175B", 96, 12288, 96, 3.2e6),
)


def parameters(layers: int, width: int, vocabulary: int = VOCABULARY, context: int = CONTEXT) -> int:
    """Count the parameters of a GPT of this shape, the output layer sharing the token embedding's.

    A layer: attention takes 4 width² + 4 width (query, key, value, output), the MLP 8 width² + 5
    width, two norms 4 width. Outside: an embedding for each token and each position, and a last
    norm.
    """
    layer = 12 * width**2 + 13 * width
    return layers * layer + (vocabulary + context) * width + 2 * width


def activation_bytes(layers: int, width: int, heads: int, sequences: int = 1, context: int = CONTEXT) -> float:
    """Return the bytes of 16-bit activations kept for the backward pass, nothing recomputed.

    Per layer context · sequences · width · (34 + 5 · heads · context / width): Korthikanti et al.
    2022, arXiv 2205.05198, equation 1. The second term is attention's, which FlashAttention does
    not keep.
    """
    return layers * context * sequences * width * (34 + 5 * heads * context / width)


def memory_table() -> pd.DataFrame:
    """Return a row per GPT-3 size: parameters, and GiB for each thing kept, and for all together.

    Kept are weights, gradients, Adam's state and the activations of one sequence.
    """
    rows = []
    for size in GPT3_SIZES:
        n = parameters(size.layers, size.width)
        parts: list[float] = [n * WEIGHT_BYTES, n * GRADIENT_BYTES, n * ADAM_BYTES]
        parts.append(activation_bytes(size.layers, size.width, size.heads))
        rows.append([size.name, n, *(part / GIB for part in parts), sum(parts) / GIB])
    return pd.DataFrame(rows, columns=["model", "parameters", "weights", "gradients", "Adam", "activations", "total"])


def token_table() -> pd.DataFrame:
    """Return a row per GPT-3 size: tokens and sequences in a batch, steps to 300 billion tokens."""
    rows = [
        [size.name, size.batch_tokens, round(size.batch_tokens / CONTEXT), round(TRAINING_TOKENS / size.batch_tokens)]
        for size in GPT3_SIZES
    ]
    return pd.DataFrame(rows, columns=["model", "batch_tokens", "sequences", "steps"])
