"""Scripts for torchrun, written from launched functions and from cells."""

import ast
import atexit
import contextlib
import functools
import gc
import importlib
import io
import itertools
import linecache
import math
import os
import pickle
import subprocess
import sys
import types
import weakref

import pytest
import torch
import torch.distributed as dist

from labkit.cost import ETHERNET_1G
from labkit.launch import launch
from labkit.ranks import script
from labkit.ranks.cells import Ranks
from labkit.ranks.plain_values import Call
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
log = open("/dev/null")
shapes = {"small": [1, lambda: 2]}
numbers = list(range(2000))
loop = []; loop.append(loop)
class Counter:
    def add(self): ...
counter = Counter()
double = lambda x: 2 * x
def helper():
    return rows
"""
LEFT_OUT = {
    "model(rows)": [
        "- model, used by fn, is a torch.nn.modules.linear.Linear: make it where it is used",
        "- rows, used by fn, is a torch.Tensor of shape (3, 4): make it where it is used",
    ],
    "lock": ["- lock, used by fn, is a _thread.lock: make it where it is used"],
    "log.write": ["- log, used by fn, is an _io.TextIOWrapper: make it where it is used"],
    "shapes": ["- shapes, used by fn, is a lambda, or holds one: name it by def"],
    "double(2)": ["- double, used by fn, is a lambda: name it by def"],
    "helper()": ["- rows, used by helper, is a torch.Tensor of shape (3, 4): make it where it is used"],
    "numbers": ["- numbers, used by fn, is a list of more than 1000 parts: make it where it is used"],
    "loop": ["- loop, used by fn, is a list of more than 1000 parts: make it where it is used"],
    "counter": ["- counter, used by fn, is a __main__.Counter: make it where it is used"],
    "nothing": ["- fn uses nothing, which is not made there"],
    "get_ipython()": ["- fn uses get_ipython, which only a notebook has"],
    "launch(fn)": ["- fn uses labkit.launch.launch, which works in the lab alone"],
    "guess.guess('x')": ["- fn uses labkit.guess.guess, which works in the lab alone"],
    "vars(dp)": ["- fn uses the module dp as a value"],
    "dp.main": ["- main has a TODO that is not filled in yet"],
}


@pytest.mark.parametrize("expression", LEFT_OUT)
def test_what_a_function_captures_and_a_script_cannot_have_is_named(cells, expression):
    fn = cells.run(f"{PRELUDE}\ndef fn():\n    return {expression}\n")["fn"]
    assert problems(lambda: script.from_call(Call(fn), 2)) == LEFT_OUT[expression]


def test_arguments_that_cannot_be_written_are_all_named_and_no_file_is(cells, tmp_path):
    fn = cells.run("def fn(*rows, scale): return scale")["fn"]
    run = launch(functools.partial(fn, torch.ones(2)), [torch.ones(1)], 3, scale=torch.nn.ReLU(), world_size=1)
    assert problems(lambda: run.to_script(tmp_path / "script.py")) == [
        "- argument 1 of fn is a torch.Tensor of shape (2,): make it where it is used",
        "- argument 2 of fn is a list with a torch.Tensor of shape (1,) in it: make it where it is used",
        "- argument scale of fn is a torch.nn.modules.activation.ReLU: make it where it is used",
    ]
    assert not list(tmp_path.iterdir())


def test_a_launched_lambda_and_one_name_for_two_things_are_refused(cells):
    names = cells.run("""
