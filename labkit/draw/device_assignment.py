"""Draw which rank drives which devices, on each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from labkit.draw.cell_figure import GridStep, cell_figure
from labkit.draw.cells import Cell, cell_panel

# Of each node, of each of its ranks in order: the numbers of the GPUs that it drives.
Nodes = Sequence[Sequence[Sequence[int]]]
_MODEL = "weights"


class _Drives(NamedTuple):
    """A rank, and the devices that it drives on its node."""

    node: int
    local_rank: int
    rank: int
    devices: Sequence[int]

    def __str__(self) -> str:
        listed = [f"GPU {number}" for number in self.devices] or ["the CPU"]
        return f"rank {self.rank} drives {' and '.join(listed)} of node {self.node}"


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
    on_cpu = any(not drives.devices for drives in _ranks(nodes))
    columns = [f"GPU {number}" for number in range(n_gpus)] + ["CPU"] * on_cpu
    grids = []
    for node in range(len(nodes)):
        here = [drives for drives in _ranks(nodes) if drives.node == node]
        cells = []
        for drives in here:
            for part, column in enumerate(drives.devices or [n_gpus]):
                label = f"part {part}" if len(drives.devices) > 1 else "whole"
                cells.append(Cell(drives.local_rank, column, 0, 1, _MODEL, 0, label, str(drives)))
        panel = cell_panel(cells, [f"rank {drives.rank}" for drives in here], dict(enumerate(columns)))
        grids.append(GridStep(panel, 0, f"node {node}"))
    return cell_figure(grids, columns)


def describe_rank_devices(nodes: Nodes) -> str:
    """Return in words what :func:`rank_devices` draws, for its alt text."""
    sentences = "; ".join(map(str, _ranks(nodes)))
    return f"{sentences[:1].upper()}{sentences[1:]}."


def _ranks(nodes: Nodes) -> Iterator[_Drives]:
    rank = 0
    for node, ranks in enumerate(nodes):
        for local_rank, devices in enumerate(ranks):
            yield _Drives(node, local_rank, rank, devices)
            rank += 1


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
