"""Write an assignment's report from the reader's own notebook, as it was run and saved.

The notebook says by the tags of its cells what belongs in the report, in the order that it has:

report      a code cell, with its outputs and its source; or a text
question    a text: a question of the assignment
answer      the text after it: the reader's answer
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from labkit.base.files import write_atomically
from labkit.base.texts import listed
from labkit.course import chromium
from labkit.course.notebooks import RAISES, notebooks_folder

UNANSWERED = "*Your answer:*"  # stands in the cell of an answer, and may stay above it
_SILENT = 3  # so many cells without a result are named
_HEADING = re.compile(r"^#{1,3} +(.+?)\s*$", re.MULTILINE)
_TRAINING = re.compile(r"labkit(?:\.|\s+)train\s+([a-z]\w*)")
# The notebook that makes a report, before the notebooks stood in the order in which they are read.
_FORMER_NUMBER, _FORMER_NAME, _PRESENT_NAME = "03", "03_gradient_sync", "05_gradient_sync"


class ReportError(ValueError):
    """A report that cannot be written: what is wrong with which notebook, and what to do."""


class ReportFiles(NamedTuple):
    """The files of a report, and what the reader should know of them, a sentence each."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write_report(
    notebook: str,
    folder: Path | None = None,
    pdf: bool = True,
    wash: Callable[[str], str] = str,
    more: str = "",
    texts_alone: bool = False,
) -> ReportFiles:
    """Write ``report-NN.html``, and beside it a PDF where there is a Chromium to print it.

    ``notebook`` is a number ("05"), a name, or a path. ``folder`` is by default ``runs`` of the
    lab. ``more`` is Markdown that stands after the title; ``wash`` changes the page before it is
    written; with ``texts_alone`` it has questions and answers, and no cells that were run. Nothing
    is written before the notebook has been read and found in order, and each file appears whole or
    not at all.

    Raises ReportError for a notebook that is not there, cannot be told from another, has no cells
    for a report or was not run; FileNotFoundError outside a lab; OSError where no file can be
    written.
    """
    path = find_notebook(notebook)
    report = read_report(path, texts_alone)
    from labkit.course.report_page import page  # loads much, and only for a report that can be

    if more:
        report.cells.insert(1, new_markdown_cell(more))
    html = wash(page(report, path.parent, list(_runs(path)))).encode()
    folder = folder or notebooks_folder().parent / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    target, notes = folder / f"report-{_number(path)}.html", list(_notes(report))
    files = {target: html}
    if pdf:
        try:
            files[target.with_suffix(".pdf")] = chromium.print_to_pdf(html, folder)
        except chromium.NoPdf as error:
            notes.append(f"No PDF: {error}. Or open {target.name} in any browser, and print it to a file.")
    for file, content in files.items():
        write_atomically(file, content)
    return ReportFiles(tuple(files), tuple(notes))


# --- which notebook -------------------------------------------------------------------------------


def find_notebook(name: str) -> Path:
    """Return the notebook with this number ("05", or 5), name or path.

    The former number or name of the notebook that makes a report is understood, and a line says
    so; the number, as long as the notebook that has it now makes none.

    Raises ReportError where there is none, or more than one.
    """
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name).resolve()
    there = {path.stem: path for path in sorted(notebooks_folder().glob("*.ipynb"))}
    wanted = {name, name.zfill(2), name.removesuffix(".ipynb")}
    found = [path for path in there.values() if path.stem in wanted]
    found = found or [path for path in there.values() if _number(path) in wanted]
    if wanted & {_FORMER_NUMBER, _FORMER_NAME} and _PRESENT_NAME in there and not any(map(_makes_report, found)):
        print(f"labkit report: {_FORMER_NAME} is {_PRESENT_NAME} now")
        return there[_PRESENT_NAME]
    if not found:
        names = ", ".join(there) or "none"
        raise ReportError(f"there is no notebook {name!r}; those of {notebooks_folder()} are: {names}")
    if len(found) > 1:
        names = listed((path.name for path in found), "or")
        raise ReportError(f"{name!r} may be {names}: give the whole name of one")
    return found[0]


def _number(path: Path) -> str:
    """Return ``"06"`` for ``06_ladder.ipynb``, and the whole name where it has no number."""
    head = path.stem.partition("_")[0]
    return head if head[:1].isdigit() else path.stem


def _makes_report(path: Path) -> bool:
    try:
        return any({"report", "question"} & _tags(cell) for cell in read_notebook(path).cells)
    except ReportError:
        return True  # read_report will say what is wrong with it


