"""End every rank that somebody started once one of them fails, whatever the others wait for.

gloo tells a rank that another one is gone. NCCL does not: a kernel waits for what never comes, and
ending the group waits for the kernel.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, cast

from labkit.base.consequence import is_consequence
from labkit.ranks.hang import FRESH_S, QUIET_S, find_hang
from labkit.ranks.messages import RankState, decode, encode
from labkit.ranks.rank_state import WATCHES, RankWatch
from labkit.ranks.work_log import WORK_LOG

POLL_S = 0.2
BY_ITSELF_S = 4.0  # for which a rank may end by itself once another one has failed
END_S = 4.0  # which the end of a group may take after an error
NO_FAILURE, HANG = "rank 0 is done", "no rank can go on"
READ_S = 2.0  # for which rank 0 keeps the store, so that the others read why it ends


class FailureWatch:
    """Tells the other ranks that this one fails, and ends this one soon after another has told.

        with FailureWatch(store, rank, world_size, (host, port)):
            train()

    What the block raises is told, and raised on. ``store`` is one that all ranks share, and rank 0
    has, at ``address``. Where another rank has told, this one has BY_ITSELF_S to leave the block;
    then its process ends with a sentence, by os._exit: what it waits for takes no exception.
    """

    def __init__(self, store: Any, rank: int, world_size: int, address: tuple[str, int]):
        self._store = store.clone()  # a connection of its own, as the rank may wait in the other
        self._rank, self._world_size = rank, world_size
        self._line = socket.create_connection(address)  # silent, until the store is gone
        self._over, self._knows = threading.Event(), False
        self._still = RankWatch(self._keep)
        self._state: RankState | None = None  # of this rank, to be told
        self._seen: dict[int, tuple[bytes, int]] = {}  # on rank 0: what each has told last, and when that was read
        self._thread = threading.Thread(target=self._watch, name=WATCHES, daemon=True)

    def __enter__(self) -> FailureWatch:
        self._thread.start()
        return self

    def look_for_hangs(self, group: Any) -> None:
        """End ranks of ``group`` from now on if none can go on, and say which wait for which."""
        self._still.log = WORK_LOG
        WORK_LOG.begin(type(group))
        self._still.begin()

    def __exit__(self, error_type: Any, error: BaseException | None, _: Any) -> None:
        self._over.set()
        self._still.stopped = True
        self._thread.join(READ_S)
        with self._line, contextlib.suppress(RuntimeError):
            if error is not None:
                self.tell(error)
            elif self._rank == 0:
                self._end(NO_FAILURE)
            self._know()
            until = time.monotonic() + READ_S
            while self._rank == 0 and self._store.add("know", 0) < self._world_size and time.monotonic() < until:
                time.sleep(POLL_S / 10)

    def tell(self, error: BaseException) -> str:
        """Tell the others of this rank's error, and let it end unwatched. Return what they read.

        A consequence of another rank's error is not told: that rank tells its own.
        """
        self._over.set()
        failure = f"rank {self._rank} failed: {_in_a_line(error)}"
        if not is_consequence(error):
            self._end(failure)
        return failure

    def failure(self) -> str:
        """Return which rank has told of an error, and of which; "" if none has."""
        with contextlib.suppress(RuntimeError):
            if not self._store_is_gone() and self._store.check(["end"]):
                return self._store.get("end").decode().removeprefix(NO_FAILURE)
        return ""

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store went this very moment
            while not (self._over.wait(POLL_S) or self._store_is_gone()):
                if self._store.check(["end"]):
                    self._know()
                    if (failure := self.failure()) and not self._over.wait(BY_ITSELF_S):
                        where = "" if failure.startswith(HANG) else ". The terminal of that rank says where"
                        leave(f"rank {self._rank} was ended, as {failure}{where}", 1)
                    return
                self._tell_state()

    def _keep(self, state: RankState) -> None:
        self._state = state

    def _tell_state(self) -> None:
        """Tell where this rank stands still; rank 0 looks whether all of them do so for ever."""
        state, self._state = self._state, None
        if state is None:
            return
        self._store.set(f"state/{self._rank}", encode(state))
        names = [f"state/{rank}" for rank in range(self._world_size)]
        if self._rank == 0 and self._store.check(names):
            states = {rank: self._read_state(rank, self._store.get(name)) for rank, name in enumerate(names)}
            earliest_ns = time.perf_counter_ns() - int(FRESH_S * 1e9)
            is_fresh = all(each.at_ns > earliest_ns for each in states.values())
            if is_fresh and (hang := find_hang(states, QUIET_S)):
                self._end("\n".join([f"{HANG}. {hang.cause}", *(f"rank {r} {line}" for r, line in hang.lines.items())]))

    def _read_state(self, rank: int, told: bytes) -> RankState:
        """Return what a rank has told, by this rank's clock: other machines have others."""
        now_ns = time.perf_counter_ns()
        if rank not in self._seen or self._seen[rank][0] != told:
            self._seen[rank] = told, now_ns
        state, at_ns = cast(RankState, decode(told)), self._seen[rank][1]
        return state._replace(since_ns=at_ns - (state.at_ns - state.since_ns), at_ns=at_ns)

    def _end(self, how: str) -> None:
        with contextlib.suppress(RuntimeError):
            if not self._store_is_gone():
                self._store.compare_set("end", "", how)  # the first counts

    def _know(self) -> None:
        """Count this rank among those for which rank 0 need not keep the store any longer."""
        if not (self._knows or self._store_is_gone()):
            self._knows = True
            self._store.add("know", 1)

    def _store_is_gone(self) -> bool:
        """Return whether rank 0 has ended. torch would fill the screen if asked of its store."""
        try:
            return self._line.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def end_after(error: BaseException, end: Callable[[], None]) -> None:
    """End a group by ``end()`` after an error, or, where that does not return, this process.

    A model on it that is part of a circle goes first.
    """

    def end_quietly() -> None:
        gc.collect()
        with contextlib.suppress(Exception):  # the first error is the one to show
            end()

    thread = threading.Thread(target=end_quietly, daemon=True)
    thread.start()
    thread.join(END_S)
    if thread.is_alive():
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        leave("".join(traceback.format_exception(error)).rstrip(), status)


def leave(last_words: str, status: int) -> NoReturn:
    """End this process at once, whatever its other threads wait for."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        print(last_words, file=sys.stderr, flush=True)
    os._exit(status)


def _in_a_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
