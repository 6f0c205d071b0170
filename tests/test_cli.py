"""The labkit command does what its subcommand says, and loads only what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from labkit import check as check_module
from labkit import cli
from labkit.check import CheckResult, Claim
from labkit.course import student
from labkit.todo import TASKS

ROOT = Path(__file__).parents[1]


def test_help_lists_the_commands_and_loads_neither_torch_nor_pandas():
    code = (
        "import runpy, sys\nsys.argv = ['labkit', '--help']\n"
        "try: runpy.run_module('labkit.cli', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'pandas', 'numpy', 'IPython'} & set(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for command in ("doctor", "check", "student", "report", "train"):
        assert f"\n    {command} " in run.stdout


def result(passed: bool):
    return lambda task, hint=None: CheckResult(task, (Claim("it holds", None if passed else "it does not"),))


def test_check_judges_the_tasks_it_is_given_and_ends_with_0_if_all_are_right(monkeypatch, capsys):
    monkeypatch.setattr(check_module, "check", result(True))
    assert cli.main(["check", "dp.1", "dp.4"]) == 0
    output = capsys.readouterr().out
    assert "dp.1 is right" in output and "dp.4 is right" in output and "dp.2" not in output


def test_what_the_terminal_cannot_encode_is_shown_by_its_number():
    code = (
        "from labkit import check, cli\n"
        "check.check = lambda task, hint=None: check.CheckResult(task, (check.Claim('it holds', None),))\n"
        "raise SystemExit(cli.main(['check', 'dp.1']))"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.stdout == "dp.1 is right\n  \\u2713 it holds\n", run.stderr
    assert run.returncode == 0


def test_check_without_a_task_judges_all(monkeypatch, capsys):
    monkeypatch.setattr(check_module, "check", result(True))
    assert cli.main(["check"]) == 0
    assert capsys.readouterr().out.count(" is right\n") == len(TASKS)


def test_one_wrong_answer_is_enough_for_exit_status_1(monkeypatch, capsys):
    monkeypatch.setattr(check_module, "check", lambda task, hint: result(task != "dp.1")(task))
    assert cli.main(["check", "dp.1", "dp.2"]) == 1
    assert "it does not" in capsys.readouterr().out


def test_check_gives_the_hint_that_it_is_asked_for(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(check_module, "check", lambda task, hint: seen.append((task, hint)) or result(True)(task))
    assert cli.main(["check", "dp.1", "--hint", "2"]) == 0
    assert seen == [("dp.1", 2)]


def test_a_hint_without_a_task_is_refused_as_it_would_count_for_all(monkeypatch, capsys):
    monkeypatch.setattr(check_module, "check", lambda task, hint: pytest.fail("it was judged"))
    assert cli.main(["check", "--hint", "2"]) == 2
    assert "Name it, as in: check dp.1 --hint 2" in capsys.readouterr().err


def test_an_unknown_task_is_refused_with_the_known_ones(capsys):
    assert cli.main(["check", "dp.1", "dp.99"]) == 2
    assert "unknown task 'dp.99', expected one of: dp.1, dp.2, dp.3" in capsys.readouterr().err


def test_student_writes_an_edition_and_says_what_is_left_to_do(monkeypatch, capsys):
    monkeypatch.setattr(student, "write_student_edition", lambda directory: ["dp.1", "dp.4"])
    assert cli.main(["student", "there"]) == 0
    assert capsys.readouterr().out == "The student edition is in there, with these tasks to do: dp.1, dp.4\n"


def test_student_refuses_a_directory_in_the_repository_without_a_traceback(capsys):
    assert cli.main(["student", str(ROOT / "labkit")]) == 2
    assert "labkit student: " in (error := capsys.readouterr().err)
    assert "is inside the repository" in error


def test_train_gets_its_arguments_as_they_are(monkeypatch):
    given = []
    monkeypatch.setitem(sys.modules, "labkit.train", types.SimpleNamespace(main=given.extend))
    assert cli.main(["train", "translate", "--world_size", "2", "--help"]) == 0
    assert given == ["translate", "--world_size", "2", "--help"]


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["student"]])
def test_a_wrong_call_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert "usage: labkit" in capsys.readouterr().err
