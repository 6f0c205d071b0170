"""check: what it says of an answer that is right, unfilled, endless or broken. See
test_answers for wrong ones."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit import check as check_package
from labkit.check import CheckResult, Claim, check, failure, harness, observer, plain
from labkit.todo import TASKS, missing, task_file

UNFILLED = [task for task in TASKS if missing(task)]


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_in_this_edition_is_right_or_still_to_do(task):
    result = check(task)
    if task in UNFILLED:
        assert not result.passed
        assert result.findings == [missing(task)] == [repr(result)]
    else:
        assert result.passed, result
        assert result.findings == []
        assert repr(result).startswith(f"{task} is right\n")


# --- answers that do not come to an end -----------------------------------------------------------

ENDS = {
    "a loop without end": ("while dist.get_rank() == 0: pass", "it did not end in time. It was at labkit/dp.py, line "),
    "the process ends itself": ("__import__('os')._exit(3)", "ended with exit status 3"),
}


@pytest.mark.skipif("dp.4" in UNFILLED, reason="dp.4 is not filled in")
@pytest.mark.parametrize("ending", ENDS)
def test_an_answer_that_does_not_come_to_its_end_is_survived_and_said(ending, answer, monkeypatch):
    body, phrase = ENDS[ending]
    monkeypatch.setattr(observer, "TIMEOUT_S", 4.0)
    answer(f"def average_gradients(model):\n    {body}\n    dist.barrier()\n")
    (finding,) = check("dp.4").findings
    assert finding.startswith("It runs to its end: ")
    assert phrase in finding


def test_a_file_that_is_not_python_is_a_finding_with_its_line(answer):
    answer("x = 1\ndef average_gradients(model)\n    pass\n", whole=True)
    (finding,) = check("dp.4").findings
    assert finding == "It can be imported: it raised SyntaxError: expected ':' (labkit/dp.py, line 2)"


@pytest.mark.parametrize("task", ["dp.4", "pipe.4"])
def test_a_file_that_raises_when_it_is_imported_is_one_finding(task, answer):
    file = task_file(task).name
    answer("import labkit.nowhere\n", file, whole=True)
    (finding,) = check(task).findings
    assert finding.startswith("It can be imported: it raised ModuleNotFoundError: ")
    assert finding.endswith(f"(labkit/{file}, line 1)")


@pytest.mark.skipif("dp.7" in UNFILLED, reason="dp.7 is not filled in")
def test_a_task_that_has_to_be_done_first_is_one_finding(answer):
    answer("def assign_buckets(*sizes):\n    raise TodoError('dp.6')\n")
    (finding,) = check("dp.7").findings
    assert finding.startswith("It runs to its end: dp.6 has to be done first (labkit/dp.py, line ")


FIRST = {
    "pipe.1 to do": (
        "def split_module(modules):\n    raise TodoError('pipe.1')\n",
        "pipe.1 has to be done first (labkit/pipe.py, line ",
    ),
    "pipe.2 to do": (
        "def clock_cycles(m, n):\n    raise TodoError('pipe.2')\n",
        "pipe.2 has to be done first (labkit/pipe.py, line ",
    ),
    "pipe.1 wrong": (
        "def split_module(modules):\n    return [modules], []\n",
        'pipe.1 has to be right first: check("pipe.1") says',
    ),
    "pipe.2 wrong": ("def clock_cycles(m, n):\n    yield []\n", 'pipe.2 has to be right first: check("pipe.2") says'),
}


@pytest.mark.skipif(not {"pipe.1", "pipe.2", "pipe.3"}.isdisjoint(UNFILLED), reason="pipe.1, 2 or 3 is not filled in")
@pytest.mark.parametrize("mistake", FIRST)
def test_what_a_pipe_is_made_of_comes_first(mistake, answer):
    code, phrase = FIRST[mistake]
    answer(code, "pipe.py")
    (finding,) = check("pipe.3").findings
    assert finding.startswith(f"It runs to its end: {phrase}")


UNREADABLE = {
    "in another encoding": (lambda file: file.write_bytes("x = 'ü'".encode("latin-1")), "it is not in UTF-8"),
    "missing": (Path.unlink, "it is not there"),
    "a folder": (lambda file: (file.unlink(), file.mkdir()), "it is a folder"),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_file_that_cannot_be_read_is_a_finding(how, answer, tmp_path):
    spoil, phrase = UNREADABLE[how]
    answer("", "pipe.py")
    spoil(tmp_path / "labkit" / "pipe.py")
    (finding,) = check("pipe.3").findings
    assert finding.startswith(f"labkit/pipe.py cannot be read: {phrase}")


def test_an_unfilled_task_is_a_todo_with_its_line(answer):
    answer("from labkit.todo import TodoError\n\ndef setup():\n    raise TodoError('dp.2')\n", whole=True)
    result = check("dp.2")
    assert not result.passed
    assert repr(result) == "TODO dp.2: labkit/dp.py, line 4"
    assert result.findings == ["TODO dp.2: labkit/dp.py, line 4"]
    assert "TODO dp.2: labkit/dp.py, line 4" in result._repr_html_()


def test_an_edit_counts_at_once(answer, tmp_path):
    answer("raise RuntimeError('first')", whole=True)
    assert "RuntimeError: first" in check("dp.1").findings[0]
    (tmp_path / "labkit" / "dp.py").write_text("raise RuntimeError('second')")
    assert "RuntimeError: second" in check("dp.1").findings[0]


@pytest.mark.skipif(not {"pipe.1", "pipe.2", "pipe.3"}.isdisjoint(UNFILLED), reason="pipe.1, 2 or 3 is not filled in")
def test_what_comes_first_is_not_judged_again_until_its_file_changes(answer, monkeypatch):
    judged = []
    monkeypatch.setattr(harness, "_right", {})
    monkeypatch.setattr(harness, "_judge", lambda task, _: judged.append(task) or (Claim("it holds", None),))
    for task in ("pipe.1", "pipe.2", "pipe.3"):
        check(task)
    assert judged == ["pipe.1", "pipe.2", "pipe.3"]
    answer("changed = True\n", "pipe.py")
    check("pipe.3")
    assert judged[3:] == ["pipe.1", "pipe.2", "pipe.3"]


STARTS_SLOWLY = """
from labkit.ranks import servers
servers.PRELOAD[:] = ["sleeps", "torch", "torch.distributed"]
from labkit.check import check, observer
observer.TIMEOUT_S = 4.0
print(check("pipe.2").passed)
"""


@pytest.mark.slow
@pytest.mark.skipif("pipe.2" in UNFILLED, reason="pipe.2 is not filled in")
def test_an_answer_is_not_blamed_for_a_machine_on_which_ranks_start_slowly(tmp_path):
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(6)\n")
    path = os.pathsep.join([str(tmp_path), str(Path(check_package.__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", STARTS_SLOWLY], env=environment, capture_output=True, text=True)
    assert run.stdout == "True\n", run.stderr


def test_an_unknown_task_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'dp\.99', expected one of: dp\.1, dp\.2, dp\.3, dp\.4"):
        check("dp.99")


def test_a_result_without_claims_has_not_passed():
    assert not CheckResult("dp.1").passed


def test_a_finding_is_escaped_in_html():
    result = CheckResult("dp.1", (Claim("a < b", "x > y\nz"), Claim("right", None)))
    assert "a &lt; b" in result._repr_html_()
    assert "x &gt; y<br>z" in result._repr_html_()
    assert "1 of 2 claims hold" in result._repr_html_()


NOT_TRIED = Claim("sums arrive", None, not_tried="not tried, a < b")


def test_a_claim_that_is_not_tried_has_its_own_mark_and_does_not_hold():
    result = CheckResult("dp.1", (Claim("right", None), NOT_TRIED))
    assert not result.passed
    assert repr(result).splitlines() == [
        "dp.1 is not right yet: 1 of 2 claims hold, 1 not tried",
        "  ✓ right",
        "  – sums arrive",
        "      not tried, a < b",
    ]
    assert '<li><span style="color: #767676">–</span> sums arrive' in result._repr_html_()
    assert "not tried, a &lt; b" in result._repr_html_()
    assert "✗" not in result._repr_html_()


def test_why_claims_are_not_tried_is_said_once():
    other = Claim("nor do others", None, not_tried="not tried, a < b")
    result = CheckResult("dp.1", (NOT_TRIED, Claim("right", None), other))
    assert repr(result).count("not tried, a < b") == result._repr_html_().count("not tried, a &lt; b") == 1


def test_what_is_not_tried_is_a_finding_only_where_nothing_is_wrong():
    assert CheckResult("dp.1", (NOT_TRIED,)).findings == ["sums arrive: not tried, a < b"]
    assert CheckResult("dp.1", (NOT_TRIED, Claim("x", "y"))).findings == ["x: y"]


# --- what an answer does stays in its process -----------------------------------------------------

GIVES_A_TRAP = """
class Trap(list):
    def __reduce__(self):
        return open, ({path!r}, "w")