def read_notebook(path: Path) -> NotebookNode:
    """Return a notebook. Raises ReportError for a file that is none."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        return notebook
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise ReportError(f"{path} is no notebook that can be read ({reason}): save it in JupyterLab again") from None


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


# --- what it has for a report ---------------------------------------------------------------------


def read_report(path: Path, texts_alone: bool = False) -> NotebookNode:
    """Return the notebook at ``path`` with its report's cells alone. Raises ReportError.

    With ``texts_alone`` those are questions and answers.

    The first cell has the title, and the question that the notebook asks. A section's heading
    stands before the first cell from that section. An answer follows its question; it is an empty
    text if nothing was written. ``metadata.number`` of a code cell is its place among all of them.
    """
    notebook = read_notebook(path)
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.metadata.number = number
    cells = list(_tagged(notebook.cells))
    if not cells:
        raise ReportError(
            f"{path.name} has nothing for a report: tag cells with report, question or answer (in JupyterLab: "
            "the gear at the upper right, Cell Tags), and save it"
        )
    if texts_alone:
        cells = [cell for cell in cells if {"question", "answer"} & _tags(cell)]
    _check_run(path, [cell for cell in cells if cell.cell_type == "code"])
    first = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    title = heading[1] if (heading := _HEADING.search(first)) else path.stem
    question = next((part for part in _HEADING.sub("", first).split("\n\n") if "?" in part), "")
    notebook.metadata.title = title
    notebook.cells = [new_markdown_cell(f"# {title}\n\n{question.strip()}"), *cells]
    return notebook


def _tagged(cells: Sequence[NotebookNode]) -> Iterator[NotebookNode]:
    """Yield the cells that tags name, with headings and answers."""
    heading = ""
    for i, cell in enumerate(cells):
        text = cell.source if cell.cell_type == "markdown" else ""
        if kept := _tags(cell) & {"report", "question"}:
            if heading and not _HEADING.match(text):
                yield new_markdown_cell(heading)
            yield cell
            heading = ""
            if "question" in kept:
                yield from _answer(cells[i + 1 :])
        elif i and (found := list(_HEADING.finditer(text))):  # the first text has the title
            heading = found[-1][0]


def _answer(after: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Return the texts after a question, up to a heading or another tagged cell."""

    def continues(cell: NotebookNode) -> bool:
        untagged = not _tags(cell) and not _HEADING.search(cell.source)
        return cell.cell_type == "markdown" and ("answer" in _tags(cell) or untagged)

    texts = [
        nbformat.from_dict({**cell, "source": text, "metadata": {"tags": ["answer"]}})
        for cell in takewhile(continues, after)
        if (text := cell.source.replace(UNANSWERED, "").strip())
    ]
    return texts or [new_markdown_cell(metadata={"tags": ["answer"]})]


def _check_run(path: Path, code: Sequence[NotebookNode]) -> None:
    """Raise ReportError where a cell has nothing to show: it was not run, or it raised."""
    silent = [_name(cell) for cell in code if cell.execution_count is None]
    if silent:
        more = f" and {len(silent) - _SILENT} more" if len(silent) > _SILENT else ""
        first = (
            f"was not run to its end, or not saved. Code cells without a result: {', '.join(silent[:_SILENT])}{more}"
        )
        what = "has not been run yet, or not been saved since" if len(silent) == len(code) else first
        raise ReportError(
            f"{path.name} {what}. Choose Run, Run All Cells in JupyterLab, save the notebook, and try again"
        )
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error" and RAISES not in _tags(cell):
                raise ReportError(
                    f"{path.name}: code cell {_name(cell)} ended with {output.ename}: {output.evalue}. "
                    "Fix it, run it, save the notebook, and try again"
                )


def _name(cell: NotebookNode) -> str:
    """Return a code cell's number and first line."""
    lines = [line.strip() for line in cell.source.splitlines() if line.strip() and not line.startswith("%%needs")]
    return f'{cell.metadata.number} "{lines[0][:50] if lines else "empty"}"'


def _notes(report: NotebookNode) -> Iterator[str]:
    """Yield what is still missing, a sentence each."""
    waiting: set[str] = set()
    for cell in report.cells:
        if cell.cell_type == "code" and cell.source.startswith("%%needs"):
            printed = "".join(output.get("text", "") for output in cell.outputs).strip()
            waiting |= set(printed.split("; ")) if printed.startswith(("TODO ", "GUESS ")) else set()
    if waiting:
        yield f"Some of its cells wait for you: {'; '.join(sorted(waiting))}."
    questions = sum("question" in _tags(cell) for cell in report.cells)
    if unanswered := sum("answer" in _tags(cell) and not cell.source for cell in report.cells):
        yield f"Without an answer yet: {unanswered} of {questions} questions."


def _runs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield folder and command of each training run that kept its command, of tasks named here."""
    tasks = {task for cell in read_notebook(path).cells for task in _TRAINING.findall(cell.source)}
    for merged in sorted((path.parent.parent / "runs").glob("*/merged.json")):
        try:
            command = json.loads(merged.read_text(encoding="utf-8"))["command"]
        except (OSError, ValueError, KeyError, TypeError):  # of another version, or half of it
            continue
        command = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        if tasks.intersection(_TRAINING.findall(command)):
            yield merged.parent.name, command
