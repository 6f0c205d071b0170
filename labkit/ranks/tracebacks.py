"""What a reader sees of a rank's exception or stack: the launched code, not the lab's way to it."""

from __future__ import annotations

import linecache
import multiprocessing
import os
import pickle
import re
import traceback
from types import TracebackType

from labkit.base.texts import shorten

MOST_OF_A_MESSAGE = 10_000  # characters of an exception's text that are shown
_ROOM = os.path.dirname(__file__) + os.sep
_MULTIPROCESSING = os.path.dirname(multiprocessing.__file__) + os.sep
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")  # what is not ASCII, in a dump


def message_of(error: BaseException) -> str:
    """Return ``str(error)``, head and tail of a long one, or what its ``__str__`` raised."""
    try:
        return shorten(str(error), MOST_OF_A_MESSAGE)
    except Exception as another:
        return f"<its __str__ raised {type(another).__name__}>"


def format_error(error: BaseException) -> str:
    """Return the traceback as Python prints it, from the launched function's frame on.

    Of a long message, head and tail are there: each frame and each message is shortened by itself.
    """
    parts = traceback.format_exception(type(error), error, _skip_own_frames(error.__traceback__))
    return "".join(shorten(part, MOST_OF_A_MESSAGE) for part in parts).rstrip()


def explain_pickling(error: BaseException) -> None:
    """Add to an error why multiprocessing could not send a function to a process of its own."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    by_name = isinstance(error, pickle.PicklingError | AttributeError) and "pickle" in str(error)
    if by_name and any(file.startswith(_MULTIPROCESSING) for file in files):
        error.add_note(
            "multiprocessing sends a function by its name, and the new process imports it: it must stand in a module (a .py "
            "file), at its top level, not in a cell and not in another function"
        )


def _skip_own_frames(tb: TracebackType | None) -> TracebackType | None:
    inner = tb
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_ROOM):
        inner = inner.tb_next
    return inner


def readable_stacks(dump: str) -> str:
    """Return a faulthandler dump as Python's tracebacks are: source lines, recent call last.

    The lab's own threads and frames are left out.
    """
    threads = _ESCAPED.sub(_character, dump).split("Extension modules:")[0].split("\n\n")
    return "\n\n".join(text for text in map(_readable_stack, threads) if text)


def _character(escaped: re.Match[str]) -> str:
    code = int(escaped[1] or escaped[2] or escaped[3], 16)
    return escaped[0] if 0xD800 <= code < 0xE000 else chr(code)  # half of a character cannot be shown


def _readable_stack(thread: str) -> str:
    heading, frames = [], []
    for line in thread.splitlines():
        file, _, rest = line.strip().removeprefix('File "').partition('", line ')
        if file.startswith(_ROOM):  # below it stand only frames of the lab
            break
        if not rest:
            heading.append(line.replace("most recent call first", "most recent call last"))
            continue
        source = linecache.getline(file, int(rest.split(" ")[0])).strip()
        frames.append(f"{line}\n    {source}" if source else line)
    if not frames and any("Thread 0x" in line for line in heading):
        return ""
    return "\n".join([*heading, *reversed(frames)]).strip()
