"""The student edition has every file, no solution, and says what to do where one stood."""

import json
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
import warm_python
import yaml
from nbformat.v4 import new_code_cell, new_notebook

from labkit.base.words import words
from labkit.course import notebooks, student
from labkit.course.student import MarkerError, write_student_edition
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
    for folder in ("labkit", "notebooks", ".ci", ".github/workflows", "__pycache__", ".venv/bin"):
        (root / folder).mkdir(parents=True)
    (root / "labkit/dp.py").write_text(SOURCE)
    (root / "notebooks/00.ipynb").write_text(notebook(cell("1 + 1")))
    (root / "notebooks/guesses.json").write_text('{"hidden": {"guess": 0.5, "answer": 0.7}}')
    (root / ".github/workflows/tests.yml").write_text("name: tests\n")
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
    assert write_student_edition(target, repository) == (["dp.1"], [], {})
    assert (target / "labkit/dp.py").read_text() == STUDENT
    assert (target / "README.md").read_text().endswith(" |\n\nFor all.\n\nFor all again.\n")  # below the plan
    copied = {"labkit/dp.py", "notebooks/00.ipynb", ".ci/run", "data.bin", "link", "README.md"}
    assert files(target) == {*copied, *ITS_OWN}
    assert (target / "data.bin").read_bytes() == bytes(range(256))
    assert (target / ".ci/run").stat().st_mode & 0o777 == 0o755
    assert (target / "link").is_symlink()
    assert {entry.name for entry in repository.parent.iterdir()} == {"repository", "edition"}


