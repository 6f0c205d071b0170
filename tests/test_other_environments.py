"""What pyproject.toml promises of other environments: newer Pythons, and the oldest packages that
it allows.

Each test runs others of these tests, with another Python or a folder of packages ahead of this
environment's. pip fills such a folder once, in .venv-matrix. `make matrix` runs more, with torch,
in environments of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from itertools import chain

import environments
import pytest
from environments import PROJECT
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"].values()
REQUIREMENTS = [Requirement(text) for text in chain(PYPROJECT["dependencies"], *EXTRAS)]
NEED_NO_TORCH = ["schedule/test_schedule.py", "simulate/test_simulate.py", "cost/test_cost.py", "draw/test_charts.py"]
OF_MODELS = ["test_models.py", "test_gpt2_pipeline.py"]


def oldest(name: str) -> str:
    """Return the requirement of the oldest version that pyproject.toml allows of a package:
    ``"numpy==1.26"``."""
    (requirement,) = (each for each in REQUIREMENTS if each.name == name)
    (specifier,) = requirement.specifier
    return f"{name}=={specifier.version}"


def packages(*arguments):
    """Return a folder that :func:`environments.packages` fills, or skip the test where there is no
    registry."""
    try:
        return environments.packages(*arguments)
    except environments.Offline as error:
        pytest.skip(str(error))


def check_tests_pass(python, folder, tests, *options):
    """Run tests of this folder in a process of their own, with other packages ahead of those of
    this environment."""
    path = os.pathsep.join([str(folder), str(PROJECT)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *(f"tests/{name}" for name in tests)]
    done = subprocess.run(
        command, cwd=PROJECT, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout.splitlines()[-1]


def test_what_needs_no_torch_runs_on_a_newer_python_with_the_oldest_packages():
    """With the newest: make matrix."""
    python = environments.interpreter("3.12")
    if python is None:
        pytest.skip("no Python 3.12 on PATH, and none of pyenv's")
    wanted = [oldest(name) for name in ("matplotlib", "numpy", "pandas", "psutil")]
    folder = packages("python3.12", [*wanted, "hypothesis", "pytest", "pytest-timeout"], python)
    # What holds for any example was tried on many here; another Python would not change it.
    check_tests_pass(python, folder, NEED_NO_TORCH, "-m", "not hypothesis")


def test_the_models_run_on_the_oldest_transformers_promised():
    folder = packages("transformers", [oldest("transformers")])
    check_tests_pass(sys.executable, folder, OF_MODELS)
