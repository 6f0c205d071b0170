"""Pack what a student hands in, and preview what a grader will see.

It always packs. Only a wrong call, and a place where nothing can be written, is refused before
anything starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.course import Course
from labkit.base.lab import Lab, lab
from labkit.base.texts import listed
from labkit.check import CheckResult
from labkit.course import assignments
from labkit.course.archive import GUESSES, MANIFEST, QUESTIONS, Archive, Submission
from labkit.course.grading import broken_rules, print_results
from labkit.course.judge import Judge, judge_in_copy
from labkit.course.report import ReportError, read_notebook, write_report
from labkit.course.what_ran import not_run, number_of, waiting
from labkit.guesses import store
from labkit.todo import TASKS

REPORT = "05"  # the notebook that makes one
FILES = ("figures/*", "runs/**/*.json", "runs/**/*.txt")  # of runs, results and losses
SCRATCH = "packing-"  # how a folder's name begins in which an archive is made
PACKAGES = ("labkit", "torch", "transformers", "numpy")
_LABS = re.compile(r"\d\d_\w+\.ipynb")  # a notebook of the lab's, and no copy of one
_NEEDS = re.compile(r"^%%needs (.+)|\bcheck\(\"(.+?)\"", re.MULTILINE)


class SubmitRequest(NamedTuple):
    """What was asked for: see ``labkit submit --help``."""

    out: Path
    course: Course
    layout: str
    tasks: Sequence[str]
    name: str = ""
    with_guesses: bool = False
    notebooks: Sequence[Path] = ()  # of the reader's own


def submit(request: SubmitRequest, say: Callable[[str], None] = print) -> bool:
    """Pack the archive, and say what a grader will see. Return whether nothing is left to do.

    Raises ValueError or OSError, before anything is run, for what cannot be: a layout without the
    name that it needs, a file that is not an archive, a place where nothing can be written.
    """
    here = lab()
    _check_request(request, here)
    layout = assignments.LAYOUTS[request.layout]
    archive = Archive(here.folder)
    with tempfile.TemporaryDirectory(dir=request.out.parent, prefix=SCRATCH) as scratch:
        for name in request.course.student_files:
            archive.add_file(here.folder / name)
        student_files = dict(archive.files)
        with Judge() as judge:
            results = print_results(judge_in_copy(student_files, request.tasks, judge), say)
        passed = {result.task for result in results if result.passed}
        _add_notebooks(archive, request, passed)
        archive.add_files(*FILES)
        if request.with_guesses:
            archive.add(GUESSES, (here.answers / GUESSES).read_bytes())
            archive.add_file(here.notebooks / "questions.toml", QUESTIONS)
        layout.add(archive)
        _add_report(archive, Path(scratch), request)
        manifest = _manifest(request, archive, results)
        archive.add(MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        archive.write(Path(scratch, request.out.name))
        os.replace(Path(scratch, request.out.name), request.out)
    remarks = [*broken_rules(Submission(student_files, manifest, [])), *archive.warnings]
    for remark in remarks:
        say(f"- {remark}")
    on_cpus = [name for name, run in manifest["runs"].items() if "cuda" not in str(run["devices"])]
    if on_cpus:
        say(f"On CPUs ran {listed(on_cpus)}: say so where you compare times.")
    say(f"{request.out}: {len(archive.files)} files, {request.out.stat().st_size / 1e6:.1f} MB")
    for line in _due(request):
        say(line)
    say(_next_step(request, [task for task in request.tasks if task not in passed], remarks))
    return not remarks and len(passed) == len(request.tasks)


def _due(request: SubmitRequest) -> Iterator[str]:
    """Yield by when the parts are due that were packed; nothing is subtracted for late ones."""
    for part in request.course.parts:
        if part.due and not part.points.keys().isdisjoint(request.tasks):
            yield f"{part.name} is due {part.due:%A, %Y-%m-%d %H:%M %Z}."


def _next_step(request: SubmitRequest, wrong: Sequence[str], remarks: Sequence[str]) -> str:
    """Return what to do now, or that nothing is left to do."""
    if wrong:
        others = f" and {len(wrong) - 1} more are" if wrong[1:] else " is"
        first = f"{wrong[0]}{others} not right yet; labkit check {wrong[0]} says more. Then run labkit submit again."
    elif remarks:
        lines = "the lines that begin" if len(remarks) > 1 else "the line that begins"
        first = f"see to {lines} with -, then run labkit submit again."
    else:
        return f"Nothing is left to do: hand in {request.out.name}."
    return f"Next: {first} (It is packed all the same. The exit status is 1 until nothing is left to do.)"


def _check_request(request: SubmitRequest, here: Lab) -> None:
    if request.layout not in assignments.LAYOUTS:
        expected = ", ".join(assignments.LAYOUTS)
        raise ValueError(f"{request.course.file}: there is no layout {request.layout!r}, expected one of: {expected}")
    if assignments.LAYOUTS[request.layout].needs_name and not re.fullmatch(r"\w+(_[\w-]+){2,}", request.name):
        raise ValueError(
            f"--layout {request.layout} names its report after you: give --name NETID_First_Last (got {request.name!r})"
        )
    if not here.notebooks.is_dir():
        raise ValueError(
            f"{here.folder} is not a lab, as it has no notebooks, and labkit is not imported from one: go to your lab's folder"
        )
    if not request.out.parent.is_dir():
        raise ValueError(f"there is no folder {request.out.parent}: make it first")
    if os.path.lexists(request.out) and not (request.out.is_file() and zipfile.is_zipfile(request.out)):
        raise FileExistsError(f"{request.out} is not an archive, and only one is replaced: name another file")
    if gone := [path for path in request.notebooks if not (path.suffix == ".ipynb" and path.is_file())]:
        raise ValueError(f"--notebook {gone[0]}: there is no such notebook")
    if request.with_guesses and not (here.answers / GUESSES).is_file():
        raise ValueError("--with-guesses: there are none yet; they come with the notebooks' questions")
    tempfile.TemporaryFile(dir=request.out.parent).close()


# --- what goes in ---------------------------------------------------------------------------------


def _add_notebooks(archive: Archive, request: SubmitRequest, passed: set[str]) -> None:
    """Add the lab's notebooks that ask for the tasks, and others that were run: as saved, and as
    HTML. A reader's own, without a number, come along where they are asked for by name."""
    from labkit.course.notebook_html import notebook_html  # loads much

    labs = [path for path in sorted((archive.lab / "notebooks").glob("*.ipynb")) if _LABS.fullmatch(path.name)]
    for path in [*labs, *(each for each in request.notebooks if each not in labs)]:
        try:
            cells = (notebook := read_notebook(path)).cells
        except ReportError as error:
            archive.warnings.append(str(error).replace(str(path), path.name))
            archive.add_file(path, f"notebooks/{path.name}")
            continue
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        needed = {name for found in _NEEDS.findall(code) for name in "".join(found).split()} & {*request.course.tasks}
        ran = any(cell.get("execution_count") for cell in cells)
        if path not in request.notebooks and not needed.intersection(request.tasks) and (needed or not ran):
            continue
        archive.add_file(path, f"notebooks/{path.name}")
        if needed and needed.issubset(request.tasks):
            archive.warnings += _unfinished(path, cells, passed)
        if ran:
            archive.add(f"notebooks/{path.stem}.html", notebook_html(notebook, path))