def assign_buckets(*sizes, **options):
    return Trap()
"""
SENDS_A_TRAP = """
import pickle
from labkit.ranks import pickling, rank

class Trap:
    def __reduce__(self):
        return open, ({path!r}, "w")

def assign_buckets(*sizes, **options):
    pickling.dumps = rank.pickling.dumps = lambda value: pickle.dumps(Trap())
    return []
"""


@pytest.mark.parametrize("code", [GIVES_A_TRAP, SENDS_A_TRAP])
def test_nothing_that_an_answer_gives_is_run_here(code, answer, tmp_path):
    trap = tmp_path / "opened"
    answer(code.format(path=str(trap)), whole=True)
    assert not check("dp.6").passed
    assert not trap.exists()


def test_what_is_no_plain_data_is_said(answer):
    answer(SENDS_A_TRAP.format(path="nowhere"), whole=True)
    (finding,) = check("dp.6").findings
    assert finding.startswith("It runs to its end: assign_buckets([4, 4, 4, 4], 8): its process did not send what was ")


def test_plain_data_arrives_as_it_is():
    strided = torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()
    value = {"numbers": (1, 2.5, True, None), "text": "a", "tensors": [strided, torch.empty(0, 3)], "other": object()}
    found = plain.loads(pickle.dumps(plain.pack(value)))
    assert found["numbers"] == [1, 2.5, True, None]
    assert found["text"] == "a"
    assert found["tensors"][0].dtype == torch.bfloat16
    assert found["tensors"][0].tolist() == strided.tolist()
    assert found["tensors"][1].shape == (0, 3)
    assert repr(found["other"]) == "an object"


class Endless(list):
    def __len__(self):
        return 3

    def __iter__(self):
        return itertools.count()


LARGE_VALUES = {
    "a list of 1,000,000 items": lambda: [[i] for i in range(10**6)],
    "a list of 1,000 items": lambda: [list(range(1000)) for _ in range(1000)],
    "a dict of 1,000,000 items": lambda: dict.fromkeys(range(10**6)),
    "a Tensor of the shape (1000000, 1000000)": lambda: torch.zeros(1).expand(10**6, 10**6),
    "a whole number of 10,000,001 bits": lambda: 1 << 10**7,
    "[10,000,000 characters]": lambda: "x" * 10**7,
    "[20,000,000 characters]": lambda: type("T" * 20_000_000, (), {})(),
    "[0, 1, 2]": Endless,
}


@pytest.mark.parametrize("words", LARGE_VALUES)
def test_a_large_value_arrives_as_what_it_is_and_how_large(words):
    sent = pickle.dumps(plain.pack(LARGE_VALUES[words]()))
    assert len(sent) < 10**6
    assert words in repr(plain.loads(sent))[-4000:]


LARGE = {
    "a million buckets": "return MANY",
    "an exception with a long message": "raise ValueError('m' * 50_000_000)",
    "an exception of a type with a long name": "raise type('T' * 5_000_000, (ValueError,), {})",
}


@pytest.mark.parametrize("what", LARGE)
def test_however_large_what_an_answer_gives_the_finding_is_short(what, answer):
    answer(f"MANY = [[0]] * 10**6\n\ndef assign_buckets(*sizes, **options):\n    {LARGE[what]}\n", whole=True)
    (finding,) = check("dp.6").findings
    assert finding.partition(": ")[0] in ("Every parameter is in exactly one bucket", "It runs to its end")
    assert len(finding) < 2_000


def test_of_an_answer_that_prints_without_end_the_beginning_is_shown(answer, monkeypatch, capsys):
    monkeypatch.setattr(observer, "TIMEOUT_S", 3.0)
    answer("def assign_buckets(*sizes, **options):\n    while True:\n        print('going round')\n", whole=True)
    (finding,) = check("dp.6").findings
    printed = capsys.readouterr().out
    assert "it did not end in time" in finding
    assert "[rank 0] going round\n" in printed
    assert printed.endswith("[rank 0] labkit: what is printed beyond this is left out\n")
    assert len(printed) < 2 * observer.MOST_PRINTED


def test_importing_check_loads_nothing_heavy():
    heavy = ("torch", "pandas", "matplotlib", "labkit.launch", "labkit.dp")
    code = f"import sys, labkit.check, labkit.check.dp_2; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# --- what an answer does to ranks, and to find out who calls it -----------------------------------

FILLED = pytest.mark.skipif("dp.4" in UNFILLED, reason="dp.4 is not filled in")
AND_MORE = """
def average_gradients(model, _right=average_gradients):
    _right(model)
    {}
