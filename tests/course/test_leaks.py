### INSTRUCTORS ONLY: this file reads solutions, so it is not in the student edition
"""No file of the student edition gives a solution away, by its lines or by what it calls."""

import ast
import builtins
import contextlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from solution_lines import ROOT, STUDENT_FILES, leaks, texts

from labkit.course import student
from labkit.course.student import write_student_edition


@pytest.fixture(scope="module")
def real_edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course") / "edition"
    write_student_edition(folder)
    return folder


# --- by lines -------------------------------------------------------------------------------------


def test_no_file_of_the_student_edition_holds_a_piece_of_a_solution(real_edition):
    assert leaks(real_edition) == set()
    assert leaks(ROOT / "labkit") >= {("dp.py", "dp.4"), ("pipe.py", "pipe.2")}


# --- by structure ---------------------------------------------------------------------------------


# What a solution calls that says nothing of how it is done.
PLAIN_CALLS = {*dir(builtins), "get_rank", "get_world_size", "contiguous", "is_contiguous", "copy_", "view"}
PLAIN_CALLS |= {"append", "items", "keys", "values", "numel"}
LIKE_A_SOLUTION = {  # what calls the same in the same order, and why it may
    ("data/make_entailment.py", "make", "dp.1"): "it shuffles",
    ("docs/training.md", "add_up", "dp.4"): "a wrong answer to dp.4, to be found by parity",
    ("docs/training.md", "step", "dp.4"): "its all_reduce adds up tokens",
    ("notebooks/04_overlap.ipynb", "send_when_ready", "dp.4"): "in hooks, after dp.4",
    ("notebooks/10_gpt2_pipeline.ipynb", "in_process", "dp.4"): "it adds up one tied weight",
    ("tests/parallel/pipe/test_worker.py", "*", "pipe.3"): "it holds the given worker to what it promises",
    ("tests/parity/test_parity.py", "add_up", "dp.4"): "a wrong answer to dp.4",
    ("tests/helpers/pipelines.py", "random_schedules", "dp.1"): "it shuffles",
}


def calls_in(code: ast.AST) -> list[str]:
    """Return the names of what code calls, in order of evaluation."""
    inner = [name for part in ast.iter_child_nodes(code) for name in calls_in(part)]
    match code:
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if name not in PLAIN_CALLS:
            return [*inner, name]
    return inner


def functions(folder: Path) -> Iterator[tuple[str, str, ast.AST]]:
    """Yield file, name and code of each function in Python, notebooks and pages; the other code of
    a cell has the name ""."""
    for name, lines in texts(folder):
        code = ["\n".join(lines)]
        if name.endswith(".md"):
            code = re.findall(r"^```python\n(.*?)^```", code[0], re.DOTALL | re.MULTILINE)
        if name.endswith(".ipynb"):
            cells = nbformat.read(folder / name, as_version=4).cells
            code = [re.sub(r"^[%!].*$", "", c.source, flags=re.M) for c in cells if c.cell_type == "code"]
        for source in code if name.endswith((".py", ".md", ".ipynb")) else ():
            with contextlib.suppress(SyntaxError):
                tree = ast.parse(source)
                yield from ((name, each.name, each) for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
                if not name.endswith(".py"):
                    yield (
                        name,
                        "",
                        ast.Module([each for each in tree.body if not isinstance(each, ast.FunctionDef)], []),
                    )


def leaks_by_structure(folder: Path) -> set[tuple[str, str, str]]:
    """Return file, function and task where something calls what a solution calls, in its order."""
    solved = [
        (region.task, calls)
        for name in STUDENT_FILES
        for lines in [(ROOT / name).read_text().split("\n")]
        for region in student.regions(lines, name)
        if len(calls := calls_in(ast.parse(textwrap.dedent("\n".join(["if 1:", *lines[region.start : region.end]])))))
        > 1
    ]
    found = set()
    for file, function, code in functions(folder):
        called = calls_in(code)
        for task, calls in solved:
            rest = iter(called)
            if all(name in rest for name in calls):
                found.add((file, function, task))
    return found


def test_no_function_of_the_student_edition_calls_what_a_solution_calls_in_its_order(real_edition):
    anywhere = {
        (file, "*" if (file, "*", task) in LIKE_A_SOLUTION else name, task)
        for file, name, task in leaks_by_structure(real_edition)
    }
    assert anywhere == {*LIKE_A_SOLUTION}
    assert leaks_by_structure(ROOT / "labkit") >= {
        ("dp.py", "average_gradients", "dp.4"),
        ("pipe.py", "compute", "pipe.3"),
    }
