"""The labkit command does what its subcommand says, and loads only what it needs."""

from __future__ import annotations

import io
import runpy
import sys
import types
from pathlib import Path

import pytest

from labkit import check as check_module
from labkit import cli
from labkit.check import CheckResult, Claim
from labkit.todo import TASKS

ROOT = Path(__file__).parents[1]


def test_help_lists_the_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["labkit", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("labkit", run_name="__main__")
    printed = capsys.readouterr().out
    for command in ("doctor", "check", "student", "report", "train"):
        assert f"\n    {command} " in printed


def test_labkit_alone_says_that_a_command_is_missing_and_ends_with_2(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2 and "required: COMMAND" in capsys.readouterr().err


@pytest.fixture
def judged(monkeypatch):
    """The calls of ``check``, which finds dp.3 wrong and all others right."""
    calls = []

    def check(task, hint=None):
        calls.append((task, hint))
        return CheckResult(task, (Claim("it holds", "it does not" if task == "dp.3" else None),))

    monkeypatch.setattr(check_module, "check", check)
    return calls


@pytest.mark.parametrize(
    ("arguments", "status", "tasks", "hint", "message"),
    [
        (["dp.3", "dp.1"], 1, ["dp.3", "dp.1"], None, "it does not"),
        ([], 1, [*TASKS], None, "shard.3 is right"),
        (["dp.1", "--hint", "2"], 0, ["dp.1"], 2, "dp.1 is right"),
    ],
)
def test_check_judges_its_tasks_or_all_and_one_wrong_answer_is_enough_for_1(
    arguments, status, tasks, hint, message, judged, capsys
):
    assert cli.main(["check", *arguments]) == status
    assert judged == [(task, hint) for task in tasks]
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "dp.1", "dp.99"], "labkit check: unknown task 'dp.99', expected one of: dp.1, dp.2, dp.3"),
        (["check", "--hint", "2"], "Name it, as in: check dp.1 --hint 2"),
        (["check", "dp.1", "--from", "x.zip", "--hint", "1"], "leave out one of --hint and --from"),
        (["student", str(ROOT / "labkit")], "is inside the repository"),
    ],
)
def test_what_cannot_be_done_is_refused_without_a_traceback(arguments, message, judged, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err and judged == []


def test_what_the_terminal_cannot_encode_is_shown_by_its_number(judged, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal := io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert cli.main(["check", "dp.1"]) == 0
    terminal.flush()
    assert terminal.buffer.getvalue() == b"dp.1 is right\n  \\u2713 it holds\n"


def test_train_gets_its_arguments_as_they_are_and_is_called_labkit_train(monkeypatch):
    given = {}
    train = types.SimpleNamespace(main=lambda arguments, prog: given.update({prog: arguments}))
    monkeypatch.setitem(sys.modules, "labkit.train", train)
    assert cli.main(["train", "translate", "--world_size", "2", "--help"]) == 0
    assert given == {"labkit train": ["translate", "--world_size", "2", "--help"]}
