"""The student edition has every file, no solution, and says what to do where one stood."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.course import student
from labkit.course.student import RECORD, MarkerError, write_student_edition
from labkit.todo import TASKS, task_file

ROOT = Path(__file__).parents[2]
STUDENT_FILES = sorted({f"labkit/{task_file(task).name}" for task in TASKS})
SOLVED = not student.is_student_edition()
in_the_marked_source = pytest.mark.skipif(not SOLVED, reason="a student edition has no solution to take out")

SOURCE = '''"""A student file."""

from labkit.todo import TodoError


def double(x):
    """Twice x."""
    ### TODO dp.1 (2 minutes): Give twice x.
    ### Any way will do.
    ### BEGIN SOLUTION dp.1
    # a comment of the solution's own
    y = x + x

    return y
    ### END SOLUTION


def after():
    return 1
'''
STUDENT = '''"""A student file."""

from labkit.todo import TodoError


def double(x):
    """Twice x."""
    # TODO dp.1 (about 2 lines, 2 minutes): Give twice x. Any way will do.
    raise TodoError("dp.1")


def after():
    return 1
'''


def cell(source: str) -> dict:
    output = {"output_type": "stream", "name": "stdout", "text": ["out\n"]}
    kind = {"cell_type": "code", "execution_count": 7, "id": "x", "metadata": {}}
    return kind | {"outputs": [output], "source": source.splitlines(keepends=True)}


def notebook(*cells: dict) -> str:
    return json.dumps({"cells": list(cells), "metadata": {"é": 1}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


@pytest.fixture
def repository(tmp_path):
    """A small repository: a student file, a notebook, a link, and what instructors keep."""
    root = tmp_path / "repository"
    for folder in ("labkit", "notebooks", ".ci", "__pycache__", ".venv/bin"):
        (root / folder).mkdir(parents=True)
    (root / "labkit/dp.py").write_text(SOURCE)
    (root / "notebooks/00.ipynb").write_text(notebook(cell("1 + 1")))
    (root / ".ci/run").write_text("#!/bin/sh\n")
    (root / ".ci/run").chmod(0o755)
    (root / "data.bin").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("data.bin")
    (root / ".venv/bin/python").write_text("not ours")
    (root / "__pycache__/x.pyc").write_text("not ours")
    (root / "answers.py").write_text("### INSTRUCTORS ONLY: answers\nanswer = 42\n")
    (root / "grading.md").write_text("<!-- INSTRUCTORS ONLY -->\n# Grading\n")
    (root / "README.md").write_text(
        "For all.\n\n<!-- INSTRUCTORS ONLY -->\n## Grading\n<!-- END -->\n\nFor all again.\n"
    )
    return root


def edition(repository: Path) -> Path:
    target = repository.parent / "edition"
    write_student_edition(target, repository)
    return target


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}


def test_a_solution_becomes_a_todo_error_what_is_for_instructors_stays_and_all_else_is_copied_as_it_is(repository):
    target = repository.parent / "edition"
    target.mkdir()  # an empty directory is taken
    assert write_student_edition(target, repository) == ["dp.1"]
    assert (target / "labkit/dp.py").read_text() == STUDENT
    assert (target / "README.md").read_text() == "For all.\n\nFor all again.\n"
    assert files(target) == {"labkit/dp.py", "notebooks/00.ipynb", ".ci/run", "data.bin", "link", "README.md", RECORD}
    assert (target / "data.bin").read_bytes() == bytes(range(256))
    assert (target / ".ci/run").stat().st_mode & 0o777 == 0o755
    assert (target / "link").is_symlink()
    assert (target / "notebooks/00.ipynb").read_bytes() == (repository / "notebooks/00.ipynb").read_bytes()
    assert {entry.name for entry in repository.parent.iterdir()} == {"repository", "edition"}


REFUSED = {  # where to write, what is there before, and why it is refused
    "a directory with something in it": ("edition", "edition/homework.txt", FileExistsError, "something in it already"),
    "a file": ("edition", "edition", FileExistsError, "is a file"),
    "one by a roundabout way": ("repository/../repository/new", None, ValueError, "inside the repository"),
}


@pytest.mark.parametrize(("directory", "there", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_a_target_that_holds_something_is_refused_and_left_alone(repository, directory, there, error, says):
    if there:
        (repository.parent / there).parent.mkdir(exist_ok=True)
        (repository.parent / there).write_text("mine")
    before = files(repository.parent)
    with pytest.raises(error, match=says):
        write_student_edition(repository.parent / directory, repository)
    assert files(repository.parent) == before


TODO = "    ### TODO dp.1 (2 minutes): Give twice x.\n    ### Any way will do.\n"
BEGIN, END = "### BEGIN SOLUTION dp.1", "### END SOLUTION"
BAD = {  # a change to SOURCE, and what is said of it
    "never ends": (f"    {END}\n", "", "line 10: a solution begins and never ends"),
    "ends without beginning": (f"    {BEGIN}\n", "", "line 14: a solution ends, but none has begun"),
    "begins twice": (END, BEGIN, "line 15: .*has not ended"),
    "an unknown task": (BEGIN, "### BEGIN SOLUTION dp.99", "line 10: task 'dp.99' is unknown"),
    "a misspelt begin": (BEGIN, "## Begin solution dp.1", "line 10: .* is not a marker"),
    "a misspelt end": (END, f"{END} dp.1", "line 15: .* is not a marker"),
    "nothing says what to do": (TODO, "", "what to do is missing"),
    "what to do is another task's": ("### TODO dp.1", "### TODO dp.2", "Write '### TODO dp.1"),
    "nothing between the markers": ("    y = x + x\n\n    return y\n", "", "line 10: nothing stands between"),
    "a student edition already": (SOURCE, STUDENT, "is it a student edition already"),
    "TodoError is not known": ("from labkit.todo import TodoError", "", "add 'from labkit.todo import TodoError'"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_markers_that_do_not_fit_are_an_error_with_file_and_line_before_anything_is_written(mistake, repository):
    before, after, says = BAD[mistake]
    (repository / "labkit/dp.py").write_text(SOURCE.replace(before, after))
    with pytest.raises(MarkerError, match=rf"(labkit/dp\.py|repository has no).*{says}"):
        edition(repository)
    assert not (repository.parent / "edition").exists()


def test_a_notebooks_marker_that_does_not_fit_is_an_error_with_cell_and_line(repository):
    (repository / "notebooks/00.ipynb").write_text(notebook(cell("1"), cell("x = 1\n### END SOLUTION")))
    with pytest.raises(MarkerError, match=r"notebooks/00\.ipynb, cell 2, line 2: a solution ends"):
        edition(repository)


def test_a_notebooks_solution_and_its_output_are_taken_out(repository):
    solved = "### TODO dp.4 (1 minute): Say it.\n### BEGIN SOLUTION dp.4\nsecret = 1\n### END SOLUTION\n"
    sources = ["from labkit.todo import TodoError", solved, "%%needs dp.1\nshow()", 'check("dp.1")']
    sources += ["print(inspect.getsource(dp.average_gradients))", "listing(dp.average_gradients)", "1 + 1"]
    (repository / "notebooks/00.ipynb").write_text(notebook(*map(cell, sources)))
    cells = json.loads((edition(repository) / "notebooks/00.ipynb").read_text())["cells"]
    assert "".join(cells[1]["source"]) == '# TODO dp.4 (about 1 line, 1 minute): Say it.\nraise TodoError("dp.4")\n'
    for cleared in cells[1:6]:
        assert cleared["outputs"] == []
        assert cleared["execution_count"] is None
        assert cleared["metadata"]["tags"] == ["nbval-ignore-output"]
    for kept in (cells[0], cells[6]):
        assert kept["outputs"]
        assert "tags" not in kept["metadata"]


WRITTEN_BY_NOTEBOOKS = [
    "figures/pp_training_time.png",
    ".labkit/guesses.json",
    ".labkit/hints.json",
    "runs/report-03.html",
    "notebooks/.ipynb_checkpoints/01_shards-checkpoint.ipynb",
    "labkit/__pycache__/dp.cpython-311.pyc",
]


@in_the_marked_source
def test_with_git_only_tracked_files_go_along_and_git_ignores_what_notebooks_write_but_figures_here(repository):
    shutil.copy(ROOT / ".gitignore", repository)
    for command in (["init", "-q"], ["add", "labkit", "notebooks", ".gitignore"]):
        subprocess.run(["git", "-C", repository, *command], check=True)
    target = edition(repository)
    assert files(target) == {"labkit/dp.py", "notebooks/00.ipynb", ".gitignore", RECORD}
    subprocess.run(["git", "init", "-q", target], check=True)
    assert ignored(target) == WRITTEN_BY_NOTEBOOKS
    assert ignored(repository) == WRITTEN_BY_NOTEBOOKS[1:]


def ignored(folder: Path) -> list[str]:
    asked = [*WRITTEN_BY_NOTEBOOKS, "labkit/dp.py", "figures/explorers/a.png"]
    return subprocess.run(
        ["git", "-C", str(folder), "check-ignore", *asked], capture_output=True, text=True
    ).stdout.split()


# --- this repository ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_edition(tmp_path_factory):
    """The student edition of this repository."""
    folder = tmp_path_factory.mktemp("course") / "edition"
    write_student_edition(folder)
    return folder


@in_the_marked_source
def test_no_line_of_a_solution_is_in_the_student_edition(real_edition):
    for file in sorted((ROOT / "labkit").glob("*.py")):
        lines = file.read_text().split("\n")
        found = list(student.regions(lines, file.name))
        left = {line.strip() for line in (real_edition / "labkit" / file.name).read_text().split("\n")}
        for region in found:
            stripped = map(str.strip, lines[region.start : region.end])
            solution = {line for line in stripped if len(line) > 8 and not line.startswith("#")}
            assert solution
            assert not solution & left, f"{file.name}: {solution & left}"
    for name in STUDENT_FILES:
        assert "SOLUTION" not in (real_edition / name).read_text()


@in_the_marked_source
def test_the_student_files_can_be_imported_and_check_says_todo_of_every_task(real_edition):
    code = "import labkit.dp, labkit.pipe; from labkit import cli; raise SystemExit(cli.main(['check']))"
    run = subprocess.run([sys.executable, "-c", code], cwd=real_edition, capture_output=True, text=True)
    expected = []
    for task in TASKS:
        name = f"labkit/{task_file(task).name}"
        lines = [line.strip() for line in (real_edition / name).read_text().splitlines()]
        line = lines.index(f'raise TodoError("{task}")') + 1
        expected.append(f"TODO {task}: {name}, line {line}")
    assert (run.stdout.splitlines(), run.returncode) == (expected, 1), run.stderr


@in_the_marked_source
def test_the_student_files_are_as_clean_as_the_marked_ones(real_edition):
    for command in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *STUDENT_FILES], cwd=real_edition, check=True)


@in_the_marked_source
def test_no_test_of_the_student_edition_holds_an_answer(real_edition):
    tests = {file.name for file in (real_edition / "tests").rglob("*.py")}
    assert "test_check.py" in tests and "test_answers.py" not in tests
    assert not [name for name in tests if name.startswith("wrong_")]
    assert not (real_edition / "docs" / "instructor.md").exists()
    assert "instructor" not in (real_edition / "README.md").read_text()
