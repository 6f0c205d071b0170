"""A rank's IPython shell, in which cells run: what they show is sent to the notebook.

One shell a rank, made by its first cell. It has no history and no thread of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import linecache
import os
import string
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from types import ModuleType, TracebackType
from typing import Any, ClassVar, NamedTuple

import IPython
import torch
import torch.distributed as dist
from IPython.core.async_helpers import get_asyncio_loop
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from labkit.base.autoreload import complete_reloads
from labkit.base.texts import shorten
from labkit.ranks.faults.frames import RANKS_FOLDER
from labkit.ranks.messages import pickling
from labkit.ranks.messages.message import Completed, Shown
from labkit.ranks.processes import rank

MAX_CHARACTERS = 200_000  # of one text that a cell shows
MAX_OBJECTS = 20_000  # that are looked at of one variable, to find a group
MAX_BYTES = 32 << 20  # of one picture, or anything else
LIVE_VIEW = "application/vnd.jupyter.widget-view+json"  # of a widget, whose model the notebook does not have
_LIBRARIES = (os.path.dirname(IPython.__file__) + os.sep, RANKS_FOLDER)

ONLY_IN_NOTEBOOK = (
    "The shell of a rank has IPython's own magics. One of an extension's, or of the notebook's, it does not know: use it in a "
    "cell without %%ranks, or load its extension on the ranks first, with %load_ext in a %%ranks cell."
)


class _Compiler(CachingCompiler):
    """Compiles a cell under the name, and with the lines, that it has in the notebook."""

    file = ""
    lines: ClassVar[list[str]] = []

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return self.file

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = super().cache(transformed_code, number, raw_code)
        linecache.cache[name] = (sum(map(len, self.lines)), None, self.lines, name)
        return name


class _Results(DisplayHook):
    """Sends the value of the last expression."""

    def quiet(self) -> bool:
        """Return whether the cell ends with a semicolon: then it shows no value."""
        return self.semicolon_at_end_of_expression(code_of("".join(_Compiler.lines)))

    def write_output_prompt(self) -> None: ...

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        the_shell().last_text = _send("result", format_dict, md_dict).get("text/plain", "")

    def log_output(self, format_dict: dict[str, Any]) -> None: ...

    def finish_displayhook(self) -> None:
        self._is_active = False


class _Displays(DisplayPublisher):
    """Sends what is displayed."""

    def publish(
        self, data: Any, metadata: Any = None, *_: Any, transient: Any = None, update: bool = False, **__: Any
    ) -> None:
        _send("update" if update else "display", data, metadata, (transient or {}).get("display_id", ""))

    def clear_output(self, wait: bool = False) -> None:
        _send("clear", {}, {})


def _send(kind: str, data: dict[str, Any], metadata: dict[str, Any] | None, display_id: str = "") -> dict[str, Any]:
    """Send a bundle to the notebook as plain data, without what is too large to show."""
    data = {mime: _plain(mime, value) for mime, value in data.items() if mime != LIVE_VIEW}
    if not data and kind != "clear":
        return data
    assert rank.current is not None
    rank.current.send(Shown(kind, data, json.loads(json.dumps(metadata or {}, default=str)), display_id))
    return data


def _plain(mime: str, value: Any) -> Any:
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode()
    if mime == "text/plain":
        return shorten(str(value), MAX_CHARACTERS)
    text = json.dumps(value, default=str)
    return json.loads(text) if len(text) <= MAX_BYTES else f"{len(text) >> 20} MiB are too much to show"


class RankShell(InteractiveShell):
    """The shell: what IPython would print of an error, it keeps as ``error``."""

    last_text = ""
    autoreload_mode = "0"
    error: BaseException | None = None

    def init_user_ns(self) -> None:
        super().init_user_ns()
        self.user_ns["exit"] = self.user_ns["quit"] = _Exit()

    def enable_gui(self, gui: str | None = None) -> None:
        """Begin no event loop: a rank has no windows. ``%matplotlib inline`` calls this."""

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        self.error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]

    def showsyntaxerror(self, *_: Any, **__: Any) -> None:
        self.error = sys.exc_info()[1]


class _Exit:
    """exit() and quit(): end the cell, as they end a script, and say how to end the rank."""

    def __repr__(self) -> str:
        return "exit() ends the cell, not the rank: %ranks stop, in a cell without %%ranks, ends all ranks"

    def __call__(self, status: object = None) -> None:
        raise SystemExit(repr(self))


def the_shell() -> RankShell:
    """Return this rank's shell."""
    if not RankShell.initialized():
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.Completer.use_jedi = False
        options = {"compiler_class": _Compiler, "displayhook_class": _Results, "display_pub_class": _Displays}
        RankShell.instance(config=config, **options)
        warnings.filterwarnings("ignore", "To exit: use")  # of a terminal's shell, after any SystemExit
    shell: RankShell = RankShell.instance()
    return shell


