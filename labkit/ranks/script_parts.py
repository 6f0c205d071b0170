"""Collect what a script needs above its own lines: imports, and definitions in an order that runs.

What was defined in a cell or in the lab comes as source, plain data as literals, and what is
installed by import. What cannot come is noted.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import inspect
import linecache
import math
import re
import sys
import types
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple

from labkit.ranks.plain_values import BRACKETS, Call, LeftOut, fields, is_code, is_lambda, is_leaf, kept
from labkit.ranks.source_text import (
    BUILTINS,
    Edits,
    Expression,
    Import,
    binding,
    blocks,
    definition,
    dotted,
    flat,
    laid_out,
    names,
    statement_text,
)

# Packages of the lab that are plain torch or Python, whose source is written. Others need the lab.
PLAIN = ("dp", "shard", "pipe", "models", "parallel", "base", "cost", "schedule", "simulate", "stats", "lab")

ONLY_IN_NOTEBOOK = ("display", "get_ipython", "In", "Out", "_")


class LabName(NamedTuple):
    """What is called ``name`` in a module of the lab."""

    module: str
    name: str


STAND_INS = {
    LabName("labkit.trace.spans", "span"): '''\
class span(torch.profiler.record_function):
    """Name a block in what torch.profiler records."""

    def __init__(self, name, lane="compute", **labels):
        super().__init__(name)

    def begin(self):
        return self  # it ends in another thread, so it is not recorded

    def end(self):
        pass
''',
    LabName("labkit.launch", "device"): '''\
def device():
    """Return this rank's own GPU, or the CPU where there is not a GPU for each rank."""
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")
''',
    LabName("labkit.launch", "progress"): '''\
def progress(iterable, desc=""):
    """Show a bar, on rank 0 alone."""
    return tqdm(iterable, desc=desc, disable=os.environ["RANK"] != "0")
''',
    LabName("labkit.ranks.script", "show_value"): '''\
def show_value(value):
    """Print a value in one piece, so that lines of ranks do not mix."""
    if value is not None:
        print(f"rank {os.environ['RANK']}: {value!r}\\n", end="", flush=True)
