"""What a reader sees of a rank's exception or stack: the launched code, not the lab's way to it."""

from __future__ import annotations

import linecache
import os
import traceback
from types import TracebackType

from labkit.base.texts import shorten

MOST_OF_A_MESSAGE = 10_000  # characters of an exception's text that are shown
_ROOM = os.path.dirname(__file__) + os.sep


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


def _skip_own_frames(tb: TracebackType | None) -> TracebackType | None:
    inner = tb
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_ROOM):
        inner = inner.tb_next
    return inner


def readable_stacks(dump: str) -> str:
    """Return a faulthandler dump as Python's tracebacks are: source lines, recent call last.

    The lab's own threads and frames are left out.
    """
    threads = dump.split("Extension modules:")[0].split("\n\n")
    return "\n\n".join(text for text in map(_readable_stack, threads) if text)


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
