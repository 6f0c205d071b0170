"""Show where parameters, gradients and optimizer state live: one process, data parallel, pipeline,
and both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from labkit.cost.memory import ADAM_BYTES, GIB, GPT3_SIZES, GRADIENT_BYTES, VOCABULARY, WEIGHT_BYTES, Size, parameters
from labkit.explore.grids.cells import CELL_COLUMNS, Grid
from labkit.explore.grids.rings import digits, in_units
from labkit.explore.rank_run import run_on_ranks
from labkit.todo import TodoError

KINDS = {"weights": WEIGHT_BYTES, "gradients": GRADIENT_BYTES, "optimizer state": ADAM_BYTES}
COLUMNS = {"weights": "weights", "gradients": "gradients", "optimizer state": "Adam"}
N_STAGES, MOST_RANKS = 2, 4


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


class Kept(NamedTuple):
    """What a rank keeps of a stage: in which setting, of which kind, and how many bytes.

    Of what was seen in a rank there is a ``digest``, to be compared with others.
    """

    setting: int
    rank: int
    stage: int
    name: str
    parameters: int
    n_bytes: float
    digest: str = ""


def kept_of_size(model: str = "1.3B") -> list[Kept]:
    """Return what each rank keeps of a GPT-3, in each setting.

    ``model`` is a size such as "1.3B", cut into two stages of as many layers each, and trained in
    mixed precision with Adam (:mod:`labkit.cost.memory`). The token embedding is the output layer
    as well, so the last stage of a pipeline keeps a copy of it.

    Raises ValueError for an unknown size.
    """
    sizes = {size.name: size for size in GPT3_SIZES}
    if model not in sizes:
        raise ValueError(f"model is {model!r}, expected one of {', '.join(sizes)}")
    kept = []
    for number, setting in enumerate(SETTINGS):
        for rank, stages in enumerate(setting.stages):
            counts = stage_parameters(sizes[model], tied=len(stages) == N_STAGES)
            for stage in stages:
                for name, each in KINDS.items():
                    kept.append(Kept(number, rank, stage, name, counts[stage], counts[stage] * each))
    return kept


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


def kept_in_ranks() -> list[Kept]:
    """Return what real ranks kept of a small model after one step in each setting.

    Pipelines are run by the reader's own ScheduledPipeline (pipe.5). Raises NotImplementedError
    while that is to do, and what :func:`labkit.launch.launch` raises.
    """
    from labkit.explore.grids.placement_rank import weigh

    stages = [setting.stages for setting in SETTINGS]
    try:
        seen = run_on_ranks(weigh, stages, world_size=MOST_RANKS, tasks=["pipe.5"], backend="gloo").values
    except TodoError as error:
        raise NotImplementedError(f"{error}. Once written, it trains a small model here") from None
    return [
        Kept(number, rank, *weight)
        for number in range(len(SETTINGS))
        for rank in range(MOST_RANKS)
        for weight in seen[rank][number]
    ]


def agree(kept: Sequence[Kept]) -> bool:
    """Return whether ranks with the same stage had the same weights in each setting."""
    weights = [each for each in kept if each.name == "weights"]
    return len({(each.setting, each.stage, each.digest) for each in weights}) == N_STAGES * len(SETTINGS)


# --- as grid and table ----------------------------------------------------------------------------


def placement(kept: Sequence[Kept], title: str, facts: str = "") -> Grid:
    """Return a grid whose steps are the four settings; the number in a cell is its bytes."""
    unit, power = ("GiB", 3) if max(each.n_bytes for each in kept) >= GIB / 100 else ("KiB", 1)
    kinds, rows = list(KINDS), []
    for each in kept:
        column = each.stage * len(kinds) + kinds.index(each.name)
        label = digits(each.n_bytes / 1024**power)
        rows.append((each.rank, column, each.setting, each.setting + 1, each.name, 0, label, _sentence(each, kept)))
    return Grid(
        cells=pd.DataFrame(rows, columns=list(CELL_COLUMNS)),
        columns=[f"stage {stage}\n{short}" for stage in range(N_STAGES) for short in COLUMNS.values()],
        steps=[setting.name for setting in SETTINGS],
        narrate=lambda step: SETTINGS[step].sentence,
        n_ranks=MOST_RANKS,
        title=f"{title}, {unit} a rank",
        facts=facts,
    )


def placement_table(kept: Sequence[Kept]) -> pd.DataFrame:
    """Return a row per setting: the bytes of each kind in the fullest rank, and of all in all.

    Columns: ``setting, ranks, weights, gradients, optimizer state, fullest rank, all ranks``.
    """
    rows = []
    for number, setting in enumerate(SETTINGS):
        of_rank = [dict.fromkeys(KINDS, 0.0) for _ in setting.stages]
        for each in kept:
            if each.setting == number:
                of_rank[each.rank][each.name] += each.n_bytes
        together = [sum(kinds.values()) for kinds in of_rank]
        fullest = of_rank[together.index(max(together))]
        rows.append((setting.name, len(of_rank), *fullest.values(), max(together), sum(together)))
    return pd.DataFrame(rows, columns=["setting", "ranks", *KINDS, "fullest rank", "all ranks"])


def _sentence(one: Kept, kept: Sequence[Kept]) -> str:
    text = (
        f"Rank {one.rank}, stage {one.stage}: {in_units(one.n_bytes)} of {one.name}, "
        f"{one.n_bytes / one.parameters:.3g} bytes for each of {one.parameters:,} parameters."
    )
    same = (one.setting, one.stage, one.name)
    others = [each for each in kept if (each.setting, each.stage, each.name) == same and each.rank != one.rank]
    if not others:
        return f"{text} No other rank has them."
    other = others[0]
    if one.digest:
        return f"{text} Rank {other.rank} has {'the same, bit by bit' if one.digest == other.digest else 'others'}."
    if one.name == "gradients":
        return f"{text} Rank {other.rank} has its own until they are averaged, and then the same."
    return f"{text} Rank {other.rank} has the same."
