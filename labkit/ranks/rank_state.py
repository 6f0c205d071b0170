"""Tell the notebook what a rank waits for, once it has stood still for a while.

A thread looks at the rank every LOOK_S. As long as the rank computes or gets on, it says nothing.
Once nothing has changed between two looks, it sends a :class:`RankState`: where the rank is, what
it waits for (:mod:`labkit.ranks.thread_wait`), and what it has begun
(:mod:`labkit.ranks.work_log`).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from labkit.ranks.frames import outwards, place_of, readers_frame
from labkit.ranks.messages import RankState
from labkit.ranks.thread_wait import what_it_waits_for

if TYPE_CHECKING:  # it loads torch
    from labkit.ranks.work_log import WorkLog

LOOK_S = 0.5
WATCHES = "labkit.watch"  # the name of threads that only look on
OWN_HANDLERS: list[Any] = [signal.default_int_handler]  # of signals, that no one but the lab has called
BUSY_S = 0.005  # of CPU time between two looks: a rank that has used more is at work, or waits for its GPU


class RankWatch:
    """The thread that looks at this rank; ``send`` takes what it sees while the rank is still.

    ``log`` is to be set once the rank has loaded torch.
    """

    def __init__(self, send: Callable[[RankState], None]):
        self._send = send
        self.log: WorkLog | None = None
        self._main = threading.main_thread().ident
        self.calls, self.in_call, self.stopped = 0, False, False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Note that a call begins."""
        self.calls, self.in_call = self.calls + 1, True
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_on, name=WATCHES, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Note that the call has returned, just before it is answered."""
        self.in_call = False

    def _look_on(self) -> None:
        before: Any = None
        told: Any = None
        since_ns, cpu_s = 0, 0.0
        while not self.stopped:
            time.sleep(LOOK_S)
            mark, used_s = self._mark(), time.process_time() - time.thread_time()
            still = mark == before and (used_s - cpu_s < BUSY_S or _waits().get(self._main) == "gpu")
            before, cpu_s = mark, used_s
            if not still:
                since_ns = time.perf_counter_ns()
            elif self.in_call or told != mark:  # of a call that has returned it tells once
                told = mark
                state = self._state(since_ns)
                try:
                    if self._mark() == mark:  # else the rank got on meanwhile, and was never in this state
                        self._send(state)
                except Exception:  # the notebook has gone: this rank is about to
                    return

    def _mark(self) -> Any:
        """Return what changes when this rank gets on."""
        places = [(ident, id(frame), frame.f_lasti) for ident, frame in _threads().items()]
        return sorted(places), self.log and self.log.n_begun(), self.calls, self.in_call

    def _state(self, since_ns: int) -> RankState:
        frame, waits = _threads().get(self._main), _waits()
        wait = waits.pop(self._main, "")
        alive = not all(waits.values()) or (self.in_call and not wait)
        inside = _torch_call(frame) if wait in ("work", "gpu") else None
        begun, unknown = self.log.begun() if self.log else ([], "")
        return RankState(
            calls=self.calls,
            in_call=self.in_call,
            since_ns=since_ns,
            at_ns=time.perf_counter_ns(),
            place=place_of(readers_frame(frame)),
            function=inside.f_code.co_name if inside else "",
            root=_root(inside) if inside else -1,
            wait=wait,
            can_progress=alive or (wait == "thread" and _may_be_interrupted()),
            begun=begun,
            unknown=unknown,
        )


def _threads() -> dict[int | None, FrameType]:
    """Return the innermost frame of every thread of Python's, but for those that only look on."""
    watches = {each.ident for each in threading.enumerate() if each.name == WATCHES}
    return {ident: frame for ident, frame in sys._current_frames().items() if ident not in watches}


def _waits() -> dict[int | None, str]:
    """Return what every thread waits for."""
    native_ids = {each.ident: each.native_id for each in threading.enumerate()}
    native_ids[threading.main_thread().ident] = os.getpid()  # after a fork, Python has its parent's
    return {ident: what_it_waits_for(frame, native_ids.get(ident)) for ident, frame in _threads().items()}


def _torch_call(frame: FrameType | None) -> FrameType | None:
    """Return the call of torch.distributed in which the reader's innermost line is."""
    inside = itertools.takewhile(lambda each: each is not readers_frame(frame), outwards(frame))
    calls = [each for each in inside if each.f_code.co_filename.endswith("distributed_c10d.py")]
    return calls[-1] if calls else None


def _root(frame: FrameType) -> int:
    """Return the rank that a call of torch.distributed names, such as ``dst`` of gather."""
    named = (frame.f_locals.get(name) for name in ("src", "dst", "group_src", "group_dst"))
    return next((rank for rank in named if isinstance(rank, int)), -1)


def _may_be_interrupted() -> bool:
    """Return whether a signal may have Python call a function, which can end such a wait."""
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(handler) and handler not in OWN_HANDLERS for handler in handlers)
