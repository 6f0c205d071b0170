"""Find the reader's own lines in a stack, between those of Python, of packages and of the lab."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from collections.abc import Iterator
from types import FrameType

from labkit.ranks.messages.message import NOWHERE, Place

_LABKIT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
RANKS_FOLDER = os.path.join(_LABKIT, "ranks", "")
# Files whose frames stand between a call and torch's own method, which they wrap.
WRAPPERS = tuple(os.path.join(os.path.dirname(__file__), f"{name}.py") for name in ("work_log", "tensor_gaps"))
SHELL_FILE = os.path.join(RANKS_FOLDER, "notebook", "shell.py")  # whose exit() a cell may call
_STUDENT_FILES = tuple(os.path.join(_LABKIT, name) for name in ("dp.py", "pipe.py", "shard.py"))


@functools.cache
def library_folders() -> tuple[str, ...]:
    """Return the folders of Python's own modules (Fedora's are in lib64, too) and of packages."""
    ours = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours |= {*site.getsitepackages(), site.getusersitepackages(), _LABKIT}
    return tuple(os.path.join(folder, "") for folder in ours)


@functools.cache
def is_readers(file: str) -> bool:
    """Return whether a file is the reader's own: of the lab's, the student files are."""
    return file in _STUDENT_FILES or not file.startswith(("<frozen", *library_folders()))


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, the one that called it, and so on to the outermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def readers_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is in the reader's code; None if there is none."""
    return next((each for each in outwards(frame) if is_readers(each.f_code.co_filename)), None)


def place_of(frame: FrameType | None) -> Place:
    """Return the line that a frame is at, and the columns of the call there if they are in it."""
    if frame is None:
        return NOWHERE
    first, last, left, right = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    columns = (left or 0, right or 0) if first == last else (0, 0)
    return Place(frame.f_code.co_filename, frame.f_lineno, *columns)
