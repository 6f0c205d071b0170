"""The ladder: six files that train the same network on the same rows in the same order, so that
their losses agree, and do not if a rank does anything else.

Notebook 06 starts them as their reader does, by torchrun and by accelerate launch, and compares
the losses on two ranks. Here they run on ranks of labkit, which need not import torch again.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import warm_python
from to_do import task

from labkit.lab import ladder
from labkit.launch import RankError, launch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUNGS = [path.stem for path in sorted(EXAMPLES.glob("[1-9]_*.py"))]
ALONE, BY_HAND, DDP, CHECKPOINT, ACCELERATE, FSDP = RUNGS
ROUNDING = 2e-4  # of losses with four digits after the point
LINE = re.compile(r"epoch (\d+), step (\d+), loss (\d+\.\d{4})")


def losses(output: str) -> dict[tuple[int, int], float]:
    """Return the losses of an output by epoch and step; every line of it must be one."""
    found = [LINE.fullmatch(line) for line in output.splitlines()]
    assert all(found), output
    table = {(int(line[1]), int(line[2])): float(line[3]) for line in found if line}
    assert len(table) == len(found), "a line stands there twice"
    return table


def agree(some: dict[tuple[int, int], float], others: dict[tuple[int, int], float]) -> bool:
    return some.keys() == others.keys() and all(abs(some[at] - others[at]) <= ROUNDING for at in some)


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, int], float]:
    done = warm_python.run(EXAMPLES / f"{ALONE}.py", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def on_ranks(path: Path, *options: str, world_size: int = 2) -> dict[tuple[int, int], float]:
    run = launch(ladder.in_rank, str(path), *options, world_size=world_size, threads=1, init=False)
    assert not any(run.values[1:]), "not only rank 0 prints"
    return losses(run.values[0])


@pytest.mark.slow
@task("dp.4")
@pytest.mark.parametrize("rung", [BY_HAND, FSDP])
def test_four_ranks_have_them_too(rung, alone):
    assert agree(on_ranks(EXAMPLES / f"{rung}.py", world_size=4), alone)


def test_one_process_learns_digits_in_three_epochs(alone):
    steps = [(epoch, step) for epoch in (1, 2, 3) for step in (7, 14, 21, 28)]  # 1797 rows are 28 batches of 64
    assert list(alone) == steps
    assert alone[1, 7] > 2 and max(alone[3, step] for step in (7, 14, 21, 28)) < 0.3  # log 10 is 2.3


@pytest.mark.slow
@pytest.mark.parametrize("rung", [ACCELERATE, FSDP])  # and of the one before them notebook 06 says so
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(rung, alone, tmp_path):
    file, path = tmp_path / "digits.pt", EXAMPLES / f"{rung}.py"
    begun = on_ranks(path, "--epochs", "1", "--checkpoint", str(file))
    resumed = on_ranks(path, "--checkpoint", str(file))
    assert {epoch for epoch, _ in begun} == {1} and {epoch for epoch, _ in resumed} == {2, 3}
    assert agree(begun | resumed, alone)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("rung", [BY_HAND, DDP, FSDP])
def test_without_torchrun_a_rung_says_how_to_start_it(rung, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [rung])
    with pytest.raises(SystemExit, match=f"torchrun --standalone --nproc-per-node 2 examples/{rung}.py"):
        runpy.run_path(str(EXAMPLES / f"{rung}.py"), run_name="__main__")


@pytest.mark.slow
def test_ranks_that_cannot_share_a_batch_equally_are_refused():
    with pytest.raises(RankError, match=r"64.*3"):
        on_ranks(EXAMPLES / f"{DDP}.py", world_size=3)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_plain_torch_and_short(rung):
    source = (EXAMPLES / f"{rung}.py").read_text()
    tree = ast.parse(source)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    given = {name for name in imported if name.split(".")[0] == "labkit"}
    assert given == ({"labkit.dp"} if rung == BY_HAND else set())  # its reader's own average_gradients
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 80
    assert f"examples/{rung}.py" in ast.get_docstring(tree)
