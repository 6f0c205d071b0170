"""Whoever measures waits for GPUs too: dist.barrier() alone waits for processes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from fake_gpus import FakeGpus

from labkit import trace

PROJECT = Path(__file__).resolve().parents[2]
MEASURES = {"span", "perf_counter", "perf_counter_ns", "step"}  # ScheduledPipeline.step has spans of its own
NOT_MEASURING = {"common_origin_ns"}  # it reads the clock from which all count


def sources() -> Iterator[tuple[str, str]]:
    """Yield name and text of each file of the lab and of each notebook's cells of code."""
    for path in [*(PROJECT / "labkit").rglob("*.py"), *(PROJECT / "benchmarks").glob("*.py")]:
        yield path.name, path.read_text()
    for path in (PROJECT / "notebooks").glob("*.ipynb"):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        lines = [line for cell in cells for line in "".join(cell["source"]).split("\n")]
        yield path.name, "\n".join(line for line in lines if not line.startswith("%"))


def bare_barriers(text: str) -> list[str]:
    """Return the names of functions that measure something next to a ``dist.barrier()``."""
    found = []
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef) and function.name not in NOT_MEASURING:
            calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
            measures = MEASURES & {call.rpartition(".")[2] for call in calls}
            found += [function.name] * bool(measures and {"dist.barrier", "torch.distributed.barrier"} & {*calls})
    return found


def test_no_function_that_measures_waits_for_processes_alone():
    with_barriers = ((name, text) for name, text in sources() if re.search(r"dist(ributed)?\.barrier", text))
    assert {name: found for name, text in with_barriers if (found := bare_barriers(text))} == {}


def test_a_barrier_waits_for_each_gpu_in_use_and_then_for_the_ranks(monkeypatch):
    gpus, waited_before = FakeGpus(monkeypatch), []
    monkeypatch.setattr(dist, "barrier", lambda group: waited_before.append((group, list(gpus.waited))))
    trace.barrier()  # and begins to use none of them
    gpus.in_use = {0, 1}
    trace.barrier("group")
    assert waited_before == [(None, []), ("group", [0, 1])]
