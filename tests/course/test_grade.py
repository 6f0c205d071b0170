### INSTRUCTORS ONLY: this file hands in answers, so it is not in the student edition
"""Archives judged in a copy of the lab, and a folder of them graded: no answer touches another."""

import codecs
import contextlib
import csv
import fcntl
import io
import os
import re
import shutil
import signal
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import nbformat
import psutil
import pytest
import warm_python
from nbformat.v4 import new_markdown_cell, new_notebook

from labkit import cli
from labkit.base.course import Course, Part
from labkit.base.lab import PACKAGE
from labkit.check import CheckResult, record, restrictions
from labkit.course import archive, grading
from labkit.course.archive import STUDENT_FILES
from labkit.course.grading import Request, grade_folder
from labkit.course.judge import Judge, judge_in_copy
from labkit.course.student import write_student_edition

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
        process.end(idle=True)  # all that it sees is a closed connection, as where the grader was killed
        assert not process.scratch.exists()
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


# --- a folder of archives -------------------------------------------------------------------------


TAUGHT = Course("Buckets", (Part("One", (), {"dp.6": 10, "pipe.2": 10}),))


def grade(folder: Path, **options) -> tuple[bool, list[str]]:
    """Whether all could be graded, and what was said."""
    printed = list[str]()
    return grade_folder(
        Request(folder, **{"course": TAUGHT, "out": folder / "grades", **options}), printed.append
    ), printed


