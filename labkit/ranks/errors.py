"""Show a reader ranks that failed, or that did not finish in time."""

from __future__ import annotations

import copyreg
import linecache
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from labkit.base.texts import listed, shorten
from labkit.ranks.frames import is_readers
from labkit.ranks.hang import Hang, in_words
from labkit.ranks.messages import NOWHERE, Place

FINISHED = "finished"  # in place of the stack of a rank that has answered
NCCL_ADVICE = (
    "Has every rank joined it? Then NCCL may not get from one GPU to the other: try os.environ['NCCL_P2P_DISABLE'] = '1' "
    "before the launch; with os.environ['NCCL_DEBUG'] = 'INFO' NCCL says what it does."
)


class RankError(RuntimeError):
    """A rank raised, or died.

    ``.rank``, ``.error_type`` (the exception's name, or such as ``"SIGKILL"``), ``.traceback``.
    Where a rank only returned what cannot be sent, ``.values`` is ``{rank: value}`` of the others.

    The message is one line. The rank's traceback, with source lines, is shown below it, and for a
    rank that died also the last lines that it printed (``.last_lines``): C++ code gives its reason
    there.
    """

    def __init__(self, rank: int, error_type: str, message: str, traceback: str = "", last_lines: Sequence[str] = ()):
        super().__init__(f"rank {rank} {message}")
        self.rank, self.error_type, self.traceback, self.last_lines = rank, error_type, traceback, list(last_lines)
        self.values: dict[int, Any] = {}
        if traceback:
            self.add_note(f"\n{traceback}")
        if last_lines:
            self.add_note("\n".join([f"\nThe last that rank {rank} printed:", *last_lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle it: as it is, without a call of ``__init__``."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the rank's traceback, not the path through this file."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", [])]


class LaunchTimeout(RuntimeError):
    """The ranks did not finish in time, or wait for what cannot come.

    ``.stacks`` is ``{rank: text}``: where each one was when the time was up. They are shown, except
    where a cell hangs: there a line for each rank is enough. ``began`` says whether any of them had
    begun by then; ``advice`` is one more line for the reader. Of a ``hang`` the message says who
    waits for what, and why; ``.hang`` is None where only the time was up. ``ended`` says whether
    the ranks were; otherwise only what they ran was.
    """

    def __init__(
        self,
        timeout_s: float,
        stacks: dict[int, str],
        began: bool = True,
        advice: str = "",
        hang: Hang | None = None,
        ended: bool = True,
    ):
        were_ended = "were ended" if ended else "were taken out of the cell"
        late = f"the ranks did not finish within timeout_s={timeout_s:g} s and {were_ended}. " + (
            "A collective never ends unless every rank joins it. Below is where each rank was."
        )
        never = f"no rank had begun within timeout_s={timeout_s:g} s, which counts from the call"
        super().__init__(
            f"deadlock: no rank can go on; all {were_ended}. {hang.cause}" if hang else late if began else never
        )
        self.stacks, self.hang = stacks, hang
        if hang:
            self.add_note("\n".join(["", *(f"rank {rank} {line}" for rank, line in hang.lines.items())]))
        if advice and began:
            self.add_note(advice)
        if hang and not ended:  # of a cell, which is short: its line says enough
            return
        for stack in dict.fromkeys(stacks.values()):
            ranks = ", ".join(str(rank) for rank, other in stacks.items() if other == stack)
            self.add_note(f"\nrank{'s' * (',' in ranks)} {textwrap.shorten(ranks, 60, placeholder=' …')}:\n{stack}")

    __reduce__ = RankError.__reduce__
    _render_traceback_ = RankError._render_traceback_


def check_loopback() -> None:
    """Raise ConnectionError if this machine cannot reach itself: ranks talk over its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # asks for the way there only, and sends nothing
        except OSError as error:
            raise ConnectionError(
                f"launch: the loopback interface of this machine, by which ranks talk, is down ({error.strerror} to "
                "127.0.0.1). Bring it up first, on Linux with: ip link set lo up"
            ) from None


def explain_refusal(error: OSError, world_size: int) -> None:
    """Say in an error of the system's what it was refused for, and what to do."""
    if error.errno is not None:
        error.strerror = (
            f"{error.strerror}. launch: the system refuses what {world_size} ranks need here. Start fewer ranks, end other "
            "processes, or raise its limits: ulimit -a shows them, and a container has its own"
        )


def how_it_ended(status: int) -> tuple[str, str]:
    """Return (error type, sentence) for an exit status as waitpid gives it."""
    if status >= 0:
        return f"exit status {status}", f"ended without an answer (exit status {status})"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has a number only
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" and sys.platform == "linux" else ""
    return name, f"was killed by {name}{hint}"


# --- tracebacks and stacks: the launched code, not the lab's way to it ----------------------------

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)
MAX_MESSAGE_CHARACTERS = 10_000  # characters of an exception's text that are shown
_PACKAGE = os.path.dirname(__file__) + os.sep
_WORK_LOG = _PACKAGE + "work_log.py"  # between a call and torch's own method
_SHELL = _PACKAGE + "shell.py"  # whose exit() a cell may call
_IPYTHON = os.sep + os.path.join("IPython", "core", "")
_DATA_LOADER = os.path.join("utils", "data", "dataloader.py")
_MULTIPROCESSING = os.path.dirname(multiprocessing.__file__) + os.sep
_HEADING = re.compile(r"(Current thread|Thread) 0x")  # of a thread, in a dump
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")  # what is not ASCII, in a dump


def message_of(error: BaseException) -> str:
    """Return ``str(error)``, shortened if it is long, or what type its ``__str__`` raised."""
    try:
        return shorten(str(error), MAX_MESSAGE_CHARACTERS)
    except Exception as another:
        return f"<its __str__ raised {type(another).__name__}>"


def format_error(error: BaseException) -> str:
    """Return the traceback as Python prints it, from the launched function's frame on.

    Each frame and each message is shortened by itself, so a long message hides no frame.
    """
    parts = traceback.format_exception(type(error), error, _skip_own_frames(error.__traceback__))
    return "".join(shorten(part, MAX_MESSAGE_CHARACTERS) for part in parts).rstrip()


def advice(error: BaseException) -> str:
    """Return what to add to an error whose own words do not say what to do; else ""."""
    if "initialize the default process group twice" in message_of(error):
        return " The ranks have their process group already: leave the line out, or launch with init=False"
    return _pickling_advice(error)


def _pickling_advice(error: BaseException) -> str:
    """Return why multiprocessing could not send a function or a data set to another process."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    by_name = isinstance(error, pickle.PicklingError | AttributeError) and "pickle" in message_of(error)
    if not by_name or not any(file.startswith(_MULTIPROCESSING) for file in files):
        return ""
    loader = any(file.endswith(_DATA_LOADER) for file in files)
    return (
        ". multiprocessing sends a function or a class by its name, and the new process imports it: it must stand in a module "
        "(a .py file), at its top level, not in a cell and not in another function"
        + ", or give the DataLoader multiprocessing_context='fork'"
        * loader
    )


def _skip_own_frames(tb: TracebackType | None) -> TracebackType | None:
    inner = tb
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        inner = inner.tb_next
    each = inner
    while each is not None and each.tb_next is not None:
        if each.tb_next.tb_frame.f_code.co_filename in (_WORK_LOG, _SHELL):
            each.tb_next = each.tb_next.tb_next
        else:
            each = each.tb_next
    return inner


def readable_stacks(dump: str) -> str:
    """Return a faulthandler dump in the form of a traceback, without the lab's threads and frames.

    It has source lines, and the most recent call comes last.
    """
    threads = _ESCAPED.sub(_character, dump).split("Extension modules:")[0].split("\n\n")
    texts = [text for text in map(_readable_stack, threads) if text]
    stacks = list(
        {_HEADING.sub("", text): text for text in texts}.values()
    )  # one that was asked twice wrote them twice
    if len(stacks) == 1 and _HEADING.match(stacks[0]):
        return stacks[0].partition("\n")[2]
    return "\n\n".join(stacks)


def where_ranks_are(stacks: Mapping[int, str]) -> str:
    """Return a line for each place of the reader's code in which ranks are, by readable stacks.

    The main thread comes last in them. A stack that says FINISHED is of a rank that has returned.
    """
    ranks_at: dict[str, list[int]] = {}
    for rank, stack in stacks.items():
        places = [Place(file, int(line)) for file, line in _FRAME.findall(stack) if is_readers(file)]
        place = in_words(places[-1] if places else NOWHERE).removeprefix("in ")
        ranks_at.setdefault("" if stack == FINISHED else place, []).append(rank)
    return "\n".join(
        f"rank{'s' * (len(ranks) > 1)} {listed(ranks)} "
        + (f"{'were' if len(ranks) > 1 else 'was'} in {place}" if place else "had returned")
        for place, ranks in ranks_at.items()
    )


def _character(escaped: re.Match[str]) -> str:
    code = int(escaped[1] or escaped[2] or escaped[3], 16)
    return escaped[0] if 0xD800 <= code < 0xE000 else chr(code)  # half of a character cannot be shown


def _readable_stack(thread: str) -> str:
    heading, frames = [], []
    for line in thread.splitlines():
        file, _, rest = line.strip().removeprefix('File "').partition('", line ')
        if file == _WORK_LOG:
            continue
        if file.startswith(_PACKAGE):  # below it stand only frames of the lab
            break
        if not rest:
            heading.append(line.replace("most recent call first", "most recent call last"))
            continue
        number = rest.split(" ")[0]  # ???, where the thread was on its way from one line to another
        source = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
        frames.append(f"{line}\n    {source}" if source else line)
    while frames and _IPYTHON in frames[-1]:  # on its way to a rank's cell
        frames.pop()
    if not frames and any(map(_HEADING.match, heading)):
        return ""
    return "\n".join([*heading, *reversed(frames)]).strip()
