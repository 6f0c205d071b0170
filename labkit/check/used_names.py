"""Find the full names of all that a task's code uses, whatever it calls them; nothing is run.

A task's code is the functions in which it is to be written, with the classes that these are in, and
the functions, classes and values that they name, in the same file or in a module of the student's
own beside it. What such a file runs when it is imported counts too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from labkit.todo import FUNCTIONS, TASKS, read_source, task_file

STUDENT_FILES = {f"labkit.{task_file(task).stem}" for task in TASKS}
IMPORTERS = {"importlib.import_module", "importlib.__import__", "builtins.__import__"}
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Value = str | ast.AST | None  # of a name: a full name, an expression or definition, or not known
Bound = dict[str, list[Value]]


class Use(NamedTuple):
    """Something that is used: its full name, and where, as ``labkit/dp.py`` and a line."""

    name: str
    file: str
    line: int


def used_names(task: str, source: str) -> list[Use]:
    """Return what the code of ``task`` uses, if ``source`` is its file's text.

    Raises one of UNREADABLE for a text that is no Python.
    """
    path = task_file(task)
    lab, module = _Lab(path.parent.parent), f"labkit.{path.stem}"
    lab.add(_File(module, f"labkit/{path.name}", source))
    for function in FUNCTIONS[task]:
        lab.full(f"{module}.{function}")
    return lab.read_all()


class _File:
    """A file of the lab: what its names are bound to, and what it runs when it is imported."""

    def __init__(self, name: str, path: str, text: str):
        self.name, self.path, tree = name, path, ast.parse(text)
        for node in ast.walk(tree):
            for field in {"annotation", "returns"} & {*node._fields}:  # which are not run
                setattr(node, field, ast.Constant(None))
        self.own = name in STUDENT_FILES or not name.startswith("labkit.")  # a student's, so to be read
        self.bound = self.bindings(_statements(tree))
        self.stars = [str(star).removesuffix(".*") for star in self.bound.pop("*", ())]
        self.runs = [statement for statement in _statements(tree) if not self.bindings([statement])]

    def bindings(self, nodes: Iterable[ast.AST]) -> Bound:
        """Return by name what these nodes bind it to."""
        found: Bound = {}
        for node in nodes:
            for name, value in self._binds(node):
                found.setdefault(name, []).append(value)
        return found

    def _binds(self, node: ast.AST) -> Iterator[tuple[str, Value]]:
        match node:
            case ast.Import() | ast.ImportFrom():
                for alias, full in zip(node.names, self.imported(node), strict=True):
                    top = isinstance(node, ast.Import) and not alias.asname  # import a.b binds a
                    yield (full.partition(".")[0],) * 2 if top else (alias.asname or alias.name, full)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value):
                yield name, value
            case ast.Name(name, ast.Store()) | ast.arg(name):
                yield name, None

    def imported(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        """Return the full names that an import statement imports."""
        module = ""
        if isinstance(node, ast.ImportFrom):
            parent = self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]
            parts = parent.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*parts, *filter(None, [node.module])]) + "."
        return [module + alias.name for alias in node.names]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module's statements, also from within if and try, but no script's own end."""
    for child in ast.iter_child_nodes(node):
        inner = [each for each in ast.iter_child_nodes(child) if isinstance(each, ast.stmt | ast.ExceptHandler)]
        if isinstance(child, Function | ast.ClassDef) or not inner:
            yield child
        elif not (isinstance(child, ast.If) and "__name__" in ast.unparse(child.test)):
            yield from _statements(child)


