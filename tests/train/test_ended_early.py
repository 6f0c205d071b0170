"""A run that is ended early keeps the steps that it has taken, and says so in its last line."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from to_do import task
from train_commands import terminal, without_torchrun

from labkit import train
from labkit.train import steps_file
from labkit.train.trainer import Step

needs_answers = task("dp.1", "dp.4")
TASKS = {
    "translate": [
        "--source",
        "shipped",
        "--languages",
        "de",
        "en",
        "--size",
        "nano",
        "--limit",
        "64",
        "--limit-eval",
        "8",
        "--no-bleu",
    ],
    "glue": ["--data-dir", "shipped", "--model", "", "--vocab-size", "300", "--limit", "64", "--no-dropout"],
}


def began(name: str, folder: Path) -> Any:
    """A run on two ranks that would go on for long, once both have taken steps."""
    program = terminal(name, *TASKS[name], "--epochs", "5000", "--batch-size", "16", "--output-dir", str(folder))
    until = time.monotonic() + 120
    while time.monotonic() < until and program.process.is_alive():
        file = folder / steps_file.NAME
        if file.is_file() and {"0", "1"} <= {line.partition(",")[0] for line in file.read_text().splitlines()[1:]}:
            return program
        time.sleep(0.02)
    raise AssertionError(program.ended().stderr)


def rank_processes(of: int) -> list[psutil.Process]:
    below = psutil.Process(of).children(recursive=True)
    return [each for each in below if each.ppid() != of]


@needs_answers
@pytest.mark.parametrize(
    ("name", "signal_to", "ends"),
    [
        ("translate", "a rank", r"^rank \d was killed by SIGKILL"),
        ("glue", "the command", "^interrupted: all processes that this one has started are ended"),
        pytest.param("translate", "all, as a batch system does", "^interrupted: ", marks=pytest.mark.slow),
    ],
)
def test_its_last_line_says_where_how_many_steps_are(name: str, signal_to: str, ends: str, tmp_path: Path) -> None:
    program = began(name, tmp_path / "run")
    if signal_to == "a rank":
        rank_processes(program.process.pid)[-1].kill()
    else:
        os.kill(program.process.pid, signal.SIGINT if signal_to == "the command" else signal.SIGTERM)
    done = program.ended()
    assert done.returncode == (1 if signal_to == "a rank" else 130) and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    found = re.search(rf"{ends}.*; the run's first (?:(\d+) steps are|step is) in (.*)$", last)
    assert found, last
    steps = pd.read_csv(found[2])
    assert tuple(steps.columns) == Step._fields and set(steps["rank"]) == {0, 1}
    assert sorted(set(steps.step)) == list(range(1, int(found[1] or 1) + 1))
    assert sorted({path.name for path in (tmp_path / "run").iterdir()}) == [steps_file.NAME]


@pytest.mark.slow
@needs_answers
def test_what_is_killed_outright_has_left_its_steps(tmp_path: Path) -> None:
    program = began("translate", tmp_path)
    program.process.kill()
    program.ended()
    assert len(pd.read_csv(tmp_path / steps_file.NAME)) >= 2


@needs_answers
def test_a_row_that_is_written_at_once_reads_as_the_record_does(tmp_path: Path) -> None:
    config = train.TranslateConfig("shipped", "nano", 300, limit=9, limit_eval=4, epochs=2, batch_size=4, bleu=False)
    result = train.translate(replace(config, output_dir=str(tmp_path)))
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / steps_file.NAME), result.steps)


def test_steps_never_stand_beside_the_results_of_an_earlier_run(tmp_path: Path, monkeypatch: Any) -> None:
    without_torchrun(monkeypatch)
    flags = ["glue", *TASKS["glue"], "--sync", "none", "--output-dir", str(tmp_path), "--overwrite-output-dir"]
    train.main([*flags, "--iterations", "2"])
    assert (tmp_path / "merged.json").is_file()
    with pytest.raises(SystemExit, match=r"from step 2 on; the run's first step is in .*steps\.csv"):
        train.main([*flags, "--lr", "1e35"])
    assert not (tmp_path / "merged.json").exists() and not (tmp_path / "loss_0.txt").exists()
    assert steps_file.steps_kept(str(tmp_path), time.time() + 1) == ""  # a run that begins now has none
