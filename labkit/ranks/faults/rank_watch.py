"""Tell the notebook what a rank waits for, once it has stood still for a while.

A thread looks at the rank every LOOK_S. As long as the rank computes or gets on, it says nothing.
Once nothing has changed between two looks, it sends a :class:`RankState`: where the rank is, what
it waits for (:mod:`labkit.ranks.faults.thread_wait`), and what it has begun
(:mod:`labkit.ranks.faults.work_log`). Asked by a signal, it writes where all threads are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.ranks.faults.frames import outwards, place_of, readers_frame
from labkit.ranks.faults.side_threads import beside
from labkit.ranks.faults.thread_wait import what_it_waits_for
from labkit.ranks.messages.message import GPU, RANKS, THREADS, RankState

if TYPE_CHECKING:  # it loads torch
    from labkit.ranks.faults.work_log import WorkLog

LOOK_S = 0.5
# Blocked in a rank and in what it starts: a signal that few use. macOS has none to wait for.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGURG)
WATCHES = "labkit.watch"  # the name of threads that only look on
OWN_HANDLERS: list[Any] = [signal.default_int_handler]  # of signals, that no one but the lab has called
BUSY_S = 0.005  # of CPU time between two looks: a rank that has used more is at work, or waits for its GPU
_TORCHS_HANDLERS = "torch.utils.data."  # of the end of a DataLoader's worker: it raises where one has died


class _Look(NamedTuple):
    """What is seen of the rank in one look; what changes in it when the rank gets on."""

    places: dict[int | None, tuple[int, int]]  # where each thread of Python's is
    counts: tuple[Any, ...]  # calls, and what was begun
    cpu_s: float  # of the process, without this thread
    thread_cpu_s: dict[int | None, float]  # of each thread of Python's


class RankWatch:
    """The thread that looks at this rank; ``send`` takes what it sees while the rank is still.

    It writes stacks to the file descriptor ``stacks``, once STACKS_SIGNAL asks for them. Each call
    may take ``timeout_s``. ``log`` is to be set once the rank has loaded torch.
    """

    def __init__(self, send: Callable[[RankState], None], stacks: int, timeout_s: float = math.inf):
        self._send, self._stacks, self._timeout_s = send, stacks, timeout_s
        self.log: WorkLog | None = None
        self._main = threading.main_thread().ident
        self.calls, self.in_call = 0, False
        self._began_ns = 0
        self._were_beside: set[int | None] = set()  # threads, as far as they were looked at
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Note that a call begins."""
        self.calls, self.in_call, self._began_ns = self.calls + 1, True, time.perf_counter_ns()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_on, name=WATCHES, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Note that the call has returned, just before it is answered."""
        self.in_call = False

    def _look_on(self) -> None:
        before, told, since_ns = self._look(), (), 0
        while True:
            self._sleep()
            now = self._look()
            still, before = self._stood_still(before, now), now
            if not still:
                since_ns, told = time.perf_counter_ns(), ()
            elif self.in_call or told != now.counts:  # of a call that has returned it tells once
                told = now.counts
                state = self._state(since_ns)
                try:
                    if self._stood_still(now, self._look()):  # else it was never in this state
                        self._send(state)
                except Exception:  # the notebook has gone: this rank is about to
                    return

    def _sleep(self) -> None:
        """Let LOOK_S pass, and write stacks as often as they are asked for.

        This thread has Python's lock while it writes. What writes without, as a signal handler of
        faulthandler's does, reads frames that another thread may free meanwhile: the rank crashes.
        """
        if sys.platform == "darwin":  # has no sigtimedwait
            time.sleep(LOOK_S)
        else:
            while signal.sigtimedwait([STACKS_SIGNAL], LOOK_S):
                faulthandler.dump_traceback(self._stacks, all_threads=True)

    def _look(self) -> _Look:
        places = {ident: (id(frame), frame.f_lasti) for ident, frame in _threads().items()}
        counts = self.log and self.log.n_begun(), self.calls, self.in_call
        return _Look(places, counts, time.process_time() - time.thread_time(), _cpu_s())

    def _stood_still(self, before: _Look, now: _Look) -> bool:
        """Return whether the rank has not got on between two looks, whatever ran beside it."""
        if now.counts != before.counts or now.places[self._main] != before.places.get(self._main):
            return False
        waits = self._waits(math.inf)
        were_beside, self._were_beside = self._were_beside, beside(self._main, _threads(), waits, self.in_call)
        moved = {ident for ident, _ in now.places.items() ^ before.places.items()}
        ended = moved - now.places.keys()
        cpu_s = {ident: s - before.thread_cpu_s.get(ident, 0.0) for ident, s in now.thread_cpu_s.items()}
        used_s = now.cpu_s - before.cpu_s - sum(cpu_s.get(ident, 0.0) for ident in self._were_beside)
        is_busy = used_s >= BUSY_S and waits.get(self._main) != GPU
        return moved - ended <= self._were_beside and ended <= were_beside and not is_busy

    def _waits(self, left_s: float) -> dict[int | None, str]:
        """Return what every thread waits for."""
        native_ids = _native_ids()
        return {ident: what_it_waits_for(frame, native_ids.get(ident), left_s) for ident, frame in _threads().items()}

    def _state(self, since_ns: int) -> RankState:
        left_s = self._timeout_s - (since_ns - self._began_ns) * 1e-9 + LOOK_S
        frame, waits = _threads().get(self._main), self._waits(left_s)
        only_beside = beside(self._main, _threads(), waits, self.in_call)
        wait = waits.pop(self._main, "")
        alive = not all(each for ident, each in waits.items() if ident not in only_beside)
        alive |= self.in_call and not wait
        inside = _torch_call(frame) if wait in (RANKS, GPU) else None
        place, function, root = place_of(readers_frame(frame)), "", -1
        if inside is not None:
            function, root = inside.f_code.co_name, _root(inside)
        # Reading the log takes long. A frame that is over by then would free here what it holds: a
        # DDP model freed in this thread, while the main one is in backward, blocks both for ever.
        del frame, inside
        begun, unknown = self.log.begun(left_s) if self.log else ([], "")
        return RankState(
            calls=self.calls,
            in_call=self.in_call,
            since_ns=since_ns,
            at_ns=time.perf_counter_ns(),
            place=place,
            function=function,
            root=root,
            wait=wait,
            can_progress=alive or (self.in_call and wait == THREADS and _may_be_interrupted()),
            begun=begun,
            unknown=unknown,
        )


def _threads() -> dict[int | None, FrameType]:
    """Return the innermost frame of every thread of Python's, but for those that only look on."""
    watches = {each.ident for each in threading.enumerate() if each.name == WATCHES}
    return {ident: frame for ident, frame in sys._current_frames().items() if ident not in watches}


