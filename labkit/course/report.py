"""Write an assignment's report from the reader's own notebook, as it was run and saved."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from labkit.base.files import write_atomically
from labkit.course import chromium
from labkit.course.notebooks import notebooks_folder
from labkit.course.report_source import find_notebook, read_report


class Written(NamedTuple):
    """The files of a report, and what the reader should know of them, a sentence each."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write_report(notebook: str, folder: Path | None = None, pdf: bool = True) -> Written:
    """Write ``report-NN.html``, and beside it a PDF where there is a Chromium to print it.

    ``notebook`` is a number ("05"), a name, or a path. ``folder`` is by default ``runs`` of the
    lab. Nothing is written before the notebook has been read and found in order, and each file
    appears whole or not at all.

    Raises ReportError for a notebook that is not there, cannot be told from another, has no cells
    for a report or was not run; FileNotFoundError outside a lab; OSError where no file can be
    written.
    """
    report = read_report(find_notebook(notebook))
    from labkit.course.report_page import page  # loads much, and only for a report that can be

    html = page(report).encode()
    folder = folder or notebooks_folder().parent / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    target, notes = folder / f"report-{report.number}.html", report.notes
    files = {target: html}
    if pdf:
        try:
            files[target.with_suffix(".pdf")] = chromium.print_to_pdf(html, folder)
        except chromium.NoPdf as error:
            notes.append(f"No PDF: {error}. Or open {target.name} in any browser, and print it to a file.")
    for path, content in files.items():
        write_atomically(path, content)
    return Written(tuple(files), tuple(notes))
