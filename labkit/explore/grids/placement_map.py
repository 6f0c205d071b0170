"""Show where parameters, gradients and optimizer state live: one process, data parallel, pipeline,
and both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from labkit.cost.memory import ADAM_BYTES, GIB, GPT3_SIZES, GRADIENT_BYTES, VOCABULARY, WEIGHT_BYTES, Size, parameters
from labkit.draw.cells import Cell, cell_panel
from labkit.draw.panel import Panel
from labkit.explore.grids.rings import digits, in_units

KINDS = {"weights": WEIGHT_BYTES, "gradients": GRADIENT_BYTES, "optimizer state": ADAM_BYTES}
N_STAGES, MOST_RANKS = 2, 4
COLUMNS = [(f"stage {stage}", kind) for stage in range(N_STAGES) for kind in ("weights", "gradients", "Adam")]


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

    @property
    def part(self) -> tuple[int, int, str]:
        """What it is: the same in all ranks that keep a copy."""
        return self.setting, self.stage, self.name


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
            kept += [
                Kept(number, rank, stage, name, counts[stage], counts[stage] * each)
                for stage in stages
                for name, each in KINDS.items()
            ]
    return kept


def stage_parameters(size: Size, tied: bool) -> list[int]:
    """Return how many parameters each stage has: half of the layers, and what is outside of them.

    Both embeddings come before the first layer, the last norm and the output layer after the last
    one. ``tied``: both stages are in one process, so the output layer is the token embedding.
    """
    norm, copy = 2 * size.width, 0 if tied else VOCABULARY * size.width
    first = parameters(size.layers // N_STAGES, size.width) - norm
    return [first, parameters(size.layers, size.width) - first + copy]


def agree(kept: Sequence[Kept]) -> bool:
    """Return whether ranks with the same stage had the same weights in each setting."""
    digests = {(each.part, each.digest) for each in kept if each.name == "weights"}
    return len(digests) == N_STAGES * len(SETTINGS)


# --- as panel and table ---------------------------------------------------------------------------


def placement_panel(kept: Sequence[Kept], title: str, facts: str = "") -> Panel:
    """Return a panel whose steps are the four settings; the number in a cell is its bytes."""
    unit, power = ("GiB", 3) if max(each.n_bytes for each in kept) >= GIB / 100 else ("KiB", 1)
    cells = []
    for each in kept:
        column, step = each.stage * len(KINDS) + list(KINDS).index(each.name), each.setting
        label, sentence = digits(each.n_bytes / 1024**power), _sentence(each, kept)
        cells.append(Cell(each.rank, column, step, step + 1, each.name, 0, label, sentence))
    return cell_panel(
        cells,
        [f"rank {rank}" for rank in range(MOST_RANKS)],
        {column: " ".join(words) for column, words in enumerate(COLUMNS)},
        [setting.name for setting in SETTINGS],
        lambda step: SETTINGS[step].sentence,
        title=f"{title}, {unit} a rank",
        facts=facts,
    )


def placement_table(kept: Sequence[Kept]) -> pd.DataFrame:
    """Return a row per setting: the bytes of each kind in the fullest rank, and of all in all.

    Columns: ``setting, ranks, weights, gradients, optimizer state, fullest rank, all ranks``.
    """
    ranks = pd.DataFrame(kept).pivot_table("n_bytes", ["setting", "rank"], "name", "sum")[list(KINDS)]
    together = ranks.sum(axis=1).groupby("setting")
    table = ranks.loc[together.idxmax()].reset_index(drop=True).rename_axis(columns=None)
    table.insert(0, "setting", [setting.name for setting in SETTINGS])
    table.insert(1, "ranks", together.count())
    return table.assign(**{"fullest rank": together.max(), "all ranks": together.sum()})


def _sentence(one: Kept, kept: Sequence[Kept]) -> str:
    text = (
        f"Rank {one.rank}, stage {one.stage}: {in_units(one.n_bytes)} of {one.name}, "
        f"{one.n_bytes / one.parameters:.3g} bytes for each of {one.parameters:,} parameters."
    )
    others = [each for each in kept if each.part == one.part and each.rank != one.rank]
    if not others:
        return f"{text} No other rank has them."
    has = f"{text} Rank {others[0].rank} has"
    if one.digest:
        return f"{has} {'the same, bit by bit' if one.digest == others[0].digest else 'others'}."
    return f"{has} {'its own until they are averaged, and then the same' if one.name == 'gradients' else 'the same'}."
