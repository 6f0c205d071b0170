"""Cells on ranks that have a GPU: tensors stay there, and a collective that is aborted costs the
cell alone."""

from __future__ import annotations

import pytest

from labkit.launch import LaunchTimeout, RankError

pytestmark = pytest.mark.gpu

SETUP = """
import torch, torch.distributed as dist
from labkit.launch import device
rank, device = dist.get_rank(), device()
x = torch.full((1000,), float(rank), device=device)
"""


@pytest.fixture
def ranks(rig):
    started = rig.cells(2)
    started.run_cell(SETUP, "cell 1")
    yield started
    started.stop()


def sums(ranks):
    return ranks.run_cell("y = torch.ones(1, device=device); dist.all_reduce(y); y.item()", "cell 2").run.values


def test_a_tensor_stays_on_its_gpu_from_cell_to_cell(ranks, rig):
    assert sums(ranks) == ["2.0", "2.0"]
    kind = rig.device.partition(":")[0]
    assert ranks.run_cell("x.device.type, x.sum().item()", "cell 3").run.values[1] == f"('{kind}', 1000.0)"
    assert [tensor.device.type for tensor in ranks["x"]] == ["cpu", "cpu"]


@pytest.mark.parametrize("end", ["", "; x.sum().item()"], ids=["in Python's hands", "on the GPU"])
def test_a_collective_that_is_aborted_leaves_variables_and_the_next_cell_works(ranks, end):
    sums(ranks)
    with pytest.raises(RankError, match="rank 1 raised ValueError: on purpose"):
        ranks.run_cell(f"if rank == 1: raise ValueError('on purpose')\ndist.all_reduce(x){end}", "cell 3")
    assert ranks.run_cell("rank", "cell 4").run.values == ["0", "1"]
    assert sums(ranks) == ["2.0", "2.0"]


def test_a_hang_is_named_and_the_next_cell_reads_a_variable_from_before(ranks):
    sums(ranks)
    with pytest.raises(LaunchTimeout, match="rank 1 has returned without it"):
        ranks.run_cell("if rank == 0: dist.all_reduce(x); x.sum().item()", "cell 3")
    assert ranks.run_cell("rank", "cell 4").run.values == ["0", "1"]
    assert sums(ranks) == ["2.0", "2.0"]
