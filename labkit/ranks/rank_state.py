"""Tell the notebook what a rank waits for, once it has stood still for a while.

A thread looks at the rank every LOOK_S. As long as the rank computes or gets on, it says nothing.
Once nothing has changed between two looks, it sends a :class:`RankState`: where the rank is, which
collectives it has begun, and which messages. The collectives are those of torch's flight recorder,
which has them for gloo and NCCL, also those that C++ begins, such as DDP's. It does not have gloo's
messages, so these are counted here.

The recorder is on in torch 2.11 and 2.13, which were tried. Where it cannot be read, a rank says
so, and only its messages are known, and in which function of torch.distributed it is.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from labkit.ranks.messages import NOWHERE, Begun, Place, RankState

LOOK_S = 0.5
WATCHES = "labkit.watch"  # the name of threads that only look on
BUSY_S = 0.005  # of CPU time between two looks: a rank that has used more is at work, or waits for its GPU
MOST_TOLD = 40  # collectives, the last
_MESSAGES = ("send", "recv", "recv_anysource")
_ROOM = os.path.dirname(__file__)
_LABKIT = os.path.dirname(_ROOM)
_STUDENT_FILES = (os.path.join(_LABKIT, "dp.py"), os.path.join(_LABKIT, "pipe.py"))
_WAITS = ("threading.py", "queue.py")  # of Python, where a thread waits for another one
_READS = (".item()", ".tolist()", ".cpu()", ".numpy()")  # of a tensor, which wait for its GPU
_IDLE = (*_WAITS, os.path.join("concurrent", "futures", "thread.py"))


# --- messages -------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """A message as it was begun: what of it is wanted only in a hang is not worked out before."""

    number: int
    ranks: Sequence[int]
    shape: Any
    dtype: Any
    place: Place
    at_ns: int
    work: Any = None


class MessageLog:
    """The sends and receives of this rank in all groups: by kind, peer and tag the last."""

    def __init__(self) -> None:
        self._lock, self.count = threading.Lock(), 0
        self._last: dict[tuple[str, str, int, int], _Message] = {}
        self._wrapped: set[type] = set()

    def watch(self, kind: type) -> None:
        """Note the messages of process groups of this class, from now on."""
        self._last.clear()
        if kind not in self._wrapped:
            self._wrapped.add(kind)
            for name in filter(functools.partial(hasattr, kind), _MESSAGES):
                setattr(kind, name, self._noting(name, getattr(kind, name)))

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, tensors: Any, *args: Any, **options: Any) -> Any:
            peer, tag = args if len(args) == 2 else (-1, *args)
            key, tensor = (getattr(group, "group_name", ""), name, peer, tag), tensors[0]
            found = _readers_frame(sys._getframe(1))
            place = Place(found.f_code.co_filename, found.f_lineno) if found else NOWHERE
            what = (_ranks_of(group), tensor.shape, tensor.dtype, place, time.time_ns())
            with self._lock:
                self.count += 1
                message = _Message(1 + (self._last[key].number if key in self._last else 0), *what)
                self._last[key] = message
            work = method(group, tensors, *args, **options)
            with self._lock:
                if self._last.get(key) is message:  # no other thread has begun the next one
                    self._last[key] = message._replace(work=work or _SENT_WITH_OTHERS)
            return work

        return call

    def begun(self) -> list[Begun]:
        """Return the last message of each kind, peer and tag: its number is how many there were."""
        begun = []
        for (group, name, peer, tag), last in list(self._last.items()):
            shape, dtype = tuple(last.shape), str(last.dtype).removeprefix("torch.")
            what = (name, (shape,), (dtype,), _is_done(last.work), last.place, peer, tag, last.at_ns)
            begun.append(Begun(group, tuple(last.ranks), last.number, *what))
        return begun


class _SentWithOthers:
    """Stands for the work of one of NCCL's coalesced messages, of which nothing is known."""

    def is_completed(self) -> bool:
        return True


