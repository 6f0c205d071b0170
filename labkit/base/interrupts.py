"""Hold a keyboard interrupt back where it would leave something half-done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def uninterrupted() -> Iterator[list[Any]]:
    """Hold a keyboard interrupt back until the block is done: nothing is left half-started.

    It gives a list that has something in it once there was one, so a block that waits can stop.
    """
    held: list[Any] = []
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield held
        return
    previous = signal.signal(signal.SIGINT, lambda *signal_and_frame: held.append(signal_and_frame))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, previous)
        if held and callable(previous):
            previous(*held[0])
