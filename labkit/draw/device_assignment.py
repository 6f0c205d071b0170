"""Draw which rank drives which devices, on each node."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from labkit.draw.cell_figure import GridStep, cell_figure
from labkit.draw.cells import Cell, cell_panel

# Of each node, of each of its ranks in order: the numbers of the GPUs that it drives.
Nodes = Sequence[Sequence[Sequence[int]]]
_MODEL = "weights"


def rank_devices(nodes: Nodes, n_gpus: int) -> Figure:
    """Draw a grid for each node: a row a rank, a column for each of its ``n_gpus`` GPUs.

        nodes = [[device_ids(local_rank, 2, n_gpus=4) for local_rank in range(2)]] * 2
        show(rank_devices(nodes, n_gpus=4), alt=describe_rank_devices(nodes))

    ``nodes`` has, for each node and each of its ranks, the GPUs that the rank drives. In a cell
    stands what of its model a rank has there: the whole, or a part, from part 0 on. A rank without
    a GPU has it on the CPU, the last column, which is there where a rank needs it.

    Raises ValueError where there is no rank, where a node has no such GPU, and where two ranks
    would drive the same one.
    """
    _check(nodes, n_gpus)
    columns = [f"GPU {number}" for number in range(n_gpus)]
    if not all(devices for ranks in nodes for devices in ranks):
        columns.append("CPU")
    grids, first_rank, sentences = [], 0, _sentences(nodes)
    for node, ranks in enumerate(nodes):
        cells = []
        for local_rank, devices in enumerate(ranks):
            sentence = sentences[first_rank + local_rank]
            for part, column in enumerate(devices or [n_gpus]):
                label = f"part {part}" if len(devices) > 1 else "whole"
                cells.append(Cell(local_rank, column, 0, 1, _MODEL, 0, label, sentence))
        rows = [f"rank {first_rank + local_rank}" for local_rank in range(len(ranks))]
        grids.append(GridStep(cell_panel(cells, rows, dict(enumerate(columns))), 0, f"node {node}"))
        first_rank += len(ranks)
    return cell_figure(grids, columns)


def describe_rank_devices(nodes: Nodes) -> str:
    """Return in words what :func:`rank_devices` draws, for its alt text."""
    sentences = "; ".join(_sentences(nodes))
    return f"{sentences[:1].upper()}{sentences[1:]}."


def _sentences(nodes: Nodes) -> list[str]:
    """Return for each rank what it drives."""
    driven = [(node, devices) for node, ranks in enumerate(nodes) for devices in ranks]
    names = [" and ".join(f"GPU {number}" for number in devices) or "the CPU" for _, devices in driven]
    return [
        f"rank {rank} drives {name} of node {node}"
        for rank, ((node, _), name) in enumerate(zip(driven, names, strict=True))
    ]


def _check(nodes: Nodes, n_gpus: int) -> None:
    if not nodes or not all(nodes):
        raise ValueError(f"rank_devices: nodes is {nodes!r}, expected one or more, each with one or more ranks")
    for node, ranks in enumerate(nodes):
        driven = [number for devices in ranks for number in devices]
        if wrong := [number for number in driven if not 0 <= number < n_gpus]:
            raise ValueError(
                f"rank_devices: node {node} has GPUs 0 to {n_gpus - 1}, and a rank there drives GPU {wrong[0]}"
            )
        if twice := [number for number in driven if driven.count(number) > 1]:
            raise ValueError(f"rank_devices: two ranks of node {node} drive GPU {twice[0]}, expected one each")
