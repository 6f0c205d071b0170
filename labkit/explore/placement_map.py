"""Show where parameters, gradients and optimizer state live: one process, data parallel, pipeline,
and both."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from labkit.cost.memory import ADAM_BYTES, GIB, GPT3_SIZES, GRADIENT_BYTES, VOCABULARY, WEIGHT_BYTES, Size, parameters
from labkit.explore.cells import CELL_COLUMNS, Grid

KINDS = {"weights": WEIGHT_BYTES, "gradients": GRADIENT_BYTES, "optimizer state": ADAM_BYTES}
COLUMNS = {"weights": "weights", "gradients": "gradients", "optimizer state": "Adam"}
N_STAGES = 2


class Setting(NamedTuple):
    """A way to place a model: its name, the stages of each rank, and what ranks do about it."""

    name: str
    stages: tuple[tuple[int, ...], ...]
    sentence: str


SETTINGS = (
    Setting("one process", ((0, 1),), "One rank keeps all, and computes alone."),
    Setting(
        "data parallel",
        ((0, 1), (0, 1)),
        "Each rank keeps all, and computes a part of the batch. Gradients are averaged; nothing gets smaller.",
    ),
    Setting(
        "pipeline",
        ((0,), (1,)),
        "Each rank keeps a stage. Activations and their gradients are sent; no parameter and no weight gradient is.",
    ),
    Setting(
        "both, 2 × 2",
        ((0,), (1,), (0,), (1,)),
        "Two pipelines, ranks 0 and 1, ranks 2 and 3. Those with the same stage average its gradients.",
    ),
)


def placement(model: str = "1.3B") -> Grid:
    """Return a grid whose steps are the four settings, with the bytes of each part in each rank.

    ``model`` is a size of GPT-3, such as "1.3B", cut into two stages of as many layers each, and
    trained in mixed precision with Adam (:mod:`labkit.cost.memory`). The token embedding is the
    output layer as well, so the last stage of a pipeline keeps a copy of it.

    Raises ValueError for an unknown size.
    """
    kinds, rows = list(KINDS), []
    for number, rank, stage, name, count, gib in _cells(_size(model)):
        text = _sentence(SETTINGS[number], rank, stage, name, count, gib)
        column = stage * len(kinds) + kinds.index(name)
        rows.append((rank, column, number, number + 1, name, 0, f"{gib:.3g}", text))
    columns = [f"stage {stage}\n{short}" for stage in range(N_STAGES) for short in COLUMNS.values()]
    return Grid(
        cells=pd.DataFrame(rows, columns=list(CELL_COLUMNS)),
        columns=columns,
        steps=[setting.name for setting in SETTINGS],
        narrate=lambda step: SETTINGS[step].sentence,
        n_ranks=max(len(setting.stages) for setting in SETTINGS),
        title=f"GPT-3 {model}, GiB a rank",
        facts="weights and gradients in 16 bits, Adam's state in 32",
    )


def stage_parameters(size: Size, tied: bool) -> list[int]:
    """Return how many parameters each stage has: half of the layers, and what is outside of them.

    Both embeddings come before the first layer, the last norm and the output layer after the last
    one. ``tied``: both stages are in one process, so the output layer is the token embedding.
    """
    layers = size.layers // N_STAGES
    outside, layer = parameters(0, size.width), parameters(1, size.width) - parameters(0, size.width)
    norm = 2 * size.width
    output = 0 if tied else VOCABULARY * size.width
    return [outside - norm + layers * layer, (size.layers - layers) * layer + norm + output]


def placement_table(model: str = "1.3B") -> pd.DataFrame:
    """Return a row per setting: the GiB of each kind in the fullest rank, and of all in all ranks.

    Columns: ``setting, ranks, weights, gradients, optimizer state, fullest rank, all ranks``.
    Errors are those of :func:`placement`.
    """
    cells = pd.DataFrame(_cells(_size(model)), columns=["setting", "rank", "stage", "name", "parameters", "GiB"])
    rows = []
    for number, setting in enumerate(SETTINGS):
        in_it = cells[cells["setting"] == number]
        kept = in_it.pivot_table(index="rank", columns="name", values="GiB", aggfunc="sum")[list(KINDS)]
        together = kept.sum(axis=1)
        fullest = int(together.to_numpy().argmax())
        rows.append((setting.name, len(kept), *kept.iloc[fullest], together.max(), together.sum()))
    return pd.DataFrame(rows, columns=["setting", "ranks", *KINDS, "fullest rank", "all ranks"])


def _size(model: str) -> Size:
    sizes = {size.name: size for size in GPT3_SIZES}
    if model not in sizes:
        raise ValueError(f"model is {model!r}, expected one of {', '.join(sizes)}")
    return sizes[model]


def _cells(size: Size) -> list[tuple[int, int, int, str, int, float]]:
    """Return setting, rank, stage, name, parameters and GiB of each thing that a rank keeps."""
    cells = []
    for number, setting in enumerate(SETTINGS):
        for rank, stages in enumerate(setting.stages):
            counts = stage_parameters(size, tied=len(stages) == N_STAGES)
            for stage in stages:
                for name, each in KINDS.items():
                    cells.append((number, rank, stage, name, counts[stage], counts[stage] * each / GIB))
    return cells


def _sentence(setting: Setting, rank: int, stage: int, name: str, count: int, gib: float) -> str:
    text = f"Rank {rank}, stage {stage}: {gib:.3g} GiB of {name}, {KINDS[name]} bytes for each of {count:,} parameters."
    others = [str(other) for other, stages in enumerate(setting.stages) if stage in stages and other != rank]
    if not others:
        return f"{text} No other rank has them."
    same = "has the same" if name != "gradients" else "has its own until they are averaged, and then the same"
    return f"{text} Rank {others[0]} {same}."
