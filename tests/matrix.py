"""Run the tests of ranks, models and pipelines elsewhere: make matrix.

    python tests/matrix.py [newest py312-oldest aten-avx2 visitor ...]

- Other Pythons and versions of torch. Each has an environment of its own in .venv-matrix, made the
  first time: two minutes, and 5 to 7 GB with torch's CUDA packages. An interpreter that is neither
  on PATH nor pyenv's is named, and left out.
- ``newest``: this Python with the newest of every package, as people get who install without the
  constraints. It is made anew each time. torch alone keeps its version.
- Other kernels of this machine's CPU: they add up in another order, as other machines do.
- ``visitor``: an ordinary user (``nobody``, where this one is root) without a home to write to, in
  a clone of what is committed, whose path has a space and an umlaut.

It is not part of CI.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import environments
from environments import FOLDER, PROJECT

NEWEST = "newest"
# name: version of Python, and what decides. transformers is what GPU images have today.
MATRIX = {
    NEWEST: ("{}.{}".format(*sys.version_info), ["torch==2.13.0", "transformers"]),
    "py312-torch2.11": ("3.12", ["torch==2.11.0", "transformers==5.17.0"]),
    "py313-torch2.11": ("3.13", ["torch==2.11.0", "transformers==5.17.0"]),
    "py312-oldest": ("3.12", ["torch==2.9.1", "transformers==5.4", "numpy==1.26", "pandas==2.2", "matplotlib==3.10"]),
}
KERNELS = {
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "one-thread": {"OMP_NUM_THREADS": "1"},
}
# It may read all that root may, as its Python may lie in root's home, and write to its own alone.
VISITOR = ["setpriv", "--reuid=nobody", "--clear-groups", "--regid=65534"]
VISITOR += [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
NAMES = [*MATRIX, *KERNELS, "visitor"]
OTHERS = [
    "accelerate",
    "anywidget",
    "cloudpickle",
    "datasets",
    "hypothesis",
    "ipykernel",
    "jupyter-client",
    "matplotlib",
]
OTHERS += ["nbformat", "numpy", "pandas", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "sacrebleu"]
OTHERS += ["scikit-learn", "tqdm"]
PACKAGES = ["base", "trace", "parallel", "ranks", "train", "examples"]
FILES = ["test_link*", "test_dp*", "test_reducer*", "test_pipe*", "test_scheduled_*"]
FILES += ["test_models*", "test_gpt2*", "test_explorer", "test_measure"]


def main(names: list[str]) -> int:
    """Run the named environments, or all; 0 if at least one ran and every test passed."""
    if unknown := set(names) - set(NAMES):
        print(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
        return 2
    results = {}
    for name in names or NAMES:
        results[name] = run(name)
        print(f"{name}: {results[name]}", flush=True)
    print("", *(f"{name:<18}{result}" for name, result in results.items()), sep="\n")
    ran = [result for result in results.values() if not result.startswith("left out")]
    return 0 if ran and all(result.startswith("passed") for result in ran) else 1


def run(name: str) -> str:
    """Run the tests as the name says. Return how that went, in a few words."""
    if name in KERNELS:
        return pytest(sys.executable, KERNELS[name])
    if name == "visitor":
        return run_as_visitor()
    version, requirements = MATRIX[name]
    python = environments.interpreter(version)
    try:
        return pytest(made(name, python, requirements), {}) if python else f"left out: there is no Python {version}"
    except environments.Offline as error:
        return f"left out: {error}"


def made(name: str, python: str, requirements: list[str]) -> str:
    """Return the Python of an environment with these packages, which is made if it is not there."""
    folder = FOLDER / name
    if name == NEWEST or not (folder / "ready").exists():
        print(f"{name}: pip installs {', '.join(requirements)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        environments.install([*requirements, *OTHERS], str(folder / "bin" / "python"))
        environments.install(["--no-deps", "--editable", str(PROJECT)], str(folder / "bin" / "python"))
        (folder / "ready").touch()
    return str(folder / "bin" / "python")


def run_as_visitor() -> str:
    """Run the tests in a clone, as a user who is not root and has no home."""
    root = os.getuid() == 0
    if root and not shutil.which("setpriv"):
        return "left out: this is root, and there is no setpriv with which to become an ordinary user"
    name = "nobody" if root else getpass.getuser()
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        project = Path(scratch) / "my course ü" / "labkit"
        subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(project)], check=True)
        if root:
            subprocess.run(["chown", "-R", name, scratch], check=True)
        variables = {"HOME": "/nonexistent", "USER": name, "LOGNAME": name}
        return pytest(sys.executable, variables, project, VISITOR if root else [])


def pytest(python: str, variables: Mapping[str, str], project: Path = PROJECT, before: Sequence[str] = ()) -> str:
    """Run the tests of a checkout with this Python and these variables. Return how that went."""
    command = [*before, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    environment = os.environ | {"PYTHONPATH": str(project)} | variables
    code = subprocess.run([*command, *tests()], cwd=project, env=environment).returncode
    return "passed" if code == 0 else f"failed: pytest ended with {code}"


def tests() -> list[str]:
    """Return the files of tests that need ranks, models or pipelines, wherever in tests/ they
    are."""
    there = PROJECT / "tests"
    found = [path for pattern in FILES for path in there.rglob(f"{pattern}.py")]
    found += [path for package in PACKAGES for path in (there / package).rglob("test_*.py")]
    return sorted({str(path.relative_to(PROJECT)) for path in found if path.parent.name != "browser"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
