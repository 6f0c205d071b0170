### INSTRUCTORS ONLY: this file tries answers, so it is not in the student edition
"""What a task does not allow is found by its name or when it is reached, and nothing else is."""

from __future__ import annotations

import contextlib
import pkgutil
import sys

import pytest
import torch
from test_answers import ANSWERS, edited

from labkit import todo
from labkit.check import check, restrictions
from labkit.check.entry_points import watched
from labkit.check.restrictions import RULES, broken
from labkit.todo import TASKS, task_file

HEAD = "import importlib, inspect, sys\nimport torch\nimport torch.distributed as dist\n\n"
DDP = "torch.nn.parallel.DistributedDataParallel"
IN_A_FUNCTION = HEAD + "def average_gradients(model):\n"

# Answers to dp.4 that have DistributedDataParallel average, each with the lines that are named.
EVASIONS = {
    "an alias": (f"{HEAD}D = {DDP}\n\ndef average_gradients(model):\n    D(model)\n", "lines 5 and 8"),
    "__import__": (IN_A_FUNCTION + "    __import__('torch.nn').nn.parallel.DistributedDataParallel(model)\n", "line 6"),
    "importlib": (
        IN_A_FUNCTION + "    importlib.import_module('torch.nn.parallel').DistributedDataParallel(model)\n",
        "line 6",
    ),
    "getattr": (
        f"{HEAD}def average_gradients(model):\n    getattr(torch.nn.parallel, 'DistributedDataParallel')(model)\n",
        "line 6",
    ),
    "a from-import in the function": (
        IN_A_FUNCTION + "    from torch.nn.parallel import DistributedDataParallel as D\n    D(model)\n",
        "lines 6 and 7",
    ),
    "a module of the lab that imports it": (
        f"{HEAD}from labkit.train import trainer\n\ndef average_gradients(model):\n"
        "    trainer.DistributedDataParallel(model)\n",
        "line 8",
    ),
    "a default": (
        "from torch.nn.parallel import DistributedDataParallel as D\n\n"
        "def average_gradients(model, D=D):\n    D(model)\n",
        "line 3",
    ),
    "a star import": (
        "from torch.nn.parallel import *\n\ndef average_gradients(model):\n    DistributedDataParallel(model)\n",
        "line 4",
    ),
    "a subclass": (
        f"{HEAD}class Mine({DDP}):\n    pass\n\ndef average_gradients(model):\n    helper(model)\n\n"
        "def helper(model):\n    Mine(model)\n",
        "line 5",
    ),
    "sys.modules": (
        IN_A_FUNCTION + "    sys.modules['torch.nn.parallel'].DistributedDataParallel(model)\n",
        "line 6",
    ),
    "a monkeypatch": (
        f"{HEAD}torch.nn.Averaging = {DDP}\n\ndef average_gradients(model):\n    torch.nn.Averaging(model)\n",
        "line 5",
    ),
}
BY_RUNNING = {  # those that only their run shows
    "eval": IN_A_FUNCTION + "    eval('.'.join(['torch.nn.parallel', 'Distributed' + 'DataParallel']))(model)\n",
    "a copy of the class": IN_A_FUNCTION
    + """    module = sys.modules[".".join(["torch.nn.parallel", "distributed"])]
    text = inspect.getsource(vars(module)["".join(["Distributed", "DataParallel"])])
    exec(text.replace("class DistributedDataParallel", "class Copy"), vars(module))
    module.Copy(model)
""",
}
WITH_CTYPES = (
    IN_A_FUNCTION + "    import ctypes\n    ctypes.CDLL(None).getpid()  # or ncclAllReduce, of another library\n"
)


@pytest.mark.parametrize("how", EVASIONS)
def test_a_forbidden_class_is_found_under_any_name_with_its_lines(how):
    source, lines = EVASIONS[how]
    (finding,) = broken("dp.4", source=source)
    assert finding == (
        f"labkit/dp.py, {lines}: {DDP} is not allowed in dp.4 (it averages gradients by itself). "
        "Use what the TODO names instead"
    )


def test_a_module_of_the_students_own_is_read_too(tmp_path, monkeypatch):
    (tmp_path / "labkit").mkdir()
    monkeypatch.setattr(todo, "_PACKAGE", tmp_path / "labkit")
    (tmp_path / "mine.py").write_text(f"import torch\n\ndef average(model):\n    {DDP}(model)\n")
    source = f"{HEAD}import mine\n\ndef average_gradients(model):\n    mine.average(model)\n"
    (finding,) = broken("dp.4", source=source)
    assert finding.startswith(f"mine.py, line 4: {DDP} is not allowed in dp.4")