def _unfinished(path: Path, cells: Sequence[Any], passed: set[str]) -> Iterator[str]:
    """Yield what a grader would miss in a notebook."""
    if sentence := not_run(path, cells):
        yield sentence
        return
    missing = re.findall(r"^(?:TODO|GUESS) ([\w.]+):", "\n".join(waiting(cells)), re.MULTILINE)
    if again := sorted(passed.intersection(missing)):
        yield f"{number_of(path)} has cells that waited for {listed(again)}, which you have done since: run it again"
    guesses = sorted(name for name in missing if name not in TASKS)
    given = _given()
    if since := [name for name in guesses if name in given]:
        yield f"{number_of(path)} has cells that waited for your guesses {listed(since)}, given since: run it again"
    if waits := [name for name in guesses if name not in given]:
        yield f"{number_of(path)} waits for your guesses: {', '.join(waits)}"


def _given() -> set[str]:
    """Return the names of the guesses that the reader has given by now."""
    with contextlib.suppress(ValueError):  # the file is damaged, as the notebooks say
        return {name for name, facts in store.load().items() if "guess" in facts}
    return set()


def _add_report(archive: Archive, scratch: Path, request: SubmitRequest) -> None:
    """Add the report where there is one; an assignment's in any case, and as PDF as well."""
    layout = assignments.LAYOUTS[request.layout]
    more = assignments.report_of_glue(archive.lab, request.name) if layout.needs_name else ""
    try:
        written = write_report(REPORT, scratch, pdf=layout.needs_name, more=more)
    except (ReportError, OSError) as error:
        if not layout.needs_name:
            return  # its notebook's warning says why
        archive.warnings.append(f"the report has no figures and tables: {str(error).partition('. ')[0]}")
        try:
            written = write_report(REPORT, scratch, more=more, texts_alone=True)
        except (ReportError, OSError):
            return
    archive.warnings += [f"the report: {note}" for note in written.notes]
    for file in written.files:
        archive.add((request.name or file.stem) + file.suffix, file.read_bytes())


def _manifest(request: SubmitRequest, archive: Archive, results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return what the archive says of itself; it names no host, user or path."""
    versions = {each.name: each.version for each in distributions() if each.name in PACKAGES}
    runs = {
        folder.name: {key: merged.get(key) for key in ("backend", "devices", "threads_per_rank", "world_size")}
        for folder, merged in assignments.runs(archive.lab)
    }
    checks = {
        result.task: {"passed": result.passed, "claims": {claim.text: claim.mark for claim in result.claims}}
        for result in results
    }
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(archive.files.items())}
    return {
        "course": request.course.title,
        "layout": request.layout,
        "versions": {"python": platform.python_version(), **versions},
        "runs": runs,
        "checks": checks,
        "sha256": hashes,
    }
