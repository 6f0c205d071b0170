"""Collect what a script needs above its own lines: imports, and definitions in an order that runs.

What was defined in a cell or in the lab comes as source, a plain variable as it is now, and the
rest by import. What cannot come is noted.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copyreg
import dataclasses
import functools
import importlib
import inspect
import linecache
import math
import pickle
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Iterable, Mapping
from typing import Any

# Packages of the lab that are plain torch, whose source is written. Others need the lab.
PLAIN = ("dp", "shard", "pipe", "models", "parallel", "base", "schedule", "cost")

MAX_CHARACTERS = 5000  # of a variable

BUILTINS = frozenset(dir(builtins)) - {"display", "get_ipython"}  # which IPython adds

STAND_INS = {
    "labkit.trace.spans.span": '''\
class span(torch.profiler.record_function):
    """Name a block in what torch.profiler records, if it ends in the thread where it began."""

    def __init__(self, name, lane="compute", **labels):
        super().__init__(name)

    begin = end = lambda self: self
''',
    "labkit.launch.device": '''\
def device():
    """Return this rank's own GPU, or the CPU where there is not a GPU for each rank."""
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
''',
    "labkit.trace.spans.pause": """\
def pause():
    return torch.no_grad()  # there is nothing to pause
""",
    "labkit.launch.progress": """\
def progress(iterable, desc=""):
    return iterable  # without a bar
""",
}


class ScriptParts:
    """The imports and definitions of a script, and its ``problems``: what cannot be written.

    ``defined``: each name at the top level of the script, and a key for what it stands for.
    """

    def __init__(self, defined: Mapping[str, object]) -> None:
        self.imports: list[str] = []
        self.definitions: list[str] = []
        self.problems: list[str] = []
        self.defined = dict(defined)

    def need(self, name: str, value: Any, who: str) -> None:
        """See that ``name`` is ``value`` in the script, as ``who`` needs it."""
        module, own_name = _global_name(value)
        is_module = isinstance(value, types.ModuleType)
        if is_module and _in_lab(value.__name__):
            self.imports.append("import types")
            if self.is_new(name, value.__name__, who):
                self.definitions.append(f"{name} = types.SimpleNamespace()")  # which gets what is used of it
        elif _in_lab(module) and own_name == name:
            self._need_from_lab(module, name, who)
        elif is_module or (module not in ("", "__main__", "builtins") and not _in_lab(module)):
            line = f"import {value.__name__}" if is_module else f"from {module} import {own_name}"
            line += f" as {name}" * (not line.endswith(f" {name}"))
            self.is_new(name, line, who)
            self.imports.append(line)
        elif self.is_new(name, id(value), who):
            if own_name == name:
                self._write_from_cell(name, inspect.unwrap(value), who)
            else:
                self.definitions.append(f"{name} = {self.literal(value, f'{name}, used by {who},')}")

    def source(self, text: str, who: str, scope: Mapping[str, Any]) -> str:
        """Return ``text`` without imports of the lab, and see to the names that it uses.

        ``scope``: what they stand for, if not for something in the script.
        """
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in sorted(imports, key=lambda node: (node.lineno, node.col_offset), reverse=True):
            if not re.search(r"\blabkit\b", line := ast.unparse(node)):
                continue
            text = replaced(text, node, "pass" if node.col_offset or ";" in text else "")
            if isinstance(node, ast.Import) or " as " in line:
                self.problems.append(f"{who} has {line!r}: write from labkit import ..., without as")
                continue
            for alias in node.names:
                try:
                    self.need(alias.name, importlib.import_module(f"{node.module}.{alias.name}"), who)
                except ModuleNotFoundError:  # but a function, or a class
                    self._need_from_lab(node.module or "", alias.name, who)
        home = scope.get("__name__", "")
        for name in sorted(names_of(text)[1], key=text.index):
            if name in scope and _in_lab(home) and _lab_source(home, name)[1]:
                self._need_from_lab(home, name, who)
            elif name in scope:
                self.need(name, scope[name], who)
            elif name not in BUILTINS and name not in self.defined and not _in_lab(home):  # which TYPE_CHECKING has
                self.problems.append(f"{who} uses {name}, which is not made there")
        self._need_attributes(text, who)
        return text

    def literal(self, value: Any, what: str) -> str:
        """Return an expression for a plain value, as pickle would make it, with the names in it."""
        with contextlib.suppress(Exception):  # from any class's own way to be pickled
            if len(text := self._literal(value, what)) <= MAX_CHARACTERS:
                return text
        self.problems.append(f"{what} cannot be written ({type(value).__qualname__}): make it where it is used")
        return "..."

    def _literal(self, value: Any, what: str) -> str:
        kind, (module, name) = type(value), _global_name(value)
        if kind in (bool, int, str, bytes, complex, type(None), type(...)):
            return repr(value)
        if kind is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if kind is list:
            return f"[{', '.join(self.literal(each, what) for each in value)}]"
        if kind is tuple:
            return f"({''.join(f'{self.literal(each, what)}, ' for each in value).rstrip(' ')})"
        if kind is dict:
            pairs = [f"{self.literal(key, what)}: {self.literal(each, what)}" for key, each in value.items()]
            return f"{{{', '.join(pairs)}}}"
        if name and module in ("builtins", "torch"):
            return f"torch.{name}" if module == "torch" else name
        if name:
            self.need(name, value, what.rstrip(","))
            return name
        if dataclasses.is_dataclass(value):
            return self.call(kind, (), {x.name: getattr(value, x.name) for x in dataclasses.fields(value) if x.init})
        make, args, *state = value.__reduce_ex__(2)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make, *args = args
        if make.__name__.startswith("_") or any(each is not None for each in state):
            raise TypeError
        return self.call(make, args, {})

    def call(self, fn: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a call as an expression."""
        name = getattr(fn, "__name__", type(fn).__name__)
        items = [self.literal(each, f"argument {i} of {name}") for i, each in enumerate(args, 1)]
        items += [f"{key}={self.literal(each, f'argument {key} of {name}')}" for key, each in kwargs.items()]
        return f"{self.literal(fn, f'{name}, which is called,')}({', '.join(items)})"

    def is_new(self, name: str, key: object, who: str) -> bool:
        """Return whether ``name`` is still to be defined. It cannot stand for two things."""
        new = name not in self.defined
        if self.defined.setdefault(name, key) != key:
            self.problems.append(f"{name}, used by {who}, stands for something else in another place: rename one")
        return new

    def _write_from_cell(self, name: str, value: Any, who: str) -> None:
        scope, code = vars(sys.modules["__main__"]), ""
        with contextlib.suppress(OSError, TypeError):
            if isinstance(value, types.FunctionType):
                scope = value.__globals__ | dict(inspect.getclosurevars(value).nonlocals)
                code = textwrap.dedent(inspect.getsource(value))
            else:
                code = _class_source(name) or inspect.getsource(value)
        if not code:
            self.problems.append(f"{name}, used by {who}, cannot be written: its source is not there")
        self.definitions.append(self.source(code, name, scope))

    def _need_from_lab(self, module: str, name: str, who: str) -> None:
        module, text = _lab_source(module, name)
        key = f"{module}.{name}"
        if key not in STAND_INS and (module.split(".")[1] not in PLAIN or not text):
            self.problems.append(f"{name}, used by {who}, is {key}, which works in the lab alone")
        elif self.is_new(name, key, who):
            self.definitions.append(STAND_INS.get(key) or self.source(text, name, vars(sys.modules[module])))

    def _need_attributes(self, text: str, who: str) -> None:
        """See to ``dp.f``, where dp is a module of the lab, and to ``a.b``, where b is a module."""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                root, full = node.value.id, f"{node.value.id}.{node.attr}"
                module = str(self.defined.get(root))
                if _in_lab(module) and module in sys.modules:
                    self._need_from_lab(module, node.attr, who)
                    if self.is_new(full, full, who):
                        self.definitions.append(f"{full} = {node.attr}")
                elif module == f"import {root}" != "import torch":  # which brings its own
                    self.imports += [f"import {full}"] * (getattr(sys.modules.get(full), "__name__", "") == full)


# --- where values come from -----------------------------------------------------------------------


def _in_lab(module: str) -> bool:
    return module.partition(".")[0] == "labkit"


def _global_name(value: Any) -> tuple[str, str]:
    """Return the module and the name by which pickle finds a function or a class, else blanks."""
    is_code = isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) or hasattr(value, "__wrapped__")
    try:
        name = value.__name__ if is_code else value.__reduce_ex__(2)
        module = pickle.whichmodule(value, name) if name.isidentifier() else ""  # type: ignore[attr-defined]
    except Exception:  # from any class's own way to be pickled
        return "", ""
    found = module == "__main__" or getattr(sys.modules.get(module), name, None) is value
    return (module, name) if found else ("", "")


def _lab_source(module: str, name: str) -> tuple[str, str]:
    """Return the module of the lab that defines what ``module`` calls ``name``, and its source."""
    text = inspect.getsource(importlib.import_module(module))
    for node in _parsed(text).body:
        if isinstance(node, ast.ImportFrom) and name in [
            each.name for each in node.names if _in_lab(node.module or "")
        ]:
            return _lab_source(node.module or "", name)
        if _makes(node, name):
            return module, re.sub(r"(?m)^ *###.*\n", "", _text_of(node, text))  # without the marks of tasks
    return module, ""


_parsed = functools.lru_cache(maxsize=64)(ast.parse)


def _makes(node: ast.stmt, name: str) -> bool:
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return name in [getattr(node, "name", None), *(getattr(each, "id", None) for each in targets)]


def _text_of(node: ast.stmt, text: str) -> str:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"


def _class_source(name: str) -> str:
    """Return the source of a class or a named tuple of a cell, where inspect finds none."""
    for file in reversed(linecache.cache):
        text = "".join(linecache.getlines(file))
        if re.search(rf"(?m)^(class +{name}\b|{name} *=)", text):
            return next((_text_of(node, text) for node in ast.parse(text).body if _makes(node, name)), "")
    return ""


# --- text -----------------------------------------------------------------------------------------


def names_of(text: str) -> tuple[set[str], set[str]]:
    """Return the names that a source makes at its top level, and those that it only uses."""
    tables = [symtable.symtable(text, "<source>", "exec")]
    for table in tables:
        tables += table.get_children()
    symbols = [each for table in tables for each in table.get_symbols() if table is tables[0] or each.is_global()]
    imported = {each.get_name() for each in symbols if each.is_imported()}
    made = {each.get_name() for each in symbols if each.is_assigned()} - imported
    used = {each.get_name() for each in symbols if each.is_referenced()} - imported - made
    return made, {name for name in used if not name.startswith("__")}


def replaced(text: str, node: ast.stmt, new: str) -> str:
    """Return ``text`` with ``new`` in the place of a statement."""
    lines = text.encode().splitlines(keepends=True)  # in bytes, as the tree counts its columns
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = b"".join(lines[(node.end_lineno or 1) - 1 :])[node.end_col_offset :]
    return (before + new.encode() + after).decode()
