"""An unfilled TODO is known by name and line, and a notebook cell that needs it steps aside."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from labkit import todo
from labkit.base import lab as base_lab
from labkit.base.measurement_html import as_html
from labkit.todo import TodoError, missing, needs


@pytest.fixture
def student_file(tmp_path, monkeypatch):
    """Write what labkit/dp.py is for this test."""
    package = tmp_path / "labkit"
    package.mkdir()
    monkeypatch.setattr(base_lab, "PACKAGE", package)
    return (package / "dp.py").write_text


@pytest.fixture
def shell(monkeypatch):
    """An IPython shell in which %%needs is known."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there
    shell = InteractiveShell.instance()
    todo.load_ipython_extension(shell)
    shell.reset(new_session=True)
    monkeypatch.setattr(todo, "_WAITING", {})
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell: str):
    with capture_output() as output:
        result = shell.run_cell(cell, store_history=True)
    return result, output.stdout + shown_in(output)


def shown_in(output) -> str:
    return "".join(each.data["text/plain"] + "\n" for each in output.outputs)


UNFILLED = 'from labkit.todo import TodoError\n\ndef f():\n    # TODO dp.1\n    raise TodoError("dp.1")\n'


DONE = UNFILLED.replace('raise TodoError("dp.1")', "return 1")
SOURCES = {  # of labkit/dp.py, and the line in which dp.1 is to do
    "to do": (UNFILLED, 5),
    "done": (DONE, None),
    "to do twice": (UNFILLED + '\ndef g():\n    raise TodoError("dp.1")\n', 5),
    "half-written": (UNFILLED + "def g(:\n", 5),
    "by another name": ('import labkit.todo as t\nraise t.TodoError("dp.1")\n', 2),
    "in another encoding, which is named": (f"# coding: latin-1\nx = 'ü'\n{UNFILLED}", 7),
    "in a docstring": ('"""raise TodoError("dp.1")"""\n', None),
    "another task": ('raise TodoError("dp.10")\n', None),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_task_is_to_do_while_its_file_raises_its_todo_error_and_the_first_line_is_named(name, student_file):
    source, line = SOURCES[name]
    student_file(source, encoding="latin-1" if "latin-1" in source else "utf-8")
    broken = ", and line 6 is not Python: invalid syntax" if name == "half-written" else ""
    assert missing("dp.1") == (line and f"TODO dp.1: labkit/dp.py, line {line}{broken}")
    assert needs("dp.1") == (line is None) and needs("dp.4")
    (base_lab.PACKAGE / "pipe.py").write_text(UNFILLED.replace("dp.1", "pipe.1"))
    assert missing("pipe.1") == "TODO pipe.1: labkit/pipe.py, line 5"


def test_a_file_that_cannot_be_read_says_why_once_and_the_cell_steps_aside(student_file):
    student_file("")
    (base_lab.PACKAGE / "dp.py").write_bytes("x = 'ü'".encode("latin-1"))
    assert not needs("dp.1")
    (line,) = todo.step_aside(["%%needs dp.1 dp.4\n", "1 / 0\n"])
    assert "show_missing" in line
    assert line.count("labkit/dp.py cannot be read: it is not in UTF-8") == 1


def test_the_error_names_task_file_and_line_and_comes_back_from_a_rank_as_it_was(student_file):
    student_file(UNFILLED)
    space: dict = {}
    exec(compile(UNFILLED, str(base_lab.PACKAGE / "dp.py"), "exec"), space)
    with pytest.raises(NotImplementedError) as caught:
        space["f"]()
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(caught.value) == str(again) == missing("dp.1") == "TODO dp.1: labkit/dp.py, line 5"
    assert (again.task, again.place) == ("dp.1", "labkit/dp.py, line 5")
    line = sys._getframe().f_lineno + 1
    assert str(TodoError("dp.1")) == f"TODO dp.1: test_todo.py, line {line}"


# --- %%needs --------------------------------------------------------------------------------------


def test_a_cell_steps_aside_with_one_line_for_all_its_tasks_and_nothing_of_it_runs(shell, student_file):
    student_file(UNFILLED)
    result, printed = run(shell, "%%needs dp.4 dp.1\nran = True\n1 / 0")
    assert (result.success, printed) == (True, "TODO dp.1: labkit/dp.py, line 5\n")
    assert "ran" not in shell.user_ns
    student_file(UNFILLED + 'raise TodoError("dp.4")\n')
    assert run(shell, "%%needs dp.4 dp.1\n1")[1] == "TODO dp.4: labkit/dp.py, line 6; TODO dp.1: labkit/dp.py, line 5\n"


def test_a_cell_runs_as_if_the_line_were_not_there_its_error_is_its_own_and_the_history_has_it_as_typed(
    shell, student_file
):
    student_file("")
    run(shell, "x = 20")
    result, printed = run(shell, "%%needs dp.1 dp.4\ny = x + 1\nprint('in the cell')\ny * 2")
    assert (result.result, shell.user_ns["y"]) == (42, 21)
    assert printed.startswith("in the cell\n") and "42" in printed
    before = shell.execution_count
    result, _ = run(shell, "%%needs dp.1\nx = 1\nx / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert result.error_in_exec.__traceback__.tb_next.tb_lineno == 3
    assert shell.execution_count == before + 1
    assert shell.history_manager.input_hist_raw[before] == "%%needs dp.1\nx = 1\nx / 0"


def test_a_wrong_line_is_an_error_that_lists_the_tasks_and_below_another_cell_magic_it_works(shell, student_file):
    for line in ("%%needs", "%%needs dp.99"):
        result, _ = run(shell, f"{line}\nx = 1")
        assert isinstance(result.error_in_exec, ValueError)
        assert "dp.1, dp.2, dp.3, dp.4, dp.5, dp.6, dp.7, dp.8" in str(result.error_in_exec)
    student_file(UNFILLED)
    result, _ = run(shell, "%%capture captured\n%%needs dp.1\n1 / 0")
    assert result.success
    assert shown_in(shell.user_ns["captured"]) == "TODO dp.1: labkit/dp.py, line 5\n"


FLOW = {  # cells after one that waits for dp.1 and would make x and table: which of them wait as well
    "one that reads what it would have made": ("print(x)", True),
    "one that reads it in a function": ("def f(y):\n    return x + y", True),
    "one that reads what a waiting cell made of it": ("z", True),
    "one that reads what it would have changed": ("print(old)", True),
    "one whose comprehension has the name": ("print([x for x in range(2)])", False),
    "one that makes it itself first": ("x = 3\nprint(x)", False),
    "one in which the name is an attribute": ("import types\nprint(types.SimpleNamespace(x=1).x)", False),
}


@pytest.mark.parametrize(("cell", "waits"), FLOW.values(), ids=FLOW)
def test_a_cell_waits_that_uses_what_a_waiting_cell_would_have_made_or_changed_and_no_other(
    shell, student_file, cell, waits
):
    student_file(UNFILLED)
    run(shell, "old = {}")
    for made in ("%%needs dp.1\nx = 1\nold['x'] = x", "z = x + 1"):
        assert run(shell, made)[1] == "TODO dp.1: labkit/dp.py, line 5\n"
    assert (run(shell, cell)[1] == "TODO dp.1: labkit/dp.py, line 5\n") == waits


def test_once_the_task_is_filled_in_each_cell_runs_again_also_one_that_reads_its_own_name(shell, student_file):
    cells = ["x = 1", "%%needs dp.1\nx += 1\ndef f(n):\n    return x if n == 0 else f(n - 1)", "print(f(2))"]
    student_file(UNFILLED)
    assert [run(shell, cell)[1][:4] for cell in cells] == ["", "TODO", "TODO"]
    student_file(DONE)
    assert [run(shell, cell)[1] for cell in cells] == ["", "", "2\n"]


def test_the_place_is_a_link_that_opens_the_file_from_the_notebooks_folder(monkeypatch):
    monkeypatch.chdir(Path(todo.__file__).parents[1] / "notebooks")
    text = "TODO dp.2: labkit/dp.py, line 155"
    assert as_html(text) == 'TODO dp.2: <a href="../labkit/dp.py#line=154">labkit/dp.py, line 155</a>'
    assert as_html("TODO dp.2: mine.py, line 155") == "TODO dp.2: mine.py, line 155"
