"""Execute notebooks and store them, or hold them to their contract.

    python -m labkit.course.notebooks COMMAND [NOTEBOOK ...]

execute    run them and store their outputs in place
export     run them for their figures; the notebooks stay as they are
contract   say where a stored notebook breaks the contract

Without a notebook it is all of ``notebooks/``. Each runs with ``LABKIT_STATIC=1``, in its own
folder, in this Python.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbformat import NotebookNode

from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.course.normal_form import KERNEL, normalised
from labkit.course.notebook_contract import breaches
from labkit.course.plan import RUN_MINUTES, run_minutes
from labkit.guesses.store import KEPT

CELL_TIMEOUT_S = 300
ABOUT_MINUTES = (
    "# For how many minutes each notebook ran on two CPU cores when it was stored: make notebooks writes it."
)


def notebooks_folder() -> Path:
    """Return ``notebooks`` of the lab that the working directory is in.

    Raises FileNotFoundError outside a lab.
    """
    folder = lab().notebooks
    if folder.is_dir():
        return folder
    here = f"no folder notebooks in {Path.cwd()} or above it"
    raise FileNotFoundError(f"{here}; go to the lab's folder, or name the notebooks")


# --- execute --------------------------------------------------------------------------------------


class NotebookError(RuntimeError):
    """A notebook that did not run to its end: which one, which cell, and its traceback."""


def run(path: Path, storing: bool = False) -> NotebookNode:
    """Return the notebook with fresh outputs. The file stays as it is.

    With ``storing`` the answers to its questions go into ``notebooks/guesses.json``.

    Raises NotebookError if a cell raises that has no tag ``raises-exception``, or takes over five
    minutes.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    options: dict[str, Any] = {"timeout": CELL_TIMEOUT_S, "record_timing": False, "store_widget_state": False}
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, kernel_name=KERNEL["name"], resources=resources, **options)
    manager = over_ipc(client.create_kernel_manager())
    manager.kernel_spec_manager.kernel_dirs = []  # no other kernel's, but that of this very Python
    environment = os.environ | {"LABKIT_STATIC": "1"}
    environment |= {KEPT: "1"} if storing else {"LABKIT_CHROMIUM": ""}  # what is not kept needs no picture of a page
    environment.pop("MPLBACKEND", None)  # Agg, as in CI, would take pictures away
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise NotebookError(f"{path}: {error}") from None
    return notebook


def over_ipc(manager: KernelManager) -> KernelManager:
    """Have ``manager`` start its kernel on sockets in Jupyter's private folder, not on TCP ports.

    Call this before the kernel starts. No other user of the machine can reach those sockets.
    """
    folder = Path(jupyter_runtime_dir())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    manager.transport = "ipc"
    manager.connection_file = str(folder / f"kernel-{uuid.uuid4()}.json")  # it has none yet by default
    return manager


def execute(path: Path) -> None:
    """Run a notebook and store it in place, in normal form; where it raises, leave the file."""
    began = time.monotonic()
    store(path, normalised(run(path, storing=True)))
    known = run_minutes(path.parent) | {path.stem: math.ceil((time.monotonic() - began) / 60)}
    lines = (f"{name} = {minutes}\n" for name, minutes in sorted(known.items()))
    write_atomically(path.parent / RUN_MINUTES, f"{ABOUT_MINUTES}\n{''.join(lines)}".encode())


def store(path: Path, notebook: NotebookNode) -> None:
    """Write a notebook to ``path``, whole or not at all."""
    write_atomically(path, (nbformat.writes(notebook).rstrip("\n") + "\n").encode())


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all went well, 1 if a notebook raised or broke the contract."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m labkit.course.notebooks", description=description)
    parser.add_argument("command", choices=("execute", "export", "contract"))
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: all of notebooks/")
    options = parser.parse_args(arguments)
    paths = options.notebooks or sorted(notebooks_folder().glob("*.ipynb"))
    missing = [str(path) for path in paths if not path.is_file()]
    if missing or not paths:
        parser.error(f"no such notebook: {', '.join(missing)}" if missing else "there are no notebooks")
    faults = [fault for path in paths for fault in _do(options.command, path.resolve())]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _do(command: str, path: Path) -> list[str]:
    if command == "contract":
        return [f"{path.name}: {breach}" for breach in breaches(nbformat.read(path, as_version=4))]
    began = time.monotonic()
    try:
        execute(path) if command == "execute" else run(path)
    except NotebookError as error:
        return [str(error)]
    print(f"{path.name}: {time.monotonic() - began:.1f} s")
    return []


if __name__ == "__main__":
    sys.exit(main())
