"""Execute notebooks, store them in one normal form, hold them to a contract, tell what was run.

    python -m labkit.course.notebooks COMMAND [NOTEBOOK ...]

execute    run them and store their outputs in place
export     run them for their figures; the notebooks stay as they are
contract   say where a stored notebook breaks the contract

Without a notebook it is all of ``notebooks/``. Each runs with ``LABKIT_STATIC=1``, in its own
folder, in this Python.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import os
import re
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbformat import NotebookNode

from labkit.base.files import write_atomically
from labkit.base.lab import PACKAGE, lab
from labkit.base.texts import listed
from labkit.course.glossary import link_terms, unlinked
from labkit.course.plan import RUN_MINUTES, run_minutes
from labkit.guesses.store import KEPT
from labkit.todo import TASKS

MAX_CODE_CELLS = 25  # of a notebook's thread
MAX_FURTHER_CELLS = 10  # of what follows the heading "Going further"
MEDIAN_LINES = 6
MAX_LINES = 12
MAX_ALIKE = 50  # cells of a notebook with the same text, such as the rooms for answers
CELL_TIMEOUT_S = 300
ABOUT_MINUTES = (
    "# For how many minutes each notebook ran on two CPU cores when it was stored: make notebooks writes it."
)
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
RAISES = "raises-exception"  # nbclient and nbval both know this tag

_PROJECT = PACKAGE.resolve().parent  # whose path no output may show
# Folders that differ from machine to machine. A path such as /usr/bin says nothing about anyone.
_PRIVATE = r"/home/|/root/|/Users/|/tmp/|/private/|/var/folders/|[A-Za-z]:\\\\?Users"
# What would make nbval look away; the lab compares every output.
_UNCOMPARED = re.compile(r"nbval-ignore-output|nbval-skip|NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|PYTEST_VALIDATE_IGNORE_OUTPUT")
# The heading of what a reader may leave out.
_FURTHER = re.compile(r"^## Going further\s*$", re.MULTILINE)


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


# --- the normal form ------------------------------------------------------------------------------


def normalised(notebook: NotebookNode) -> NotebookNode:
    """Return a copy that is the same for the same sources and outputs.

    It has no widget state, times, paths or random ids, and each term's first use is a link to the
    glossary.
    """
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor  # how a stream is cut depends on timing

    notebook, _ = CoalesceStreamsPreprocessor().preprocess(nbformat.from_dict(nbformat.v4.upgrade(notebook)), {})
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    ids: set[str] = set()
    count = 0
    for cell in notebook.cells:
        cell.id = _id_of(unlinked(cell.source), ids)
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in ("tags",) if cell.metadata.get(key)})
        if cell.cell_type == "code":
            ran = cell.execution_count is not None
            count += ran
            cell.execution_count = count if ran else None
            cell.outputs = [_normalised_output(output, count) for output in cell.outputs]
    link_terms(notebook.cells)
    return notebook


def _id_of(source: str, taken: set[str]) -> str:
    """Return an id made from the cell's own text, so that a new cell changes no other cell's id."""
    cell_id = next(each for each in _ids_of(source) if each not in taken)
    taken.add(cell_id)
    return cell_id


def _ids_of(source: str) -> Iterator[str]:
    """Yield ids for cells with this text: the first for one, the next for one more, and so on."""
    return (hashlib.sha256(f"{salt}{source}".encode()).hexdigest()[:8] for salt in itertools.count())


def is_as_given(cell: NotebookNode) -> bool:
    """Return whether a cell is the lab's, unchanged: only the lab makes ids from a cell's text."""
    return str(cell.get("id")) in itertools.islice(_ids_of(unlinked(cell.source)), MAX_ALIKE)


def _normalised_output(output: NotebookNode, count: int) -> NotebookNode:
    """Remove the traces of this machine from what no test compares: tracebacks and stderr."""
    if output.output_type == "execute_result":
        output.execution_count = count
    if output.output_type == "error":
        output.traceback = [_without_paths(line) for line in output.traceback]
    if output.output_type == "stream" and output.name == "stderr":
        output.text = _without_paths(output.text)
    for mime in ("image/png", "image/jpeg"):
        if mime in output.get("data", {}):
            output.data[mime] = output.data[mime].replace("\n", "")
    return output


def _without_paths(text: str) -> str:
    """Cut paths that begin with a folder of this machine down to what a reader needs."""
    text = re.sub(r"/(?:tmp|var|private)/\S*?ipykernel_\d+/\d+\.py", "cell", text)
    libraries = {str(Path(sysconfig.get_path(name)).parent) for name in ("purelib", "platlib", "stdlib")}
    for folder in sorted({*libraries, str(_PROJECT)}, key=len, reverse=True):  # whole: a space may be in it
        text = text.replace(f"{folder}/", "")
    text = re.sub(r"/[^\s\"':]*/(?=(?:site-packages|dist-packages)/)", "", text)
    text = re.sub(r"/[^\s\"':]*/(?=python\d+\.\d+/)", "", text)
    return re.sub(rf"(?:{_PRIVATE})[^\s\"':]*", "…", text)


# --- the contract ---------------------------------------------------------------------------------


def breaches(notebook: NotebookNode) -> list[str]:
    """Return where a stored notebook breaks the contract for notebooks, a sentence each.

    An empty list is a good notebook. Code cells are counted in its thread, which ends at a heading
    ``## Going further``, and from there on.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = [*_breaches_of_text(notebook, code), *_breaches_of_number(notebook.cells), *_breaches_of_length(code)]
    for number, cell in enumerate(code, start=1):
        found += [f"code cell {number}: {breach}" for breach in _breaches_of_cell(cell)]
    found += map(_breach_of_waiting, waiting(notebook.cells))
    if not found and normalised(notebook) != notebook:
        found.append("not stored in normal form; run: python -m labkit.course.notebooks execute")
    return found