class _Lab:
    """The files of a lab, as far as names lead there, and what of them is to be read."""

    def __init__(self, folder: Path):
        self.folder, self.is_installed = folder, folder.name in ("site-packages", "dist-packages")
        self._files: dict[str, _File | None] = {}
        self._full: dict[str, set[str]] = {}
        self._reached: set[ast.AST] = set()
        self._unread: list[tuple[ast.AST, _File]] = []

    def add(self, file: _File) -> None:
        self._files[file.name] = file
        if file.own:
            self._reach(file.runs, file)
            for name in [*file.stars, *(value for values in file.bound.values() for value in values)]:
                if isinstance(name, str) and not name.startswith("labkit."):
                    self._file_of(name)  # a module of the student's own runs something too

    def _reach(self, nodes: Iterable[ast.AST], file: _File) -> None:
        """Have these nodes read; of a class, each method by itself."""
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._reach((*node.bases, *node.keywords, *node.decorator_list, *node.body), file)
            elif node not in self._reached:
                self._reached.add(node)
                self._unread.append((node, file))
                if isinstance(node, Function):  # its arguments' defaults are not in its own scope
                    self._reach([node.args], file)

    def read_all(self) -> list[Use]:
        """Return all that is used in what was reached, and in what that reaches."""
        uses = list[Use]()
        while self._unread:
            whole, file = self._unread.pop()
            inner = [*ast.walk(whole)][1:]
            local = file.bindings(inner) if isinstance(whole, Function) else {}
            for node in (whole, *inner):
                line = getattr(node, "lineno", 0)
                uses += [Use(name, file.path, line) for name in self._names(node, file, local)]
        return uses

    def _names(self, node: ast.AST | None, file: _File, local: Bound) -> set[str]:
        """Return the full names that an expression may stand for, or a statement imports."""

        def under(value: ast.AST, attribute: str) -> set[str]:
            return _union(self.full(f"{name}.{attribute}") for name in self._names(value, file, local))

        match node:
            case ast.Import() | ast.ImportFrom():
                return _union(map(self.full, file.imported(node)))
            case ast.Name(name, ast.Load()) if name in local:
                values, local[name] = local[name], []  # for where it is made of itself
                local[name] = [full for value in values for full in self._known(value, file, local)]
                return {*map(str, local[name])}
            case ast.Name(name, ast.Load()) if name in file.bound:
                return self.full(f"{file.name}.{name}")
            case ast.Name(name, ast.Load()):
                return _union([{f"builtins.{name}"}, *(self.full(f"{star}.{name}") for star in file.stars)])
            case ast.Attribute(value, name) | ast.Call(ast.Name("getattr"), [value, ast.Constant(str(name)), *_]):
                return under(value, name)
            case ast.Subscript(value, ast.Constant(str(name))) if "sys.modules" in self._names(value, file, local):
                return {name}
            case ast.Call(function, [ast.Constant(str(name)), *_]) if self._names(function, file, local) & IMPORTERS:
                return {name, name.partition(".")[0]}  # __import__("a.b") gives a
        return set()

    def _known(self, value: Value, file: _File, local: Bound) -> set[str]:
        """Return the full names that a name's value may be."""
        return self.full(value) if isinstance(value, str) else self._names(value, file, local)

    def full(self, name: str) -> set[str]:
        """Return what a name such as ``labkit.dp.mp.Process`` stands for, and reach it."""
        if name not in self._full:
            self._full[name] = set()  # where it leads back to itself
            self._full[name] = self._follow(name)
        return self._full[name]

    def _follow(self, name: str) -> set[str]:
        file = self._file_of(name)
        if file is None or file.name == name:
            return {name}
        head, dot, tail = name.removeprefix(f"{file.name}.").partition(".")
        found = set[str]()
        for value in file.bound.get(head) or [f"{star}.{head}" for star in file.stars] or [name]:
            if isinstance(value, ast.AST) and file.own:
                self._reach([value], file)
            if value == name or isinstance(value, Function | ast.ClassDef):
                found.add(name)
            else:
                found |= _union(self.full(each + dot + tail) for each in self._known(value, file, {}))
        return found

    def _file_of(self, name: str) -> _File | None:
        """Return the file of the lab that a full name is in."""
        parts = name.split(".")
        if self.is_installed and parts[0] != "labkit":
            return None
        found = (self._file(".".join(parts[:n])) for n in range(len(parts), 0, -1))
        return next(filter(None, found), None)

    def _file(self, name: str) -> _File | None:
        if name not in self._files:
            self._files[name] = None
            stem = name.replace(".", "/")
            paths = (f"{stem}.py", f"{stem}/__init__.py", f"notebooks/{stem}.py")
            for path in [path for path in paths if (self.folder / path).is_file()][:1]:
                with suppress(*UNREADABLE):  # then it cannot be imported either
                    self.add(_File(name, path, read_source(self.folder / path)))
        return self._files[name]


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set[str]().union(*sets)
