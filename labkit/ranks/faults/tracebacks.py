"""Show an error of a rank as its reader would see it in a notebook, with advice where it helps."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from types import TracebackType

from labkit.base.texts import shorten
from labkit.ranks.faults.frames import RANKS_FOLDER, SHELL_FILE, WRAPPERS

MAX_MESSAGE_CHARACTERS = 10_000  # characters of an exception's text that are shown
_DATA_LOADER = os.path.join("utils", "data", "dataloader.py")
_MULTIPROCESSING = os.path.dirname(multiprocessing.__file__) + os.sep


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
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(RANKS_FOLDER):
        inner = inner.tb_next
    each = inner
    while each is not None and each.tb_next is not None:
        if each.tb_next.tb_frame.f_code.co_filename in (*WRAPPERS, SHELL_FILE):
            each.tb_next = each.tb_next.tb_next
        else:
            each = each.tb_next
    return inner
