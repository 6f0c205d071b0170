"""Write what ranks ran, a function or cells, as a script for torchrun that needs no lab.

Parts go in, text comes out; only :func:`write` touches a file. What cannot be written is named,
all of it in one ValueError.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.base.files import write_atomically
from labkit.base.texts import listed
from labkit.cost import Link
from labkit.ranks.plain_values import Call
from labkit.ranks.script_parts import OWN_NAMES, ScriptParts
from labkit.ranks.source_text import Edits, dotted, flat, import_lines, indented, laid_out, names

MAGIC = re.compile(r": ([%!?]|.*= *[%!]|.*\?$)")  # a line of a magic, a shell command, or a question

FIRST_LINE = '"""From a notebook, for torchrun:'  # by which a written script is known

START = """\
on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
if on_gpus:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if on_gpus else "gloo")
atexit.register(dist.destroy_process_group)  # after an error, too
"""


def from_call(
    call: Call,
    world_size: int,
    link: Link | None = None,
    init: bool = True,
    shown: bool = True,
    name: str = "script.py",
) -> str:
    """Return a script that runs ``call`` on each rank. Variables are written as they are now.

    ``init``: the script forms the process group. ``shown``: it prints what each rank returns.
    Raises ValueError for what cannot be written.
    """
    __tracebackhide__ = True
    parts = ScriptParts()
    line = parts.call(call)
    _raise(parts.problems)
    if shown:
        line = ("show_value(", [("", line)], ")")
    start = START if init else ""
    parts.source(start + flat(line), (OWN_NAMES | parts.defined).__getitem__, "the script")
    block = textwrap.indent(start + laid_out(line, before=4), "    ")
    return _text(parts, world_size, link, name, [f'if __name__ == "__main__":\n{block}'])


def from_cells(
    cells: Sequence[tuple[str, Sequence[int]]],
    world_size: int,
    link: Link | None = None,
    given: Mapping[str, Any] | None = None,
    name: str = "script.py",
) -> str:
    """Return a script that runs ``cells``, each a source and the ranks that it ran on.

    ``given``: variables that the ranks were given from elsewhere. Each rank prints the value of a
    cell's last line. Raises ValueError for what cannot be written.
    """
    __tracebackhide__ = True
    numbered = [(i, re.sub(r"\A\s*%%(rank|px).*", "", source), on) for i, (source, on) in enumerate(cells, 1)]
    _raise([problem for i, source, _ in numbered for problem in _only_in_notebook(i, source)])
    parts = ScriptParts()
    made = set().union(*(names(source).made for _, source, _ in numbered))
    parts.defined |= dict.fromkeys(made, "made by a cell")
    start = parts.source(START, OWN_NAMES.__getitem__, "the script")
    blocks, known = [], {**(given or {})} | OWN_NAMES
    for i, source, on in numbered:
        text = parts.source(_showing_value(source), known.__getitem__, f"cell {i}", cell=True).strip("\n")
        blocks.append(text and _on_ranks(f"# Cell {i}", text, on, world_size))
    return _text(parts, world_size, link, name, [start, *filter(None, blocks)])


def write(path: str | Path, text: str) -> Path:
    """Write a script, and return where. Raises FileExistsError where another kind of file is."""
    __tracebackhide__ = True
    path = Path(path)
    if path.exists() and not path.read_text(errors="replace").startswith(FIRST_LINE):
        raise FileExistsError(
            f"{path} is there already, and is not an exported script: delete it, or give another name"
        )
    write_atomically(path, text.encode())
    return path


def _raise(problems: list[str]) -> None:
    __tracebackhide__ = True
    if problems:
        lines = "".join(f"\n- {each}" for each in dict.fromkeys(problems))
        raise ValueError(f"this cannot be written as a script:{lines}")


def _text(parts: ScriptParts, world_size: int, link: Link | None, name: str, blocks: list[str]) -> str:
    __tracebackhide__ = True
    _raise(parts.problems)
    head = [f'{FIRST_LINE}\n\ntorchrun --nproc-per-node={world_size} {name}\n"""']
    if link is not None:
        head.append(f"# The notebook emulated a slower link, {link}. Here messages are not slowed down.")
    text, before = "\n\n".join([*head, import_lines(parts.imports)]), "imports"
    for each in [*parts.definitions, *blocks]:
        kind = "block" if each in blocks or re.match(r"(async )?def |class |@", each) else "variable"
        gap = {("variable", "variable"): "\n", ("imports", "variable"): "\n\n"}.get((before, kind), "\n\n\n")
        text, before = f"{text}{gap}{each.strip()}", kind
    return f"{text}\n"


# --- cells ----------------------------------------------------------------------------------------


def _only_in_notebook(number: int, source: str) -> list[str]:
    """Return what no script can run: magics, shell commands, an await outside a function."""
    try:
        code = compile(source, f"cell {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        lines = [f"line {i}: {line.strip()}" for i, line in enumerate(source.splitlines(), 1)]
        magics = [f"{line} (only a notebook can run it)" for line in lines if MAGIC.search(line)]
        return [f"cell {number}, {line}" for line in magics or [f"line {error.lineno}: {error.msg}"]]
    waits = code.co_flags & inspect.CO_COROUTINE
    return [f"cell {number} awaits outside a function: call asyncio.run in it"] if waits else []


def _showing_value(source: str) -> str:
    """Return a cell with its last expression in show_value(), unless it is hidden by a ``;``."""
    body, edits = ast.parse(source).body, Edits(source)
    if not body or not isinstance(last := body[-1], ast.Expr) or edits.after(last).startswith(";"):
        return source
    if isinstance(last.value, ast.Call) and dotted(last.value.func) == ["print"]:
        return source
    bare_tuple = isinstance(last.value, ast.Tuple) and not edits.text(last).startswith("(")
    edits.wrap(last, "show_value((" if bare_tuple else "show_value(", "))" if bare_tuple else ")")
    return edits.done()


def _on_ranks(comment: str, text: str, on: Sequence[int], world_size: int) -> str:
    """Return a cell's text as some ranks run it."""
    ranks = sorted(set(on))
    if ranks == list(range(world_size)):
        return f"{comment}\n{text}"
    one = len(ranks) == 1
    condition = f"== {ranks[0]}" if one else f"in {tuple(ranks)}"
    body = indented(text) if ast.parse(text).body else f"{indented(text)}\n    pass"
    return f"{comment}, on {'rank' if one else 'ranks'} {listed(ranks)}\nif dist.get_rank() {condition}:\n{body}"
