"""Name what a student file uses and should not: modules it imports, full names it reaches.

One pass over the file's syntax tree; nothing is run. The rules stand in ``restrictions.toml``. They
are for those who did not know: docs/instructor.md says what escapes them.
"""

from __future__ import annotations

import ast
import builtins
import functools
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

from labkit.base.texts import listed


class Use(NamedTuple):
    """A full name such as ``torch.nn.DataParallel``, its line, and whether that imports it."""

    name: str
    line: int
    imported: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule of ``restrictions.toml``, where its fields are explained."""

    why: str
    instead: str
    imports: Iterable[str] = ()
    forbidden: Iterable[str] = ()
    layout: str = ""

    def forbids(self, use: Use) -> bool:
        new = bool(self.imports) and use.imported and not _is_in(use.name, self.imports)
        return new or _is_in(use.name, self.forbidden)

    def sentence(self, file: str, uses: list[Use]) -> str:
        """Return where and how a file broke the rule."""
        used = list(dict.fromkeys(use.name for use in uses))
        names = [name for name in used if not any(_is_in(other, [name]) for other in used if other != name)]
        lines = sorted({use.line for use in uses})
        where = f"line{'s' * (len(lines) > 1)} {listed(lines)}"
        shown = listed(name.removeprefix("builtins.") for name in names)
        verb = "are" if len(names) > 1 else "is"
        return f"{file}, {where}: {shown} {verb} not allowed ({self.why}). Use {self.instead} instead"


@functools.cache  # and not where this is imported, as each rank imports it
def rules() -> list[Rule]:
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    return [Rule(**rule) for rule in tomllib.loads(text)["rule"]]


@functools.lru_cache(maxsize=8)  # a file that has several tasks is judged for each
def broken(file: str, content: bytes, layout: str = "") -> tuple[str, ...]:
    """Return what a student file uses and should not, a sentence for each rule.

        broken("labkit/dp.py", content)
        ('labkit/dp.py, line 42: torch.nn.DataParallel is not allowed (…). Use … instead',)

    ``layout`` adds the rules of that layout of ``labkit submit``. A file that is not Python breaks
    no rule.
    """
    try:
        uses = sorted(_uses(ast.parse(decode_source(content))), key=lambda use: use.line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    applicable = [rule for rule in rules() if rule.layout in ("", layout)]
    found = [(rule, [use for use in uses if rule.forbids(use)]) for rule in applicable]
    return tuple(rule.sentence(file, broke) for rule, broke in found if broke)


def _is_in(name: str, names: Iterable[str]) -> bool:
    """Return whether ``name`` is one of ``names``, or under one."""
    return any(name == each or name.startswith(f"{each}.") for each in names)


def _uses(tree: ast.AST) -> Iterator[Use]:
    """Yield what a file imports, and the names and chains of attributes that lead to it."""
    bound: dict[str, str] = {}  # by a name in the file, the full name that it was imported as
    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts = ["labkit"] * node.level + [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            package = "".join(f"{part}." for part in parts if part)
            for alias in node.names:
                full = f"{package}{alias.name}".removesuffix(".*")
                yield Use(full, node.lineno, imported=True)
                name = alias.asname or alias.name.partition(".")[0]
                bound[name] = full if alias.asname or package else name

    def full_name(node: ast.AST) -> str:
        match node:
            case ast.Name(name):
                return bound.get(name) or (f"builtins.{name}" if hasattr(builtins, name) else "")
            case ast.Attribute(value, name) | ast.Call(ast.Name("getattr"), [value, ast.Constant(str(name)), *_]):
                return (base := full_name(value)) and f"{base}.{name}"
        return ""

    yield from (Use(name, getattr(node, "lineno", 0)) for node in nodes if (name := full_name(node)))