"""


@FILLED
def test_an_answer_that_destroys_the_process_group_is_not_right(answer):
    answer(AND_MORE.format("dist.destroy_process_group()"))
    (finding,) = check("dp.4").findings
    assert "rank 0 destroyed the process group" in finding


@FILLED
def test_a_call_of_one_rank_alone_that_nobody_waits_for_is_named(answer):
    answer(AND_MORE.format("if dist.get_rank() == 1: dist.all_reduce(torch.ones(3), async_op=True)"))
    (finding,) = check("dp.4").findings
    assert "rank 1 began all_reduce and never called wait()" in finding


LOOKS_WHO_CALLS = """
def average_gradients(model, _right=average_gradients):
    import inspect
    callers = inspect.stack()
    if any({} for caller in callers):
        _right(model)
"""


@FILLED
@pytest.mark.parametrize(
    "look", ["'labkit/check' in caller.filename", "'labkit.check' in str(caller.frame.f_globals.get('__name__'))"]
)
def test_an_answer_that_is_right_only_where_check_calls_it_is_not_right(look, answer):
    answer(LOOKS_WHO_CALLS.format(look))
    (finding,) = check("dp.4").findings
    assert "is still that of the rank's own shard" in finding


@pytest.mark.parametrize("task", TASKS)
def test_no_method_of_a_case_says_that_it_stands_in_check(task):
    module = importlib.import_module(f"labkit.check.{task.replace('.', '_')}")
    for test in module.TASK.checks:
        methods = inspect.getmembers(observer.typed(test.cases[0]), inspect.ismethod)
        own = [method for _, method in methods if "check" in inspect.unwrap(method).__code__.co_filename]
        assert methods and not own


# --- what a finding says of an exception ----------------------------------------------------------

CODE = """def setup():
    check()

def check():
    raise ValueError

def answer():
    setup()
"""
TRACE = "".join(
    f'File "/x/labkit/dp.py", line {line}, in {name}\n' for line, name in ((8, "answer"), (2, "setup"), (5, "check"))
)


@pytest.mark.parametrize(
    ("given", "line"), [((), 5), (("check",), 2), (("check", "setup"), 8), (("check", "check()"), 8)]
)
def test_the_line_is_the_innermost_one_that_is_not_given(given, line, tmp_path):
    file = tmp_path / "dp.py"
    file.write_text(CODE)
    source = failure.Source(file, given)
    assert source.place(TRACE) == f"labkit/dp.py, line {line}"


def test_of_an_error_that_passes_on_another_the_cause_is_said(tmp_path):
    (tmp_path / "dp.py").write_text(CODE)
    inner = "\n\n-- Process 0 terminated with the following error:\nTraceback (most recent call last):\n" + TRACE
    message = inner + "torch.distributed.DistNetworkError: port taken\n"
    said = failure.raised("ProcessRaisedException", message, message, failure.Source(tmp_path / "dp.py"))
    assert said == "it raised DistNetworkError: port taken (labkit/dp.py, line 5)"
