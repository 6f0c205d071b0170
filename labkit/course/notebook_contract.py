"""What a stored notebook keeps to: its question, its length, outputs that a test compares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median
from typing import Any

from nbformat import NotebookNode

from labkit.course.normal_form import PRIVATE, PROJECT, normalised
from labkit.course.what_ran import waiting

MAX_CODE_CELLS = 25  # of a notebook's thread
MAX_FURTHER_CELLS = 10  # of what follows the heading "Going further"
MEDIAN_LINES = 6
MAX_LINES = 12
RAISES = "raises-exception"  # nbclient and nbval both know this tag

# What would make nbval look away; the lab compares every output.
_UNCOMPARED = re.compile(r"nbval-ignore-output|nbval-skip|NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|PYTEST_VALIDATE_IGNORE_OUTPUT")
# The heading of what a reader may leave out.
_FURTHER = re.compile(r"^## Going further\s*$", re.MULTILINE)


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
    for part, where, max_cells in limits:
        if (n_code := sum(cell.cell_type == "code" for cell in part)) > max_cells:
            yield f"{n_code} code cells{where}, at most {max_cells} are allowed"


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
            elif private := re.search(rf"(?<![\w.:/])(?:{PRIVATE})\S*|{re.escape(str(PROJECT))}\S*", text):
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
