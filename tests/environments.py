"""Pythons and packages other than this environment's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / ".venv-matrix"  # `make clean` takes it away
OFFLINE = ("connection", "timed out", "from versions: none", "name resolution", "unreachable", "max retries")


def interpreter(version: str) -> str | None:
    """Return the path of a Python such as ``"3.12"``, on PATH or of pyenv's; None without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for path in filter(None, found):
        ask = "import sys; print('{}.{}'.format(*sys.version_info), sys.executable)"
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True)  # pyenv's shim may only say no
        if done.returncode == 0 and done.stdout.split()[0] == version:
            return done.stdout.split()[1]
    return None


class Offline(RuntimeError):
    """pip could not reach a registry."""


def install(arguments: list[str], python: str) -> None:
    """Run ``pip install`` with this environment's pip, for another Python. Raises as
    :func:`pip` does."""
    pip("--python", python, "install", *arguments)


def pip(*arguments: str) -> None:
    """Run this environment's pip. Raises Offline where it reaches no registry, and RuntimeError,
    with what pip says, where it fails otherwise."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        says = done.stderr.strip()
        if any(sign in says.lower() for sign in OFFLINE):
            raise Offline(f"pip reaches no registry: {says.splitlines()[-1]}")
        raise RuntimeError(f"pip {' '.join(arguments)} fails: {says}")
