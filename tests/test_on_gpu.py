"""make gpu needs no Jupyter, waits for nothing but a GPU, and survives a test that does not end.

A test that hangs or kills its process does not end the others, and what they found is in its two
files.
"""

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
MARK = "mark." + "gpu"  # apart, so that this file does not have it
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
    assert "written to" in done.stdout and len(found["tests"]) > 70
    assert {test["reason"] for test in found["tests"].values()} == {"Skipped: needs a CUDA GPU"}
    assert {"date", "gpus", "torch", "cuda", "nccl", "transformers", "python"} <= set(found["machine"])
    assert {"nvidia-smi -L", "nvidia-smi topo -m", "modes", "GPUs", "launches"} <= set(found["facts"])
    assert "warm, 2 ranks" in found["facts"]["launches"] and "ranks are forked: True" in found["facts"]["launches"]


def test_every_test_that_needs_a_gpu_is_in_the_folder_that_make_gpu_runs():
    elsewhere = [path for path in (PROJECT / "tests").rglob("test_*.py") if path.parent.name != "gpu"]
    assert [path.name for path in elsewhere if MARK in path.read_text()] == []


@pytest.mark.slow
def test_parts_can_be_rehearsed_over_gloo_which_is_then_no_result_of_a_gpu(tmp_path):
    parts = ["faults", "clocks", "messages", "first_steps", "gradients"]
    command = [sys.executable, str(SCRIPT), "--rehearse", "--out", str(tmp_path), *(f"--part={part}" for part in parts)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "rehearsal.json").read_text())
    passed = "".join(name for name, test in found["tests"].items() if test["outcome"] == "passed")
    assert found["rehearsal"] and all(part in passed for part in parts)
    assert "REHEARSAL" in done.stdout and not (tmp_path / "gpu.json").exists()


on_gpu = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
FIVE_TESTS = f"""
import os, time, pytest
pytestmark = pytest.{MARK}
def test_passes(record_property):
    record_property("measured", dict(what="GPT-2 124M", value=12345.6, unit="tokens/s"))
    record_property("fact", ("losses", "8 of 8 agree"))
def test_breaks():
    print("one is not two")
    assert 1 == 2
def test_hangs():
    time.sleep(1000)
def test_kills_its_process():
    os.kill(os.getpid(), 9)
def test_passes_again():
    pass
"""


def results_of(text, folder, minutes=4.0, longest_test_s=10.0):
    (folder / "test_on_a_gpu.py").write_text(text)
    results = on_gpu.Results(folder)
    code = on_gpu.run_tests(results, [folder / "test_on_a_gpu.py"], time.time() + 60 * minutes, longest_test_s)
    return results, code


@pytest.mark.slow
def test_a_test_that_hangs_or_kills_its_process_has_failed_and_the_rest_is_run(tmp_path):
    results, code = results_of(FIVE_TESTS, tmp_path)
    tests = {name.partition("::test_")[2]: test for name, test in results.tests.items()}
    outcomes = dict.fromkeys(("breaks", "hangs", "kills_its_process"), "failed")
    outcomes |= dict.fromkeys(("passes", "passes_again"), "passed")
    assert {name: test["outcome"] for name, test in tests.items()} == outcomes
    assert "within 10 s" in tests["hangs"]["reason"] and "SIGKILL" in tests["kills_its_process"]["reason"]
    assert tests["breaks"]["printed"] == "one is not two\n" and code == 0 and not results.left
    found, page = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert found["measured"] == results.measured and "| GPT-2 124M | 12,346 tokens/s |" in page
    assert found["facts"] == {"losses": "8 of 8 agree"} and "| losses | 8 of 8 agree |" in page
    assert found["tests"] == results.tests and "::test_breaks: assert 1 == 2 |" in page


def test_what_no_time_is_left_for_is_skipped_and_said_to_be(tmp_path):
    results, code = results_of(FIVE_TESTS, tmp_path, minutes=-0.01)
    assert {test["reason"] for test in results.tests.values()} == {"Skipped: no time left"}
    assert code == 0 and "| skipped: no time left | 5 |" in (tmp_path / "gpu.md").read_text()


def test_tests_that_cannot_be_collected_are_a_failure_that_is_written_too(tmp_path):
    results, code = results_of("import no_such_module", tmp_path)
    assert code != 0 and not results.collected
    assert "no_such_module" in (tmp_path / "gpu.md").read_text()
