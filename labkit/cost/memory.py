"""Work out the memory that training takes, of GPT-3's eight sizes, shared out in many ways.

Arithmetic only: nothing is measured here, and nothing of it depends on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from labkit.base.checks import check_counts

CONTEXT = 2048  # tokens in a GPT-3 sequence
VOCABULARY = 50257
GIB = 2**30

# Bytes a parameter takes in mixed-precision training with Adam: bfloat16 weights and gradients, and
# in float32 the master weights, which Adam changes, and Adam's two moments. Rajbhandari et al. 2020
# (ZeRO), arXiv 1910.02054, section 3.1, which counts the last three as 12 bytes for Adam.
WEIGHT_BYTES, GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES = 2, 2, 4, 4 + 4
ADAM_BYTES = MASTER_BYTES + MOMENT_BYTES


@dataclass(frozen=True)
class Size:
    """A row of table 2.1 of Brown et al. 2020, arXiv 2005.14165."""

    name: str
    layers: int
    width: int
    heads: int


GPT3_SIZES = (
    Size("125M", 12, 768, 12),
    Size("350M", 24, 1024, 16),
    Size("760M", 24, 1536, 16),
    Size("1.3B", 24, 2048, 24),
    Size("2.7B", 32, 2560, 32),
    Size("6.7B", 32, 4096, 32),
    Size("13B", 40, 5140, 40),
    Size("175B", 96, 12288, 96),
)


def parameters(layers: int, width: int, vocabulary: int = VOCABULARY, context: int = CONTEXT) -> int:
    """Count the parameters of a GPT of this shape, the output layer sharing the token embedding's.

    A layer: attention takes 4 width² + 4 width (query, key, value, output), the MLP 8 width² + 5
    width, two norms 4 width. Outside: an embedding for each token and each position, and a last
    norm.
    """
    layer = 12 * width**2 + 13 * width
    return layers * layer + (vocabulary + context) * width + 2 * width


def activation_bytes(layers: int, width: int, heads: int, flash_attention: bool = True) -> float:
    """Return the bytes of 16-bit activations of a sequence, kept for backward, none recomputed.

    Per layer context · width · (34 + 5 · heads · context / width): Korthikanti et al.
    2022, arXiv 2205.05198, equation 1. The second term is attention's matrices, context × context
    for each head. FlashAttention (Dao et al. 2022, arXiv 2205.14135) makes them anew, a part at a
    time, and keeps none.
    """
    attention = 0 if flash_attention else 5 * heads * CONTEXT / width
    return layers * CONTEXT * width * (34 + attention)


def memory_table() -> pd.DataFrame:
    """Return a row per GPT-3 size: parameters, and GiB for each thing kept, and for all together.

    Kept are weights, gradients, master weights, Adam's moments and the activations of one sequence,
    without attention's matrices.
    """
    rows = []
    for size in GPT3_SIZES:
        n = parameters(size.layers, size.width)
        parts: list[float] = [n * WEIGHT_BYTES, n * GRADIENT_BYTES, n * MASTER_BYTES, n * MOMENT_BYTES]
        parts.append(activation_bytes(size.layers, size.width, size.heads))
        rows.append([size.name, n, *(part / GIB for part in parts), sum(parts) / GIB])
    columns = ["model", "parameters", "weights", "gradients", "master", "moments", "activations", "total"]
    return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True)
class Plan:
    """How a training is shared out over ``data * tensor * pipeline`` devices, and what is kept.

    - ``data``: that many have rows of their own. From ``zero_stage`` 1 on they share out the
      optimizer's state, from 2 the gradients, from 3 the weights (ZeRO; FSDP is 3).
    - ``tensor``: that many share out each layer's matrices, as Megatron-LM does.
    - ``pipeline``: that many have layers of their own, with ``micro_batches`` of ``sequences`` each
      in a step, in the order of ``schedule``, "1F1B" or "GPipe".
    - ``recompute``: which activations the backward pass recomputes instead of keeping:
      "nothing", "attention" (its matrices: FlashAttention) or "all" (but each layer's input).
    - ``precision``: "mixed", 2 + 2 + 12 bytes per parameter, or "float32", 4 + 4 + 8.

    Raises ValueError for anything else.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero_stage: int = 0
    micro_batches: int = 1
    sequences: int = 1
    schedule: str = "1F1B"
    recompute: str = "attention"
    precision: str = "mixed"

    def __post_init__(self) -> None:
        check_counts(
            data=self.data,
            tensor=self.tensor,
            pipeline=self.pipeline,
            micro_batches=self.micro_batches,
            sequences=self.sequences,
        )
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(map(str, known))}")

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return self.data * self.tensor * self.pipeline


_CHOICES: dict[str, tuple[object, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "schedule": ("1F1B", "GPipe"),
    "recompute": ("nothing", "attention", "all"),
    "precision": ("mixed", "float32"),
}


def parameters_of_first_stage(size: Size, plan: Plan) -> int:
    """Count the parameters of a device of the first stage, which has the most: embeddings, layers.

    Of a layer's 12 width² + 13 width, matrices and the biases of their outputs are shared out by
    ``tensor``; norms and the biases after a sum, 6 width, are not. Of the embeddings the tokens'
    are. Where layers do not divide by the stages, the first has one more.
    """
    layer = -(-(12 * size.width**2 + 7 * size.width) // plan.tensor) + 6 * size.width
    last_norm = 2 * size.width if plan.pipeline == 1 else 0
    embeddings = -(-VOCABULARY // plan.tensor) * size.width + CONTEXT * size.width
    return -(-size.layers // plan.pipeline) * layer + embeddings + last_norm


def gib_per_device(size: Size, plan: Plan = Plan()) -> pd.Series:  # it cannot change
    """Return the GiB that a device of the first stage keeps, by what they are for, and ``total``.

    Activations are those of the micro-batches that the stage has begun and not ended: with 1F1B as
    many as there are stages, with GPipe all. A layer keeps context · sequences · width times
    10 + 24/tensor + 5 · heads · context / (width · tensor) bytes, the last term only if nothing is
    recomputed, or 2 if all is: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 and 2 and
    section 5. In float32 they take twice as much. What is gathered and buffered for a moment comes
    on top.
    """
    n = parameters_of_first_stage(size, plan)
    bytes_each = (WEIGHT_BYTES, GRADIENT_BYTES, ADAM_BYTES) if plan.precision == "mixed" else (4, 4, MOMENT_BYTES)
    shared = [plan.data if plan.zero_stage >= stage else 1 for stage in (3, 2, 1)]
    kept = [n * n_bytes / n_sharers for n_bytes, n_sharers in zip(bytes_each, shared, strict=True)]
    per_number = 2.0
    if plan.recompute != "all":
        per_number = 10 + 24 / plan.tensor
    if plan.recompute == "nothing":
        per_number += 5 * size.heads * CONTEXT / (size.width * plan.tensor)
    in_flight = plan.micro_batches if plan.schedule == "GPipe" else min(plan.micro_batches, plan.pipeline)
    layers = -(-size.layers // plan.pipeline) * in_flight
    twice = 1 if plan.precision == "mixed" else 2
    kept.append(twice * layers * CONTEXT * plan.sequences * size.width * per_number)
    gib = pd.Series(kept, ["weights", "gradients", "optimizer state", "activations"]) / GIB
    return pd.concat([gib, pd.Series({"total": gib.sum()})])
