"""End every rank that somebody started once one of them fails, whatever the others wait for.

gloo tells a rank that another one is gone. NCCL does not: a kernel waits for what never comes, and
ending the group waits for the kernel.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from labkit.base.consequence import is_consequence

POLL_S = 0.2
SILENT_S = 2.0  # after which a rank is gone that has given no sign of life
END_S = 6.0  # in which a rank has to end by itself that has failed, or knows that another one has
READ_S = 2.0  # for which rank 0 keeps the store, so that the others read why it ends


class FailureWatch:
    """Tells the other ranks that this one fails, and ends this one soon after another has told.

    ``store`` is one that all ranks share. ``line`` is a connection to its server, silent until that
    is gone. Where another rank has failed, this one has END_S in all to call :meth:`stop`; then its
    process ends with a sentence, by os._exit: what it waits for takes no exception.
    """

    def __init__(self, store: Any, rank: int, world_size: int, line: socket.socket):
        self._store = store.clone()  # a connection of its own, as the rank may wait in the other
        self._rank, self._world_size, self._line = rank, world_size, line
        self._stopped, self._has_read = threading.Event(), False
        self._gone: list[int] = []
        self._until = math.inf
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def tell(self, error: BaseException, lost: str = "") -> str:
        """Tell the others why this rank ends, and let it end unwatched. Return what they read.

        It is ``lost``, how a rank ended for which this one waited, or else this rank's ``error``.
        The first of all ranks counts. A consequence of another rank's error is not told: that rank
        tells its own.
        """
        self._begin_end()
        self._stopped.set()
        failure = lost or f"rank {self._rank} failed: {_first_line(error)}"
        if not is_consequence(error):
            with contextlib.suppress(RuntimeError):
                if not is_gone(self._line):
                    self._store.compare_set("failure", "", failure)
        return failure

    def failure(self) -> str:
        """Return which rank has failed, and how; "" if none has told."""
        with contextlib.suppress(RuntimeError):
            if is_gone(self._line):
                return "rank 0 is gone"
            if self._store.check(["failure"]):
                return str(self._store.get("failure").decode())
        return ""

    def gone(self) -> list[int]:
        """Return the ranks that give no sign of life: their processes have ended without a word."""
        time.sleep(POLL_S)  # of a process that is killed one connection ends before the other
        before = self._signs_of_life()
        time.sleep(SILENT_S)
        after = self._signs_of_life()
        silent = [rank for rank, signs in enumerate(zip(before, after, strict=False)) if len({*signs}) == 1]
        self._gone = silent if before and after else [0]
        return self._gone

    def _signs_of_life(self) -> list[int]:
        """Return how often each rank's watch has looked around; nothing where rank 0 is gone."""
        with contextlib.suppress(RuntimeError):
            if not is_gone(self._line):
                return [self._store.add(f"alive {rank}", 0) for rank in range(self._world_size)]
        return []

    def left_s(self) -> float:
        """Return how long this rank may still take to end; infinite while no failure is known."""
        return max(0.0, self._until - time.monotonic())

    def stop(self) -> None:
        """Let this rank end unwatched. Rank 0, which has the store, waits for those that live."""
        self._stopped.set()
        self._thread.join(min(READ_S, self.left_s()))
        with self._line, contextlib.suppress(RuntimeError):
            self._count_as_reader()
            until = time.monotonic() + min(READ_S, self.left_s())
            n_living = self._world_size - len(self._gone)
            while self._rank == 0 and self._store.add("readers", 0) < n_living and time.monotonic() < until:
                time.sleep(POLL_S / 10)

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            with contextlib.suppress(RuntimeError):
                if not is_gone(self._line):
                    self._store.add(f"alive {self._rank}", 1)
            if failure := self.failure():
                self._begin_end()
                with contextlib.suppress(RuntimeError):
                    self._count_as_reader()
                if not self._stopped.wait(self.left_s()):
                    leave(f"rank {self._rank} was ended, as {failure}. The terminal of that rank says where", 1)
                return

    def _begin_end(self) -> None:
        """Begin to count what is left, at the first failure that this rank has or hears of."""
        self._until = min(self._until, time.monotonic() + END_S)

    def _count_as_reader(self) -> None:
        """Count this rank among those for which rank 0 need not keep the store any longer."""
        if not (self._has_read or is_gone(self._line)):
            self._has_read = True
            self._store.add("readers", 1)


def _first_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]


def is_gone(line: socket.socket) -> bool:
    """Return whether the store at the other end has ended.

    torch would fill the screen if asked of a store that is not there.
    """
    try:
        return line.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def end_after(error: BaseException, end: Callable[[], None], limit_s: float) -> None:
    """End a group by ``end()`` after an error, or this process where that takes ``limit_s``."""

    def end_quietly() -> None:
        with contextlib.suppress(Exception):  # the first error is the one to show
            end()

    thread = threading.Thread(target=end_quietly, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        leave("".join(traceback.format_exception(error)).rstrip(), status)


def leave(last_words: str, status: int) -> NoReturn:
    """End this process at once, whatever its other threads wait for."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        print(last_words, file=sys.stderr, flush=True)
    os._exit(status)