check_number = 3
from labkit.cost import ETHERNET_1G
def fn(): return check_number, ETHERNET_1G
launched = lambda: 3
""")
    assert problems(lambda: script.from_call(Call(names["launched"]), 2)) == [
        "- <lambda>, which ran, is a lambda, or holds one: name it by def"
    ]
    problem = problems(lambda: script.from_call(Call(names["fn"]), 2))[0]
    assert problem.startswith("- check_number, used by") and problem.endswith(
        "stands for something else in another place: rename one"
    )


def test_a_file_that_is_not_an_exported_script_is_left_alone(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("mine")
    run = launch(math.sqrt, 4.0, world_size=1)
    with pytest.raises(FileExistsError, match="is not an exported script: delete it, or give another name"):
        run.to_script(path)
    assert path.read_text() == "mine"
    path.unlink()
    assert run.to_script(path) == run.to_script(path) == path  # its own it replaces


def test_a_run_keeps_no_argument_alive_that_no_script_can_have():
    weights, plain = torch.ones(2), [1, "a", {"b": math.inf}]
    ref = weakref.ref(weights)
    kept = Call(functools.partial(print, weights, plain), ([weights],), {"key": weights}).kept()
    del weights
    gc.collect()
    assert ref() is None
    assert kept.fn.args[1] is plain


def test_a_run_of_a_lambda_can_be_pickled_and_that_of_a_cell_says_what_to_call(tmp_path):
    run = pickle.loads(pickle.dumps(launch(lambda: 3, world_size=1)))
    assert run.values == [3]
    with pytest.raises(ValueError, match="is that of a cell, not of a function: %ranks export PATH"):
        run.to_script(tmp_path / "script.py")


# --- cells that cannot be written -----------------------------------------------------------------

REFUSED_CELLS = {
    "x = 1\n%timeit x\n!ls": [
        "- cell 2, line 2: %timeit x (only a notebook can run it)",
        "- cell 2, line 3: !ls (only a notebook can run it)",
    ],
    "%%ranks 0\nfiles = !ls": ["- cell 2, line 2: files = !ls (only a notebook can run it)"],
    "x = (": ["- cell 2, line 1: '(' was never closed"],
    "import asyncio\nawait asyncio.sleep(0)": ["- cell 2 awaits outside a function: call asyncio.run in it"],
    "display(3)": ["- cell 2 uses display, which only a notebook has"],
    "y = pushed + weights.sum()": [
        "- cell 2 uses pushed, which is not made there",
        "- weights, used by cell 2, is a torch.Tensor of shape (3,): make it where it is used",
    ],
}


@pytest.mark.parametrize("source", REFUSED_CELLS)
def test_a_cell_that_only_a_notebook_can_run_is_named_with_its_line(source):
    given = {"weights": torch.ones(3)}
    assert (
        problems(lambda: script.from_cells([("x = 0", [0, 1]), (source, [0, 1])], 2, given=given))
        == REFUSED_CELLS[source]
    )


# --- what is written ------------------------------------------------------------------------------


def run_script(text):
    """Run a script in a warm rank, as torchrun would. Return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "script.py", "exec"), vars(sys.modules["__main__"]))
    atexit.unregister(dist.destroy_process_group)
    if dist.is_initialized():
        dist.destroy_process_group()
    return printed.getvalue()


WITH_ALL_KINDS = '''
import dataclasses, functools
import torch, torch.distributed as dist
import torch.nn.functional as F
from collections import namedtuple
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from labkit import dp
import labkit.launch
from labkit.launch import progress
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
    model = Net().to(labkit.launch.device())
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
    return half(x), model.first.bias.grad, config, shapes, tiny, folder, even(4), ETHERNET_1G
'''


def test_a_script_gives_what_launch_gave_and_does_not_name_the_lab(cells):
    names = cells.run(WITH_ALL_KINDS)
    fn = functools.partial(names["fn"], "DDP")
    act = functools.partial(torch.mul, other=3)
    text = script.from_call(Call(fn, (act,), {"seed": 1}), 2, ETHERNET_1G)
    assert "labkit" not in text
    assert "ETHERNET_1G (125 MB/s, 50 µs). Here messages are not slowed down" in text
    values = launch(fn, act, seed=1, threads=1).values
    ast.parse(text, feature_version=(3, 11))
    assert launch(run_script, text, init=False, threads=1).values == [
        f"rank {r}: {value!r}\n" for r, value in enumerate(values)
    ]


def test_a_script_prints_nothing_for_a_function_that_returns_nothing_and_forms_no_group_of_its_own(cells):
    fn = cells.run("""
import os
import pickle
import torch.distributed as dist
def fn():
    dist.init_process_group("gloo")
    print(os.environ["RANK"], dist.get_world_size())
""")["fn"]
    text = script.from_call(Call(fn), 2, init=False, shown=False)
    assert text.endswith('if __name__ == "__main__":\n    fn()\n')
    assert launch(run_script, text, init=False, threads=1).values == ["0 2\n", "1 2\n"]


def test_a_closure_and_long_arguments_are_laid_out_an_item_a_line(cells):
    fn = cells.run("def fn(names, **options): return names")["fn"]
    text = script.from_call(Call(fn, (["a long name"] * 8,), {"key": "x"}), 2)
    names = '                "a long name",\n' * 8
    assert text.endswith(f"""
    show_value(
        fn(
            [
{names}            ],
            key="x",
        ),
    )
""")


STUDENT_FILES = [importlib.import_module(f"labkit.{name}") for name in ("dp", "shard", "pipe", "models")]
TO_EXPORT = [
    (module.__name__, name)
    for module in STUDENT_FILES
    for name, value in vars(module).items()
    if getattr(value, "__module__", None) == module.__name__ and callable(value) and name[0] != "_" and name != "main"
]


