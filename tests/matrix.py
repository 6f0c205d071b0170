"""Run the tests of ranks, models and pipelines on other Pythons and versions of torch: make matrix.

    python tests/matrix.py [py312-torch2.9 ...]

Each has an environment of its own in .venv-matrix, made the first time: two minutes, and 5 to 7 GB
with torch's CUDA packages. It is no part of CI. An interpreter that is neither on PATH nor pyenv's
is named, and left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import environments
from environments import FOLDER, PROJECT

# name: version of Python, and what decides. transformers is what GPU images have today.
MATRIX = {
    "py312-torch2.11": ("3.12", ["torch==2.11.0", "transformers==5.17.0"]),
    "py313-torch2.11": ("3.13", ["torch==2.11.0", "transformers==5.17.0"]),
    "py312-torch2.9": ("3.12", ["torch==2.9.1", "transformers==5.17.0"]),
}
OTHERS = ["cloudpickle", "hypothesis", "ipykernel", "jupyter-client", "matplotlib", "numpy", "pandas", "psutil"]
OTHERS += ["pytest", "pytest-timeout", "pytest-xdist", "sacrebleu", "scikit-learn", "tqdm", "anywidget", "accelerate"]
ROOMS = ["base", "trace", "parallel", "ranks", "train", "examples"]
FILES = ["test_launch*", "test_link*", "test_dp*", "test_buckets*", "test_reducer*", "test_pipe*", "test_scheduled_*"]
FILES += ["test_models*", "test_gpt2*", "test_explorer", "test_measure", "test_recorded_*", "test_overlap_run"]


def main(names: list[str]) -> int:
    """Run the named environments, or all; 0 if at least one ran and every test passed."""
    if unknown := set(names) - set(MATRIX):
        print(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(MATRIX)}")
        return 2
    results = {}
    for name in names or MATRIX:
        version, requirements = MATRIX[name]
        python = environments.interpreter(version)
        try:
            results[name] = run(name, python, requirements) if python else f"left out: there is no Python {version}"
        except environments.Offline as error:
            results[name] = f"left out: {error}"
        print(f"{name}: {results[name]}", flush=True)
    print("", *(f"{name:<18}{result}" for name, result in results.items()), sep="\n")
    ran = [result for result in results.values() if not result.startswith("left out")]
    return 0 if ran and all(result.startswith("passed") for result in ran) else 1


def run(name: str, python: str, requirements: list[str]) -> str:
    """Make the environment if it is not there, and run the tests in it. Returns how that went, in a
    few words."""
    folder = FOLDER / name
    if not (folder / "ready").exists():
        print(f"{name}: pip installs {', '.join(requirements)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        environments.install([*requirements, *OTHERS], str(folder / "bin" / "python"))
        (folder / "ready").touch()
    command = [
        folder / "bin" / "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "--dist",
        "loadfile",
    ]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    code = subprocess.run([*command, *tests()], cwd=PROJECT, env=environment).returncode
    return "passed" if code == 0 else f"failed: pytest ended with {code}"


def tests() -> list[str]:
    """Return the files of tests that need ranks, models or pipelines, wherever in tests/ they
    are."""
    there = PROJECT / "tests"
    found = [path for pattern in FILES for path in there.rglob(f"{pattern}.py")]
    found += [path for room in ROOMS for path in (there / room).glob("test_*.py")]
    return sorted({str(path.relative_to(PROJECT)) for path in found if path.parent.name != "browser"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
