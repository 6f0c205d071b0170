"""Work out how big a model fits where, and how long it trains: GPT-3's eight sizes on real GPUs.

Arithmetic only: nothing is measured here, and nothing of it depends on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

CONTEXT = 2048  # tokens in a GPT-3 sequence
VOCABULARY = 50257
TRAINING_TOKENS = 300e9  # every GPT-3 size saw as many
GIB = 2**30
DAY_S = 24 * 60 * 60

# Bytes a parameter takes in mixed-precision training with Adam: bfloat16 weights and gradients, and
# in float32 the master weights, which Adam changes, and Adam's two moments. Rajbhandari et al. 2020
# (ZeRO), arXiv 1910.02054, section 3.1, which counts the last three as 12 bytes for Adam.
WEIGHT_BYTES, GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES = 2, 2, 4, 4 + 4
ADAM_BYTES = MASTER_BYTES + MOMENT_BYTES

# What part of the peak a well-tuned training reaches. Narayanan et al. 2021, arXiv 2104.04473,
# measure 44 to 52 %, but count the forward pass that they do twice to save memory; without it that
# is three quarters as much. Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, measure 46 % without.
UTILISATION = 0.4


class Gpu(NamedTuple):
    """A GPU: its memory, and its peak in 16-bit FLOP/s without sparsity, as its maker states it."""

    memory_gib: float
    peak_flops: float


GPUS = {
    "T4": Gpu(16, 65e12),  # float16; it has no bfloat16
    "RTX 4090": Gpu(24, 165e12),
    "A100": Gpu(80, 312e12),
    "H100": Gpu(80, 989e12),  # SXM
    "H200": Gpu(141, 989e12),
}


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


def activation_bytes(
    layers: int, width: int, heads: int, sequences: int = 1, context: int = CONTEXT, flash_attention: bool = True
) -> float:
    """Return the bytes of 16-bit activations kept for the backward pass, nothing recomputed.

    Per layer context · sequences · width · (34 + 5 · heads · context / width): Korthikanti et al.
    2022, arXiv 2205.05198, equation 1. The second term is attention's matrices, context × context
    for each head. FlashAttention (Dao et al. 2022, arXiv 2205.14135) makes them anew, a part at a
    time, and keeps none.
    """
    attention = 0 if flash_attention else 5 * heads * context / width
    return layers * context * sequences * width * (34 + attention)


def memory_table(flash_attention: bool = True) -> pd.DataFrame:
    """Return a row per GPT-3 size: parameters, and GiB for each thing kept, and for all together.

    Kept are weights, gradients, master weights, Adam's moments and the activations of one sequence,
    with attention's matrices unless ``flash_attention``.
    """
    rows = []
    for size in GPT3_SIZES:
        n = parameters(size.layers, size.width)
        parts: list[float] = [n * WEIGHT_BYTES, n * GRADIENT_BYTES, n * MASTER_BYTES, n * MOMENT_BYTES]
        parts.append(activation_bytes(size.layers, size.width, size.heads, flash_attention=flash_attention))
        rows.append([size.name, n, *(part / GIB for part in parts), sum(parts) / GIB])
    columns = ["model", "parameters", "weights", "gradients", "master", "moments", "activations", "total"]
    return pd.DataFrame(rows, columns=columns)


def gib_per_gpu(n_gpus: int = 1, sharded: bool = False, flash_attention: bool = True) -> pd.Series:
    """Return how many GiB each of ``n_gpus`` has to keep, for each GPT-3 size by its name.

    Under DDP every GPU has a copy of all but the activations, so more GPUs do not help. Sharded
    (ZeRO stage 3, FSDP) each has an equal part of it. Activations are each GPU's own, of one
    sequence. What is gathered and buffered for a moment comes on top.
    """
    table = memory_table(flash_attention).set_index("model")
    states = table.total - table.activations
    return states / (n_gpus if sharded else 1) + table.activations


def fit_table(flash_attention: bool = True) -> pd.DataFrame:
    """Return whether each GPT-3 size trains on each GPU, and on eight H100: as DDP, and sharded."""
    places = {name: (gpu, gib_per_gpu(flash_attention=flash_attention)) for name, gpu in GPUS.items()}
    for way, sharded in (("DDP", False), ("sharded", True)):
        places[f"8 × H100, {way}"] = GPUS["H100"], gib_per_gpu(8, sharded, flash_attention)
    return pd.DataFrame({place: needed.le(gpu.memory_gib) for place, (gpu, needed) in places.items()})


# Where a model's two halves may be: for each rank the stages that it keeps.
PLACEMENTS: dict[str, list[tuple[int, ...]]] = {
    "one process": [(0, 1)],
    "data parallel": [(0, 1)] * 2,
    "pipeline": [(0,), (1,)],
    "both, 2 × 2": [(0,), (1,)] * 2,
}


def placement_table(model: str = "1.3B") -> pd.DataFrame:
    """Return what the fullest rank keeps of a GPT-3, for each placement: a row per part.

    Columns: ``placement``, ``ranks``, ``part`` ("weights", "gradients", "optimizer state"), ``GiB``
    in the rank that keeps most. A stage is half of the layers; both embeddings come before the
    first, the last norm and the output layer after the last. Where a rank keeps both stages, the
    output layer is the token embedding; in a pipeline the last stage keeps a copy.

    Raises ValueError for an unknown size.
    """
    sizes = {size.name: size for size in GPT3_SIZES}
    if model not in sizes:
        raise ValueError(f"model is {model!r}, expected one of {', '.join(sizes)}")
    size, parts = sizes[model], {"weights": WEIGHT_BYTES, "gradients": GRADIENT_BYTES, "optimizer state": ADAM_BYTES}
    whole, last_norm = parameters(size.layers, size.width), 2 * size.width
    first = parameters(size.layers // 2, size.width) - last_norm
    stages = [first, whole - first + VOCABULARY * size.width]
    kept = {
        name: max(whole if len(own) == 2 else stages[own[0]] for own in by_rank) for name, by_rank in PLACEMENTS.items()
    }
    rows = [
        (name, len(PLACEMENTS[name]), part, n * n_bytes / GIB)
        for name, n in kept.items()
        for part, n_bytes in parts.items()
    ]
    return pd.DataFrame(rows, columns=["placement", "ranks", "part", "GiB"])


def training_flops(n_parameters: float, n_tokens: float = TRAINING_TOKENS) -> float:
    """Return the FLOPs of a training, about 6 for each parameter and token: 2 forward, 4 backward.

    Kaplan et al. 2020, arXiv 2001.08361, section 2.1; Hoffmann et al. 2022 (Chinchilla), arXiv
    2203.15556, uses it too. Attention between tokens is left out, and nothing is computed twice.
    """
    return 6 * n_parameters * n_tokens


def training_s(
    n_parameters: float, n_gpus: int, gpu: Gpu, utilisation: float = UTILISATION, n_tokens: float = TRAINING_TOKENS
) -> float:
    """Return the seconds that a training takes: its FLOPs ÷ (GPUs × peak FLOP/s × utilisation).

    ``utilisation`` is the fraction of the peak that goes into :func:`training_flops`, whatever the
    number of GPUs: communication is in it, and grows with that number.
    """
    return training_flops(n_parameters, n_tokens) / (n_gpus * gpu.peak_flops * utilisation)


def training_table(utilisation: float = UTILISATION) -> pd.DataFrame:
    """Return a row per GPT-3 size: FLOPs to 300 billion tokens, and days on 8 H100 and 1024 A100.

    It is time alone: not all of them fit there, see :func:`fit_table`.
    """
    rows = []
    for size in GPT3_SIZES:
        n = parameters(size.layers, size.width)
        seconds = [training_s(n, n_gpus, GPUS[name], utilisation) for n_gpus, name in ((8, "H100"), (1024, "A100"))]
        rows.append([size.name, training_flops(n), *(each / DAY_S for each in seconds)])
    return pd.DataFrame(rows, columns=["model", "FLOPs", "days on 8 × H100", "days on 1024 × A100"])
