"""Write an assignment's report from the reader's own notebook, as it was run and saved.

The notebook says by the tags of its cells what belongs in the report, in the order that it has:

report      a code cell, with its outputs and its source; or a text
question    a text: a question of the assignment
answer      the text after it: the reader's answer
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from labkit.base import chromium
from labkit.base.files import write_atomically
from labkit.base.lab import lab
from labkit.base.texts import listed
from labkit.course.normal_form import is_as_given
from labkit.course.notebook_contract import RAISES
from labkit.course.notebooks import notebooks_folder
from labkit.course.what_ran import first_line, not_run, number_of, waiting

UNANSWERED = "*Your answer:*"  # stands in the cell of an answer, and may stay above it
PACKAGES = ("labkit", "torch", "transformers", "accelerate", "numpy")
_HEADING = re.compile(r"^#{1,3} +(.+?)\s*$", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(```+|~~~+).*?(^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)  # code in a text
_TRAINING = re.compile(r"labkit(?:\.|\s+)train\s+([a-z]\w*)")
_LEGEND = """<p class="legend"><span class="labkit-measured">0.034 s</span>, written like this, is a measurement or a
fact about the machine, and another run gives another one; <span class="labkit-device">0.7627</span> depends a little
on the kind of device.</p>"""


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
    more: str = "",
    texts_alone: bool = False,
) -> ReportFiles:
    """Write ``report-NN.html``, and beside it a PDF where there is a Chromium to print it.

    ``notebook`` is a number ("05"), a name, or a path. ``folder`` is by default ``runs`` of the
    lab. ``more`` is Markdown that stands after the title; with ``texts_alone`` the report has
    questions and answers, and no cells that were run. Nothing is written before the notebook has
    been read and found in order, and each file appears whole or not at all.

    Raises ReportError for a notebook that is not there, cannot be told from another, has no cells
    for a report or was not run; FileNotFoundError outside a lab; OSError where no file can be
    written.
    """
    path = find_notebook(notebook)
    report = read_notebook(path)
    cells = report_cells(path, report.cells, texts_alone)
    from labkit.course.notebook_html import notebook_html  # loads much, and only for a report that can be

    report.cells = [_title(path, report.cells), new_markdown_cell(more), *cells, *_facts(path)]
    html = notebook_html(report, path).encode()
    folder = folder or lab().runs
    folder.mkdir(parents=True, exist_ok=True)
    target, notes = folder / f"report-{number_of(path)}.html", list(_notes(cells))
    files = {target: html}
    if pdf:
        try:
            files[target.with_suffix(".pdf")] = chromium.print_to_pdf(html, folder)
        except chromium.ChromiumError as error:
            notes.append(f"No PDF: {error}. Or open {target.name} in any browser, and print it to a file.")
    for file, content in files.items():
        write_atomically(file, content)
    return ReportFiles(tuple(files), tuple(notes))


# --- which notebook -------------------------------------------------------------------------------


def find_notebook(name: str) -> Path:
    """Return the notebook with this number ("05", or 5), name or path.

    Raises ReportError where there is none, or more than one.
    """
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name).resolve()
    there = sorted(notebooks_folder().glob("*.ipynb"))
    wanted = {name, name.zfill(2), name.removesuffix(".ipynb")}
    found = [path for path in there if path.stem in wanted] or [path for path in there if number_of(path) in wanted]
    if not found:
        names = ", ".join(path.stem for path in there) or "none"
        raise ReportError(f"there is no notebook {name!r}; those of {notebooks_folder()} are: {names}")
    if len(found) > 1:
        names = listed((path.name for path in found), "or")
        raise ReportError(f"{name!r} may be {names}: give the whole name of one")
    return found[0]


def read_notebook(path: Path) -> NotebookNode:
    """Return a notebook. Raises ReportError for any other file."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        return notebook
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise ReportError(f"{path} cannot be read as a notebook ({reason}): save it in JupyterLab again") from None


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


# --- what it has for a report ---------------------------------------------------------------------


def report_cells(path: Path, cells: Sequence[NotebookNode], texts_alone: bool = False) -> list[NotebookNode]:
    """Return the cells of a report. Raises ReportError where there are none, or they were not run.

    With ``texts_alone`` those are questions and answers. A section's heading stands before the
    first cell from that section. An answer is whatever the reader has put after a question, up to
    the next cell of the lab's own; it is an empty text if nothing was written. Texts that the
    reader has put or changed elsewhere are in it, too.
    """
    tagged = list(_tagged(cells))
    if not tagged:
        raise ReportError(
            f"{path.name} has nothing for a report: tag cells with report, question or answer (in JupyterLab: "
            "the gear at the upper right, Cell Tags), and save it"
        )
    if texts_alone:
        return [cell for cell in tagged if {"question", "answer"} & _tags(cell)]
    if sentence := not_run(path, tagged):
        raise ReportError(f"{sentence}. Choose Run, Run All Cells in JupyterLab, save the notebook, and try again")
    for cell in tagged:
        for output in cell.get("outputs", []):
            if output.output_type == "error" and RAISES not in _tags(cell):
                raise ReportError(
                    f"{path.name}: [{cell.execution_count}] {first_line(cell)!r} ended with {output.ename}: "
                    f"{output.evalue}. Fix it, run it, save the notebook, and try again"
                )
    return tagged