def test_what_a_task_is_a_method_of_counts_as_a_part_of_it():
    source = f"""
import torch

class BucketedDataParallel({DDP}):
    def _gradient_is_ready(self, bucket, position):
        self._send(bucket)

    def _send(self, bucket):
        torch.distributed.Reducer(bucket)
"""
    found = [finding.partition(" is not")[0] for finding in broken("dp.7", source=source)]
    assert found == [f"labkit/dp.py, line 4: {DDP}", "labkit/dp.py, line 9: torch.distributed.Reducer"]


def test_each_framework_is_found_once_in_each_file():
    source = """
import accelerate, deepspeed
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp, pipelining

def split_module(modules):
    fsdp.fully_shard(modules)
    nn.DataParallel(modules)
    pipelining.pipeline(modules)
    dist.Reducer([])
    accelerate.Accelerator().prepare(modules)
    deepspeed.initialize(model=modules)
    return fsdp.fully_shard(modules)
"""
    found = [finding.partition(" not allowed")[0] for finding in broken("pipe.1", source=source)]
    assert found == [
        "labkit/pipe.py, line 9: torch.nn.DataParallel is",
        "labkit/pipe.py, lines 8 and 14: torch.distributed.fsdp.fully_shard is",
        "labkit/pipe.py, line 11: torch.distributed.Reducer is",
        "labkit/pipe.py, line 10: torch.distributed.pipelining.pipeline is",
        "labkit/pipe.py, lines 12 and 13: accelerate.Accelerator and deepspeed.initialize are",
    ]


# --- when it is reached ---------------------------------------------------------------------------


def run(source: str) -> list[tuple[str, str]]:
    """Run average_gradients of a student's file, and return what it reached, each with its last
    line."""
    space = {"__name__": "labkit.dp"}
    exec(compile(source, "/somewhere/labkit/dp.py", "exec"), space)
    with watched(restrictions.forbidden("dp.4")) as reached, contextlib.suppress(Exception):
        space["average_gradients"](torch.nn.Linear(2, 2))
    return [(name, lines.splitlines()[-1]) for lines, name in reached.items()]


@pytest.mark.parametrize("how", [*EVASIONS, "eval"])
def test_a_forbidden_class_is_noted_when_it_is_made_with_the_students_line(how):
    source = EVASIONS[how][0] if how in EVASIONS else BY_RUNNING[how]
    last = 1 + max(number for number, line in enumerate(source.splitlines()) if line.endswith("(model)"))
    before = torch.nn.parallel.DistributedDataParallel.__init__
    assert run(source) == [(DDP, f'File "labkit/dp.py", line {last}')]
    assert torch.nn.parallel.DistributedDataParallel.__init__ is before