# --- what the notebook calls ----------------------------------------------------------------------


def run_cell(source: str, file: str, autoreload: str) -> tuple[str, list[str]]:
    """Run a cell. Return its last expression's text, and the names of this rank's variables.

    Raises what the cell raises, from the cell's line on.
    """
    shell = the_shell()
    _set_autoreload(shell, autoreload)
    shell.last_text, shell.error = "", None
    _Compiler.file, _Compiler.lines = file, source.splitlines(keepends=True)
    try:
        shell.run_cell(code_of(source), store_history=False)
        error, shell.error = shell.error, None
        shell.last_execution_result = None  # with an error's frames it would keep an old process group
        if error is not None:
            if isinstance(error, UsageError) and "not found" in str(error):
                error.add_note(ONLY_IN_NOTEBOOK)
            raise error.with_traceback(_readers_part(error.__traceback__))
    except KeyboardInterrupt:
        if "async" in source or "await" in source:
            _cancel_tasks()
        raise
    return shell.last_text, names()


def _set_autoreload(shell: RankShell, mode: str) -> None:
    """Have IPython reload changed modules before each cell, as it does in the notebook."""
    if mode != shell.autoreload_mode:
        shell.extension_manager.load_extension("autoreload")  # type: ignore[union-attr]
        complete_reloads()
        shell.run_line_magic("autoreload", mode)
        shell.autoreload_mode = mode


def code_of(source: str) -> str:
    """Return a cell without its ``%%ranks``, in whose place a comment keeps the lines' numbers."""
    first, _, rest = source.partition("\n")
    if not first.lstrip().startswith(("%%rank", "%%px")):
        return source
    return rest if rest.lstrip().startswith("%%") else f"#\n{rest}"


def _readers_part(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_LIBRARIES):
        tb = tb.tb_next
    return tb


def _cancel_tasks() -> None:
    """End what an interrupted cell has left in its event loop: it would go on in the next cell."""
    loop = get_asyncio_loop()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))


def names() -> list[str]:
    """Return the names of the variables that cells, or ``push``, have made."""
    shell = the_shell()
    hidden = shell.user_ns_hidden
    return [name for name in shell.user_ns if not name.startswith("_") and name not in hidden]


def value(name: str) -> tuple[str, bytes | list[str] | str]:
    """Return a variable's value, pickled: ("value", bytes). Otherwise say why there is none."""
    shell = the_shell()
    if name not in shell.user_ns:
        return "missing", names()
    try:
        return "value", pickling.dumps(shell.user_ns[name])
    except Exception as error:
        return "unsent", pickling.explain({name: shell.user_ns[name]}, error)


def push(pickled: bytes) -> list[str]:
    """Set variables. Return the names of all."""
    the_shell().user_ns.update(pickling.loads(pickled))
    return names()


def complete(number: int, code: str, cursor: int) -> Completed:
    """Return what may stand for the word before ``cursor``: see Question."""
    before, after = code[:cursor].rpartition("\n")[2], code[cursor:].partition("\n")[0]
    _, matches = the_shell().complete(None, before + after, len(before))
    owner = before[len(before.rstrip(string.ascii_letters + string.digits + "_.")) :].rpartition(".")[0]
    return Completed(number, [f"{owner}{match}" if match.startswith(".") else match for match in matches])


# --- names that hold an old group -----------------------------------------------------------------


class Holders(NamedTuple):
    """The names of a rank's variables, and which of them hold a process group that is gone."""

    names: list[str]
    old: list[str]


def holders() -> Holders:
    """Return which variables hold another group than the default one, which is new."""
    shell = the_shell()
    return Holders(names(), [name for name in names() if _holds_old_group(shell.user_ns[name])])


def _holds_old_group(obj: Any) -> bool:
    try:
        parts = torch.nn.Module.modules(obj) if isinstance(obj, torch.nn.Module) else [obj]
        return any(_is_old(each) for part in parts for each in islice(_within(part), MAX_OBJECTS))
    except Exception:  # from any class's own attributes
        return False


def _is_old(obj: Any) -> bool:
    if isinstance(obj, dist.ProcessGroup):
        return obj is not dist.GroupMember.WORLD
    return isinstance(obj, dist.Work) or type(obj).__name__ == "DeviceMesh"


def _within(obj: Any, depth: int = 3) -> Iterator[Any]:
    """Yield an object, and what its attributes, or it as a collection, hold."""
    yield obj
    if isinstance(obj, type | str | bytes | ModuleType) or depth == 0:
        return
    if isinstance(obj, torch.Tensor):
        inner = [getattr(obj, "device_mesh", None)]  # of a DTensor
    elif isinstance(obj, dict):
        inner = list(obj.values())
    elif isinstance(obj, list | tuple | set):
        inner = list(obj)
    else:
        inner = list(getattr(obj, "__dict__", {}).values())
    for each in inner:
        yield from _within(each, depth - 1)
