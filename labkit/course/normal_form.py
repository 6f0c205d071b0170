"""The one form in which a notebook is stored: the same for the same sources and outputs."""

from __future__ import annotations

import hashlib
import itertools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.base.lab import PACKAGE
from labkit.course.glossary import link_terms, unlinked

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
MAX_ALIKE = 50  # cells of a notebook with the same text, such as the rooms for answers
PROJECT = PACKAGE.resolve().parent  # whose path no output may show
# Folders that differ from machine to machine. A path such as /usr/bin says nothing about anyone.
PRIVATE = r"/home/|/root/|/Users/|/tmp/|/private/|/var/folders/|[A-Za-z]:\\\\?Users"


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
    for folder in sorted({*libraries, str(PROJECT)}, key=len, reverse=True):  # whole: a space may be in it
        text = text.replace(f"{folder}/", "")
    text = re.sub(r"/[^\s\"':]*/(?=(?:site-packages|dist-packages)/)", "", text)
    text = re.sub(r"/[^\s\"':]*/(?=python\d+\.\d+/)", "", text)
    return re.sub(rf"(?:{PRIVATE})[^\s\"':]*", "…", text)
