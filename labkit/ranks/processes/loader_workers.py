"""Have the workers of a DataLoader end with the failed cell that has read from it.

Its iterator ends them as it is thrown away: it sends each word, and waits up to 5 s for it. Found
by Python's garbage collector it waits in vain, because its queues have been closed by then. A
failed cell's frames hold the iterator, and the exception, in a circle, holds the frames.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from labkit.ranks.faults.frames import outwards

PATIENCE_S = 0.5  # for workers to end by themselves; one in the middle of a batch does not hear


def clear_frames(error: BaseException) -> None:
    """Throw away what the frames of an error, and of those before it, hold."""
    seen: set[int] = set()
    chain = [error]
    while chain:
        each = chain.pop()
        if id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [other for other in (each.__cause__, each.__context__) if other is not None]


@contextlib.contextmanager
def workers_end_soon() -> Iterator[None]:
    """End the workers that the block waits for longer than ``PATIENCE_S``."""
    over, hook = threading.Event(), sys.unraisablehook
    thread = threading.Thread(target=_end_workers, args=(over,), daemon=True)
    thread.start()
    sys.unraisablehook = lambda error: hook(error) if "DataLoader worker" not in str(error.exc_value) else None
    try:
        yield
    finally:
        sys.unraisablehook = hook
        over.set()
        thread.join()


def _end_workers(over: threading.Event) -> None:
    """End again and again the workers that the main thread waits for, until the block is over."""
    main = threading.main_thread().ident
    while not over.wait(PATIENCE_S):
        for frame in outwards(sys._current_frames().get(main or 0)):
            if frame.f_code.co_name == "_shutdown_workers":  # of torch's iterator
                iterator: Any = frame.f_locals.get("self")
                for worker in getattr(iterator, "_workers", []):
                    worker.kill()
