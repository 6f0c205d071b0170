"""What a saved notebook's reader has run, and what its cells were waiting for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from labkit.base.texts import listed
from labkit.todo import TASKS


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
