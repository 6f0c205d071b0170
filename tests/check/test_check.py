"""check: what it says of an answer that is right, unfilled, endless or broken. See
test_answers for wrong ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import to_do

from labkit.base.course import whole_lab
from labkit.check import CheckResult, Claim, check, failure, harness, observer, record
from labkit.todo import TASKS, missing, task_file

UNFILLED = [task for task in TASKS if missing(task)]


@pytest.fixture(autouse=True)
def _whole_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have check judge each task, also one that the edition's course gives."""
    monkeypatch.setattr(harness, "course", whole_lab)


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_in_this_edition_is_right_or_still_to_do(task):
    result = check(task)
    if task in UNFILLED:
        assert not result.passed
        assert result.findings == [missing(task)] == [repr(result)]
    else:
        assert result.passed, result
        assert result.findings == [] and result.warnings == ()
        assert repr(result).startswith(f"{task} is right\n")


# --- answers that do not come to an end -----------------------------------------------------------

FILLED = pytest.mark.skipif(bool(UNFILLED), reason=f"not filled in: {', '.join(UNFILLED)}")
RUNS, IMPORTED = "It runs to its end: ", "It can be imported: it raised "
ENDS = {  # what the student's file ends with: the task that is checked, and how its one finding begins (either rank may be first)
    "average_gradients(_): __import__('os')._exit(3)": ("dp.4", r"rank \d ended without an answer \(exit status 3\)"),
    "assign_buckets(*_): raise TodoError('dp.6')": ("dp.7", r"dp\.6 has to be done first \(labkit/dp\.py, line "),
    "clock_cycles(m, n): raise TodoError('pipe.2')": ("pipe.3", r"pipe\.2 has to be done first \(labkit/pipe\.py"),
}


