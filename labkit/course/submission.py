"""Pack what a student hands in, and say before what a grader would say of it.

It always packs: what is wrong is listed, and written into the archive's ``manifest.json``. Only a
wrong call, and a place where nothing can be written, is refused before anything starts.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from labkit.base.files import answers_folder
from labkit.check import check, restrictions
from labkit.course import assignments, grading, regions
from labkit.course.archive import Archive
from labkit.course.doctor import machine_facts
from labkit.course.edition import STUDENT_FILES, Edition
from labkit.course.grading import MANIFEST, Checked
from labkit.course.notebooks import RAISES, NotebookError, run
from labkit.course.report import ReportError, read_notebook, write_report
from labkit.course.student import NOT_OURS, RECORD, REPOSITORY
from labkit.todo import read_source, task_file

REPORT = "05"  # the notebook that makes one
SCRATCH = "packing-"  # how a folder's name begins in which an archive is made
PACKAGES = ("labkit", "torch", "transformers", "numpy")
_TASK = re.compile(r"\b(?:dp|pipe)\.\d\b")


class Request(NamedTuple):
    """What was asked for: see ``labkit submit --help``."""

    out: Path
    layout: str = "labkit"
    tasks: Sequence[str] = ()
    name: str = ""
    force: bool = False
    execute: bool = False


# --- the steps ------------------------------------------------------------------------------------


def submit(request: Request, say: Callable[[str], None] = print) -> bool:
    """Pack the archive, a line for each step. Return whether nothing was found wrong.

    Raises ValueError or OSError, before anything is run, for what cannot be: a layout without the
    name that it needs, a file that is there, a place where nothing can be written.
    """
    lab = REPOSITORY
    layout = assignments.LAYOUTS[request.layout]
    _check_request(request, lab)
    edition, archive = Edition(lab), Archive(lab)
    began = datetime.datetime.now(datetime.UTC)
    with tempfile.TemporaryDirectory(dir=request.out.parent, prefix=SCRATCH) as made:
        scratch = Path(made).absolute()
        say(f"1/7 checks: {', '.join(request.tasks)}")
        checked = [check(task) for task in request.tasks]
        results = [Checked(each.task, each.passed, each.findings, each.warnings) for each in checked]
        say(grading.table(results))
        say("2/7 restrictions")
        broken = _broken(request, edition, results)
        say("3/7 notebooks")
        _add_notebooks(archive, request)
        say("4/7 figures and runs")
        _add_own_files(archive, edition, request.tasks)
        layout.add(archive)
        say("5/7 report")
        _add_report(archive, scratch, request)
        archive.warnings += _of_the_folder(archive, edition, {request.out.absolute(), scratch})
        manifest = {
            "layout": request.layout,
            "packed": began.isoformat(timespec="seconds"),
            "machine": {fact.name: fact.found for fact in machine_facts()},
            "versions": {each.name: each.version for each in distributions() if each.name in PACKAGES},
            "runs": _runs(lab),
            "checks": [each._asdict() for each in results],
            "restrictions": broken,
            "warnings": archive.warnings,
            "edited": {name: _sha256(lab / name) for name, _ in edition.edited()},
            "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(archive.files.items())},
        }
        say("6/7 archive")
        archive.add(MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        packed = scratch / request.out.name
        archive.write(packed)
        say("7/7 the archive, unpacked and checked again")
        lost = _differences(results, _tried(packed, edition, request.tasks))
        _publish(packed, request)
    failed = [each.task for each in results if not each.passed]
    remarks = {
        "Not right yet:": [", ".join(failed)] if failed else [],
        "Not allowed:": broken,
        "Once unpacked elsewhere, with the lab as it came:": lost,
        "Look at this before you hand it in:": archive.warnings,
    }
    for heading, lines in remarks.items():
        if lines:
            say("\n".join([f"\n{heading}", *(f"- {line}" for line in lines)]))
    say(f"\n{request.out}, {request.out.stat().st_size / 1e6:.1f} MB, {len(archive.files)} files")
    return not (failed or broken or lost or archive.warnings)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _check_request(request: Request, lab: Path) -> None:
    if assignments.LAYOUTS[request.layout].needs_name and not re.fullmatch(r"\w+(_[\w-]+){2,}", request.name):
        raise ValueError(
            f"--layout {request.layout} names its report after you: give --name NETID_First_Last (got {request.name!r})"
        )
    if not (lab / "notebooks").is_dir():
        raise ValueError(
            f"labkit is imported from {lab}, which is no lab: it has no notebooks. Install it with make setup"
        )
    if not request.out.parent.is_dir():
        raise ValueError(f"there is no folder {request.out.parent}: make it first")
    if request.out.is_dir():
        raise ValueError(f"{request.out} is a folder: name a file")
    if os.path.lexists(request.out) and not request.force:
        raise FileExistsError(f"{request.out} is there already: name another file, or say --force")
    if os.path.lexists(request.out) and not (request.out.is_file() and zipfile.is_zipfile(request.out)):
        raise FileExistsError(f"{request.out} is no archive, and --force replaces only one: name another file")
    tempfile.TemporaryFile(dir=request.out.parent).close()


def _publish(packed: Path, request: Request) -> None:
    """Put the archive in its place, at once; a file that has come there meanwhile stays."""
    if request.force:
        os.replace(packed, request.out)
        return
    try:
        os.link(packed, request.out)
    except FileExistsError:
        raise FileExistsError(f"{request.out} has come to be meanwhile: is another submit running?") from None
    except OSError:  # a file system without links
        os.rename(packed, request.out)


def _broken(request: Request, edition: Edition, results: Sequence[Checked]) -> list[str]:
    """Return what is not allowed: seen while the checks ran, or by this layout's rules."""
    found = [warning for each in results for warning in each.warnings]
    for task in request.tasks:
        given = edition.programs[f"labkit/{task_file(task).name}"]
        found += restrictions.broken(task, request.layout, given=given)
    return list(dict.fromkeys(found))


