"""Read Python source and write it: names that it needs, definitions, indentation, imports."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

WIDTH = 100

BUILTINS = frozenset(dir(builtins)) - {"display", "get_ipython"}  # which IPython adds


# --- names ----------------------------------------------------------------------------------------


class Names(NamedTuple):
    """Names at the top level of a source: those it makes, imports, and uses without either."""

    made: set[str]
    imported: set[str]
    free: list[str]  # in the order of their first use


def names(text: str) -> Names:
    top = symtable.symtable(text, "<source>", "exec")
    symbols = top.get_symbols()
    made = {each.get_name() for each in symbols if each.is_assigned() and not each.is_imported()}
    imported = {each.get_name() for each in symbols if each.is_imported()}
    used = {each.get_name() for each in symbols if each.is_referenced()}
    for scope in _scopes(top):
        used |= {each.get_name() for each in scope.get_symbols() if each.is_global() and each.is_referenced()}
        made |= {each.get_name() for each in scope.get_symbols() if each.is_declared_global() and each.is_assigned()}
    return Names(made, imported, sorted(used - made - imported, key=text.index))


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes(child)


def blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield each list of statements: the module's, and the body of each function, class and if."""
    for node in ast.walk(tree):
        found = (getattr(node, field, None) for field in ("body", "orelse", "finalbody"))
        yield from (each for each in found if isinstance(each, list))


def dotted(node: ast.expr) -> list[str]:
    """Return the parts of ``a.b.c``, and nothing for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return [*before, node.attr]
    return []


# --- where a name is made -------------------------------------------------------------------------


def binding(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the statement at the top level, or under an ``if`` there, that makes ``name``."""
    todo = list(tree.body)
    while todo:
        statement = todo.pop(0)
        if isinstance(statement, ast.If | ast.Try):
            todo += [*statement.body, *statement.orelse]
        elif name in _bound_by(statement):
            return statement
    return None


def _bound_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}


def definition(text: str, name: str, line: int = 1) -> str | None:
    """Return the source of the function or class ``name`` that is nearest to ``line``."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == name]
    if not found:
        return None
    return statement_text(text, min(found, key=lambda node: abs(node.lineno - line)))


def statement_text(text: str, statement: ast.stmt) -> str:
    first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
    return textwrap.dedent("".join(text.splitlines(keepends=True)[first - 1 : statement.end_lineno]))


# --- changes --------------------------------------------------------------------------------------


class Edits:
    """Replacements in a source, all told in places of its syntax tree."""

    def __init__(self, text: str):
        self._bytes = text.encode()  # in which the tree counts its columns
        lines = self._bytes.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
        self._edits: list[tuple[int, int, str]] = []

    def place(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        start, end = self.place(node)
        return self._bytes[start:end].decode()

    def after(self, node: ast.AST) -> str:
        """Return the rest of the line behind ``node``."""
        return self._bytes[self.place(node)[1] :].decode().partition("\n")[0].strip()

    def replace(self, node: ast.AST, text: str) -> None:
        self._edits.append((*self.place(node), text))

    def wrap(self, node: ast.AST, before: str, after: str) -> None:
        start, end = self.place(node)
        self._edits += [(start, start, before), (end, end, after)]

    def delete(self, statement: ast.stmt, leave: str = "") -> None:
        """Take out whole lines, or ``leave`` something, or ``pass`` where a line holds more."""
        first, last = self._starts[statement.lineno - 1], self._starts[statement.end_lineno or 0]
        alone = not self._bytes[first : self.place(statement)[0]].strip() and self.after(statement)[:1] in ("", "#")
        if leave or not alone:
            self.replace(statement, leave or "pass")
        else:
            self._edits.append((first, last, ""))

    def done(self) -> str:
        text = self._bytes
        for start, end, new in sorted(self._edits, reverse=True):
            text = text[:start] + new.encode() + text[end:]
        return text.decode()


def indented(text: str) -> str:
    """Return ``text`` four columns to the right, but for the inner lines of long strings."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)]
    inner = {
        line
        for node in strings
        if id(node) not in docstrings
        for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)
    }
    lines = text.splitlines()
    return "\n".join(f"    {line}" if line and i not in inner else line for i, line in enumerate(lines, 1))


# --- layout ---------------------------------------------------------------------------------------

# Text; or an opening, items that each stand behind a prefix, such as "key: ", and a closing.
Expression = str | tuple[str, list[tuple[str, "Expression"]], str]


def flat(expression: Expression) -> str:
    if isinstance(expression, str):
        return expression
    opening, items, closing = expression
    inside = ", ".join(f"{prefix}{flat(item)}" for prefix, item in items)
    return f"{opening}{inside}{',' * (opening == '(' and len(items) == 1)}{closing}"


def laid_out(expression: Expression, indent: int = 0, before: int = 0) -> str:
    """Return the expression in one line, or an item a line where it is too wide.

    It stands behind ``before`` columns, in a block at column ``indent``.
    """
    line = flat(expression)
    if isinstance(expression, str) or indent + before + len(line) <= WIDTH:
        return line
    opening, items, closing = expression
    margin = " " * (indent + 4)
    lines = [f"{margin}{prefix}{laid_out(item, indent + 4, len(prefix) + 1)}," for prefix, item in items]
    return "\n".join([opening, *lines, f"{' ' * indent}{closing}"])


class Import(NamedTuple):
    """``import module``, or ``from module import member``, perhaps under another name."""

    module: str
    member: str = ""
    alias: str = ""

    @classmethod
    def of(cls, statement: ast.stmt) -> list[Import]:
        """Return what an import statement imports."""
        if isinstance(statement, ast.ImportFrom):
            return [cls(statement.module or "", each.name, each.asname or "") for each in statement.names]
        assert isinstance(statement, ast.Import)
        return [cls(each.name, "", each.asname or "") for each in statement.names]


def import_lines(imports: Iterable[Import]) -> str:
    """Return all imports, sorted as linters want it: what comes with Python, then the rest."""
    sections: list[list[str]] = [[], [], []]
    plain: list[Import] = sorted(each for each in set(imports) if not each.member)
    members: dict[str, list[Import]] = {}
    for each in sorted(set(imports) - set(plain), key=lambda each: (each.module, _member_order(each.member))):
        members.setdefault(each.module, []).append(each)
    for each in plain:
        sections[_section(each.module)].append(f"import {_named(each.module, each.alias)}")
    for module, group in members.items():
        listed = [_named(each.member, each.alias) for each in group]
        line = f"from {module} import {', '.join(listed)}"
        if len(line) > WIDTH:
            line = "\n".join([f"from {module} import (", *(f"    {each}," for each in listed), ")"])
        sections[_section(module)].append(line)
    return "\n\n".join("\n".join(section) for section in sections if section)


def _named(name: str, alias: str) -> str:
    return f"{name} as {alias}" if alias and alias != name else name


def _member_order(member: str) -> tuple[int, str]:
    return (0 if member.isupper() else 1 if member[0].isupper() else 2), member


def _section(module: str) -> int:
    root = module.partition(".")[0]
    return 0 if root == "__future__" else 1 if root in sys.stdlib_module_names else 2