def _breaches_of_text(notebook: NotebookNode, code: list[NotebookNode]) -> Iterator[str]:
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    if not texts or "?" not in texts[0]:
        yield "the first text asks no question"
    lines = code[0].source.splitlines() if code else []
    if "%load_ext autoreload" not in lines or "%autoreload 2" not in lines:
        yield "the first code cell lacks %load_ext autoreload and %autoreload 2, each on a line of its own"
    if "widgets" in notebook.metadata:
        yield "metadata.widgets is stored, which hides the static picture"


def _breaches_of_number(cells: list[NotebookNode]) -> Iterator[str]:
    """Say where there are too many code cells: in the thread, or in the second helping."""
    further = (i for i, cell in enumerate(cells) if cell.cell_type == "markdown" and _FURTHER.search(cell.source))
    begin = next(further, len(cells))
    thread, helping = cells[:begin], cells[begin:]
    limits = (thread, "", MAX_CODE_CELLS), (helping, ' under "Going further"', MAX_FURTHER_CELLS)
    for part, where, most in limits:
        if (n_code := sum(cell.cell_type == "code" for cell in part)) > most:
            yield f"{n_code} code cells{where}, at most {most} are allowed"


def _breaches_of_length(code: list[NotebookNode]) -> Iterator[str]:
    lengths = [len(cell.source.strip().splitlines()) for cell in code]
    if lengths and median(lengths) > MEDIAN_LINES:
        yield f"the median code cell has {median(lengths):g} lines, at most {MEDIAN_LINES} are allowed"
    for number, length in enumerate(lengths, start=1):
        if length > MAX_LINES:
            yield f"code cell {number}: {length} lines, at most {MAX_LINES} are allowed"


