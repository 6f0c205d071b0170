"""Raise by name at an unfilled TODO, and let the notebook cells that need it step aside.

A student file has ``raise TodoError("dp.1")`` wherever something is to be written. :func:`needs`
looks for that line in the file on disk, so it always speaks of the file as it is now. In a
notebook, importing this module brings ``%%needs``:

    %%needs dp.1 dp.4
    ...the cell: runs as it stands once both are filled in; until then a line says which is missing

``%%needs guess.hidden`` waits for the reader's guess, see :mod:`labkit.guess`.
"""

from __future__ import annotations

import ast
import dis
import functools
import re
import sys
from collections.abc import Callable
from importlib.util import decode_source
from pathlib import Path
from types import CodeType
from typing import Any

from labkit.base.autoreload import complete_reloads
from labkit.base.course import TASKS
from labkit.base.lab import check_own, lab
from labkit.base.measurement_html import Lines
from labkit.base.notebook import display
from labkit.base.restarted_kernel import RUN_ABOVE

# By a guess's name, what returns that it is missing, or None. Asking for a guess adds it here.
GUESSES: dict[str, Callable[[], str | None]] = {}


class TodoError(NotImplementedError):
    """Something a student is to write and has not written yet.

    The message names task, file and line. ``task`` is such as ``"dp.1"``; ``place`` is where it is
    to be written, by default the line that raises.
    """

    def __init__(self, task: str, place: str | None = None):
        if place is None:
            caller = sys._getframe(1)
            place = _place(Path(caller.f_code.co_filename), caller.f_lineno)
        super().__init__(f"TODO {task}: {place}")
        self.task, self.place = task, place

    def __reduce__(self) -> tuple[Any, ...]:
        return TodoError, (self.task, self.place)


def needs(task: str) -> bool:
    """Return whether ``task`` (such as ``"dp.1"``) is filled in.

    Then its file on disk has no ``raise TodoError("dp.1")`` any more.

    Raises ValueError for an unknown task, with the list of those there are.
    """
    return missing(task) is None


def missing(task: str) -> str | None:
    """Return ``"TODO dp.1: labkit/dp.py, line 42"`` while the task is not filled in, else None.

    A syntax error anywhere in the file is named with it. Where that file cannot be read, return
    why, and what to do. For ``"guess.hidden"`` it is that the guess has to be given first. Raises
    ValueError as :func:`needs`.
    """
    kind, _, name = task.partition(".")
    if kind == "guess":
        return GUESSES[name]() if name in GUESSES else f"GUESS {name}: {RUN_ABOVE}"
    file = task_file(task)
    try:
        source = read_source(file)
        lines = [line for line, todo in _todos(source) if todo == task]
    except (OSError, UnicodeError, SyntaxError) as error:
        return f"labkit/{file.name} cannot be read: {_why(error)}"
    return f"TODO {task}: {_place(file, lines[0])}{_syntax_error(source)}" if lines else None


def task_file(task: str) -> Path:
    """Return the file in which ``task`` is to be written. Raises ValueError for an unknown task."""
    if task not in TASKS:
        raise ValueError(f"task is {task!r}, expected one of: {', '.join(TASKS)}")
    return lab().package / f"{task.partition('.')[0]}.py"


def read_source(file: Path) -> str:
    """Return a Python file's text, in the encoding that it names, by default UTF-8.

    Raises OSError, UnicodeError, or SyntaxError for an encoding that there is not.
    """
    return decode_source(file.read_bytes())


@functools.lru_cache(maxsize=8)
def _syntax_error(source: str) -> str:
    """Return in words what keeps a file from being Python, or ""."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f", and line {error.lineno} is not Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f", and it cannot be read as Python: {error}"
    return ""


def _why(error: OSError | UnicodeError | SyntaxError) -> str:
    """Return in words why a file cannot be read, and what to do."""
    match error:
        case FileNotFoundError():
            return "it is not there. Put it back, as it came with the lab"
        case IsADirectoryError():
            return "it is a folder. Put the file back, as it came with the lab"
        case OSError():
            return f"{error.strerror}. Check who may read it"
        case _:
            return f"it is not in UTF-8 ({error}). Save it in that encoding"


def _place(file: Path, line: int) -> str:
    """Return where to look, in words that are the same on every machine."""
    if file.parent == lab().package:
        return f"labkit/{file.name}, line {line}"
    return f"{file.name}, line {line}" if file.is_file() else f"a notebook cell, line {line}"


@functools.lru_cache(maxsize=8)  # a file has several tasks
def _todos(source: str) -> list[tuple[int, str]]:
    """Return each line that raises TodoError, and for which task, in order."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # half-written: the lines that look like it
        raises = re.compile(r"\s*raise\s+TodoError\(\s*(?:'(.*?)'|\"(.*?)\")")
        lines = enumerate(map(raises.match, source.splitlines()), 1)
        return [(number, found[1] or found[2]) for number, found in lines if found]
    nodes = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    return sorted((node.lineno, task) for node in nodes if (task := _todo_of(node)))


