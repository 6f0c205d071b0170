### INSTRUCTORS ONLY: this file hands in answers, so it is not in the student edition
"""Archives judged in a copy of the lab, and a folder of them graded: no answer touches another."""

import contextlib
import csv
import datetime
import os
import re
import signal
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import warm_python

from labkit import cli
from labkit.base.lab import PACKAGE
from labkit.check import CheckResult, record
from labkit.course import grading
from labkit.course.archive import STUDENT_FILES
from labkit.course.grading import grade_folder
from labkit.course.judge import Judge, judge_in_copy
from labkit.course.points import Grade, Points, late_days

ROOT = Path(__file__).parents[2]
RIGHT = {name: (ROOT / name).read_bytes() for name in STUDENT_FILES}


def with_code(code: str, name: str = "labkit/dp.py") -> dict[str, bytes]:
    return RIGHT | {name: RIGHT[name] + code.encode()}


# --- the process that judges ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_judge() -> Iterator[Judge]:
    """One process for all tests of this file, until an answer costs it its life."""
    with Judge() as process:
        yield process
        started = psutil.Process(process._process.pid).children(recursive=True)
    assert not [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


REWRITES = """
import pathlib

def assign_buckets(*arguments, _right=assign_buckets, **options):
    (pathlib.Path(__file__).parent / "check" / "pipe_2.py").write_text("raise SystemExit")
    return _right(*arguments, **options)
"""


@pytest.mark.slow
def test_an_answer_that_rewrites_another_tasks_judge_is_named_and_touches_no_other_task(one_judge):
    judge_of_pipe_2 = (PACKAGE / "check/pipe_2.py").read_bytes()
    first, second = judge_in_copy(with_code(REWRITES), ["dp.6", "pipe.2"], one_judge)
    assert not first.passed and first.findings == [
        "it has changed the lab around it (labkit/check/pipe_2.py), so what its check says does not count"
    ]
    assert second.passed and second.claims == tuple(record("pipe.2").claims)
    assert (PACKAGE / "check/pipe_2.py").read_bytes() == judge_of_pipe_2


KILLS_ITS_JUDGE = """
import psutil

def assign_buckets(*arguments, **options):
    for process in psutil.Process().parents():
        if "labkit.course.judge" in process.cmdline():
            process.kill()
    while True:
        pass
"""
SLEEPS = "\n\ndef assign_buckets(*arguments, **options):\n    while True:\n        pass\n"


@pytest.mark.slow
def test_after_an_answer_that_ends_its_judge_or_takes_too_long_the_next_one_is_judged(one_judge, monkeypatch):
    one_judge.start()
    (killed,) = judge_in_copy(with_code(KILLS_ITS_JUDGE), ["dp.6"], one_judge)
    assert not killed.passed and killed.first_finding.startswith("its check ended the process that judges it")
    monkeypatch.setattr(one_judge, "limit_s", 1.0)
    (endless,) = judge_in_copy(with_code(SLEEPS), ["dp.6"], one_judge)
    assert endless.findings == ["its check took more than 1 s, and was ended"]
    monkeypatch.undo()
    (right,) = judge_in_copy(RIGHT, ["dp.6"], one_judge)
    assert right.passed


WRONG_CLOCKS = "\n\ndef clock_cycles(num_batches, num_partitions):\n    yield []\n"
WRONG_CUT = "\n\ndef split_module(modules):\n    return [modules], [torch.device('cpu')]\n"
WRONG_COMPUTE = "\n\nPipe.compute = lambda self, batches, schedule: None\n"


@pytest.mark.slow
def test_a_mistake_costs_the_points_of_its_own_task_alone(one_judge):
    tasks = ["pipe.1", "pipe.2", "pipe.3", "pipe.4"]
    files = with_code(WRONG_CLOCKS + WRONG_CUT, "labkit/pipe.py")
    assert [each.passed for each in judge_in_copy(files, tasks, one_judge)] == [False, False, True, True]
    files = with_code(WRONG_COMPUTE, "labkit/pipe.py")
    third, fourth = judge_in_copy(files, tasks[2:], one_judge)
    assert not third.passed and fourth.passed
    assert third.first_finding.endswith("(judged with the lab's own split_module and clock_cycles)")
    (seventh,) = judge_in_copy(with_code("\n\ndef assign_buckets(*_, **__):\n    return []\n"), ["dp.7"], one_judge)
    assert seventh.passed


# --- points ---------------------------------------------------------------------------------------

DUE = datetime.datetime(2027, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("packed", "days", "total"),
    [
        ("2027-03-01T12:00:00+00:00", 0, 10.0),
        ("2027-03-02T14:00:00+02:00", 1, 10.0),
        ("2027-03-03T12:00:01+00:00", 3, 6.0),
        ("2027-06-01T12:00:00+00:00", 92, 0.0),
        ("whenever", 0, 10.0),
    ],
)
def test_late_days_beyond_the_free_ones_cost_their_fraction_of_the_points(packed, days, total):
    table = Points({"dp.1": 10}, DUE, free_days=1, per_day=0.2)
    held = CheckResult("dp.1", tuple(record("dp.1").claims))
    assert late_days(packed, table) == days
    assert Grade("ada", packed=packed, results=[held]).total(table) == total


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[points", "is not TOML"),
        ('[points]\n"dp.99" = 1', "there is no task 'dp.99'"),
        ('[points]\n"dp.1" = -1', "dp.1 is worth -1"),
        ('[points]\n"dp.1" = 1\n[late]\ndue = "tomorrow"', "due is 'tomorrow'"),
        ('[points]\n"dp.1" = 1\n[late]\nper_day = 10', "per_day as a fraction"),
    ],
)
def test_a_table_of_points_that_cannot_be_used_is_refused_with_its_place(text, says, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(text)
    assert cli.main(["grade", str(tmp_path), "--points", str(tmp_path / "mine.toml")]) == 2
    assert re.search(f"^labkit grade: .*mine.toml.*{says}", capsys.readouterr().err)


# --- a folder of archives -------------------------------------------------------------------------


TABLE = Points({"dp.6": 10, "pipe.2": 10})


@pytest.fixture
def judged_names(monkeypatch) -> list[str]:
    """What was judged, by the first line of each dp.py; nothing is started for it.

    One that begins with "# wrong" fails in dp.6, with "# refused" cannot be judged on this machine.
    """
    names = []

    def fake(files, tasks, judge):
        first = files["labkit/dp.py"].decode().splitlines()[0]
        names.append(first)
        if "refused" in first:
            raise RuntimeError("no process for it")
        for task in tasks:
            wrong = "wrong" in first and task == "dp.6"
            *others, last = record(task).claims
            last = replace(last, wrong="<b>\ud800\nand more" if wrong else None)  # an answer may raise any text
            yield CheckResult(task, (*others, last), seconds=1.5)

    monkeypatch.setattr(grading, "Judge", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(grading, "judge_in_copy", fake)
    return names


def put(folder: Path, name: str, first_line: str = "# right") -> None:
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as file:
        file.writestr("labkit/dp.py", f"{first_line} of {name}\n")


def rows(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (folder / "grades.csv").open(newline="") as file:
        return {(row["name"], row["task"]): row for row in csv.DictReader(file)}


def test_one_broken_empty_or_huge_archive_never_touches_the_rest(tmp_path, judged_names):
    for name in ("ada", "bob"):
        put(tmp_path, name, "# wrong" if name == "bob" else "# right")
    (tmp_path / "empty.zip").write_bytes(b"")
    (tmp_path / "broken.zip").write_bytes((tmp_path / "ada.zip").read_bytes()[:-30])
    with zipfile.ZipFile(tmp_path / "huge.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("labkit/dp.py", bytes(300 << 20))
    (tmp_path / "gone.zip").symlink_to(tmp_path / "nowhere")  # is no file, so it is none of the class
    (tmp_path / "note.txt").write_text("")
    (tmp_path / "._ada.zip").write_bytes(b"")  # as macOS leaves it
    said = []
    assert grade_folder(tmp_path, TABLE, tmp_path / "grades", 2, say=said.append)
    assert "left out, because they are not .zip: note.txt" in said
    found = rows(tmp_path / "grades")
    assert {name: row["points"] for (name, task), row in found.items() if task == "total"} == {
        **{"ada": "20", "bob": "16.67", "empty": "0", "broken": "0", "huge": "0"}
    }
    assert found["bob", "dp.6"]["claims"] == "2/3" and found["bob", "dp.6"]["first_finding"].endswith(
        "as it is: <b>\\ud800"
    )
    assert found["bob", "total"]["seconds"] == "3"
    assert "more than 1,048,576 bytes" in found["huge", "total"]["first_finding"]
    assert str(tmp_path) not in (tmp_path / "grades/grades.csv").read_text()


def test_what_is_graded_is_not_graded_again_unless_its_archive_changes(tmp_path, judged_names):
    for name in ("ada", "bob"):
        put(tmp_path, name)
    grade_folder(tmp_path, TABLE, tmp_path / "out", say=lambda _: None)
    assert sorted(judged_names) == ["# right of ada", "# right of bob"]
    put(tmp_path, "bob", "# wrong")
    said = []
    grade_folder(tmp_path, TABLE._replace(of={"dp.6": 30, "pipe.2": 10}), tmp_path / "out", say=said.append)
    assert judged_names[2:] == ["# wrong of bob"] and said[0] == "1 of 2 are graded already"
    seed = int((tmp_path / "out/results/seed").read_text())
    assert said[1].startswith(f"cases are drawn with seed={seed}, for all alike")
    assert rows(tmp_path / "out")["ada", "total"]["points"] == "40"  # points are counted anew
    (tmp_path / "out/results/ada.json").write_text("half of")
    grade_folder(tmp_path, TABLE, tmp_path / "out", say=said.append)
    assert judged_names[3:] == ["# right of ada"]


def test_a_fault_of_this_machine_costs_no_student_points_and_is_tried_again(tmp_path, judged_names):
    put(tmp_path, "ada", "# refused")
    put(tmp_path, "bob")
    said = []
    assert not grade_folder(tmp_path, TABLE, tmp_path / "out", say=said.append)
    assert "ada.zip could not be graded, so run this again: no process for it" in said
    assert {name for name, _ in rows(tmp_path / "out")} == {"bob"}
    grade_folder(tmp_path, TABLE, tmp_path / "out", say=said.append)
    assert judged_names.count("# refused of ada") == 2 and judged_names.count("# right of bob") == 1


# --- the pages ------------------------------------------------------------------------------------


def test_the_class_page_says_how_often_each_claim_failed_and_links_each_students(tmp_path, judged_names):
    for name in ("ada", "bob & co", "<i>eve"):
        put(tmp_path, name, "# right" if name == "ada" else "# wrong")
    grade_folder(tmp_path, TABLE, tmp_path / "out", say=lambda _: None)
    page = (tmp_path / "out/index.html").read_text()
    assert f'<th>dp.6</th><td>2</td><td></td><td class="text">{record("dp.6").claims[-1].text}</td>' in page
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) == 3
    students_pages = {path.name: path.read_text() for path in (tmp_path / "out/students").iterdir()}
    assert "bob%20%26%20co.html" in " ".join(links) and "bob & co.html" in students_pages
    eve = students_pages["<i>eve.html"]
    assert "<h1>&lt;i&gt;eve</h1>" in eve and "<pre>&lt;b&gt;\\ud800" in eve and "<b>" not in eve
    assert "16.67 of 20 points" in eve


# --- as an instructor does it ---------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(one_judge, tmp_path, capsys, monkeypatch):
    (tmp_path / "points.toml").write_text('[points]\n"pipe.2" = 10\n')
    for n in range(3):
        with zipfile.ZipFile(tmp_path / f"student_{n}.zip", "w") as file:
            file.writestr("labkit/pipe.py", RIGHT["labkit/pipe.py"] + f"# {n}\n".encode())
    command = ["grade", str(tmp_path), "--points", str(tmp_path / "points.toml")]
    graded = warm_python.Program("-m", "labkit.cli", *command, PYTHONPATH=str(ROOT))
    assert graded.prints("1 of 3", within_s=200)  # of which its judge takes some to start
    started = psutil.Process(graded.process.pid).children(recursive=True)
    os.kill(graded.process.pid, signal.SIGINT)
    done = graded.ended()
    assert done.returncode == 130 and "the same command goes on from here" in done.stderr
    assert started and not psutil.wait_procs(started, timeout=10)[1]
    n_done = len({name for name, _ in rows(tmp_path / "grades")})
    monkeypatch.setattr(
        grading, "Judge", lambda *_: contextlib.nullcontext(one_judge)
    )  # the start of one takes seconds
    assert cli.main(command) == 0
    assert f"{n_done} of 3 are graded already" in capsys.readouterr().out
    assert {row["points"] for row in rows(tmp_path / "grades").values()} == {"10"}