''',
}

OWN_NAMES = {
    "atexit": Import("atexit"),
    "os": Import("os"),
    "torch": Import("torch"),
    "dist": Import("torch.distributed", alias="dist"),
    "tqdm": Import("tqdm.auto", "tqdm"),
    "show_value": LabName("labkit.ranks.script", "show_value"),
}


class ScriptParts:
    """The imports and definitions of a script, and its ``problems``: what cannot be written."""

    def __init__(self) -> None:
        self.imports: set[Import] = set()
        self.definitions: list[str] = []
        self.problems: list[str] = []
        self.defined: dict[str, Any] = {}  # each name at the top level: what it stands for
        self._lab_modules: dict[str, types.ModuleType] = {}  # that cells have imported, by name

    def need(self, name: str, value: Any, who: str) -> None:
        """See that ``name`` is ``value`` in the script, as ``who`` needs it."""
        value = _origin(value, name)
        if name in self.defined:
            known = self.defined[name]
            if known is not value and not (isinstance(value, Import | LabName) and known == value):
                self.problems.append(f"{name}, used by {who}, stands for something else in another place: rename one")
            return
        self.defined[name] = value
        own_name = value.name if isinstance(value, LabName) else value.__name__ if is_code(value) else name
        if isinstance(value, Import):
            self.imports.add(value)
        elif is_lambda(value):
            self.problems.append(f"{name}, used by {who}, is a lambda: name it by def")
        elif own_name != name:
            self.need(own_name, value, who)
            self.definitions.append(f"{name} = {own_name}")
        elif isinstance(value, LabName):
            self._write_from_lab(value, who)
        elif is_code(value):
            self._write_from_cell(value, who)
        else:
            literal = self.literal(value, f"{name}, used by {who},")
            self.definitions.append(f"{name} = {laid_out(literal, before=len(name) + 3)}")

    def _write_from_lab(self, value: LabName, who: str) -> None:
        module, name = value
        if value in STAND_INS:
            self.definitions.append(self.source(STAND_INS[value], OWN_NAMES.__getitem__, name))
            return
        text = _lab_source(module)
        statement = binding(parsed(text), name)
        if name == "TodoError":
            self.problems.append(f"{who} has a TODO that is not filled in yet")
        elif module.split(".")[1] not in PLAIN or statement is None:
            self.problems.append(f"{who} uses {module}.{name}, which works in the lab alone")
        else:
            code = self.source(statement_text(text, statement), functools.partial(_of_lab, module), name)
            code = re.sub(r"(?m)^ *###.*\n", "", code)  # the marks of tasks
            code = re.sub(r"\blabkit(\.(\w+\.)*|/(\w+/)*)(?=\w)", "", code)  # in docstrings and messages
            code = code.replace("_labkit_", "_lab_")  # in names of attributes
            if "labkit" in code:
                self.problems.append(f"{who} uses {module}.{name}, whose text names the lab")
            self._define(code, text)

    def _write_from_cell(self, value: Any, who: str) -> None:
        code, text = _cell_source(value)
        if code is None:
            self.problems.append(f"{value.__name__}, used by {who}, is {value!r}, whose source is not there")
            return
        self._define(self.source(code, functools.partial(_seen_by, inspect.unwrap(value)), value.__name__), text)

    def _define(self, code: str, whole_text: str) -> None:
        self.definitions.append(code)
        if "from __future__ import annotations" in whole_text:
            self.imports.add(Import("__future__", "annotations"))

    # --- source -----------------------------------------------------------------------------------

    def source(self, text: str, look_up: Callable[[str], Any], who: str, cell: bool = False) -> str:
        """Return ``text`` as it can stand in the script, and see to the names that it uses.

        Imports of the lab go, and ``dp.f`` becomes ``f``. Of a ``cell`` all imports go to the top.
        """
        tree, edits = ast.parse(text), Edits(text)
        modules = self._lab_modules if cell else {}
        for block in blocks(tree):
            moved = [each for each in block if _of_the_lab(each) or (cell and block is tree.body and _is_import(each))]
            for statement in moved:
                edits.delete(statement, leave="pass" if moved == block and block is not tree.body else "")
                for each in Import.of(statement):
                    self._move_import(each, modules, who)
        for name in names(text).free:
            if not cell or (name not in modules and name not in self.defined):
                self._need_free_name(name, look_up, modules, who)
        self._name_directly(tree, edits, modules, who)
        self._import_submodules(tree)
        return edits.done()

    def _need_free_name(
        self, name: str, look_up: Callable[[str], Any], modules: dict[str, types.ModuleType], who: str
    ) -> None:
        if name == "__name__":
            return
        try:
            value = look_up(name)
        except KeyError:
            if name not in BUILTINS:
                where = "which only a notebook has" if name in ONLY_IN_NOTEBOOK else "which is not made there"
                self.problems.append(f"{who} uses {name}, {where}")
            return
        if isinstance(value, types.ModuleType) and _in_lab(value.__name__):
            modules[name] = value
        else:
            self.need(name, value, who)

    def _move_import(self, each: Import, modules: dict[str, types.ModuleType], who: str) -> None:
        root = each.module.partition(".")[0]
        name = each.alias or each.member or root
        if not _in_lab(each.module):
            if each.member != "*":
                self.need(name, each if each.member or each.alias else Import(root), who)
            if each.member == "*" or not (each.member or each.alias):
                self.imports.add(each)
            return
        value = _of_lab(each.module, each.member) if each.member else importlib.import_module(each.module)
        if isinstance(value, types.ModuleType):
            modules[name] = value if each.member or each.alias else importlib.import_module(root)
        else:
            self.need(name, value, who)

    def _name_directly(self, tree: ast.Module, edits: Edits, modules: dict[str, types.ModuleType], who: str) -> None:
        """Replace ``dp.f`` by ``f``, where dp is a module of the lab."""
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in modules]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not (path := dotted(node)) or path[0] not in modules:
                continue
            owner: Any = modules[path[0]]
            for part in path[1:-1]:
                owner = getattr(owner, part, None)
            if isinstance(owner, types.ModuleType) and _in_lab(owner.__name__):
                value = _of_lab(owner.__name__, path[-1])
                if not isinstance(value, types.ModuleType):
                    edits.replace(node, path[-1])
                    self.need(path[-1], value, who)
                    uses = [each for each in uses if each not in list(ast.walk(node))]
        self.problems += [f"{who} uses the module {node.id} as a value" for node in uses]

    def _import_submodules(self, tree: ast.Module) -> None:
        """Import a.b.c where it is used by that name, and importing a may not bring it."""
        for node in ast.walk(tree):
            path = dotted(node) if isinstance(node, ast.Attribute) else []
            root = self.defined.get(path[0]) if path else None
            if isinstance(root, Import) and not root.member:
                module = ".".join([root.module, *path[1:]])
                there = getattr(sys.modules.get(module), "__name__", None) == module
                comes_along = re.match(r"(torch|numpy)\.\w+$|torch\.nn\.", module)
                if there and not comes_along:
                    self.imports.add(Import(module))

    # --- expressions ------------------------------------------------------------------------------

    def call(self, call: Call) -> tuple[str, list[tuple[str, Expression]], str]:
        """Return the call as an expression. Arguments of partials are among the others."""
        fn, args, kwargs = call
        if isinstance(fn, functools.partial):
            return self.call(Call(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}))
        name = getattr(fn, "__name__", type(fn).__name__)
        items = [("", self.literal(each, f"argument {i} of {name}")) for i, each in enumerate(args, 1)]
        items += [(f"{key}=", self.literal(each, f"argument {key} of {name}")) for key, each in kwargs.items()]
        return f"{flat(self.literal(fn, f'{name}, which ran,'))}(", items, ")"

    def literal(self, value: Any, what: str) -> Expression:
        """Return an expression for ``value``, and see to the names in it."""
        left = kept(value)
        kind = type(value).__name__
        if isinstance(left, LeftOut):
            self.problems.append(f"{what} is {left.description}: make it where it is used")
            return "..."
        if is_lambda(value):
            self.problems.append(f"{what} is a lambda, or holds one: name it by def")
            return "..."
        if is_leaf(value):
            return self._leaf(value)
        if is_code(value) or isinstance(value, types.ModuleType):
            name = value.__name__.rpartition(".")[2]
            if vars(builtins).get(name) is not value:
                self.need(name, value, what.removesuffix(","))
            return name
        if isinstance(value, functools.partial):
            self.need("functools", Import("functools"), what)
            opening, items, _ = self.call(Call(value.func, value.args, value.keywords))
            return "functools.partial(", [("", opening[:-1]), *items], ")"
        if kind == "dict":
            return "{", [(f"{flat(self.literal(key, what))}: ", self.literal(value[key], what)) for key in value], "}"
        if kind in BRACKETS:
            opening, closing = BRACKETS[kind]
            items = [("", self.literal(each, what)) for each in value]
            return (opening, items, closing) if items or opening in "[(" else f"{kind}()"
        self.need(kind, type(value), what.removesuffix(","))
        return f"{kind}(", [("", self.literal(each, what)) for each in fields(value) or []], ")"

    def _leaf(self, value: Any) -> str:
        if isinstance(value, str):
            text = repr(value)
            return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, PurePath):
            self.need("Path", Import("pathlib", "Path"), "a path")
            return f"Path({self._leaf(str(value))})"
        if type(value).__module__ == "torch":
            self.need("torch", Import("torch"), "a dtype or a device")
            return f'torch.device("{value}")' if type(value).__name__ == "device" else repr(value)
        return repr(value)


# --- where values come from -----------------------------------------------------------------------


def _in_lab(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "labkit"


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _of_the_lab(statement: ast.stmt) -> bool:
    return _is_import(statement) and any(_in_lab(each.module) for each in Import.of(statement))


parsed = functools.lru_cache(maxsize=64)(ast.parse)


def _lab_source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def _of_lab(module: str, name: str) -> types.ModuleType | LabName:
    """Return what a module of the lab has under a name. Raises KeyError if that is nothing."""
    owner = importlib.import_module(module)
    value = vars(owner).get(name)
    if isinstance(value, types.ModuleType):
        return value
    if value is None and hasattr(owner, "__path__") and importlib.util.find_spec(f"{module}.{name}"):
        return importlib.import_module(f"{module}.{name}")
    if not binding(parsed(_lab_source(module)), name):
        raise KeyError(name)
    return LabName(module, name)


def _origin(value: Any, name: str) -> Any:
    """Return the Import or the LabName that gives ``value`` as ``name``, else the value itself."""
    if isinstance(value, types.ModuleType):
        value = Import(value.__name__)
    elif is_code(value) and _in_lab(value.__module__):
        value = LabName(value.__module__, value.__qualname__)
    elif not isinstance(value, Import | LabName):
        value = _installed(value, name) or value
    if isinstance(value, Import) and _in_lab(value.module):
        value = LabName(value.module, value.member)
    if isinstance(value, LabName):
        value = _followed(value)
    if not isinstance(value, Import):
        return value
    package, _, last = value.module.rpartition(".")
    if not value.member and package and last == name:
        return Import(package, last)  # from torch import nn
    return value._replace(alias="" if name == (value.member or value.module) else name)


def _followed(value: LabName) -> LabName | Import:
    """Return the module of the lab that defines ``value``, or where the lab imports it from."""
    while value not in STAND_INS:
        statement = binding(parsed(_lab_source(value.module)), value.name)
        if statement is None or not _is_import(statement):
            break
        each = next(each for each in Import.of(statement) if value.name in (each.alias, each.member, each.module))
        if not _in_lab(each.module):
            return each
        value = LabName(each.module, each.member)
    return value


def _installed(value: Any, name: str) -> Import | None:
    """Return an import of what an installed module holds, from the shortest one that has it."""
    name = getattr(value, "__name__", None) or getattr(value, "_name", None) or name
    module = getattr(value, "__module__", None)
    if module is None and is_code(value):  # such as torch.ones
        holders = [each for each, module in list(sys.modules.items()) if vars(module).get(name) is value]
        module = min(holders, key=len, default=None)
    if not isinstance(module, str) or not _is_installed(module.partition(".")[0]):
        return None
    path = module.split(".")
    prefixes = [".".join(path[:n]) for n in range(1, len(path) + 1)]
    homes = [each for each in prefixes if getattr(sys.modules.get(each), name, None) is value]
    return Import(homes[0], name) if homes else None


def _is_installed(package: str) -> bool:
    try:
        return package != "__main__" and importlib.util.find_spec(package) is not None
    except ValueError:  # a module that was made by hand
        return False


def _cell_source(value: Any) -> tuple[str | None, str]:
    """Return the source of a function or a class, and that of the cell or file around it.

    It is found by name: after an edit, IPython's autoreload leaves wrong line numbers.
    """
    value, line = inspect.unwrap(value), 1
    if isinstance(value, types.FunctionType):
        files, line = [value.__code__.co_filename], value.__code__.co_firstlineno
    else:
        methods = [each for each in vars(value).values() if isinstance(each, types.FunctionType)]
        files = [*(each.__code__.co_filename for each in methods), *reversed(linecache.cache)]
    for file in files:
        text = "".join(linecache.getlines(file))
        if re.search(rf"\b(def|class) +{value.__name__}\b", text) and (found := definition(text, value.__name__, line)):
            return found, text
    return None, ""


def _seen_by(value: Any, name: str) -> Any:
    """Return what a function or a class finds under a name. Raises KeyError if that is nothing."""
    if not isinstance(value, types.FunctionType):
        return vars(sys.modules[value.__module__])[name]
    if name in value.__code__.co_freevars:
        return inspect.getclosurevars(value).nonlocals[name]
    return value.__globals__[name]
