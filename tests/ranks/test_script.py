"""Scripts for torchrun, written from launched functions and from cells."""

import builtins
import dis
import functools
import itertools
import linecache
import math
import os
import pickle
import re
import subprocess
import sys
import types

import pytest
import torch

from labkit import dp, pipe, shard
from labkit.cost import ETHERNET_1G
from labkit.launch import launch
from labkit.ranks import script
from labkit.ranks.cells import Ranks
from labkit.ranks.plan import decide
from labkit.ranks.script_parts import ScriptParts


class Cells:
    """A notebook's namespace, in which cells can be run. Its functions are found in ``vars``."""

    numbers = itertools.count(1)

    def __init__(self, monkeypatch):
        self._main = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", self._main)

    def run(self, source):
        name = f"<cell {next(self.numbers)} of {__name__}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec", dont_inherit=True), vars(self._main))
        return vars(self._main)


@pytest.fixture
def cells(monkeypatch):
    return Cells(monkeypatch)


def problems(write):
    """Return what a script is refused for, a line each."""
    with pytest.raises(ValueError, match="this cannot be written as a script:") as refused:
        write()
    return str(refused.value).splitlines()[1:]


# --- a function that cannot be written ------------------------------------------------------------

PRELUDE = """
import functools, threading
import torch
from labkit import dp, guess
from labkit.launch import launch
model = torch.nn.Linear(2, 3)
rows = torch.ones(3, 4)
lock = threading.Lock()
shapes = {"small": [1, lambda: 2]}
loop = []; loop.append(loop)
def helper():
    return rows
"""
PLAN = decide(2, "auto", 60.0, 1, None, False, True)
CANNOT = "- {} cannot be written ({}): make it where it is used"
LEFT_OUT = {
    "model(rows)": [CANNOT.format("model, used by fn,", "Linear"), CANNOT.format("rows, used by fn,", "Tensor")],
    "lock": [CANNOT.format("lock, used by fn,", "lock")],
    "shapes": [CANNOT.format("shapes, used by fn,", "function")],
    "helper()": [CANNOT.format("rows, used by helper,", "Tensor")],
    "loop": [CANNOT.format("loop, used by fn,", "list")],
    "nothing": ["- fn uses nothing, which is not made there"],
    "launch(fn)": ["- launch, used by fn, is labkit.launch.launch, which works in the lab alone"],
    "guess.guess('x')": ["- guess, used by fn, is labkit.guess.guess, which works in the lab alone"],
    "dp.main": ["- TodoError, used by main, is labkit.todo.TodoError, which works in the lab alone"],
}


@pytest.mark.parametrize("expression", LEFT_OUT)
def test_what_a_function_captures_and_a_script_cannot_have_is_named(cells, expression):
    fn = cells.run(f"{PRELUDE}\ndef fn():\n    return {expression}\n")["fn"]
    assert problems(lambda: script.from_call(functools.partial(fn), PLAN)) == LEFT_OUT[expression]


