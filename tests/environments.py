"""Pythons and packages other than this environment's: interpreters, and folders of packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
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


def packages(name: str, requirements: list[str], python: str = sys.executable) -> Path:
    """Return a folder that has these packages for ``python``, to be put on its PYTHONPATH.

    pip fills it the first time.

    Raises Offline where pip reaches no registry, and RuntimeError, with what pip says, where it
    fails otherwise.
    """
    key = hashlib.sha256("\n".join([python, *requirements]).encode()).hexdigest()[:8]
    folder = FOLDER / f"{name}-{key}"
    if not folder.is_dir():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            install(["--no-compile", "--target", f"{scratch}/packages", *requirements], python)  # tests import little
            os.rename(f"{scratch}/packages", folder)  # whole, or not there
    return folder


def install(arguments: list[str], python: str) -> None:
    """Run ``pip install`` with this environment's pip, for another Python. Raises as
    :func:`packages` does."""
    pip("--python", python, "install", *arguments)


def pip(*arguments: str) -> None:
    """Run this environment's pip. Raises as :func:`packages` does."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        says = done.stderr.strip()
        if any(sign in says.lower() for sign in OFFLINE):
            raise Offline(f"pip reaches no registry: {says.splitlines()[-1]}")
        raise RuntimeError(f"pip {' '.join(arguments)} fails: {says}")
