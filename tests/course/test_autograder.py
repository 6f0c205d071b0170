### INSTRUCTORS ONLY: this file hands in answers, so it is not in the student edition
"""Gradescope gets results whatever an answer does: within its time, and for each task by itself."""

import contextlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from labkit import cli
from labkit.base.course import Course, Part
from labkit.check import CheckResult, record
from labkit.course import autograder
from labkit.course.autograder import Settings, grade

ROOT = Path(__file__).parents[2]
TAUGHT = Course("One", (Part("I", (), {"dp.6": 10, "pipe.2": 6, "pipe.3": 4}),))
START_S = 20.0  # what a new judge takes in these tests


@pytest.fixture
def container(tmp_path) -> Path:
    """A folder as Gradescope lays it out."""
    for name in ("source", "submission", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "submission" / "dp.py").write_text("")
    return tmp_path


class FakeJudge:
    """A judge in a time of its own, in which a start and a check take seconds."""

    now, running = 0.0, False

    def start(self):
        type(self).now += 0.0 if self.running else START_S
        self.running = True


@pytest.fixture
def seen(container, monkeypatch) -> list[list[dict]]:
    """The tests in results.json before each task is judged; those in ``LOOPS`` never end."""
    before = []

    def judge_in_copy(files, tasks, judge):
        for task in tasks:
            before.append(json.loads((container / "results/results.json").read_text())["tests"])
            loops = task in LOOPS
            FakeJudge.now += judge.limit_s if loops else 2.0
            judge.running &= not loops
            fault = f"its check took more than {judge.limit_s:g} s, and was ended" if loops else ""
            yield CheckResult(task, () if loops else tuple(record(task).claims), fault=fault)

    FakeJudge.now = 0.0
    monkeypatch.setattr(autograder, "Judge", lambda: contextlib.nullcontext(FakeJudge()))
    monkeypatch.setattr(autograder, "judge_in_copy", judge_in_copy)
    monkeypatch.setattr(autograder.time, "monotonic", lambda: FakeJudge.now)
    return before


LOOPS = set()


@pytest.mark.parametrize("loops", [(), ("pipe.2",), ("dp.6", "pipe.2", "pipe.3")], ids=str)
def test_a_task_that_never_ends_costs_itself_and_gradescope_ends_nothing(loops, container, seen, monkeypatch):
    monkeypatch.setitem(globals(), "LOOPS", {*loops})
    grade(container, TAUGHT, Settings(minutes=4))
    tests = json.loads((container / "results/results.json").read_text())["tests"]
    assert [test["max_score"] for test in tests] == [10, 6, 4]
    assert [test["score"] for test in tests] == [0 if task in loops else worth for task, worth in TAUGHT.points.items()]
    assert ["its check took more than" in test["output"] for test in tests] == [task in loops for task in TAUGHT.tasks]
    assert FakeJudge.now <= 4 * 60


def test_results_are_written_anew_after_each_task(container, seen):
    grade(container, TAUGHT, Settings(visibility="after_published"))
    not_yet = [[test["output"] for test in tests].count(autograder.NOT_YET) for tests in seen]
    assert not_yet == [3, 2, 1]
    assert {test["visibility"] for test in seen[-1]} == {"after_published"}


def test_what_cannot_be_read_says_so_in_each_row_and_an_archive_that_was_not_unpacked_is_read(container, seen):
    (container / "submission" / "dp.py").unlink()
    grade(container, TAUGHT, Settings())
    results = json.loads((container / "results/results.json").read_text())
    says = "submission has no labkit/dp.py and no labkit/pipe.py: expected an archive from labkit submit"
    assert results["output"] == says and {test["output"] for test in results["tests"]} == {says}
    with zipfile.ZipFile(container / "submission" / "submission.zip", "w") as file:
        file.writestr("labkit/dp.py", "")
    grade(container, TAUGHT, Settings())
    assert len(seen) == 3


def test_what_gradescope_does_not_allow_is_refused(tmp_path, capsys):
    assert cli.main(["autograder", str(tmp_path / "a.zip"), "--minutes", "60"]) == 2
    assert "--minutes is 60, expected what Gradescope allows: 1 to 40" in capsys.readouterr().err
    (tmp_path / "a.zip").write_text("no archive")
    assert cli.main(["autograder", str(tmp_path / "a.zip")]) == 2
    assert "is not an archive, and only one is replaced" in capsys.readouterr().err
    assert (tmp_path / "a.zip").read_text() == "no archive"


@pytest.mark.slow
def test_run_autograder_judges_what_was_handed_in_in_a_folder_laid_out_as_on_gradescope(container):
    (container / "one.toml").write_text('title = "One"\n[[parts]]\nname = "I"\ntasks = {"pipe.1" = 4, "pipe.2" = 6}\n')
    assert cli.main(["autograder", str(container / "a.zip"), "--course", str(container / "one.toml")]) == 0
    with zipfile.ZipFile(container / "a.zip") as archive:
        executable = [each.filename for each in archive.infolist() if each.external_attr >> 16 & 0o111]
        archive.extractall(container / "source")
    assert {"setup.sh", "run_autograder"} <= {*executable}
    right = (ROOT / "labkit/pipe.py").read_text()
    (container / "submission" / "pipe.py").write_text(f"{right}\n\ndef split_module(modules):\n    return [], []\n")
    (container / "run_autograder").write_bytes((container / "source/run_autograder").read_bytes())
    (container / "venv").symlink_to(sys.prefix)
    subprocess.run(["bash", "run_autograder"], cwd=container, check=True, timeout=200)
    results = json.loads((container / "results/results.json").read_text())
    assert [(test["name"], test["score"], test["max_score"]) for test in results["tests"]] == [
        ("pipe.1: split_module", 0, 4),
        ("pipe.2: clock_cycles", 6, 6),
    ]
    assert (
        results["tests"][0]["output"].startswith("pipe.1 is not right yet") and "labkit/dp.py" not in results["output"]
    )