def test_a_file_that_is_not_an_exported_script_is_left_alone(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("mine")
    run = launch(math.sqrt, 4.0, world_size=1)
    with pytest.raises(FileExistsError, match="is not an exported script: delete it, or give another name"):
        run.to_script(path)
    assert path.read_text() == "mine"
    path.unlink()
    assert run.to_script(path) == run.to_script(path) == path  # its own it replaces


def test_a_run_of_a_lambda_can_be_pickled_and_that_of_a_cell_says_what_to_call(tmp_path):
    run = pickle.loads(pickle.dumps(launch(lambda: 3, world_size=1)))
    assert run.values == [3]
    with pytest.raises(ValueError, match="is that of a cell, not of a function: %ranks export PATH"):
        run.to_script(tmp_path / "script.py")


# --- cells that cannot be written -----------------------------------------------------------------


def test_all_that_cells_have_and_a_script_cannot_is_named_at_once():
    sources = [
        "x = 1\n%timeit x",
        "%%ranks 0\nfiles = !ls",
        "await x",
        "y = pushed + weights.sum()",
        "display(3)",
        "dist = 3",
    ]
    given = {"weights": torch.ones(3)}
    assert problems(lambda: script.from_cells([(each, [0, 1]) for each in sources], 2, None, given, "script.py")) == [
        "- cell 1, line 2: %timeit x (only a notebook can run it)",
        "- cell 2, line 2: files = !ls (only a notebook can run it)",
        "- cell 3, line 1: await x (only a notebook can run it)",
        "- weights, used by the cells, cannot be written (Tensor): make it where it is used",
        "- dist, used by cell 6, stands for something else in another place: rename one",
        "- cell 4 uses pushed, which is not made there",
        "- cell 5 uses display, which is not made there",
    ]


# --- what is written ------------------------------------------------------------------------------


WITH_ALL_KINDS = '''
import dataclasses, functools
import torch, torch.distributed as dist
import torch.nn.functional as F
from collections import namedtuple
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from labkit import dp
from labkit.launch import device, progress
from labkit.trace import span
from labkit.cost import ETHERNET_1G
width, dtype, folder, tiny = 4, torch.float64, Path("data"), float("-inf")
wraps = {"DDP": DDP, "own": dp.BucketedDataParallel}
shapes = [(1, "it's"), {2: None}, {3}, set(), (), frozenset("a"), b"x", 1j, range(3), torch.device("cpu"), int]

@dataclasses.dataclass
class Config:
    """A config whose class has no method."""
    depth: int
    rate: float = 0.5

config = Config(2)
Pair = namedtuple("Pair", "first second")
pair = Pair(1, Path("data"))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(width, width, dtype=dtype)
    def forward(self, x):
        return F.relu(self.first(x))

def even(n): return n == 0 or odd(n - 1)
def odd(n): return n > 0 and even(n - 1)

def scaled(by):
    def scale(x):
        return x * by
    return scale

half = scaled(0.5)

@torch.no_grad()
def fn(wrap, act, *, seed=0):
    from labkit.dp import ring_all_reduce
    torch.manual_seed(seed)
    model = Net().to(device())
    x = torch.full((width,), dist.get_rank() + 1.0, dtype=dtype)
    with torch.enable_grad():
        wrapped = wraps[wrap](model)
        act(wrapped(x)).sum().backward()
    if wrap == "own":
        wrapped.finish_gradient_synchronization()
    for _ in progress(range(2), desc="rounds"):
        with span("all_reduce", lane="comm", bytes=x.nbytes):
            dist.all_reduce(x)
    ring_all_reduce(x)
    dp.average_gradients(model)
    return half(x), model.first.bias.grad, config, pair, shapes, tiny, folder, even(4), ETHERNET_1G
'''


def test_a_script_of_a_function_that_forms_its_own_group_forms_none(cells):
    fn = cells.run("def fn(): return 3")["fn"]
    assert "init_process_group" in script.from_call(functools.partial(fn), PLAN)
    plan = decide(2, "auto", 60.0, 1, None, False, False)
    assert "init_process_group" not in script.from_call(functools.partial(fn), plan)


TO_EXPORT = [
    value
    for module in (dp, shard, pipe)
    for name, value in vars(module).items()
    if getattr(value, "__module__", None) == module.__name__ and callable(value) and name[0] != "_" and name != "main"
]


def global_names(code):
    """Yield each global name that compiled code reads when it runs."""
    yield from (each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and "__qualname__" not in inner.co_names:  # a class has names of its own
            yield from global_names(inner)


def test_what_students_write_comes_with_all_that_it_needs():
    assert len(TO_EXPORT) > 15
    for value in TO_EXPORT:
        parts = ScriptParts(script.OWN_NAMES)
        parts.need(value.__name__, value, "a cell")
        code = compile(script._script(parts, 2, None, "script.py", "gloo", False), "script.py", "exec")
        exec(code, namespace := {"__name__": "__main__"})
        assert {*global_names(code)} - {*namespace} - {*dir(builtins)} == set(), value


# --- cells ----------------------------------------------------------------------------------------

CELLS = [
    ("import torch\nimport torch.distributed as dist\nfrom labkit.trace import span\nfrom labkit import dp", [0, 1, 2]),
    ('%%ranks\nx = torch.ones(2) * dist.get_rank()\nwith span("sum"):\n    dist.all_reduce(x)\nx', [0, 1, 2]),
    ('%%ranks 0,2\ntext = """a\n  b"""  # wörds\nprint(text); y = x[0].item(), scale\ny, text', [2, 0]),
    ("def twice(v):\n    global seen\n    seen = v\n    return 2 * v\n\ntwice(dist.get_rank());", [0, 1, 2]),
    ("%%rank 1\nimport os\nfrom labkit.launch import device", [1]),
    ("%%rank[1]\nmodel = torch.nn.Linear(1, 1)\nfor p in model.parameters():\n    p.grad = torch.ones_like(p)", [1]),
    ("print(seen, os.sep)", [1]),
    (
        "%%px\nmodel = torch.nn.Linear(1, 1)\nmodel(torch.ones(1)).sum().backward()\ndp.average_gradients(model)",
        [0, 1, 2],
    ),
    ("# what came out\nmodel.bias.grad", [0, 1, 2]),
]


def torchrun(path, n):
    """Run a script beside a labkit that cannot be imported. Return what each rank prints."""
    (path.parent / "labkit.py").write_text("raise ImportError('the script needs the lab')")
    options = ["--standalone", f"--nproc-per-node={n}", "--redirects=1", f"--log-dir={path.parent}"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([sys.executable, "-m", "torch.distributed.run", *options, str(path)], env=env, check=True)
    return [log.read_text() for log in sorted(path.parent.glob("*/attempt_0/*/stdout.log"))]


def test_cells_stand_in_order_each_under_its_number_and_give_under_torchrun_what_they_gave(tmp_path):
    ranks, given = Ranks(decide(3, "gloo", 60.0, 1, None, False, True)), [""] * 3
    try:
        ranks.push(scale=2)
        for source, on in CELLS:
            for rank, value in zip(sorted(on), ranks.run_cell(source, "cell", on).run.values, strict=True):
                given[rank] += f"rank {rank}: {value}\n" * bool(value)
    finally:
        ranks.stop()
    text = script.from_cells(ranks.cells, 3, ETHERNET_1G, ranks.given, "cells.py")
    assert "ETHERNET_1G (125 MB/s, 50 µs). Here messages are not slowed down" in text
    assert text.startswith('"""From a notebook, for torchrun:\n\ntorchrun --nproc-per-node=3 cells.py\n"""\n')
    assert re.findall(r"^# Cell (\d)", text, re.MULTILINE) == list("123456789")
    assert "if dist.get_rank() in [0, 2]:\n    text = 'a\\n  b'\n    print(text)\n" in text
    assert text.endswith("# Cell 9\n# what came out\nshow_value(model.bias.grad)\n")
    printed = torchrun(script.write(tmp_path / "cells.py", text), 3)
    values = ["".join(line for line in each.splitlines(True) if line.startswith("rank")) for each in printed]
    assert values == given
    assert printed[1] == "rank 1: tensor([3., 3.])\n1 /\nrank 1: tensor([1.])\n"
    assert printed[2].splitlines()[1:4] == ["a", "  b", "rank 2: ((3.0, 2), 'a\\n  b')"]


def test_the_script_of_a_run_runs_under_torchrun_without_the_lab(cells, tmp_path):
    run = launch(cells.run(WITH_ALL_KINDS)["fn"], "own", torch.relu, threads=1)
    printed = torchrun(run.to_script(tmp_path / "script.py"), 2)
    assert printed == [f"rank {rank}: {value!r}\n" for rank, value in enumerate(run.values)]
