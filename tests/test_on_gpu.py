"""make gpu needs no Jupyter, and waits for nothing but a GPU: a rehearsal over gloo runs without
one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
# Without faults, first_steps, rates and times, whose rehearsal mostly waits.
PARTS = ["facts", "clocks", "messages", "gradients", "pipelines", "training"]


@pytest.mark.slow
def test_without_a_gpu_and_without_jupyter_parts_are_collected_and_rehearsed_over_gloo(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # nbval is a plugin
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", WITHOUT_JUPYTER, str(SCRIPT), "--out", str(tmp_path / "out"), "--rehearse"]
    command += [f"--part={part}" for part in PARTS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "rehearsal.json").read_text())
    outcomes = [test["outcome"] for test in found["tests"].values()]
    assert found["rehearsal"] and not (tmp_path / "out" / "gpu.json").exists()  # which is no result of a GPU
    assert len(outcomes) > 30 and outcomes.count("passed") > 5
    assert found["measured"] and "ranks are forked: True" in found["facts"]["launches"]
    reasons = {test["reason"] for test in found["tests"].values() if test["outcome"] == "skipped"}
    assert reasons == {"Skipped: needs a CUDA GPU"}
