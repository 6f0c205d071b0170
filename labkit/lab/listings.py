"""Show the code of the student files in a notebook, or where it is to be written.

As the last line of a cell:

    listing(Pipe.compute, Pipe.forward)
"""

from __future__ import annotations

import ast
import html
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pygments import lex
from pygments.lexers import PythonLexer
from pygments.token import Token

from labkit.base.measurement_html import link_places
from labkit.todo import missing

_MARKER = re.compile(r"^\s*###.*\n", re.MULTILINE)  # of the marked source: tasks, and where a solution begins and ends
_FOR_TOOLS = re.compile(r"  # (type: ignore|noqa).*$", re.MULTILINE)
_TASK = re.compile(
    r"^[ \t]*# TODO [\w.]+ \(about .*\n(?:[ \t]*#.*\n)*", re.MULTILINE
)  # a student edition's: what to do
_TODO = re.compile(r"""^\s*raise TodoError\(["'](?P<task>[\w.]+)["']\)""", re.MULTILINE)


# As wide as its lines, to be scrolled: JupyterLab would cut code in the middle of a word.
_CODE = '<pre style="white-space: pre; word-break: normal; overflow-x: auto; line-height: 1.3; margin: 0">{}</pre>'
# JupyterLab's own colours, of its theme, and elsewhere some that read on white and on black.
_COLOURS = {
    Token.Keyword: "color: var(--jp-mirror-editor-keyword-color, #1a7f37); font-weight: bold",
    Token.Operator.Word: "color: var(--jp-mirror-editor-keyword-color, #1a7f37); font-weight: bold",
    Token.Literal.String: "color: var(--jp-mirror-editor-string-color, #c0392b)",
    Token.Literal.Number: "color: var(--jp-mirror-editor-number-color, #1a7f37)",
    Token.Comment: "color: var(--jp-mirror-editor-comment-color, #408080); font-style: italic",
    Token.Name.Function: "color: var(--jp-mirror-editor-def-color, #1e70d0)",
    Token.Name.Class: "color: var(--jp-mirror-editor-def-color, #1e70d0)",
    Token.Name.Decorator: "color: var(--jp-mirror-editor-meta-color, #a2f)",
}


@dataclass(frozen=True, repr=False)
class Listing:
    """Code, and lines that say where code is to be written. A notebook shows it in its colours."""

    code: str
    todo: str = ""

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.todo, self.code]))

    def _repr_html_(self) -> str:
        todo = f"<p>{link_places(html.escape(self.todo))}</p>" if self.todo else ""
        return todo + (_CODE.format(_in_colours(self.code)) if self.code else "")


def _in_colours(code: str) -> str:
    """Return code as HTML, each word in the colour of its kind."""
    words = []
    for kind, text in lex(code, PythonLexer(stripnl=False, ensurenl=False)):
        style = next((_COLOURS[each] for each in reversed(kind.split()) if each in _COLOURS), None)
        escaped = html.escape(text, quote=False)
        words.append(f'<span style="{style}">{escaped}</span>' if style else escaped)
    return "".join(words)


def listing(*functions: Callable[..., Any]) -> Listing:
    """Return the code of functions, methods or classes, with signatures, to be shown by a cell.

    Docstrings are left out, and so are a filled task's comment that says what to do and what is for
    tools alone. A function with a task that is not filled in is not shown, but
    ``TODO dp.3: labkit/dp.py, line 42``.

    Raises TypeError for what has no source, such as a built-in function.
    """
    todo: list[str] = []
    shown: list[str] = []
    for function in functions:
        source = textwrap.dedent(_source_of(function))
        places = [place for task in _TODO.findall(source) if (place := missing(task))]
        todo += [place for place in dict.fromkeys(places) if place not in todo]
        if not places:
            shown.append(_cleaned(_without_docstring(source)))
    return Listing("\n\n".join(shown), "\n".join(todo))


def _source_of(function: Callable[..., Any]) -> str:
    """Return the source that a function has in its file now, found by the names of both.

    inspect looks by the code's file and line number, which IPython's autoreload may leave wrong in
    a function that was edited while the kernel ran.
    """
    module = sys.modules.get(function.__module__ or "")
    file = Path(getattr(module, "__file__", None) or "")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found: Any = ast.parse(text)
    for name in function.__qualname__.split("."):
        found = next((each for each in getattr(found, "body", []) if getattr(each, "name", "") == name), None)
    if found is None:  # in a cell, or made by another function
        return inspect.getsource(function)
    first = min(each.lineno for each in (found, *found.decorator_list))
    return "".join(text.splitlines(keepends=True)[first - 1 : found.end_lineno])


def _without_docstring(source: str) -> str:
    """Return the source of a function or a class without its own docstring."""
    match ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        case [ast.Expr(value=ast.Constant(value=str())) as docstring, _, *_]:
            lines = source.splitlines(keepends=True)
            return "".join(lines[: docstring.lineno - 1] + lines[docstring.end_lineno :])
    return source


def _cleaned(source: str) -> str:
    return _FOR_TOOLS.sub("", _TASK.sub("", _MARKER.sub("", source))).rstrip()