def _breaches_of_cell(cell: NotebookNode) -> Iterator[str]:
    tags = cell.metadata.get("tags", [])
    if cell.execution_count is None:
        yield "was not executed, so nothing compares it"
    if _UNCOMPARED.search("\n".join([cell.source, *tags])):
        yield "asks for its output not to be compared"
    for output in cell.outputs:
        if output.output_type == "error" and RAISES not in tags:
            yield f"a stored {output.ename} without the tag {RAISES}"
        alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
        if "image/png" in output.get("data", {}) and not str(alt).strip():
            yield "a picture without alt text; show it with labkit.draw.show or save"
        for kind, text in _texts(output):
            if not isinstance(text, str):
                yield f"an output of type {kind}, in which the test cannot hide what is measured"
            elif private := re.search(rf"(?<![\w.:/])(?:{_PRIVATE})\S*|{re.escape(str(_PROJECT))}\S*", text):
                yield f"a path of this machine in its {kind}: {private.group()[:60]}"


def _breach_of_waiting(missing: str) -> str:
    kind, name = missing.partition(":")[0].split(maxsplit=1)
    fill = f'add a line "{name}": {{"guess": …}} to notebooks/guesses.json' if kind == "GUESS" else "fill it in"
    return f"cells waited for {missing}; {fill}, and run: python -m labkit.course.notebooks execute"


def _texts(output: NotebookNode) -> Iterator[tuple[str, Any]]:
    if output.output_type == "stream":
        yield output.name, output.text
    elif output.output_type == "error":
        yield "error", output.evalue
        yield "traceback", "\n".join(output.traceback)
    else:
        yield from ((kind, data) for kind, data in output.data.items() if not kind.startswith("image/"))


# --- what its reader has run ----------------------------------------------------------------------


def number_of(path: Path) -> str:
    """Return ``"06"`` for ``06_ladder.ipynb``, and the whole name where it has no number."""
    head = path.stem.partition("_")[0]
    return head if head[:1].isdigit() else path.stem


def not_run(path: Path, cells: Sequence[NotebookNode]) -> str:
    """Return a sentence: which cells of a saved notebook its reader has not run; ``""`` if none.

    If it was never run, the sentence says what it needs. A cell has the number that JupyterLab
    shows: ``[7]`` is the seventh that was run.
    """
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    silent = [cell for cell in code if cell.execution_count is None]
    if not silent:
        return ""
    if len(silent) == len(code):
        needs = f"; it needs {listed(names)}" if (names := _needs(code)) else ""
        return f"you have not run {number_of(path)}{needs}"
    first = code.index(silent[0])
    after = f", after [{code[first - 1].execution_count}]," if first else ""
    number = f"{len(silent)} code cell{'s' * (len(silent) > 1)} of {number_of(path)}"
    return f"you have not run {number}; the first{after} is {first_line(silent[0])!r}"


def waiting(cells: Sequence[NotebookNode]) -> list[str]:
    """Return the tasks and guesses that cells were waiting for when they ran.

    Each is as the cell has shown it: ``TODO dp.3: labkit/dp.py, line 42``.
    """
    shown = (
        "".join(output.get("data", {}).get("text/plain", ""))
        for cell in cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    lines = (text for text in shown if text.startswith(("TODO ", "GUESS ")) and "\n" not in text)
    return sorted({each for text in lines for each in text.split("; ")})


def first_line(cell: NotebookNode) -> str:
    """Return a code cell's first line below its ``%%needs``."""
    lines = [line.strip() for line in cell.source.splitlines() if line.strip() and not line.startswith("%%needs")]
    return lines[0][:50] if lines else "empty"


def _needs(code: Sequence[NotebookNode]) -> list[str]:
    """Return the tasks that cells wait for, in the order of the course, and whether for guesses."""
    heads = [cell.source.partition("\n")[0].split() for cell in code]
    names = {name for head in heads if head[:1] == ["%%needs"] for name in head[1:]}
    guesses = ["your guesses"] if any(name.startswith("guess.") for name in names) else []
    return [*(task for task in TASKS if task in names), *guesses]


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