def test_all_that_students_write_can_be_exported_and_ruff_finds_nothing(cells, tmp_path):
    for module, name in TO_EXPORT:
        parts = ScriptParts()
        parts.need(name, getattr(sys.modules[module], name), "a cell")
        text = script._text(parts, 2, None, "script.py", [])
        assert "labkit" not in text
        (tmp_path / f"{module}_{name}.py").write_text(text)
    fn = cells.run(WITH_ALL_KINDS)["fn"]
    (tmp_path / "all_kinds.py").write_text(script.from_call(Call(fn, ("DDP", torch.relu)), 2))
    (tmp_path / "cells.py").write_text(script.from_cells(CELLS, 3, given={"scale": 2}))
    check = ["ruff", "check", "--isolated", "--select", "E,F,I,W", "--ignore", "E501,E70", "--target-version", "py311"]
    assert len(TO_EXPORT) > 25
    subprocess.run([sys.executable, "-m", *check, str(tmp_path)], check=True, capture_output=True)


# --- cells ----------------------------------------------------------------------------------------

CELLS = [
    ("import torch\nimport torch.distributed as dist\nfrom labkit.trace import span\nfrom labkit import dp", [0, 1, 2]),
    ('%%ranks\nx = torch.ones(2) * dist.get_rank()\nwith span("sum"):\n    dist.all_reduce(x)\nx', [0, 1, 2]),
    ('%%ranks 0,2\ntext = """a\n  b"""  # wörds\nprint(text); y = x[0].item(), scale\ny, text', [2, 0]),
    ("def twice(v):\n    global seen\n    seen = v\n    return 2 * v\n\ntwice(dist.get_rank());", [0, 1, 2]),
    ("%%rank 1\nimport os  # here\nfrom labkit.launch import device", [1]),
    ("%%rank[1]\nmodel = torch.nn.Linear(1, 1)\nfor p in model.parameters():\n    p.grad = torch.ones_like(p)", [1]),
    ("print(seen, os.sep)", [1]),
    (
        "%%px\nmodel = torch.nn.Linear(1, 1)\nmodel(torch.ones(1)).sum().backward()\ndp.average_gradients(model)",
        [0, 1, 2],
    ),
    ("# what came out\nmodel.bias.grad", [0, 1, 2]),
]

CELLS_IN_SCRIPT = '''
# Cell 2
x = torch.ones(2) * dist.get_rank()
with span("sum"):
    dist.all_reduce(x)
show_value(x)


# Cell 3, on ranks 0 and 2
if dist.get_rank() in (0, 2):
    text = """a
  b"""  # wörds
    print(text); y = x[0].item(), scale
    show_value((y, text))


# Cell 4
def twice(v):
    global seen
    seen = v
    return 2 * v

twice(dist.get_rank());


# Cell 6, on rank 1
if dist.get_rank() == 1:
    model = torch.nn.Linear(1, 1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)


# Cell 7, on rank 1
if dist.get_rank() == 1:
    print(seen, os.sep)


# Cell 8
model = torch.nn.Linear(1, 1)
model(torch.ones(1)).sum().backward()
show_value(average_gradients(model))


# Cell 9
# what came out
show_value(model.bias.grad)
'''


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
    text = script.from_cells(ranks.cells, 3, given={"scale": 2}, name="cells.py")
    assert text.startswith('"""From a notebook, for torchrun:\n\ntorchrun --nproc-per-node=3 cells.py\n"""\n')
    assert text.endswith(CELLS_IN_SCRIPT)
    assert "labkit" not in text
    printed = torchrun(script.write(tmp_path / "cells.py", text), 3)
    values = ["".join(line for line in each.splitlines(True) if line.startswith("rank")) for each in printed]
    assert values == given
    assert printed[1] == "rank 1: tensor([3., 3.])\n1 /\nrank 1: tensor([1.])\n"
    assert printed[2].splitlines()[1:4] == ["a", "  b", "rank 2: ((3.0, 2), 'a\\n  b')"]


def test_the_script_of_a_run_runs_under_torchrun_without_the_lab(cells, tmp_path):
    run = launch(cells.run(WITH_ALL_KINDS)["fn"], "own", torch.relu, threads=1)
    printed = torchrun(run.to_script(tmp_path / "script.py"), 2)
    assert printed == [f"rank {rank}: {value!r}\n" for rank, value in enumerate(run.values)]