@pytest.fixture
def judged_names(monkeypatch) -> list[str]:
    """What was judged, by the first line of each dp.py; nothing is started for it.

    One that begins with "# wrong" fails in dp.6, with "# refused" cannot be judged on this machine,
    with "# todo" is unfilled.
    """
    names = []

    def fake(files, tasks, judge):
        first = files["labkit/dp.py"].decode(errors="replace").splitlines()[0]
        names.append(first)
        if "refused" in first:
            raise RuntimeError("no process for it")
        for task in tasks:
            if "todo" in first and task == "dp.6":
                yield CheckResult(task, todo="TODO dp.6: labkit/dp.py, line 42")
                continue
            wrong = "wrong" in first and task == "dp.6"
            *others, last = record(task).claims
            last = replace(last, wrong="<b>\ud800\nand more" if wrong else None)  # an answer may raise any text
            yield CheckResult(task, (*others, last), seconds=1.5)

    monkeypatch.setattr(grading, "Judge", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(grading, "judge_in_copy", fake)
    return names


def put(folder: Path, name: str, first_line: str = "# right") -> None:
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as file:
        file.writestr("labkit/dp.py", os.fsencode(f"{first_line} of {name}\n"))


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
    (tmp_path / "gone.zip").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.zip").symlink_to(tmp_path / "loop.zip")
    (tmp_path / "folder.zip").mkdir()
    os.mkfifo(tmp_path / "pipe.zip")  # whoever opens it waits for ever
    put(tmp_path, "crc")
    content = (tmp_path / "crc.zip").read_bytes()
    (tmp_path / "crc.zip").write_bytes(content.replace(b"# right of crc", b"# wrong of crc"))
    for name in ("note.txt", "guesses.html"):  # the second is from labkit guesses
        (tmp_path / name).write_text("")
    (tmp_path / "._ada.zip").write_bytes(b"")  # as macOS leaves it
    complete, printed = grade(tmp_path, jobs=2)
    assert complete and "left out, because they are not .zip, .tar.gz or .tgz: note.txt" in printed
    found = rows(tmp_path / "grades")
    assert {name: row["points"] for (name, task), row in found.items() if task == "total"} == {
        **{"ada": "20", "bob": "16.67"},
        **dict.fromkeys(("empty", "broken", "huge", "gone", "loop", "folder", "pipe", "crc"), "0"),
    }
    assert found["bob", "dp.6"]["claims"] == "2/3" and found["bob", "dp.6"]["first_finding"].endswith(
        "as it is: <b>\\ud800"
    )
    assert found["bob", "total"]["seconds"] == "3"
    for name, says in [
        ("huge", "more than 1,048,576 bytes"),
        ("gone", "No such file"),
        ("folder", "has no labkit/dp.py"),
    ]:
        assert says in found[name, "total"]["first_finding"]
    assert "Bad CRC-32" in found["crc", "total"]["first_finding"]
    assert "it is not a file" in found["pipe", "total"]["first_finding"]
    assert str(tmp_path) not in (tmp_path / "grades/grades.csv").read_text()


ODD = {  # what a student may call an archive, and the name of its row
    "J\udcfcrgen": "J\\xfcrgen",  # in Latin-1
    "J\\xfcrgen": "J\\\\xfcrgen",
    'a, "b"\n;c': 'a, "b"\\n;c',
    "=1+1": "'=1+1",
    "🎓": "🎓",
    "x" * 251: "x" * 251,
    "é" * 124: "é" * 124,
    "alice": "alice.zip",
    "Alice": "Alice.zip",
    "bob.zip": "bob.zip",
}


def test_each_archive_has_its_row_whatever_it_is_called_and_nothing_is_overwritten(tmp_path, judged_names):
    for name in ODD:
        put(tmp_path, name)
    (tmp_path / "alice.ZIP").write_bytes(b"")
    assert grade(tmp_path)[0]
    names = sorted(name for name, task in rows(tmp_path / "grades") if task == "total")
    assert names == sorted([*ODD.values(), "alice.ZIP"])
    for kind in ("results/*.json", "students/*.md"):
        assert len(list((tmp_path / "grades").glob(kind))) == len(ODD) + 1
    _, printed = grade(tmp_path)
    assert printed[0] == f"{len(ODD) + 1} of {len(ODD) + 1} are graded already" and len(judged_names) == len(ODD)


def test_what_is_graded_is_not_graded_again_unless_its_archive_changes(tmp_path, judged_names):
    for name in ("ada", "bob"):
        put(tmp_path, name)
    grade(tmp_path)
    assert sorted(judged_names) == ["# right of ada", "# right of bob"]
    put(tmp_path, "bob", "# wrong")
    _, printed = grade(tmp_path, course=TAUGHT._replace(parts=(Part("One", (), {"dp.6": 30, "pipe.2": 10}),)))
    assert judged_names[2:] == ["# wrong of bob"] and printed[0] == "1 of 2 are graded already"
    seed = int((tmp_path / "grades/results/seed").read_text())
    assert printed[1].startswith(f"cases are drawn with seed={seed}, for all alike")
    assert rows(tmp_path / "grades")["ada", "total"]["points"] == "40"  # points are counted anew
    (tmp_path / "grades/results/ada.json").write_text("half of")
    grade(tmp_path)
    assert judged_names[3:] == ["# right of ada"]
    grade(tmp_path, only="bob")
    assert judged_names[4:] == ["# wrong of bob"] and ("ada", "total") in rows(tmp_path / "grades")
    with pytest.raises(ValueError, match="--only eve: nobody has this name, expected one of: ada, bob"):
        grade(tmp_path, only="eve")


def test_a_fault_of_this_machine_costs_no_student_points_and_is_tried_again(tmp_path, judged_names):
    put(tmp_path, "ada", "# refused")
    put(tmp_path, "bob")
    complete, printed = grade(tmp_path)
    assert not complete and "ada could not be graded, so run this again: no process for it" in printed
    assert {name for name, _ in rows(tmp_path / "grades")} == {"bob"}
    grade(tmp_path)
    assert judged_names.count("# refused of ada") == 2 and judged_names.count("# right of bob") == 1


# --- what an LMS downloads ------------------------------------------------------------------------


def tar_of(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(folder / name, "w:gz") as tar:
        for file, content in files.items():
            info = tarfile.TarInfo(file)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return folder / name


def test_names_come_from_the_lms_and_students_of_one_name_have_rows_of_their_own(tmp_path, judged_names):
    moodle = {
        "Ada Lovelace_12_assignsubmission_file",
        "Jürgen, O'Neil_13_assignsubmission_file_",
        "Eve_14_assignsubmission_file",
    }
    for folder in moodle:
        (tmp_path / folder).mkdir()
    for folder in sorted(moodle)[:1]:
        put(tmp_path / folder, "submission")
    (tmp_path / "Jürgen, O'Neil_13_assignsubmission_file_" / "dp.py").write_text("# right, and alone\n")
    for name in (
        "turingalan_LATE_5_6_submission-1",
        "turingalan_7_8_submission",
        "Bob_15_assignsubmission_file_my work",
    ):
        put(tmp_path, name)
    tar_of(tmp_path, "hopper_9_10_submission.tar.gz", {"./lab/labkit/dp.py": b"# right, in a tar file\n"})
    (tmp_path / "notes").mkdir()
    _, printed = grade(tmp_path)
    assert printed[0] == "left out, because they are not .zip, .tar.gz or .tgz: notes"
    found = {name: row for (name, task), row in rows(tmp_path / "grades").items() if task == "total"}
    alans = {f"turingalan_{each}.zip" for each in ("LATE_5_6_submission-1", "7_8_submission")}
    assert {*found} == {"Ada Lovelace", "Jürgen, O'Neil", "Eve", "Bob", "hopper", *alans}
    assert found["Eve"]["first_finding"].endswith(
        "has no labkit/dp.py and no labkit/pipe.py: expected an archive from labkit submit"
    )
    assert {row["points"] for name, row in found.items() if name != "Eve"} == {"20"}


def test_a_tar_file_that_unpacks_without_end_or_leads_elsewhere_is_an_error_in_its_row(
    tmp_path, judged_names, monkeypatch
):
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 10_000_000)
    tar_of(tmp_path, "bomb.tgz", {"runs/x.json": bytes(30 << 20), "labkit/dp.py": b"#\n"})
    with tarfile.open(tmp_path / "link.tgz", "w:gz") as tar:
        info = tarfile.TarInfo("labkit/dp.py")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    grade(tmp_path)
    assert "more than 10 MB unpacked" in rows(tmp_path / "grades")["bomb", "total"]["first_finding"]
    assert "has no labkit/dp.py" in rows(tmp_path / "grades")["link", "total"]["first_finding"] and not judged_names


# --- what it writes -------------------------------------------------------------------------------


def test_a_students_page_has_findings_written_answers_and_links_to_report_and_code(tmp_path, judged_names):
    answers = new_notebook(
        cells=[
            new_markdown_cell("**Why?**", metadata={"tags": ["question"]}),
            new_markdown_cell("Because.\n\n# Of bytes", metadata={"tags": ["answer"]}),
            new_markdown_cell("**And then?**", metadata={"tags": ["question"]}),
        ]
    )
    with zipfile.ZipFile(tmp_path / "=1+1 & co.zip", "w") as file:
        file.writestr("labkit/dp.py", "# wrong\nimport numpy\n")
        file.writestr("notebooks/05_sync.ipynb", nbformat.writes(answers))
        file.writestr("notebooks/05_sync.html", "no report")
        file.writestr("notebooks/06_bad.ipynb", "{")
        file.writestr("report-05.html", "<script>steal()</script>")
    grade(tmp_path, wide=True)
    students = tmp_path / "grades" / "students"
    (page,) = students.glob("*.md")
    text, folder = page.read_text(), students / page.stem
    assert "16.67 of 20 points" in text and "    dp.6 is not right yet\n      ✓ " in text
    assert "> Because.\n> \n> # Of bytes" in text and "> *not answered*" in text
    assert "- notebooks/06_bad.ipynb cannot be read as a notebook" in text
    links = {unquote(each) for each in re.findall(r"\(<(.+?)>\)", text)}
    assert links == {f"{page.stem}/{name}" for name in ("report-05.html", "dp.py")}
    assert (folder / "dp.py").read_bytes() == b"# wrong\nimport numpy\n"
    assert re.match(
        rb"<!DOCTYPE html><meta [^>]+default-src 'none'[^>]+>\s*<script>", (folder / "report-05.html").read_bytes()
    )
    wide = (tmp_path / "grades/grades_wide.csv").read_bytes()
    (row,) = csv.DictReader(io.StringIO(wide.decode("utf-8-sig")))
    assert wide.startswith(codecs.BOM_UTF8) and row["name"] == "'=1+1 & co" and row["dp.6"] == "6.67"
    assert "numpy" in row["broken_rules"] or not restrictions.broken("labkit/dp.py", b"import numpy")


def test_the_summary_says_what_was_wrong_how_often_and_counts_what_is_still_to_do(tmp_path, judged_names):
    for name, first in {"ada": "# right", "bob": "# wrong", "eve": "# wrong", "kim": "# todo"}.items():
        put(tmp_path, name, first)
    (tmp_path / "lea.zip").write_bytes(b"")
    _, printed = grade(tmp_path)
    assert "4 archives have 10 to 20 of 20 points: mean 15.8, median 16.67" in "\n".join(printed)
    assert re.search(r"^dp.6 +1 +2 +1 +5.8 of 10", "\n".join(printed), re.MULTILINE)
    assert f"   2 × dp.6: {record('dp.6').claims[-1].text}" in printed and printed[-1] == "1 could not be read: lea"


def test_two_graders_do_not_write_into_one_folder_at_once(tmp_path, judged_names):
    put(tmp_path, "ada")
    (tmp_path / "grades/results").mkdir(parents=True)
    with (tmp_path / "grades/results/.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=r"another labkit grade writes into .*grades: wait until it has ended"):
            grade(tmp_path)
    assert not judged_names and grade(tmp_path)[0]


# --- as an instructor does it ---------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(one_judge, tmp_path, capsys, monkeypatch):
    (tmp_path / "one.toml").write_text('title = "One"\n[[parts]]\nname = "I"\ntasks = {"pipe.2" = 10}\n')
    for n in range(3):
        with zipfile.ZipFile(tmp_path / f"student_{n}.zip", "w") as file:
            file.writestr("labkit/pipe.py", RIGHT["labkit/pipe.py"] + f"# {n}\n".encode())
    command = ["grade", str(tmp_path), "--course", str(tmp_path / "one.toml")]
    graded = warm_python.Program("-m", "labkit", *command, PYTHONPATH=str(ROOT))
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


# --- as a student hands in ------------------------------------------------------------------------


FIRST_ATTEMPT = """def clock_cycles(num_batches, num_partitions):
    yield from ([(c, 0)] for c in range(num_batches))


"""


@pytest.mark.slow
def test_what_a_student_submits_is_checked_from_the_archive_as_before_it_was_packed(
    one_judge, tmp_path, capsys, monkeypatch
):
    for part in ("labkit", "notebooks", "data"):
        ignored = shutil.ignore_patterns("__pycache__", "0[1-46-9]*", "1*")
        shutil.copytree(ROOT / part, tmp_path / "repository" / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "repository")
    lab = tmp_path / "my course ü" / "lab"
    write_student_edition(lab, tmp_path / "repository")
    pipe = (ROOT / "labkit/pipe.py").read_text()
    before, definition, after = pipe.partition("def clock_cycles(")
    (lab / "labkit/pipe.py").write_text(before + FIRST_ATTEMPT + definition + after)  # a first attempt above it
    (lab / "venv/lib").mkdir(parents=True)
    (lab / "venv/lib/x.py").write_text("")
    command = ["submit", "--only", "dp.1, pipe.2", "--out", "mine.zip"]
    ended = warm_python.run("-m", "labkit", *command, folder=lab, PYTHONPATH=str(lab))
    assert ended.returncode == 1 and not ended.stderr
    rows = [line for line in ended.stdout.splitlines() if line.startswith(("dp.1 ", "pipe.2 "))]
    assert rows[0].startswith("dp.1    no      TODO dp.1: labkit/dp.py, line ") and rows[1] == "pipe.2  yes"
    assert "you have not run 05; it needs dp.3, dp.4 and your guesses" not in ended.stdout  # not its tasks
    assert "you have not run 00; it needs dp.2 and your guesses" not in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("Next: dp.1 is not right yet; labkit check dp.1 says more.")
    assert "venv" not in ended.stdout
    monkeypatch.setattr(grading, "Judge", lambda: contextlib.nullcontext(one_judge))
    cli.main(["check", "--from", str(lab / "mine.zip")])
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(("dp.1 ", "pipe.2 "))] == rows
