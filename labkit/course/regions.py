"""Tell what a student has written in dp.py and pipe.py from what was given; set it in elsewhere.

A student's file has no markers. What the student has written are the functions in which the tasks
stand (:data:`labkit.todo.FUNCTIONS`), and the imports, functions, classes, methods and names that
the given file does not have.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from labkit.todo import FUNCTIONS

_WRITTEN = {name for names in FUNCTIONS.values() for name in names}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NAMES_SOMETHING = _Function | ast.Import | ast.ImportFrom | ast.ClassDef | ast.Assign | ast.AnnAssign


def answer(task: str, source: str) -> str:
    """Return the functions of a student's file in which ``task`` stands, to read.

    Raises SyntaxError for a file that is no Python.
    """
    lines, found = source.split("\n"), _definitions(ast.parse(source).body)
    parts = []
    for name in FUNCTIONS[task]:
        text = "\n".join(lines[slice(*_place(found[name]))]) if name in found else "# is not there any more"
        parts.append(f"# {name}\n{textwrap.dedent(text)}\n")
    return "\n\n".join(parts)


def set_into(given: str, source: str) -> str:
    """Return the ``given`` text of a file with what a student has written in ``source``.

    Other edits of given code are left out. Raises SyntaxError where ``source`` is no Python.
    """
    lines = given.split("\n")
    edits = _edits(ast.parse(given).body, ast.parse(source).body, source.split("\n"))
    for start, end, new in sorted(edits, key=lambda edit: edit[:2])[::-1]:
        lines[start:end] = new
    return "\n".join(lines)


class _Edit(NamedTuple):
    """``lines[start:end]`` of the given text become ``new``."""

    start: int
    end: int
    new: list[str]


def _edits(given: Sequence[ast.stmt], own: Sequence[ast.stmt], lines: list[str], owner: str = "") -> list[_Edit]:
    """Return what changes in the statements of a module, or of the class ``owner``."""
    there = {_key(node): node for node in given}
    after, edits = max(node.end_lineno or 0 for node in given), []
    for node in reversed(own):  # what is new stands before what follows it in the student's file
        key, text = _key(node), lines[slice(*_place(node))]
        old = there.get(key)
        if old is None and isinstance(node, _NAMES_SOMETHING):
            edits.append(_Edit(after, after, ["", *text, ""]))
        elif old is not None:
            after = _place(old)[0]
        if isinstance(old, _Function) and isinstance(node, _Function) and owner + key in _WRITTEN:
            edits.append(_Edit(*_place(old), text))
        elif isinstance(old, ast.ClassDef) and isinstance(node, ast.ClassDef):
            edits += reversed(_edits(old.body, node.body, lines, f"{key}."))
    return edits[::-1]


def _key(node: ast.stmt) -> str:
    """Return by what a statement is known again in another copy of the file."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.Assign():
            return " ".join(map(ast.unparse, node.targets))
        case ast.AnnAssign():
            return ast.unparse(node.target)
    return ast.unparse(node)


def _definitions(body: Sequence[ast.stmt], owner: str = "") -> dict[str, ast.stmt]:
    """Return functions by name, and those of classes as ``Class.method``."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, _Function):
            found[owner + node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= _definitions(node.body, f"{node.name}.")
    return found


def _place(node: ast.stmt) -> tuple[int, int]:
    """Return where a statement stands, with its decorators: ``lines[start:end]``."""
    decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
    return min([node.lineno, *decorators]) - 1, node.end_lineno or node.lineno