def test_what_is_imported_by_the_answer_is_noted_and_what_other_modules_import_is_not(tmp_path, monkeypatch):
    for name in ("deepspeed", "site-packages/others"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("" if name == "deepspeed" else "import deepspeed")
        monkeypatch.syspath_prepend((tmp_path / name).parent)
    assert run(IN_A_FUNCTION + "    import others\n") == []
    monkeypatch.delitem(sys.modules, "deepspeed")
    assert run(IN_A_FUNCTION + "    exec('import deep' 'speed')\n") == [("deepspeed", 'File "labkit/dp.py", line 6')]
    monkeypatch.delitem(sys.modules, "deepspeed")
    monkeypatch.delitem(sys.modules, "others")


@pytest.mark.parametrize("how", BY_RUNNING)
def test_check_warns_of_what_it_sees_reached_and_a_warning_fails_nothing(how, answer):
    code = BY_RUNNING[how].removeprefix(HEAD).replace("(model):", "(model, _right=average_gradients):")
    answer(f"import inspect, sys\n\n{code}    _right(model)\n")
    result = check("dp.4")
    (warning,) = result.warnings
    name = "torch.distributed.Reducer" if how == "a copy of the class" else DDP
    assert f": {name} is not allowed in dp.4 (" in warning and warning.startswith("labkit/dp.py, line ")
    assert repr(result).splitlines()[-1] == f"  ! {warning}"


def test_a_rule_that_is_broken_in_both_ways_is_said_once(answer):
    answer(f"def average_gradients(model):\n    {DDP}(model)\n    eval('{DDP}')(model)\n")
    result = check("dp.4")
    (warning,) = result.warnings
    assert warning in broken("dp.4") and not result.passed
    assert f"! </span> {warning}" in result._repr_html_().replace("</span>", " </span>")


# --- what is not found, and what is no finding ----------------------------------------------------


def test_what_is_called_through_ctypes_is_not_found_as_the_docs_say():
    assert broken("dp.4", "11-868", WITH_CTYPES) == run(WITH_CTYPES) == []


@pytest.mark.parametrize("layout", ["", "11-868"])
@pytest.mark.parametrize("task", TASKS)
def test_the_reference_breaks_no_rule(task, layout):
    given = task_file(task).read_text(encoding="utf-8")
    assert broken(task, layout, given=given) == []


@pytest.mark.parametrize("task", ANSWERS)
def test_no_right_answer_breaks_a_rule(task):
    assert [broken(task, "", edited(task, *edits)) for edits in ANSWERS[task].RIGHT.values()] == [
        [] for _ in ANSWERS[task].RIGHT
    ]


CLEAN = {
    "a local variable of that name": "    DistributedDataParallel = model\n    DistributedDataParallel(1)\n",
    "an argument of that name": "    (lambda DistributedDataParallel: DistributedDataParallel(1))(model)\n",
    "a comment and a text": f"    # {DDP}\n    return '{DDP}'\n",
    "a docstring": f'    """Do as {DDP} does."""\n',
    "a class of one's own called Reducer": "    Reducer(model)\n\nclass Reducer:\n    pass\n",
    "a module of one's own called accelerate": "    accelerate = model\n    accelerate.Accelerator()\n",
    "an attribute of that name": "    model.DistributedDataParallel(model.Reducer)\n",
    "an annotation": f"    found: {DDP} | None = None\n\ndef other(model: {DDP}):\n    pass\n",
    "a function that the task does not reach": f"    pass\n\ndef compare(model):\n    {DDP}(model)\n",
    "a script's own end": f"    pass\n\nif __name__ == '__main__':\n    {DDP}(torch.nn.Linear(2, 2))\n",
    "a variable that stands for itself": "    model = model.module\n    model.parameters()\n",
    "an import for another task": "    dist.all_reduce(model)\n\nfrom torch.nn.parallel import DistributedDataParallel\n",
    "what a name that is made while it runs gives": "    getattr(dist, 'all_' + model)()\n    __import__(model)\n",
    "processes": "    torch.multiprocessing.Process(target=print).start()\n",
}


@pytest.mark.parametrize("what", CLEAN)
def test_what_only_looks_like_it_is_no_finding(what):
    assert broken("dp.4", "11-868", IN_A_FUNCTION + CLEAN[what]) == []


@pytest.mark.parametrize("source", ["def average_gradients(:", "\0", "x = " + "(" * 5000 + ")" * 5000])
def test_a_file_that_is_no_python_has_no_finding_here(source):
    assert broken("dp.4", source=source) == []


# --- with a layout --------------------------------------------------------------------------------

COMMUNICATES = """
    import socket, torch.multiprocessing as mp
    from multiprocessing import shared_memory
    mp.start_processes(print)
    mp.Queue()
"""


def test_in_problem_1_nothing_else_may_communicate():
    assert broken("dp.4", "", IN_A_FUNCTION + COMMUNICATES) == []
    assert broken("dp.3", "11-868", IN_A_FUNCTION + COMMUNICATES) == []
    (finding,) = broken("dp.4", "11-868", IN_A_FUNCTION + COMMUNICATES)
    assert finding.startswith(
        "labkit/dp.py, lines 7, 8 and 10: socket, multiprocessing.shared_memory and torch.multiprocessing.Queue are not allowed"
    )


def test_a_new_import_is_found_wherever_it_stands():
    source = "import os.path as p\n" + IN_A_FUNCTION + "    from math import pi, tau\n    import torch\n"
    given = "import sys, importlib, inspect\n" + HEAD
    (finding,) = broken("dp.5", "11-868", source, given)
    assert finding == (
        "labkit/dp.py, lines 1 and 7: import os.path as p, from math import pi and from math import tau are not allowed "
        'in this file ("You must not write new import codes"). Use what the file as given imports instead'
    )
    assert broken("dp.5", "", source, given) == broken("dp.5", "11-868", source) == []


def test_every_rule_is_about_tasks_that_there_are_and_says_what_to_do_in_a_sentence():
    for rule in RULES:
        assert any(rule.holds_for(task, rule.layout) for task in TASKS), rule
        assert isinstance(rule.tasks, tuple) and isinstance(rule.allowed, tuple)
        assert (rule.forbidden and isinstance(rule.forbidden, tuple)) or rule.new_imports
        assert not rule.why.endswith(".") and not rule.instead.endswith((".", "instead")), rule


@pytest.mark.parametrize("name", [name for name in restrictions.forbidden("dp.4") if name[:9] != "deepspeed"])
def test_every_forbidden_name_is_there_and_its_class_is_watched(name):
    value = pkgutil.resolve_name(name)
    if isinstance(value, type):
        with watched([name]) as reached, contextlib.suppress(Exception):
            value.__init__(None)  # some are abstract
        assert reached == {"": name}
