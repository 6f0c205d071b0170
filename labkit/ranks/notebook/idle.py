"""End what nobody has used for a while, such as ranks that hold memory on a machine of many."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

VARIABLE = "LABKIT_IDLE_MINUTES"
MAX_S = 3600.0  # that a thread sleeps at a time


def limit_s() -> float:
    """Return the seconds after which idle ranks end; infinity if LABKIT_IDLE_MINUTES is not set.

    Raises ValueError for anything but a number above 0.
    """
    given = os.environ.get(VARIABLE, "")
    try:
        minutes = float(given or "inf")
    except ValueError:
        minutes = math.nan
    if not minutes > 0:
        raise ValueError(f"{VARIABLE} is {given!r}, expected minutes after which idle ranks end, such as 30")
    return minutes * 60


class IdleLimit:
    """Calls ``end`` when nobody has used something for ``limit_s``; never while it is in use.

        limit = IdleLimit(1800.0, ranks.end)
        with limit.use():
            ...

    Time counts from the end of the last use, or of the last call of ``end``. A thread waits for it
    until :meth:`stop`; ``clock`` gives seconds.
    """

    def __init__(self, limit_s: float, end: Callable[[], object], clock: Callable[[], float] = time.monotonic):
        self.limit_s, self._end, self._clock = limit_s, end, clock
        self._in_use = threading.RLock()
        self._last_use_s = clock()
        self._stopped = threading.Event()
        if limit_s < math.inf:
            threading.Thread(target=self._wait, name="labkit-idle", daemon=True).start()

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Inside, nothing is ended, and the time begins anew afterwards."""
        with self._in_use:
            try:
                yield
            finally:
                self._last_use_s = self._clock()

    def stop(self) -> None:
        """End nothing any more."""
        self._stopped.set()

    def left_s(self) -> float:
        """Return how long it may go on unused."""
        return self._last_use_s + self.limit_s - self._clock()

    def check(self) -> bool:
        """End it if its time is up and it is not in use. Return whether that was done."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            if self._stopped.is_set() or self.left_s() > 0:
                return False
            self._end()
            self._last_use_s = self._clock()
            return True
        finally:
            self._in_use.release()

    def _wait(self) -> None:
        while not self._stopped.wait(min(MAX_S, max(0.05, self.left_s()))):
            self.check()
