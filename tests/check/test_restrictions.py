### INSTRUCTORS ONLY: this file tries answers, so it is not in the student edition
"""What a student file should not use is named with its lines; what only looks like it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_answers import ANSWERS, edited

from labkit.check import check
from labkit.check.restrictions import broken
from labkit.course.archive import STUDENT_FILES
from labkit.todo import task_file

ROOT = Path(__file__).parents[2]
HEAD = "import random\nimport torch\nimport torch.distributed as dist\n\n"
DDP = "torch.nn.parallel.DistributedDataParallel"
IN_A_FUNCTION = HEAD + "def average_gradients(model):\n"

# Answers that have DistributedDataParallel average, each with the lines that are named.
FOUND = {
    "an alias": (f"{HEAD}D = {DDP}\n\ndef average_gradients(model):\n    D(model)\n", "line 5"),
    "a module's alias": ("import torch.nn.parallel as p\n\np.DistributedDataParallel(1)\n", "lines 1 and 3"),
    "getattr": (f"{HEAD}getattr(torch.nn.parallel, 'DistributedDataParallel')\n", "line 5"),
    "a default": (
        "from torch.nn.parallel import DistributedDataParallel as D\n\n"
        "def average_gradients(model, D=D):\n    D(model)\n",
        "lines 1, 3 and 4",
    ),
    "a subclass": (f"{HEAD}class Mine({DDP}):\n    pass\n", "line 5"),
    "another name of its own in torch": (f"{HEAD}torch.nn.Averaging = {DDP}\n", "line 5"),
}


def found(source: str, layout: str = "", file: str = "labkit/dp.py") -> list[str]:
    return [finding.partition(" not allowed")[0] for finding in broken(file, source.encode(), layout)]


@pytest.mark.parametrize("how", FOUND)
def test_a_forbidden_class_is_found_under_any_name_with_its_lines(how):
    source, lines = FOUND[how]
    (finding,) = broken("labkit/dp.py", source.encode())
    assert finding == (
        f"labkit/dp.py, {lines}: {DDP} is not allowed (it averages gradients by itself). "
        "Use what the TODO names instead"
    )


def test_each_rule_has_one_sentence_however_often_it_is_broken():
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
    return fsdp.fully_shard(modules)
"""
    assert found(source, file="labkit/pipe.py") == [
        "labkit/pipe.py, line 2: accelerate and deepspeed are",
        "labkit/pipe.py, line 9: torch.nn.DataParallel is",
        "labkit/pipe.py, lines 5, 8 and 12: torch.distributed.fsdp.fully_shard is",
        "labkit/pipe.py, line 11: torch.distributed.Reducer is",
        "labkit/pipe.py, lines 5 and 10: torch.distributed.pipelining.pipeline is",
    ]


def test_torchs_own_tensor_parallelism_is_no_answer_to_shard_3():
    line = "from torch.distributed.tensor.parallel import parallelize_module\n"
    name = "torch.distributed.tensor.parallel.parallelize_module"
    assert found(line, file="labkit/shard.py") == [f"labkit/shard.py, line 1: {name} is"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import subprocess as s", "subprocess"),
        ("from concurrent import futures", "concurrent.futures"),
        ("from . import lab", "labkit.lab"),
        ("from labkit.train.trainer import *", "labkit.train.trainer"),
        ("import mine", "mine"),
        ("__import__('mine')", "__import__"),
        ("import sys; sys.modules['torch']", "sys.modules"),
        ("eval('torch.nn')", "eval"),
    ],
)
def test_a_module_that_is_not_on_the_list_is_named_and_so_is_what_would_hide_one(line, name):
    assert found(HEAD + line) == [f"labkit/dp.py, line 5: {name} is"]


CLEAN = {
    "a variable of that name": "    DistributedDataParallel = model\n    DistributedDataParallel(1)\n",
    "a comment and a text": f"    # {DDP}\n    return '{DDP}'\n",
    "a docstring": f'    """Do as {DDP} does."""\n',
    "a class of one's own called Reducer": "    Reducer(model)\n\nclass Reducer:\n    pass\n",
    "an attribute of that name": "    model.DistributedDataParallel(model.Reducer)\n",
    "evaluating a model": "    model.eval()\n",
    "the lab's own parts": "    from labkit.parallel.dp import bucket\n    from .todo import TodoError\n",
    "processes": "    torch.multiprocessing.Process(target=print).start()\n",
}


@pytest.mark.parametrize("what", CLEAN)
def test_what_only_looks_like_it_is_no_finding(what):
    assert found(IN_A_FUNCTION + CLEAN[what], "11-868") == []


@pytest.mark.parametrize("layout", ["", "11-868"])
@pytest.mark.parametrize("name", STUDENT_FILES)
def test_the_reference_breaks_no_rule(name, layout):
    assert broken(name, (ROOT / name).read_bytes(), layout) == ()


@pytest.mark.parametrize("task", ANSWERS)
def test_no_right_answer_breaks_a_rule(task):
    for edits in ANSWERS[task].RIGHT.values():
        assert found(edited(task, *edits), file=f"labkit/{task_file(task).name}") == []


def test_check_warns_of_it_and_a_warning_fails_nothing(answer):
    answer(f"def compare(model):\n    {DDP}(model)\n")
    result = check("dp.1")
    (warning,) = result.warnings
    assert result.passed and f": {DDP} is not allowed (" in warning
    assert repr(result).splitlines()[-1] == f"  ! {warning}"
    assert f"! {warning}" in re.sub(r"<[^>]+>", "", result._repr_html_())


def test_in_11_868_nothing_else_may_communicate():
    source = IN_A_FUNCTION + "    import torch.multiprocessing as mp\n    mp.Process(print)\n    mp.Queue()\n"
    assert found(source) == []
    assert found(source, "11-868") == ["labkit/dp.py, line 8: torch.multiprocessing.Queue is"]
