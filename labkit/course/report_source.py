"""Read from a notebook what belongs in its report: what was shown there, asked and answered.

The notebook says so by the tags of its cells:

report      a code cell, with its outputs and its source; or a text
question    a text: a question of the assignment
answer      the text after it: the reader's answer
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from labkit.course.notebooks import RAISES, notebooks_folder

UNANSWERED = "*Your answer:*"  # stands in the cell of an answer, and may stay above it
_HEADING = re.compile(r"^#{1,3} +(.+?)\s*$", re.MULTILINE)
_TRAINING = re.compile(r"labkit(?:\.|\s+)train\s+([a-z]\w*)")
# What notebooks were called before they stood in the order in which they are read.
_RENAMED = {
    "03_gradient_sync": "05_gradient_sync",
    "03b_ladder": "06_ladder",
    "04_data_parallel": "03_data_parallel",
    "05_overlap": "04_overlap",
    "06_clock_cycles": "08_clock_cycles",
    "07_pipe": "09_pipe",
    "08_gpt2_pipeline": "10_gpt2_pipeline",
    "10_your_guesses": "13_your_guesses",
}


class ReportError(ValueError):
    """A report that cannot be written: what is wrong with which notebook, and what to do."""


@dataclass(frozen=True)
class Report:
    """What a notebook has for its report.

    ``number`` is the notebook's, or its name where that has none; ``folder`` is where it lies, and
    ``title`` and ``question`` are what it begins with. ``cells`` are those tagged ``report``, each
    with the heading of the section it stands in and, for code, its number among the code cells.
    ``runs`` are the training runs whose task the notebook names: each one's folder and command.
    """

    number: str
    folder: Path
    title: str
    question: str
    cells: tuple[ReportCell, ...]
    questions: tuple[Question, ...]
    runs: tuple[tuple[str, str], ...]

    @property
    def notes(self) -> list[str]:
        """Return what is still missing, a sentence each."""
        todo = {line for cell in self.cells for line in cell.todo.split("; ") if line}
        open_questions = sum(not question.answer for question in self.questions)
        found = [f"Some of its cells wait for you: {'; '.join(sorted(todo))}."] if todo else []
        if open_questions:
            found.append(f"Without an answer yet: {open_questions} of {len(self.questions)} questions.")
        return found


class ReportCell(NamedTuple):
    """A cell of the report; ``number`` is None for a text."""

    heading: str
    number: int | None
    cell: NotebookNode

    @property
    def todo(self) -> str:
        """Return what ``%%needs`` printed in place of this cell, if it stepped aside."""
        if self.number is None or not self.cell.source.startswith("%%needs"):
            return ""
        printed = "".join(output.get("text", "") for output in self.cell.outputs).strip()
        return printed if printed.startswith(("TODO ", "GUESS ")) else ""


class Question(NamedTuple):
    """A question of the assignment, and the cells of its answer: none if nothing was written."""

    question: NotebookNode
    answer: list[NotebookNode]


# --- which notebook -------------------------------------------------------------------------------


def find_notebook(name: str) -> Path:
    """Return the notebook with this number ("05", or 5), name or path.

    A name or number from before the notebooks were renamed is understood, and a line says so. A
    number that was given anew means the old notebook only if the new one has nothing for a report.

    Raises ReportError where there is none, or more than one.
    """
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name).resolve()
    there = sorted(notebooks_folder().glob("*.ipynb"))
    wanted = {name, name.zfill(2), name.removesuffix(".ipynb")}
    found = [path for path in there if path.stem in wanted] or [path for path in there if _number(path) in wanted]
    for old, new in _RENAMED.items():
        renamed = [path for path in there if path.stem == new and wanted & {old, _number(Path(old))}]
        if renamed and not any(map(_has_report, found)):
            print(f"labkit report: {old} is {new} now")
            found = renamed
    if not found:
        names = ", ".join(path.stem for path in there) or "none"
        raise ReportError(f"there is no notebook {name!r}; those of {notebooks_folder()} are: {names}")
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise ReportError(f"{name!r} may be {names}: give the whole name of one")
    return found[0]


def _number(path: Path) -> str:
    """Return ``"06"`` for ``06_ladder.ipynb``, and the whole name where it has no number."""
    head = path.stem.partition("_")[0]
    return head if head[:1].isdigit() else path.stem


def _has_report(path: Path) -> bool:
    try:
        return any({"report", "question"} & set(_tags(cell)) for cell in _read(path).cells)
    except ReportError:
        return True  # read_report will say what is wrong with it


# --- what it has for a report ---------------------------------------------------------------------


def read_report(path: Path) -> Report:
    """Return what the notebook at ``path`` has for its report. Raises ReportError."""
    notebook = _read(path)
    cells = tuple(_report_cells(notebook))
    questions = tuple(_questions(notebook))
    if not cells and not questions:
        raise ReportError(
            f"{path.name} has nothing for a report: tag cells with report, question or answer (in JupyterLab: "
            "the gear at the upper right, Cell Tags), and save it"
        )
    _check_run(path, cells)
    first = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    heading = _HEADING.search(first)
    paragraphs = [part.strip() for part in first[heading.end() if heading else 0 :].split("\n\n")]
    return Report(
        number=_number(path),
        folder=path.parent,
        title=heading[1] if heading else path.stem,
        question=next((part.strip("*") for part in paragraphs if "?" in part), ""),
        cells=cells,
        questions=questions,
        runs=tuple(_runs(notebook, path.parent.parent / "runs")),
    )


def _read(path: Path) -> NotebookNode:
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        return notebook
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise ReportError(f"{path} is no notebook that can be read ({reason}): save it in JupyterLab again") from None


def _tags(cell: NotebookNode) -> Sequence[str]:
    return cell.metadata.get("tags", [])


def _report_cells(notebook: NotebookNode) -> Iterator[ReportCell]:
    """Yield the cells tagged ``report``, a text only up to the next section's heading in it."""
    heading, number = "", 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            number += 1
            if "report" in _tags(cell):
                yield ReportCell(heading, number, cell)
        elif cell.cell_type == "markdown":
            before, *sections = re.split(_HEADING, cell.source)  # text, then heading and text by turns
            if not before.strip() and sections:
                heading, before, *sections = sections
            if "report" in _tags(cell):
                yield ReportCell(heading, None, nbformat.from_dict({**cell, "source": before}))
            heading = [heading, *sections[::2]][-1]