def _todo_of(raised: ast.expr) -> str:
    match raised:
        case ast.Call(
            func=ast.Name(id="TodoError") | ast.Attribute(attr="TodoError"), args=[ast.Constant(value=str(task)), *_]
        ):
            return task
    return ""


# --- %%needs --------------------------------------------------------------------------------------


def step_aside(lines: list[str]) -> list[str]:
    """Transform a cell for IPython: without ``%%needs``, or one line that shows what is missing.

    A cell that uses a name which a waiting cell would have made waits as well. Taking the line away
    before IPython compiles the cell leaves everything else to IPython: variables, the value of the
    last line, errors with their cell lines, line numbers.
    """
    head = lines[0].split() if lines and re.match(r"%%needs\b", lines[0]) else []
    body = ["\n", *lines[1:]] if head else lines
    if head and body[1:] and body[1].startswith("%%"):
        body[:2] = body[1], "\n"  # another cell magic has to come first; lines keep their numbers
    used, made = names_of("".join(body))
    tasks = dict.fromkeys([*head[1:], *(task for name, needed in _WAITING.items() if name in used for task in needed)])
    try:
        if head == ["%%needs"]:
            raise ValueError(f"%%needs: expected one or more of {', '.join(TASKS)}")
        reasons = dict.fromkeys(filter(None, map(missing, tasks)))
    except ValueError as error:
        return [f"raise ValueError({str(error)!r})\n"]
    if reasons:
        _WAITING.update((name, tuple(tasks)) for name in made)
        return [f"__import__('labkit.todo').todo.show_missing({'; '.join(reasons)!r})\n"]
    for name in made:
        _WAITING.pop(name, None)
    return body


_WAITING: dict[str, tuple[str, ...]] = {}  # by a name that a waiting cell would have made or changed, what it needs


def names_of(cell: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell takes from earlier ones, and those that it makes or changes.

    A name that the cell makes before it reads it is not taken. Lines that are not Python, such as
    ``%autoreload 2``, do not count; of a cell that cannot be compiled nothing is known.
    """
    try:
        tree = ast.parse(re.sub(r"^[%!].*$", "", cell, flags=re.MULTILINE))
        code = compile(tree, "cell", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()
    read, made = _names_in(code)
    return read, made | _changed_in(tree)


def _names_in(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names of the cell's own scope that code reads and that it makes."""
    read: set[str] = set()
    made: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            read |= {step.argval} - made
        elif step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            made.add(step.argval)
        elif isinstance(step.argval, CodeType):  # a function or a class in it
            read |= _names_in(step.argval)[0] - made
    return read, made


def _changed_in(tree: ast.AST) -> set[str]:
    """Return the names whose objects are changed: ``table`` of ``table["ms"] = …``."""
    changed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner: ast.expr = node
            while isinstance(owner, ast.Subscript | ast.Attribute):
                owner = owner.value
            changed |= {owner.id} if isinstance(owner, ast.Name) else set()
    return changed


def show_missing(text: str) -> None:
    """Show in a cell what is missing; its place is a link that opens the file."""
    display(Lines(text))


def needs_magic(line: str, cell: str) -> None:
    """Run this cell once the tasks of ``%%needs`` are filled in; until then print which are not."""
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    shell.run_cell(f"%%needs {line}\n{cell}", store_history=False)  # reached only below another cell magic


def load_ipython_extension(shell: Any) -> None:
    """Set ``%%needs`` up: ``%load_ext labkit.todo`` calls this, as importing this module does.

    ``%autoreload`` takes over all of an edited file from then on, see labkit.base.autoreload.

    Raises ImportError in a lab that has a labkit of its own, which is not this one.
    """
    check_own()
    complete_reloads()
    transformations = shell.input_transformers_cleanup
    transformations[:] = [t for t in transformations if getattr(t, "__name__", "") != step_aside.__name__]
    transformations.append(step_aside)
    shell.register_magic_function(needs_magic, magic_kind="cell", magic_name="needs")


if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(shell)
