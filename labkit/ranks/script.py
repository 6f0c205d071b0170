"""Write what ranks ran, a function or cells, as a script for torchrun that needs no lab.

Parts go in, text comes out; only :func:`write` touches a file. What cannot be written is named,
all of it in one ValueError.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.base.files import write_atomically
from labkit.cost import Link
from labkit.ranks.plan import LaunchPlan
from labkit.ranks.script_parts import ScriptParts, names_of, replaced

Cells = Sequence[tuple[str, Sequence[int]]]  # a source, and the ranks that it ran on

FIRST_LINE = '"""From a notebook, for torchrun:'  # by which a written script is known

START = """\
{about}
from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist
{imports}

on_gpus = {on_gpus}
if on_gpus:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
{group}

def show_value(value):
    \"\"\"Print a value in one piece, so that lines of ranks do not mix.\"\"\"
    if value is not None:
        print(f"rank {{os.environ['RANK']}}: {{value!r}}\\n", end="", flush=True)
"""
ENOUGH_GPUS = 'torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])'
GROUP = """\
dist.init_process_group("nccl" if on_gpus else "gloo")
atexit.register(dist.destroy_process_group)  # after an error, too
"""
OWN_NAMES = {name: f"import {name}" for name in ("atexit", "os", "torch")}
OWN_NAMES |= {"dist": "import torch.distributed as dist", "on_gpus": "START", "show_value": "START"}


def from_call(call: functools.partial[Any], plan: LaunchPlan, name: str = "script.py") -> str:
    """Return a script that makes ``call`` on each rank. Variables are written as they are now.

    Raises ValueError for what cannot be written.
    """
    __tracebackhide__ = True
    parts = ScriptParts(OWN_NAMES)
    line = f"show_value({parts.call(call.func, call.args, call.keywords)})"
    parts.definitions.append(line)
    return _script(parts, plan.world_size, plan.link, name, plan.asked_backend, plan.init)


def from_cells(
    cells: Cells, world_size: int, link: Link | None, given: dict[str, Any], name: str, backend: str = "auto"
) -> str:
    """Return a script that runs ``cells``, each a source and the ranks that it ran on.

    ``given``: variables that the ranks were given from elsewhere. ``backend``: as it was asked for.
    Each rank prints the value of a cell's last line. Raises ValueError for what cannot be written.
    """
    __tracebackhide__ = True
    parts = ScriptParts(OWN_NAMES)
    sources = {}
    for i, (source, on) in enumerate(cells, 1):
        source = re.sub(r"\A\s*%%(rank|px).*", "", source)
        try:
            compile(source, f"cell {i}", "exec", dont_inherit=True)
            sources[i] = source, on
        except SyntaxError as error:
            line = source.splitlines()[(error.lineno or 1) - 1].strip()
            parts.problems.append(f"cell {i}, line {error.lineno}: {line}: {error.msg}, outside a notebook")
    for variable, value in given.items():
        if any(re.search(rf"\b{variable}\b", source) for source, _ in sources.values()):
            parts.need(variable, value, "the cells")
    for i, (source, _) in sources.items():
        for made in names_of(source)[0] - {*given}:
            parts.is_new(made, "made by a cell", f"cell {i}")
    blocks = []
    for i, (source, on) in sources.items():
        text = parts.source(_showing_value(source), f"cell {i}", {}).strip("\n")
        if ast.parse(text).body:
            blocks.append(f"# Cell {i}\n{_on_ranks(text, on, world_size)}")
    parts.definitions += blocks
    return _script(parts, world_size, link, name, backend)


def write(path: str | Path, text: str) -> Path:
    """Write a script, and return where. Raises FileExistsError where another kind of file is."""
    __tracebackhide__ = True
    path = Path(path)
    if path.exists() and not path.read_text(errors="replace").startswith(FIRST_LINE):
        raise FileExistsError(f"{path} is not an exported script: delete it, or give another name")
    write_atomically(path, text.encode())
    return path


def _script(parts: ScriptParts, world_size: int, link: Link | None, name: str, backend: str, init: bool = True) -> str:
    __tracebackhide__ = True
    if parts.problems:
        lines = "".join(f"\n- {each}" for each in dict.fromkeys(parts.problems))
        raise ValueError(f"this cannot be written as a script:{lines}")
    about = f'{FIRST_LINE}\n\ntorchrun --nproc-per-node={world_size} {name}\n"""\n'
    if link is not None:
        about += f"# The notebook emulated a slower link, {link}. Here messages are not slowed down.\n"
    imports = "\n".join(sorted({*parts.imports} - {*START.splitlines()}))
    on_gpus = f"{backend == 'nccl'}  # {backend} was asked for" if backend != "auto" else ENOUGH_GPUS
    start = START.format(about=about, imports=imports, on_gpus=on_gpus, group=GROUP * init)
    return "\n\n".join(piece.strip("\n") for piece in [start, *parts.definitions]) + "\n"


# --- cells ----------------------------------------------------------------------------------------


def _showing_value(source: str) -> str:
    """Return a cell with its last expression in show_value(), unless it is hidden by a ``;``."""
    body = ast.parse(source).body
    if not body or not isinstance(last := body[-1], ast.Expr) or source.rstrip().endswith(";"):
        return source
    value = ast.unparse(last.value)
    return source if value.startswith("print(") else replaced(source, last, f"show_value({value})")


def _on_ranks(text: str, on: Sequence[int], world_size: int) -> str:
    """Return a cell's text as some ranks run it."""
    if len(set(on)) == world_size:
        return text
    condition = f"if dist.get_rank() in {sorted(set(on))}:\n"
    return condition + textwrap.indent(ast.unparse(ast.parse(text)), "    ")  # each string in one line