@FILLED
@pytest.mark.parametrize("code", ENDS)
def test_what_keeps_an_answer_from_its_end_is_one_finding(code, answer):
    task, finding = ENDS[code]
    answer(f"def {code}\n", task_file(task).name)
    result = check(task)
    (found,) = result.findings
    assert re.match(RUNS + finding, found), found
    assert not any("calls" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("task", "code", "error"),
    [
        ("dp.4", "x = 1\ndef average_gradients(model)\n", "SyntaxError: expected ':' (labkit/dp.py, line 2)"),
        ("pipe.4", "\n1 / 0", "ZeroDivisionError: division by zero (labkit/pipe.py, line 2)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_finding_with_its_line(task, code, error, answer):
    answer(code, task_file(task).name, whole=True)
    assert check(task).findings == [f"{IMPORTED}{error}"]


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


def test_an_edit_counts_at_once(answer, tmp_path):
    answer("raise RuntimeError('first')", whole=True)
    assert "RuntimeError: first" in check("dp.1").findings[0]
    (tmp_path / "labkit" / "dp.py").write_text("raise RuntimeError('second')")
    assert "RuntimeError: second" in check("dp.1").findings[0]


@FILLED
def test_of_what_an_answer_calls_a_remark_says_that_it_is_not_right_yet(answer):
    answer("def clock_cycles(m, n):\n    yield []\n", "pipe.py")
    result = check("pipe.3")
    assert not result.passed and len(result.findings) == 1
    assert result.warnings == (
        'pipe.2 (clock_cycles), which this one calls, is not right yet: check("pipe.2") says what is wrong',
    )


@FILLED
def test_what_an_answer_calls_is_judged_only_if_that_is_wrong_and_not_again_until_its_file_changes(answer, monkeypatch):
    judged = []
    holds = {"pipe.1": True, "pipe.2": True, "pipe.3": False}
    monkeypatch.setattr(harness, "_right", {})
    monkeypatch.setattr(
        harness, "_judge", lambda task, _: judged.append(task) or [Claim("it holds", None if holds[task] else "no")]
    )
    for task in ("pipe.1", "pipe.2", "pipe.3"):
        check(task)
    assert judged == ["pipe.1", "pipe.2", "pipe.3"]
    answer("changed = True\n", "pipe.py")
    check("pipe.3")
    assert judged[3:] == ["pipe.3", "pipe.1", "pipe.2"]


# --- points ---------------------------------------------------------------------------------------

MEAN, PLACE = Claim("the mean", core=True), Claim("in place")


@pytest.mark.parametrize(
    ("tried", "untried", "points"),
    [
        ([Claim("ended"), MEAN, PLACE], [], 12.0),
        ([Claim("ended"), MEAN, Claim("in place", "moved")], [], 8.0),
        ([Claim("ended"), Claim("the mean", "a sum", core=True)], [PLACE], 0.0),
        ([Claim("ended"), MEAN, Claim("It runs to its end", "raised")], [PLACE], 8.0),
        ([Claim("It can be imported", "raised")], [Claim("ended"), MEAN, PLACE], 0.0),
    ],
)
def test_claims_have_equal_shares_of_the_points_and_none_without_the_core_one(tried, untried, points):
    result = CheckResult("dp.4", tuple(tried), untried=tuple(untried), worth=12.0)
    assert result.points == points
    assert CheckResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_what_could_not_be_judged_has_its_fault_as_finding_and_no_points():
    result = CheckResult("dp.4", (MEAN,), worth=12.0, fault="its check took more than 1 s, and was ended")
    assert (result.passed, result.points) == (False, 0.0)
    assert result.findings == [result.fault] and repr(result).startswith(result.fault)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_one_core_claim_and_a_record_in_which_it_needs_tasks_before_it(task):
    of = record(task)
    assert sum(claim.core for claim in of.claims) == 1
    assert {*of.needs} <= {*TASKS[: TASKS.index(task)]} and of.minutes > 0 and of.points > 0 and len(of.hints) == 3


NOTHING = {  # does nothing, though some claims hold of it
    "dp.1": "DataPartitioner.use = lambda self, rank: Partition(self.data, [])",
    "dp.3": "def gather_scatter_gradients(model): pass",
    "dp.4": "def average_gradients(model): pass",
    "dp.5": "def ring_all_reduce(tensor): pass",
    "pipe.1": "def split_module(modules): return [modules], [torch.device('cpu')]",
    "pipe.4": "def prepare_pipeline_parallel(gpt2, split_size): return gpt2",
    "shard.1": "ShardedOptimizer.step = lambda self, closure=None: closure() if closure else None",
}


@FILLED
@pytest.mark.parametrize("task", NOTHING)
def test_an_answer_that_does_nothing_has_no_points(task, answer):
    answer(NOTHING[task] + "\n", task_file(task).name)
    result = check(task)
    assert not result.passed and result.points == 0


def test_a_result_shows_the_claims_that_hold_and_what_is_wrong_with_the_one_that_does_not():
    result = CheckResult("dp.1", (Claim("right", None), Claim("a < b", "x > y\nz")))
    assert not result.passed and not CheckResult("dp.1").passed
    assert repr(result).splitlines() == ["dp.1 is not right yet", "  ✓ right", "  ✗ a < b", "      x > y", "      z"]
    assert result.findings == ["a < b: x > y\nz"]
    page = result._repr_html_()
    assert "a &lt; b" in page and "x &gt; y<br>z" in page and "dp.1 is not right yet" in page


@to_do.task("pipe.2")
def test_nothing_is_tried_after_the_first_claim_that_does_not_hold(answer):
    answer("def clock_cycles(m, n):\n    assert n == 3, 'only the first case'\n    yield 1\n", "pipe.py")
    (claim,) = check("pipe.2").claims
    assert claim.wrong.startswith("clock_cycles(4, 3): it gave 1 as a clock")


# --- cases that are drawn -------------------------------------------------------------------------


def names_of_cases(task, seed):
    return [str(case) for each in record(task).drawn(seed).checks for case in each.cases]


@pytest.mark.parametrize("task", ["dp.1", "dp.6", "dp.7", "pipe.1", "pipe.2", "shard.1", "shard.3"])
def test_a_seed_draws_the_same_cases_again_and_another_one_others(task):
    assert names_of_cases(task, 7) == names_of_cases(task, 7)
    assert len({tuple(names_of_cases(task, seed)) for seed in range(20)}) > 10


# --- what an answer does stays in its process -----------------------------------------------------

TRAP = """
import pickle
from labkit.ranks.messages import pickling
from labkit.ranks.processes import rank

class Trap(list):
    def __reduce__(self):
        return open, ({path!r}, "w")

def send_a_trap():
    pickling.dumps = rank.pickling.dumps = lambda value: pickle.dumps(Trap())

def assign_buckets(*sizes, **options):
    return {code}
"""


NOT_SENT = "It runs to its end: assign_buckets([4, 4, 4, 4], 8): its process did not send what was "


@pytest.mark.parametrize(("code", "message"), [("Trap()", "it gave "), ("send_a_trap()", NOT_SENT)])
def test_nothing_that_an_answer_gives_is_run_here(code, message, answer, tmp_path):
    trap = tmp_path / "opened"
    answer(TRAP.format(path=str(trap), code=code), whole=True)
    (finding,) = check("dp.6").findings
    assert message in finding and not trap.exists()


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


def test_an_answer_without_end_has_its_line_named_and_the_beginning_of_what_it_prints_shown(
    answer, monkeypatch, capsys
):
    monkeypatch.setattr(observer, "TIMEOUT_S", 3.0)
    answer("def assign_buckets(*sizes, **options):\n    while True:\n        print('going round')\n", whole=True)
    (finding,) = check("dp.6").findings
    printed = capsys.readouterr().out
    assert "it did not end in time. It was at labkit/dp.py, line " in finding
    assert "[rank 0] going round\n" in printed
    assert printed.endswith("[rank 0] labkit: further output is left out\n")
    assert len(printed) < 2 * observer.MAX_PRINTED


# --- what an answer does to ranks -----------------------------------------------------------------

AND_MORE = """
def average_gradients(model, _right=average_gradients):
    _right(model)
    {}
"""
MORE = {
    "dist.destroy_process_group()": "rank 0 destroyed the process group",
    "dist.get_rank() == 1 and dist.all_reduce(torch.ones(3), async_op=True)": "rank 1 began all_reduce and never",
}


@FILLED
@pytest.mark.parametrize("more", MORE)
def test_an_answer_that_leaves_ranks_or_calls_in_disorder_is_not_right(more, answer):
    answer(AND_MORE.format(more))
    (finding,) = check("dp.4").findings
    assert MORE[more] in finding


# --- what a finding says of an exception ----------------------------------------------------------

CODE = """def setup():
    check()

def check():
    raise ValueError

def answer():
    setup()
"""
CALLS = ((8, "answer"), (2, "setup"), (5, "check"))
TRACE = "".join(f'File "/x/labkit/dp.py", line {line}, in {name}\n' for line, name in CALLS)


@pytest.mark.parametrize(("given", "line"), [("", 5), ("check", 2), ("check setup", 8), ("check check()", 8)])
def test_the_line_is_the_innermost_one_that_is_not_given(given, line, tmp_path):
    file = tmp_path / "dp.py"
    file.write_text(CODE)
    source = failure.Source(file, given.split())
    assert source.place(TRACE) == f"labkit/dp.py, line {line}"
