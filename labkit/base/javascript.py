"""Join the JavaScript files of a page into one module: a notebook and a file load a single one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_IMPORT = re.compile(r'^import .* from "(\.[\w./]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:class|function|const) (\w+))", re.MULTILINE)


@cache
def bundle(path: Path) -> str:
    """Return the module of ``path`` with all that it imports, none of which needs a server."""
    *parts, last = _with_imports(path.resolve()).values()
    return "\n".join([*map(_in_its_own_scope, parts), _EXPORT.sub(r"\1", _IMPORT.sub("", last))])


def _with_imports(path: Path) -> dict[Path, str]:
    """Return the texts of a module and of those that it imports, each after those that it uses."""
    text = path.read_text(encoding="utf-8")
    used: dict[Path, str] = {}
    for other in _IMPORT.findall(text):
        used |= _with_imports((path.parent / other).resolve())
    return used | {path: text}


def _in_its_own_scope(text: str) -> str:
    """Return a module as an expression that gives what it exports."""
    exported = ", ".join(name for _, name in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub("", text))
    return f"const {{ {exported} }} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"