def _tagged(cells: Sequence[NotebookNode]) -> Iterator[NotebookNode]:
    """Yield the cells that tags name, with headings, and in its place whatever the reader wrote."""
    heading, n_read = "", 0
    for i, cell in enumerate(cells):
        if i < n_read:
            continue
        begins_with_heading = cell.cell_type == "markdown" and _HEADING.match(cell.source)
        if _is_tagged(cell) or (i and cell.cell_type != "code" and not is_as_given(cell)):
            if heading and not begins_with_heading:
                yield new_markdown_cell(heading)
            heading = ""
            yield from [cell] if _is_tagged(cell) else _written([cell])
            if "question" in _tags(cell):
                answer = [*takewhile(lambda after: not _is_tagged(after) and _may_be_answer(after), cells[i + 1 :])]
                yield from _written(answer) or [new_markdown_cell(metadata={"tags": ["answer", "room"]})]
                n_read = i + 1 + len(answer)
        elif i and (found := _headings(cell)):  # the first text has the title
            heading = found[-1]


def _is_tagged(cell: NotebookNode) -> bool:
    return bool(_tags(cell) & {"report", "question"})


def _may_be_answer(cell: NotebookNode) -> bool:
    return "answer" in _tags(cell) or not is_as_given(cell)


def _headings(cell: NotebookNode) -> list[str]:
    """Return the headings of a text, without the comments in its code."""
    text = cell.source if cell.cell_type == "markdown" else ""
    return [found[0] for found in _HEADING.finditer(_FENCED.sub("", text))]


def _written(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Return those of a reader's cells in which something stands, as parts of an answer."""
    return [
        nbformat.from_dict({**cell, "source": text, "metadata": {"tags": ["answer", *(_tags(cell) & {RAISES})]}})
        for cell in cells
        if (text := cell.source.removeprefix(UNANSWERED).strip("\n")).strip()
    ]


def _title(path: Path, cells: Sequence[NotebookNode]) -> NotebookNode:
    """Return a text with all of the first one, which has title and question, name and date."""
    first = next((cell for cell in cells if cell.cell_type == "markdown"), new_markdown_cell())
    title = first.source if _headings(first) else f"# {path.stem}\n\n{first.source}"
    name = f'<p class="who"><span>Name:</span><span>{_today()}</span></p>'
    return nbformat.from_dict({**first, "source": f"{title}\n\n{name}\n\n{_LEGEND}"})


def _today() -> str:
    today = datetime.date.today()
    return f"{today.day} {today:%B %Y}"


def _facts(path: Path) -> Iterator[NotebookNode]:
    """Yield texts: the machine that the report is written on, and commands of training runs."""
    from labkit.course.doctor import machine_facts  # asks the machine, and only for a report that can be

    found = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    facts = [(fact.name, fact.found) for fact in machine_facts()]
    facts += [("versions", ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found))]
    facts += [("written on", _today())]
    rows = "\n".join(f"| {name} | {text.replace('|', '/')} |" for name, text in facts)
    yield new_markdown_cell(f"## The machine\n\n| | |\n|---|---|\n{rows}")
    if runs := "\n\n".join(f"`runs/{name}`, {where}\n\n    {command}" for name, where, command in _runs(path)):
        yield new_markdown_cell(f"## Training runs\n\n{runs}")


def _notes(cells: Sequence[NotebookNode]) -> Iterator[str]:
    """Yield what is still missing, a sentence each."""
    if missing := waiting(cells):
        yield f"Some of its cells wait for you: {'; '.join(missing)}."
    questions = sum("question" in _tags(cell) for cell in cells)
    if unanswered := sum("answer" in _tags(cell) and not cell.source for cell in cells):
        yield f"Not answered yet: {unanswered} of {questions} questions."


def _runs(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield folder, ranks and command of each training run that kept them, of tasks named here.

    Times of runs on other devices, or with other threads, are not to be compared.
    """
    tasks = {task for cell in read_notebook(path).cells for task in _TRAINING.findall(cell.source)}
    for merged in sorted((path.parent.parent / "runs").glob("*/merged.json")):
        try:
            run = json.loads(merged.read_text(encoding="utf-8"))
            command, threads = run["command"], run["threads_per_rank"]
            where = f"{run['world_size']} on {run['backend']}: {', '.join(run['devices'])}, CPU threads each: {threads}"
        except (OSError, ValueError, KeyError, TypeError):  # of another version, or half of it
            continue
        command = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        if tasks.intersection(_TRAINING.findall(command)):
            yield merged.parent.name, where, command