REFUSED = {  # where to write, what is there before, and why it is refused
    "a directory with something in it": ("edition", "edition/homework.txt", FileExistsError, "is not empty"),
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
    "begins twice": (END, BEGIN, "line 15: .*has not ended"),
    "an unknown task": (BEGIN, "### BEGIN SOLUTION dp.99", "line 10: task 'dp.99' is unknown"),
    "nothing says what to do": (TODO, "", "what to do is missing"),
    "nothing between the markers": ("    y = x + x\n\n    return y\n", "", "line 10: nothing stands between"),
    "a student edition already": (SOURCE, STUDENT, "is it a student edition already"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_markers_that_do_not_fit_are_an_error_with_file_and_line_before_anything_is_written(mistake, repository):
    before, after, says = BAD[mistake]
    (repository / "labkit/dp.py").write_text(SOURCE.replace(before, after))
    with pytest.raises(MarkerError, match=rf"(labkit/dp\.py|repository has no).*{says}"):
        edition(repository)
    assert not (repository.parent / "edition").exists()


def test_a_notebook_has_no_outputs_and_a_todo_where_a_solution_stood_and_all_else_as_it_was(repository):
    solved = "### TODO dp.4 (1 minute): Say it.\n### BEGIN SOLUTION dp.4\nsecret = 1\n### END SOLUTION\n"
    to_do = '# TODO dp.4 (about 1 line, 1 minute): Say it.\nraise TodoError("dp.4")\n'
    text = {"cell_type": "markdown", "id": "y", "metadata": {"tags": ["report"]}, "source": ["Why?\n", "Ü."]}
    sources = ["from labkit.todo import TodoError", solved, "1 + 1", ""]
    (repository / "notebooks/00.ipynb").write_text(notebook(text, *map(cell, sources)))
    unrun = [cell(source) | {"outputs": [], "execution_count": None} for source in [sources[0], to_do, *sources[2:]]]
    assert json.loads((edition(repository) / "notebooks/00.ipynb").read_text()) == json.loads(notebook(text, *unrun))


PAGES = {  # a page, and what is said of it
    "never ends": ("a\n<!-- INSTRUCTORS ONLY -->\nb", "line 2: .*never ends"),
    "ends without a beginning": ("a\n<!-- END -->", "line 2: .*expected '<!-- INSTRUCTORS ONLY -->'"),
    "begins twice": ("a\n" + "<!-- INSTRUCTORS ONLY -->\n" * 2, "line 3: .*expected '<!-- END -->'"),
    "in small letters": ("a <!-- instructors only --> b", "line 1: .*expected '<!-- INSTRUCTORS ONLY -->'"),
}


@pytest.mark.parametrize("mistake", PAGES)
def test_a_page_whose_part_for_instructors_has_no_end_is_an_error_not_a_leak(mistake, repository):
    text, says = PAGES[mistake]
    (repository / "page.md").write_text(text)
    with pytest.raises(MarkerError, match=rf"page\.md.*{says}"):
        edition(repository)
    assert not (repository.parent / "edition").exists()


ITS_OWN = {"AGENTS.md", ".github/workflows/check.yml"}


def test_the_editions_workflow_is_one_job_on_one_python_that_runs_the_check(repository):
    workflow = yaml.safe_load((edition(repository) / ".github/workflows/check.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert "strategy" not in job and [step["run"] for step in job["steps"] if "run" in step][1:] == ["labkit check"]
    extras = re.findall(r"\.\[(.*?)\]", job["steps"][2]["run"])
    assert extras == ["train"]  # pipe.4's check runs transformers' GPT-2; nothing draws


WRITTEN_BY_NOTEBOOKS = [
    "figures/pp_training_time.png",
    ".labkit/guesses.json",
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
    assert files(target) == {"labkit/dp.py", "notebooks/00.ipynb", ".gitignore", *ITS_OWN}
    subprocess.run(["git", "init", "-q", target], check=True)
    assert ignored(target) == WRITTEN_BY_NOTEBOOKS
    assert ignored(repository) == WRITTEN_BY_NOTEBOOKS[1:]


def ignored(folder: Path) -> list[str]:
    paths = [*WRITTEN_BY_NOTEBOOKS, "labkit/dp.py", "figures/explorers/a.png"]
    return subprocess.run(
        ["git", "-C", str(folder), "check-ignore", *paths], capture_output=True, text=True
    ).stdout.split()


# --- this repository ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course") / "edition"
    write_student_edition(folder)
    return folder


NOTEBOOKS = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
FORGET = "from labkit import todo\ntodo._WAITING.clear()\nget_ipython().run_line_magic('reset', '-f')"


@pytest.fixture
def one_after_the_other(real_edition) -> Iterator[Callable[[list[str]], Path]]:
    """one_after_the_other(names): a notebook with the cells of these. They share a kernel, whose
    start would take longer than what does not wait, and none finds the names of another."""
    path = real_edition / "notebooks" / "one_after_the_other.ipynb"

    def write(names: list[str]) -> Path:
        cells = []
        for name in names:
            cells += nbformat.read(real_edition / f"notebooks/{name}.ipynb", as_version=4).cells
            cells.append(new_code_cell(FORGET))
        for place, each in enumerate(cells):
            each.id = f"cell-{place}"
        nbformat.write(new_notebook(cells=cells), path)
        return path

    yield write
    path.unlink()


@in_the_marked_source
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "names",
    [
        # not 06: its scripts run for a minute, and the one cell that calls a task waits for it
        pytest.param([name for name in NOTEBOOKS[:-1] if name[:2] != "06"], marks=pytest.mark.slow, id="what asks"),
        pytest.param(NOTEBOOKS[-1:], id="what looks back"),  # on guesses, and there are none
    ],
)
def test_unfilled_notebooks_run_to_their_end_and_all_that_waits_steps_aside(
    names, one_after_the_other, real_edition, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(real_edition))
    monkeypatch.setenv("LABKIT_FIGURES", str(tmp_path))
    monkeypatch.delenv("LABKIT_ANSWERS", raising=False)
    code = [cell for cell in notebooks.run(one_after_the_other(names)).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    waiting = [cell.outputs for cell in code if cell.source.startswith("%%needs")]
    assert [outputs for outputs in waiting if not re.match("TODO|GUESS", outputs[0].data["text/plain"])] == []
    assert not (real_edition / ".labkit").exists() and not list(tmp_path.glob("*guess*"))


@in_the_marked_source
def test_answers_in_the_file_of_questions_are_sealed_and_notebooks_read_them_as_before(real_edition, monkeypatch):
    questions, sealed = (
        tomllib.loads((folder / student.QUESTIONS).read_text("utf-8")) for folder in (ROOT, real_edition)
    )
    answers = {name: entry.pop("answer") for name, entry in questions.items() if "answer" in entry}
    shipped = {name: entry.pop("answer") for name, entry in sealed.items() if "answer" in entry}
    assert questions == sealed and all(answer.startswith("sealed:") for answer in shipped.values())
    monkeypatch.chdir(real_edition)
    assert answers == {name: words("questions", name)["answer"] for name in shipped} != {}


# A file without marks, whose tests reach a TODO here and in a rank, one of marked tests, and one of
# the lab alone, which the fast tests of an edition leave out.
TESTS = ["tests/test_mine.py", "tests/test_pipe.py", "tests/other"]
MINE = """
from labkit import dp
from labkit.launch import launch
from labkit.ranks.processes.server_handle import forks

del forks.packages[1:]  # which take seconds to import, and no rank here needs them

def test_here():
    assert dp.assign_buckets([1, 9, 1], 8) == [[2, 1], [0]]

def test_in_a_rank():
    assert launch(dp.assign_buckets, [1, 9, 1], 8, world_size=1, init=False).values == [[[2, 1], [0]]]
"""


def outcomes(folder: Path) -> Counter[str]:
    """Run TESTS as make test does, with the folder's own labkit; return how many ended how."""
    options = ["-q", "-rs", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow"]
    ended = warm_python.run("-m", "pytest", *options, *TESTS, folder=folder, PYTHONPATH=str(folder))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Counter({what: int(n) for n, what in re.findall(r"(\d+) (passed|skipped)", ended.stdout)})


@in_the_marked_source
@pytest.mark.timeout(900)
def test_tests_of_an_edition_are_green_while_nothing_is_done_and_more_of_them_run_once_all_is(tmp_path):
    edition = tmp_path / "edition"
    write_student_edition(edition)
    (edition / TESTS[0]).write_text(MINE)
    (edition / TESTS[2]).mkdir()
    (edition / TESTS[2] / "test_other.py").write_text("def test_it_runs_here():\n    raise AssertionError\n")
    to_do = outcomes(edition)
    for name in STUDENT_FILES:
        (edition / name).write_text(
            re.sub(r"^ *### (BEGIN|END) SOLUTION.*\n", "", (ROOT / name).read_text(), flags=re.M)
        )
    done = outcomes(edition)
    assert to_do["skipped"] > 30 and done["skipped"] == 0
    assert done["passed"] == to_do.total() > to_do["passed"] > 0


@in_the_marked_source
def test_the_student_files_can_be_imported_and_check_says_todo_of_every_task(real_edition):
    code = "import labkit.dp, labkit.pipe, labkit.shard; from labkit import cli; raise SystemExit(cli.main(['check']))"
    run = warm_python.run("-c", code, folder=real_edition)
    expected = []
    for task in TASKS:
        name = f"labkit/{task_file(task).name}"
        lines = [line.strip() for line in (real_edition / name).read_text().splitlines()]
        line = lines.index(f'raise TodoError("{task}")') + 1
        expected.append(f"TODO {task}: {name}, line {line}")
    assert (run.stdout.splitlines(), run.returncode) == (expected, 1), run.stderr
