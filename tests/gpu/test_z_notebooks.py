"""All notebooks on GPUs, where Jupyter is: benchmarks/on_gpu.py --notebooks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_runs_to_its_end(path, rig):
    if "LABKIT_GPU_OUT" not in os.environ:
        pytest.skip("benchmarks/on_gpu.py --notebooks runs it")
    for module in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(module, reason="needs Jupyter")
    from labkit.course import notebooks

    folder = Path(os.environ["LABKIT_GPU_OUT"]) / "notebooks"
    folder.mkdir(exist_ok=True)
    notebooks.store(folder / path.name, notebooks.run(path))
