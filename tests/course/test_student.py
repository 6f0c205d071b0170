"""The student edition has every file, no solution, and says what to do where one stood."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.course import student
from labkit.course.student import MarkerError, write_student_edition
from labkit.todo import TASKS, task_file

ROOT = Path(__file__).parents[2]
STUDENT_FILES = sorted({f"labkit/{task_file(task).name}" for task in TASKS})
SOLVED = not student.is_student_edition()
in_the_marked_source = pytest.mark.skipif(
    not SOLVED, reason="this is a student edition: there is no solution to take out"
)

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


def cell(source: str, outputs: bool = True) -> dict:
    output = {"output_type": "stream", "name": "stdout", "text": ["out\n"]}
    return {
        "cell_type": "code",
        "execution_count": 7,
        "id": "x",
        "metadata": {},
        "outputs": [output] if outputs else [],
        "source": source.splitlines(keepends=True),
    }


def notebook(*cells: dict) -> str:
    return json.dumps({"cells": list(cells), "metadata": {"é": 1}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


@pytest.fixture
def repository(tmp_path):
    """A small repository: a student file, a notebook, an executable, a link."""
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
    return root


def edition(repository: Path) -> Path:
    target = repository.parent / "edition"
    write_student_edition(target, repository)
    return target


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}


def test_a_solution_becomes_a_comment_with_lines_and_minutes_and_a_todo_error(repository):
    target = repository.parent / "edition"
    assert write_student_edition(target, repository) == ["dp.1"]
    assert (target / "labkit/dp.py").read_text() == STUDENT


def test_everything_else_is_copied_as_it_is(repository):
    target = edition(repository)
    assert files(target) == {"labkit/dp.py", "notebooks/00.ipynb", ".ci/run", "data.bin", "link"}
    assert (target / "data.bin").read_bytes() == bytes(range(256))
    assert (target / ".ci/run").stat().st_mode & 0o777 == 0o755
    assert (target / "link").is_symlink()
    assert (target / "notebooks/00.ipynb").read_bytes() == (repository / "notebooks/00.ipynb").read_bytes()
    assert {entry.name for entry in repository.parent.iterdir()} == {"repository", "edition"}


def test_with_git_only_tracked_files_go_along(repository):
    (repository / "grades.csv").write_text("not for students")
    for command in (["init", "-q"], ["add", "labkit", "notebooks"]):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    assert files(edition(repository)) == {"labkit/dp.py", "notebooks/00.ipynb"}


def test_an_empty_directory_is_taken(repository):
    (repository.parent / "edition").mkdir()
    assert (edition(repository) / "labkit/dp.py").exists()


def test_a_directory_with_something_in_it_is_refused_and_left_alone(repository):
    target = repository.parent / "edition"
    target.mkdir()
    (target / "homework.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="has something in it already"):
        write_student_edition(target, repository)
    assert files(target) == {"homework.txt"}


def test_a_file_is_refused(repository):
    (repository.parent / "edition").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        edition(repository)
    assert (repository.parent / "edition").read_text() == "mine"


@pytest.mark.parametrize("inside", [".", "labkit/edition", "../repository/new"])
def test_a_directory_inside_the_repository_is_refused(repository, inside):
    before = files(repository)
    with pytest.raises(ValueError, match="inside the repository"):
        write_student_edition(repository / inside, repository)
    assert files(repository) == before


BAD = {
    "never ends": (SOURCE.replace("    ### END SOLUTION\n", ""), "line 10: a solution begins and never ends"),
    "ends without beginning": (
        SOURCE.replace("    ### BEGIN SOLUTION dp.1\n", ""),
        "line 14: a solution ends, but none has begun",
    ),
    "begins twice": (
        SOURCE.replace("    ### END SOLUTION\n", "    ### BEGIN SOLUTION dp.1\n"),
        "line 15: .*has not ended",
    ),
    "an unknown task": (
        SOURCE.replace("BEGIN SOLUTION dp.1", "BEGIN SOLUTION dp.99"),
        "line 10: task 'dp.99' is unknown",
    ),
    "a misspelt begin": (
        SOURCE.replace("### BEGIN SOLUTION dp.1", "## Begin solution dp.1"),
        "line 10: .* is not a marker",
    ),
    "no task": (SOURCE.replace("BEGIN SOLUTION dp.1", "BEGIN SOLUTION"), "line 10: .* is not a marker"),
    "a misspelt end": (SOURCE.replace("### END SOLUTION", "### END SOLUTION dp.1"), "line 15: .* is not a marker"),
    "nothing says what to do": (
        SOURCE.replace("    ### TODO dp.1 (2 minutes): Give twice x.\n    ### Any way will do.\n", ""),
        "what to do is missing",
    ),
    "what to do is another task's": (SOURCE.replace("### TODO dp.1", "### TODO dp.2"), "Write '### TODO dp.1"),
    "nothing between the markers": (
        SOURCE.replace("    y = x + x\n\n    return y\n", ""),
        "line 10: nothing stands between the markers",
    ),
    "TodoError is not known": (
        SOURCE.replace("from labkit.todo import TodoError", ""),
        "add 'from labkit.todo import TodoError'",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_markers_that_do_not_fit_are_an_error_with_file_and_line_before_anything_is_written(mistake, repository):
    source, says = BAD[mistake]
    (repository / "labkit/dp.py").write_text(source)
    with pytest.raises(MarkerError, match=says) as caught:
        edition(repository)
    assert "labkit/dp.py" in str(caught.value)
    assert not (repository.parent / "edition").exists()


def test_a_tree_without_solutions_is_an_error(repository):
    (repository / "labkit/dp.py").write_text(STUDENT)
    with pytest.raises(MarkerError, match="is it a student edition already"):
        edition(repository)


def test_a_notebooks_solution_and_its_output_are_taken_out(repository):
    solved = "### TODO dp.4 (1 minute): Say it.\n### BEGIN SOLUTION dp.4\nsecret = 1\n### END SOLUTION\n"
    (repository / "notebooks/00.ipynb").write_text(
        notebook(
            cell("from labkit.todo import TodoError"),
            cell(solved),
            cell("%%needs dp.1\nshow()"),
            cell('check("dp.1")'),
            cell("print(inspect.getsource(dp.average_gradients))"),
            cell("listing(dp.average_gradients)"),
            cell("1 + 1"),
        )
    )
    cells = json.loads((edition(repository) / "notebooks/00.ipynb").read_text())["cells"]
    assert "".join(cells[1]["source"]) == '# TODO dp.4 (about 1 line, 1 minute): Say it.\nraise TodoError("dp.4")\n'
    for cleared in cells[1:6]:
        assert cleared["outputs"] == []
        assert cleared["execution_count"] is None
        assert cleared["metadata"]["tags"] == ["nbval-ignore-output"]
    for kept in (cells[0], cells[6]):
        assert kept["outputs"]
        assert "tags" not in kept["metadata"]


def test_a_notebooks_marker_that_does_not_fit_is_an_error_with_cell_and_line(repository):
    (repository / "notebooks/00.ipynb").write_text(notebook(cell("1"), cell("x = 1\n### END SOLUTION")))
    with pytest.raises(MarkerError, match=r"notebooks/00\.ipynb, cell 2, line 2: a solution ends"):
        edition(repository)


WRITTEN_BY_NOTEBOOKS = [
    "figures/pp_training_time.png",
    ".labkit/guesses.json",
    ".labkit/hints.json",
    "runs/report-03.html",
    "notebooks/.ipynb_checkpoints/01_shards-checkpoint.ipynb",
    "labkit/__pycache__/dp.cpython-311.pyc",
]


@in_the_marked_source
def test_git_ignores_what_notebooks_write_in_the_student_edition_and_keeps_figures_here(repository):
    shutil.copy(ROOT / ".gitignore", repository)
    target = edition(repository)
    subprocess.run(["git", "init", "-q", str(target)], check=True)
    assert ignored(target) == WRITTEN_BY_NOTEBOOKS
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    assert ignored(repository) == WRITTEN_BY_NOTEBOOKS[1:]


def ignored(folder: Path) -> list[str]:
    command = [
        "git",
        "-C",
        str(folder),
        "check-ignore",
        *WRITTEN_BY_NOTEBOOKS,
        "labkit/dp.py",
        "figures/explorers/a.png",
    ]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


# --- this repository ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_edition(tmp_path_factory):
    """The student edition of this repository, from a copy without git."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "labkit", folder / "repository/labkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "notebooks", folder / "repository/notebooks")
    shutil.copy(ROOT / "pyproject.toml", folder / "repository")
    write_student_edition(folder / "edition", folder / "repository")
    return folder / "edition"