def _check_run(path: Path, cells: Sequence[ReportCell]) -> None:
    """Raise ReportError where a cell has nothing to show: it was not run, or it raised."""
    code = [(cell.number, cell.cell) for cell in cells if cell.number is not None]
    silent = [f'{number} "{_first_line(cell)}"' for number, cell in code if cell.execution_count is None]
    if silent:
        raise ReportError(
            f"{path.name} was not run to its end, or not saved. Code cells without a result: {', '.join(silent)}. "
            "Choose Run, Run All Cells in JupyterLab, save the notebook, and try again"
        )
    for number, cell in code:
        for output in cell.outputs:
            if output.output_type == "error" and RAISES not in _tags(cell):
                raise ReportError(
                    f'{path.name}: code cell {number} "{_first_line(cell)}" ended with {output.ename}: {output.evalue}. '
                    "Put it right, run it, save the notebook, and try again"
                )


def _first_line(cell: NotebookNode) -> str:
    lines = [line.strip() for line in cell.source.splitlines() if line.strip() and not line.startswith("%%needs")]
    return lines[0][:50] if lines else "empty"


def _questions(notebook: NotebookNode) -> Iterator[Question]:
    """Yield the questions, each with the texts after it, up to a heading or another tagged cell."""
    cells = notebook.cells
    for i, cell in enumerate(cells):
        if "question" not in _tags(cell):
            continue
        answer = []
        for after in cells[i + 1 :]:
            other = after.cell_type != "markdown" or (_tags(after) and "answer" not in _tags(after))
            if other or ("answer" not in _tags(after) and _HEADING.search(after.source)):
                break
            text = after.source.replace(UNANSWERED, "").strip()
            if text:
                answer.append(nbformat.from_dict({**after, "source": text}))
        yield Question(cell, answer)


def _runs(notebook: NotebookNode, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield folder and command of each training run that kept its command, of tasks named here."""
    tasks = {task for cell in notebook.cells for task in _TRAINING.findall(cell.source)}
    for merged in sorted(folder.glob("*/merged.json")):
        try:
            command = json.loads(merged.read_text(encoding="utf-8"))["command"]
        except (OSError, ValueError, KeyError, TypeError):  # of another version, or half of it
            continue
        command = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        if tasks.intersection(_TRAINING.findall(command)):
            yield merged.parent.name, command
