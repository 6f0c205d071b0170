"""The notebooks' launches, decided for machines with 1 to 8 GPUs: what is compared is alike."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import nbformat
import pytest
from environments import PROJECT

from labkit.cost import ETHERNET_1G
from labkit.ranks.processes import plan

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))

# Launches of a notebook are compared with each other, but for these, each with itself alone.
COMPARED_WITH_NOTHING = {
    "00_start_here": {"batch_times"},  # it is about the GPU, where there is one
    "01_shards": {"own_shard", "steps", "accuracy"},  # three ranks, and positions in a list
    "05_gradient_sync": {"five_steps", "first_losses"},  # ranks with each other
    "07_sharding": {
        "sharding.peak_and_output",
        "saved",
        "loaded",
        "gradient_of_scale",
    },  # ways of one launch; a checkpoint
    "09_pipe": {"watch_queues"},  # threads of one rank, on the CPU
}


class Launch(NamedTuple):
    function: str
    world_size: int
    options: dict[str, Any]

    def backend(self) -> str:
        return plan.decide(self.world_size, threads=1, **self.options).backend


def cells(path) -> Iterator[ast.Module]:
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code":
            lines = cell.source.split("\n")
            yield ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in lines))


def in_loop(loop: ast.For | ast.comprehension, name: str) -> list[Any] | None:
    """The values that a loop gives to ``name``; None if it does not set it."""
    if isinstance(loop.target, ast.Name):
        return list(ast.literal_eval(loop.iter)) if loop.target.id == name else None
    names = [getattr(part, "id", None) for part in loop.target.elts]
    if name not in names:
        return None
    if isinstance(loop.iter, ast.Call):  # zip
        return list(ast.literal_eval(loop.iter.args[names.index(name)]))
    return [row[names.index(name)] for row in ast.literal_eval(loop.iter)]


def values_of(node: ast.expr, cell: ast.Module) -> list[Any]:
    """What an argument is: a constant, or what the loop around it gives to its name."""
    if not isinstance(node, ast.Name):
        return [ast.literal_eval(node)]
    around = [each for each in ast.walk(cell) if node in ast.walk(each)]
    loops = [loop for each in around for loop in getattr(each, "generators", [each]) if hasattr(loop, "iter")]
    (values,) = (found for loop in loops if (found := in_loop(loop, node.id)) is not None)
    return values


def run_in(cell: ast.Module, call: ast.Call) -> str:
    if call.func.id == "launch":
        return ast.unparse(call.args[0])
    runs = [each for each in ast.walk(cell) if isinstance(each, ast.Call) and getattr(each.func, "attr", "") == "run"]
    return ast.unparse(runs[0].args[0]) if runs else "in a helper"


def launches(path) -> Iterator[Launch]:
    for cell in cells(path):
        for call in ast.walk(cell):
            if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("launch", "workers")):
                continue
            given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            if call.func.id == "workers" and call.args:
                given["world_size"] = call.args[0]
            matters = "world_size" in given and "backend" not in given
            sizes = values_of(given["world_size"], cell) if matters else [2]
            options = {name: values_of(given[name], cell)[0] for name in ("backend", "compared_with") if name in given}
            links = [None] if "link" not in given else [ETHERNET_1G]
            if "link" in given and ast.unparse(given["link"]) == "link" and "link=None" in ast.unparse(cell):
                links = [None, ETHERNET_1G]  # a parameter, which may be left out
            for size, link in product(sizes, links):
                yield Launch(run_in(cell, call), size, options | {"link": link})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_compared_launches_share_one_backend(path, gpus, monkeypatch):
    monkeypatch.setattr(plan, "_gpu_count", lambda: gpus)
    alone, backends = COMPARED_WITH_NOTHING.get(path.stem, set()), defaultdict(lambda: defaultdict(list))
    for launched in launches(path):
        if launched.options["link"] is None and launched.options.get("backend") is None:
            group = launched.function if launched.function in alone else "compared"
            backends[group][launched.backend()].append(launched)
    for group, by_backend in backends.items():
        assert len(by_backend) == 1, (group, dict(by_backend))


COLLECTIVE = re.compile(r"dist\.(all_reduce|broadcast|all_gather|reduce|send|recv|isend)\(|average_gradients\(")
MADE = re.compile(r"\bgpt2\(|torch\.(zeros|ones|full|tensor|arange|randn)\(")
ON_THE_CPU = {"add_up", "by_hand"}  # the first examples of all, and one on gloo


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_cells_function_makes_and_sends_is_on_its_ranks_device(path):
    """In an NCCL launch tensors on the CPU go over gloo, and a time says nothing of the GPU."""
    for cell in cells(path):
        for function in (node for node in ast.walk(cell) if isinstance(node, ast.FunctionDef)):
            source = ast.unparse(function)
            if COLLECTIVE.search(source) and MADE.search(source) and function.name not in ON_THE_CPU:
                assert "device()" in source, function.name