# --- what goes in ---------------------------------------------------------------------------------


def _add_own_files(archive: Archive, edition: Edition, tasks: Sequence[str]) -> None:
    """Add the student's files, each region to read, figures, runs and guesses."""
    for name in STUDENT_FILES:
        if (archive.lab / name).is_file():
            archive.add_file(archive.lab / name)
    for task in tasks:
        with contextlib.suppress(SyntaxError, ValueError, OSError):  # which its check says
            source = read_source(archive.lab / "labkit" / task_file(task).name)
            archive.add(f"regions/{task}.py", regions.answer(task, source))
    for folder in ("figures", "runs"):
        archive.add_folder(archive.lab / folder, but=edition.hashes)
    if (guesses := answers_folder() / "guesses.json").is_file():
        archive.add("guesses.json", guesses.read_bytes())


def _add_notebooks(archive: Archive, request: Request) -> None:
    """Add the notebooks of the tasks, as they are and as HTML, and say what a grader would miss."""
    from nbconvert import HTMLExporter

    not_run = []
    for path in sorted((archive.lab / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.name}"
        try:
            notebook = read_notebook(path)
        except ReportError as error:
            archive.warnings.append(str(error))
            archive.add_file(path)
            continue
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        asked = {task for cell in code for task in _TASK.findall(cell.source)}
        if asked and not asked.intersection(request.tasks):
            continue
        if request.execute:
            try:
                notebook = run(path, static=False)
                code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            except NotebookError as error:
                archive.warnings.append(f"{name} was not executed: {str(error).strip().splitlines()[-1]}")
        silent = [n for n, cell in enumerate(code, 1) if cell.execution_count is None and cell.source.strip()]
        if silent:
            not_run.append(f"{path.name} ({len(silent)} of {len(code)}, the first is number {silent[0]})")
        fresh = request.execute or bool(silent)
        archive.warnings += [f"{name}: {fault}" for fault in _faults(path, code, asked, fresh)]
        archive.add(name, nbformat.writes(notebook))
        archive.add(str(Path(name).with_suffix(".html")), HTMLExporter().from_notebook_node(notebook)[0])
    if not_run:
        archive.warnings.append(f"notebooks with code cells that were not run: {'; '.join(not_run)}")


def _faults(path: Path, code: Sequence[Any], asked: set[str], fresh: bool) -> Iterator[str]:
    """Yield what a grader would miss in the code cells that were run.

    Unless they are ``fresh``, they may be older than the answers that they show.
    """
    counts = [cell.execution_count for cell in code if cell.execution_count is not None]
    if counts != sorted(counts):
        yield "its cells were run in another order than they stand in: run all, from the top"
    printed = ""
    for number, cell in enumerate(code, 1):
        for output in cell.outputs:
            if output.output_type == "error" and RAISES not in cell.metadata.get("tags", []):
                yield f"code cell {number} ended with {output.ename}"
            printed += output.get("text", "") if cell.source.startswith("%%needs") else ""
    if guesses := set(re.findall(r"GUESS (\w+):", printed)):
        yield f"{len(guesses)} guesses are not given: {', '.join(sorted(guesses))}"
    answers = {path.parents[1] / "labkit" / task_file(task).name for task in asked}
    newer = [file for file in sorted(answers) if file.is_file() and file.stat().st_mtime > path.stat().st_mtime]
    if newer and not fresh:
        yield f"it was saved before labkit/{newer[0].name} was: run it again, and save it (or say --execute)"


def _add_report(archive: Archive, scratch: Path, request: Request) -> None:
    """Add the report, as HTML, and as PDF where Chromium can be had."""
    more = assignments.report_of_glue(archive.lab, request.name) if request.layout == "cos598d" else ""
    options: dict[str, Any] = {"wash": archive.without_private, "more": more}
    try:
        try:
            written = write_report(REPORT, scratch, **options)
        except ReportError as error:
            archive.warnings.append(f"the report has no figures and tables: {str(error).partition('. ')[0]}")
            written = write_report(REPORT, scratch, texts_alone=True, **options)
    except (ReportError, OSError) as error:
        archive.warnings.append(f"there is no report: {error}")
        return
    archive.warnings += [f"the report: {note}" for note in written.notes]
    for file in written.files:
        archive.add((request.name or file.stem) + file.suffix, file.read_bytes())


def _runs(lab: Path) -> dict[str, Any]:
    """Return backend and devices of each training run."""
    found = {}
    for folder, merged in assignments.runs(lab):
        found[folder.name] = {key: merged.get(key) for key in ("backend", "devices", "world_size")}
    return found


def _of_the_folder(archive: Archive, edition: Edition, ours: set[Path]) -> Iterator[str]:
    """Yield what to know of the lab's folder: edited files, emulation, CPUs, what is not packed."""
    if not edition.hashes:
        yield f"there is no {RECORD} here, so nobody can tell which given files were edited"
    yield from (" ".join(each) for each in edition.edited())
    for name, content in archive.files.items():
        if name in STUDENT_FILES and grading.edits_what_was_given(edition, name, content):
            yield f"{name}: you edited code in it that was given; a grader's check takes your functions alone"
    for name, content in archive.files.items():
        if name.startswith("figures/") and name.endswith(".alt.txt") and b"emulated" in content.lower():
            yield f"{name.removesuffix('.alt.txt')} shows an emulated run: the assignments ask for measured ones"
    cpu = [name for name, each in _runs(archive.lab).items() if "cuda" not in str(each["devices"])]
    if cpu:
        yield f"these runs were on CPUs, so say so where you compare times: {', '.join(cpu)}"
    known = {*edition.names(), RECORD, *archive.files}
    for root, folders, names in os.walk(archive.lab):
        inside = {Path(root, each) for each in folders if each not in NOT_OURS and not each.endswith(".egg-info")}
        folders[:] = [each.name for each in sorted(inside - ours) if not each.name.startswith(SCRATCH)]
        for each in names:
            file = Path(root, each)
            name = file.relative_to(archive.lab).as_posix()
            if name not in known and not name.startswith(("figures/", "runs/", ".labkit/")) and file not in ours:
                yield f"{name} did not come with the lab, and is left out"


# --- tried ----------------------------------------------------------------------------------------


def _tried(packed: Path, edition: Edition, tasks: Sequence[str]) -> list[Checked]:
    """Check the tasks again with what was unpacked; with labkit as it came where none is in it."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(packed) as archive:
        archive.extractall(scratch)  # one that we have made
        folder = Path(scratch, "task2a") if Path(scratch, "task2a").is_dir() else Path(scratch)
        if not (folder / "labkit" / "cli.py").is_file():
            files = {name: folder / name for name in STUDENT_FILES}
            contents = {name: file.read_bytes() for name, file in files.items() if file.is_file()}
            edition.write_package(folder, grading.written_into(edition, contents))
        return grading.checked_in(folder, tasks)


def _differences(before: Sequence[Checked], after: Sequence[Checked]) -> list[str]:
    return [
        f"{was.task} is right here, and not there: {next(iter(found.findings), '')}"
        for was, found in zip(before, after, strict=True)
        if was.passed and not found.passed
    ]