_SENT_WITH_OTHERS = _SentWithOthers()
MESSAGES = MessageLog()  # one for this process, as torch's classes are wrapped for good


def _is_done(work: Any) -> bool:
    try:
        return work is not None and work.is_completed()
    except Exception:  # a work of a group that is gone
        return True


def _ranks_of(group: Any) -> list[int]:
    import torch.distributed as dist

    try:
        return dist.get_process_group_ranks(group)
    except Exception:  # a group of nobody's
        return []


# --- collectives ----------------------------------------------------------------------------------


def recorded_collectives() -> tuple[list[Begun], str]:
    """Return the last collectives of torch's flight recorder, and why they are not known, if so."""
    import torch.distributed as dist

    dump = getattr(getattr(sys.modules.get("torch._C"), "_distributed_c10d", None), "_dump_fr_trace", None)
    if dump is None:
        return [], "this torch has no flight recorder"
    try:
        entries = pickle.loads(dump(True, True))["entries"]
        groups = [each for each in dist.distributed_c10d._world.pg_names.items() if _has_begun(each[0])]
        names = {str(name): tuple(_ranks_of(group)) for group, name in groups}
        last = {each["process_group"][0]: each["pg_id"] for each in entries}  # one after the other had the name
        ours = [each for each in entries if each["process_group"][0] in names and not each["is_p2p"]]
        ours = [each for each in ours if each["pg_id"] == last[each["process_group"][0]]]
        return [_begun(each, names) for each in ours[-MOST_TOLD:]], ""
    except Exception as error:  # of another version
        return [], f"torch's flight recorder cannot be read ({type(error).__name__})"


def _has_begun(group: Any) -> bool:
    """Return whether a group has begun anything; if not, what its name has was another one's."""
    backends = map(group._get_backend, group._device_types)
    return any(each._get_sequence_number_for_group() for each in backends)


def _begun(entry: dict[str, Any], names: dict[str, tuple[int, ...]]) -> Begun:
    group = entry["process_group"][0]
    name = entry["profiling_name"].partition(":")[2]
    of = "output" if name == "scatter" else "input"
    shapes = tuple(tuple(each) for each in entry[f"{of}_sizes"])
    dtypes = tuple(str(each).lower() for each in entry[f"{of}_dtypes"])
    done = entry["retired"] or entry["state"] == "completed"
    place = NOWHERE
    for frame in entry["frames"]:
        if _is_readers(frame["filename"]):
            place = Place(frame["filename"], frame["line"])
            break
    number, at = entry["collective_seq_id"], entry["time_created_ns"]
    return Begun(group, names[group], number, name, shapes, dtypes, done, place, at_ns=at)


# --- where a rank is ------------------------------------------------------------------------------


@functools.cache
def _is_readers(file: str) -> bool:
    """Return whether a file is the reader's own: of the lab's, dp.py and pipe.py are."""
    if file in _STUDENT_FILES:
        return True
    return not (file.startswith((_LABKIT, "<frozen")) or "-packages" in file or "/lib/python3" in file)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _readers_frame(frame: FrameType | None) -> FrameType | None:
    return next((each for each in _frames(frame) if _is_readers(each.f_code.co_filename)), None)


