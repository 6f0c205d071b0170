"""Show where parameters, gradients and optimizer state live: one process, data parallel, pipeline,
and both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from labkit.cost import memory
from labkit.cost.memory import GIB, VOCABULARY, Size, parameters
from labkit.draw.cells import INSET
from labkit.draw.layout import GAP
from labkit.draw.panel import BAR_COLUMNS, Label, Mark, Panel, TimeAxis
from labkit.explore.grids.rings import digits, in_units

KINDS = {"weights": memory.WEIGHT_BYTES, "gradients": memory.GRADIENT_BYTES, "optimizer state": memory.ADAM_BYTES}
N_STAGES, MAX_RANKS = 2, 4


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
    sizes = {size.name: size for size in memory.GPT3_SIZES}
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


def size_axis(kept: Sequence[Kept]) -> TimeAxis:
    """Return the axis of placement_panel: in GiB, or in KiB for a small model."""
    unit, power = ("GiB", 3) if max(each.n_bytes for each in kept) >= GIB / 100 else ("KiB", 1)
    return TimeAxis(f"{unit} in a rank", unit, 1024.0**-power)


def placement_panel(kept: Sequence[Kept], title: str, facts: str = "", device: str = "") -> Panel:
    """Return the settings under one another, a row a rank: a bar is as long as its bytes.

    ``device`` is one of :data:`labkit.cost.memory.GPUS`: a line marks how much memory it has.
    """
    axis, order = size_axis(kept), list(KINDS)
    table = pd.DataFrame(kept).assign(kind=[order.index(each.name) for each in kept])
    table = table.sort_values(["setting", "rank", "kind", "stage"])
    one_rank = table.groupby(["setting", "rank"])
    table["top"] = one_rank.ngroup() + GAP * table["setting"]
    table["right"] = one_rank["n_bytes"].cumsum()
    bars = table.assign(left=table["right"] - table["n_bytes"], top=table["top"] + INSET, height=1 - 2 * INSET)
    bars = bars.assign(chunk=table["stage"], same=table["stage"] * len(order) + table["kind"])
    bars["label"] = [digits(n_bytes * axis.per_second) for n_bytes in table["n_bytes"]]
    ranks = one_rank[["top", "right"]].max().reset_index()
    middles = ranks.groupby("setting")["top"].mean() + 0.5
    rows = [Label(middle, setting.name) for middle, setting in zip(middles, SETTINGS, strict=True)]
    beside = list(zip(ranks["rank"], ranks["top"] + 0.5, ranks["right"], strict=True))
    rows += [Label(at, f"rank {rank}", small=True) for rank, at, _ in beside]
    gib = memory.GPUS[device].memory_gib if device else 0
    return Panel(
        bars[[*BAR_COLUMNS, "same"]].reset_index(drop=True),
        height=ranks["top"].max() + 1,
        rows=rows,
        title=title,
        facts=facts,
        marks=[Mark(gib * GIB, f"memory of a {device}, {gib:g} GiB")] if device else [],
        peaks=[Label(at, in_units(n_bytes)) for _, at, n_bytes in beside],
        explain=lambda bar: _sentence(kept[table.index[bar]], kept),
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
    setting = SETTINGS[one.setting]
    text = (
        f"{setting.name.capitalize()}, rank {one.rank}, stage {one.stage}: {in_units(one.n_bytes)} of {one.name}, "
        f"{one.n_bytes / one.parameters:.3g} bytes for each of {one.parameters:,} parameters.\n{setting.sentence}"
    )
    others = [each for each in kept if each.part == one.part and each.rank != one.rank]
    if not others:
        return f"{text} No other rank has them."
    has = f"{text} Rank {others[0].rank} has"
    if one.digest:
        return f"{has} {'the same, bit by bit' if one.digest == others[0].digest else 'others'}."
    return f"{has} {'its own until they are averaged, and then the same' if one.name == 'gradients' else 'the same'}."