def _native_ids() -> dict[int | None, int | None]:
    native_ids = {each.ident: each.native_id for each in threading.enumerate()}
    native_ids[threading.main_thread().ident] = os.getpid()  # after a fork, Python has its parent's
    return native_ids


def _cpu_s() -> dict[int | None, float]:
    """Return how much CPU time each thread of Python's has used; of none where it is not Linux."""
    used = {}
    for ident, native_id in _native_ids().items():
        with contextlib.suppress(OSError, OverflowError):  # it has ended; this is Linux's number of its clock
            used[ident] = time.clock_gettime(~(native_id or 0) << 3 | 6)
    return used


def _torch_call(frame: FrameType | None) -> FrameType | None:
    """Return the call of torch.distributed in which the reader's innermost line is."""
    inside = itertools.takewhile(lambda each: each is not readers_frame(frame), outwards(frame))
    calls = [each for each in inside if each.f_code.co_filename.endswith("distributed_c10d.py")]
    return calls[-1] if calls else None


def _root(frame: FrameType) -> int:
    """Return the rank that a call of torch.distributed names, such as ``dst`` of gather.

    It may be named by its number in the group, which torch has at hand even where it is not.
    """
    found = frame.f_locals
    inside = next((found[name] for name in ("group_src", "group_dst") if isinstance(found.get(name), int)), -1)
    dist = sys.modules["torch.distributed"]
    with contextlib.suppress(Exception):  # none is named so, or the group has gone
        return int(dist.get_global_rank(found["group"] or dist.group.WORLD, inside))
    return next((found[name] for name in ("src", "dst") if isinstance(found.get(name), int)), -1)


def _may_be_interrupted() -> bool:
    """Return whether a signal may have Python call a function, which can end such a wait."""
    return any(map(_may_interrupt, map(signal.getsignal, signal.valid_signals())))


def _may_interrupt(handler: Any) -> bool:
    if str(getattr(handler, "__module__", "")).startswith(_TORCHS_HANDLERS):  # it calls what was there before it
        return any(_may_interrupt(cell.cell_contents) for cell in getattr(handler, "__closure__", None) or ())
    return callable(handler) and handler not in OWN_HANDLERS