def _place(frame: FrameType | None) -> Place:
    """Return the reader's innermost line, and which call in it the rank is in."""
    found = _readers_frame(frame)
    if found is None:
        return NOWHERE
    first, last, left, right = list(found.f_code.co_positions())[found.f_lasti // 2]
    columns = (left or 0, right or 0) if first == last else (0, 0)
    return Place(found.f_code.co_filename, found.f_lineno, *columns)


class RankWatch:
    """The thread that looks at this rank; ``send`` takes what it sees while the rank is still."""

    def __init__(self, send: Callable[[RankState], None]):
        self._send, self.messages = send, MESSAGES
        self._main = threading.main_thread()
        self.calls, self.in_call, self.is_over = 0, False, False
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
        since_ns, told_end, cpu_s = 0, 0, 0.0
        while not self.is_over:
            time.sleep(LOOK_S)
            mark, used_s = self._mark(), time.process_time() - time.thread_time()
            still = mark == before and (used_s - cpu_s < BUSY_S or _waits_for_gpu(self._main_frame()))
            before, cpu_s = mark, used_s
            if not still:
                since_ns = time.perf_counter_ns()
            elif self.in_call or told_end != self.calls:
                told_end = 0 if self.in_call else self.calls  # of a call that has returned, once
                try:
                    self._send(self._state(since_ns))
                except Exception:  # the notebook has gone: this rank is about to
                    return

    def _main_frame(self) -> FrameType | None:
        return _threads().get(self._main.ident or 0)

    def _mark(self) -> Any:
        """Return what changes when this rank gets on."""
        places = [(key, id(frame), frame.f_lasti) for key, frame in _threads().items()]
        return sorted(places), self.messages.count, self.calls, self.in_call

    def _state(self, since_ns: int) -> RankState:
        frames, main = _threads(), self._main_frame()
        collectives, unknown = recorded_collectives() if "torch.distributed" in sys.modules else ([], "")
        inside = [frame for frame in _frames(main) if frame.f_code.co_filename.endswith("distributed_c10d.py")]
        return RankState(
            calls=self.calls,
            in_call=self.in_call,
            since_ns=since_ns,
            at_ns=time.perf_counter_ns(),
            place=_place(main),
            function=inside[-1].f_code.co_name if inside else "",
            root=_root(inside[-1]) if inside else -1,
            wait=_wait(main),
            goes_on=_goes_on_by_itself(main, [*frames.values()]),
            begun=[*collectives, *self.messages.begun()],
            unknown=unknown,
        )


def _threads() -> dict[int, FrameType]:
    """Return the innermost frame of every thread of Python's, but for those that only look on."""
    ours = {each.ident for each in threading.enumerate() if each.name == WATCHES}
    return {key: frame for key, frame in sys._current_frames().items() if key not in ours}


def _wait(frame: FrameType | None) -> str:
    """Return what a thread waits for or is in: its "gpu", a "lock", a "call" of the reader's."""
    file = frame.f_code.co_filename if frame else ""
    if _waits_for_gpu(frame):
        return "gpu"
    return "lock" if file.endswith(_WAITS) else "call" if _is_readers(file) else ""


def _waits_for_gpu(frame: FrameType | None) -> bool:
    """Return whether a thread is where torch waits for the GPU, for which it may use a core.

    It may as well compute there. Then it is taken for a rank that waits, and yet nothing wrong is
    said: a rank whose GPU has nothing left to do, or what others join, can go on.
    """
    cuda = sys.modules.get("torch.cuda")
    if frame is None or cuda is None or not cuda.is_initialized():
        return False
    file = frame.f_code.co_filename
    return _place(frame).call().endswith(_READS) if _is_readers(file) else "/torch/" in file


def _root(frame: FrameType) -> int:
    """Return the rank that a call of torch.distributed names, such as ``dst`` of gather."""
    named = (frame.f_locals.get(name) for name in ("src", "dst", "group_src", "group_dst"))
    return next((rank for rank in named if isinstance(rank, int)), -1)


def _goes_on_by_itself(main: FrameType | None, threads: list[FrameType]) -> bool:
    """Return whether a thread sleeps, waits for a limited time, or for what is not of Python."""
    for frame in threads:
        file = frame.f_code.co_filename
        if file.endswith(_WAITS) and (frame.f_locals.get("timeout") or -1) >= 0:
            return True
        if frame is not main and not (file.endswith(_IDLE) or "/torch/" in file or file.startswith(_LABKIT)):
            return True
    others = (each.native_id for each in threading.enumerate() if each.name != WATCHES)
    return any(map(_sleeps, filter(None, others)))


def _sleeps(thread: int) -> bool:
    """Return whether a thread is in the kernel's nanosleep, where Linux tells."""
    try:
        with open(f"/proc/self/task/{thread}/wchan") as file:
            return "nanosleep" in file.read()
    except OSError:
        return False
