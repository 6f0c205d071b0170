"""make gpu: it needs no Jupyter, it waits for nothing but a GPU, and what tests measured is in its
two files."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from environments import PROJECT

SCRIPT = PROJECT / "benchmarks" / "on_gpu.py"
NOT_THERE = ["IPython", "datasets", "ipykernel", "ipywidgets", "jupyter_client", "nbclient", "nbformat", "nbval"]
WITHOUT_JUPYTER = f"""
import runpy, sys
class Absent:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {NOT_THERE}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.slow
def test_without_a_gpu_and_without_jupyter_all_is_collected_and_skipped_for_want_of_a_gpu(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # nbval is a plugin
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", WITHOUT_JUPYTER, str(SCRIPT), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert len(found["tests"]) > 30
    assert {(test["outcome"], test["reason"]) for test in found["tests"].values()} == {
        ("skipped", "Skipped: needs a CUDA GPU")
    }
    assert {"date", "gpus", "torch", "cuda", "nccl", "transformers", "python"} <= set(found["machine"])


def test_every_test_that_needs_a_gpu_is_in_the_folder_that_make_gpu_runs():
    elsewhere = [path for path in (PROJECT / "tests").rglob("test_*.py") if path.parent.name != "gpu"]
    assert [path.name for path in elsewhere if "mark." + "gpu" in path.read_text()] == []


def report(name, when="call", outcome="passed", measured=(), reason=""):
    said = {"longreprtext": reason, "longrepr": ("test_gpu.py", 1, reason), "skipped": outcome == "skipped"}
    properties = [("measured", each) for each in measured]
    return SimpleNamespace(nodeid=name, when=when, outcome=outcome, duration=1.0, user_properties=properties, **said)


def test_numbers_failures_and_what_no_time_was_left_for_are_in_both_files(tmp_path):
    recorder = runpy.run_path(str(SCRIPT))["Recorder"](tmp_path, ends_at=time.monotonic() - 1)
    speed = {"what": "GPT-2 124M", "value": 12345.6, "unit": "tokens/s"}
    for test in (
        report("trains", measured=[speed]),
        report("breaks", outcome="failed", reason="AssertionError: 1 != 2"),
        report("late", when="setup", outcome="skipped", reason="Skipped: no time left"),
    ):
        recorder.pytest_runtest_logreport(test)
        recorder.pytest_runtest_logreport(report(test.nodeid, "teardown", measured=[speed][: test.nodeid == "trains"]))
    found, table = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert found["measured"] == [speed] and "| GPT-2 124M | 12,346 tokens/s |" in table
    assert found["tests"]["breaks"]["reason"] == "AssertionError: 1 != 2" and "| **failed** | breaks |" in table
    assert "| skipped: no time left | 1 |" in table
    with pytest.raises(pytest.skip.Exception, match="no time left"):
        recorder.pytest_runtest_setup()