@in_the_marked_source
def test_no_line_of_a_solution_is_in_the_student_edition(real_edition):
    for file in sorted((ROOT / "labkit").glob("*.py")):
        lines = file.read_text().split("\n")
        found = list(student.regions(lines, file.name))
        left = {line.strip() for line in (real_edition / "labkit" / file.name).read_text().split("\n")}
        given = {line.strip() for line in student.student_lines(lines, file.name)[0]}
        for region in found:
            stripped = map(str.strip, lines[region.start : region.end])
            solution = {line for line in stripped if len(line) > 8 and not line.startswith("#")}
            assert solution
            assert not solution & left, f"{file.name}: {solution & left}"
            assert not solution & given
    for name in STUDENT_FILES:
        assert "SOLUTION" not in (real_edition / name).read_text()


@in_the_marked_source
def test_the_student_files_can_be_imported_and_each_task_raises_its_todo(real_edition):
    code = """
from types import SimpleNamespace
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from labkit import dp, models, pipe, schedule
from labkit.todo import TASKS, TodoError, missing, task_file

def bucket(missing):
    return SimpleNamespace(names=["a", "b"], parameters=[1, 2], missing=missing, unused=list)

def reducer():
    made = dp.BucketedDataParallel.__new__(dp.BucketedDataParallel)
    torch.nn.Module.__init__(made)
    made._synchronize, made._sent, made.buckets = True, 0, [bucket(missing={0})]
    return made

def opened_pipe():
    made = pipe.Pipe.__new__(pipe.Pipe)
    torch.nn.Module.__init__(made)
    made._ending, made._workers, made.partitions = SimpleNamespace(alive=True), [], []
    return made

def placed_gpt2():
    config = GPT2Config(n_layer=1, n_head=1, n_embd=2, vocab_size=2, n_positions=2)
    return models.parallelize(GPT2LMHeadModel(config), ["cpu:0"])

def scheduled_pipeline():
    return pipe.ScheduledPipeline([torch.nn.Linear(1, 1)], schedule.gpipe(1, 1), torch.nn.functional.mse_loss)

calls = {
    "dp.1": [lambda: dp.Partition([1], [0])[0], lambda: dp.DataPartitioner([1], [1.0]),
             lambda: dp.partition_dataset(0, 1, [1], 1)],
    "dp.2": [lambda: dp.setup(0, 1, "gloo", master_port=0), lambda: dp.run_processes(print, 1, "gloo")],
    "dp.3": [lambda: dp.gather_scatter_gradients(torch.nn.Linear(1, 1))],
    "dp.4": [lambda: dp.average_gradients(torch.nn.Linear(1, 1))],
    "dp.5": [lambda: dp.ring_all_reduce(torch.ones(1))],
    "dp.6": [lambda: dp.assign_buckets([1], 1)],
    "dp.7": [lambda: reducer()._gradient_is_ready(bucket(missing={0}), 0), lambda: reducer().finish_gradient_synchronization()],
    "pipe.1": [lambda: pipe.split_module(torch.nn.Sequential(torch.nn.Linear(1, 1)))],
    "pipe.2": [lambda: list(pipe.clock_cycles(1, 1))],
    "pipe.3": [lambda: opened_pipe().forward(torch.ones(1, 1)), lambda: opened_pipe().compute([], [])],
    "pipe.4": [lambda: pipe.prepare_pipeline_parallel(placed_gpt2(), 1)],
    "pipe.5": [lambda: scheduled_pipeline().step(torch.ones(1, 1), torch.ones(1, 1))],
}
for task in TASKS:
    said, lines = set(), task_file(task).read_text().splitlines()
    for call in calls[task]:
        try:
            call()
        except TodoError as error:
            said.add(str(error))
            assert lines[int(str(error).split()[-1]) - 1].strip() == f'raise TodoError("{task}")', error
    assert len(said) == len(calls[task])
    assert missing(task) in said
    print(missing(task))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=real_edition, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == [f"TODO {task}" for task in TASKS]


@in_the_marked_source
def test_check_says_todo_in_the_student_edition_of_every_task(real_edition):
    run = subprocess.run(
        [sys.executable, "-m", "labkit.cli", "check"], cwd=real_edition, capture_output=True, text=True
    )
    expected = []
    for task in TASKS:
        name = f"labkit/{task_file(task).name}"
        lines = [line.strip() for line in (real_edition / name).read_text().splitlines()]
        line = lines.index(f'raise TodoError("{task}")') + 1
        expected.append(f"TODO {task}: {name}, line {line}")
    assert (run.stdout.splitlines(), run.returncode) == (expected, 1), run.stderr


@in_the_marked_source
@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"]])
def test_the_student_files_are_as_clean_as_the_marked_ones(real_edition, command):
    subprocess.run([sys.executable, "-m", *command, *STUDENT_FILES], cwd=real_edition, check=True, capture_output=True)


def test_what_is_for_instructors_only_stays_with_them(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "labkit").mkdir(parents=True)
    (repository / "labkit" / "dp.py").write_text(SOURCE)
    (repository / "answers.py").write_text("### INSTRUCTORS ONLY: answers\nanswer = 42\n")
    (repository / "grading.md").write_text("<!-- INSTRUCTORS ONLY -->\n# Grading\n")
    (repository / "README.md").write_text(
        "For all.\n\n<!-- INSTRUCTORS ONLY -->\n## Grading\n<!-- END -->\n\nFor all again.\n"
    )
    write_student_edition(tmp_path / "student", repository)
    assert not (tmp_path / "student" / "answers.py").exists()
    assert not (tmp_path / "student" / "grading.md").exists()
    assert (tmp_path / "student" / "README.md").read_text() == "For all.\n\nFor all again.\n"


@in_the_marked_source
def test_no_test_of_the_student_edition_holds_an_answer(tmp_path: Path) -> None:
    write_student_edition(tmp_path / "student")
    tests = {file.name for file in (tmp_path / "student" / "tests").rglob("*.py")}
    assert "test_check.py" in tests
    assert "test_answers.py" not in tests
    assert not [name for name in tests if name.startswith("wrong_")]
    assert not (tmp_path / "student" / "docs" / "instructor.md").exists()
    assert "instructor" not in (tmp_path / "student" / "README.md").read_text()
