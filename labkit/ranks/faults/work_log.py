"""Log the collectives and messages that this rank has begun, and which it waits for.

torch's flight recorder has the collectives of gloo and NCCL, also those that C++ begins, such as
DDP's. It does not have gloo's messages. So torch's methods are wrapped here, once: the sends and
receives of a process group, and ``wait()`` of the work that they return. Numbers are kept, no work:
gloo's would keep its tensor.

The recorder is on in torch 2.11 and 2.13, which were tried. Where it cannot be read, a rank says
so, and only its messages are known, and in which function of torch.distributed it is.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks.faults.frames import is_readers, readers_frame
from labkit.ranks.faults.thread_wait import is_limit
from labkit.ranks.messages.message import ANY, NOWHERE, Begun, GroupState, Place

MAX_COLLECTIVES = 40  # that a rank tells, the last
MAX_MESSAGES = 1000  # kinds of messages that are kept: a program may give each step a tag of its own
_MESSAGES = {"send", "recv", "recv_anysource"}
_COALESCING = {"_start_coalescing", "_end_coalescing"}


@dataclass(slots=True)
class _Messages:
    """The messages of one kind, with one peer and tag: how many there were, and the last."""

    group: str
    peer: int
    ranks: Sequence[int]
    number: int = 0
    shape: Sequence[int] = ()
    dtype: Any = None
    place: Place = NOWHERE
    at_ns: int = 0
    is_on_gpu: bool = False
    waits: int = 0  # threads that are in wait() of one of them


class WorkLog:
    """What this process has begun in the process groups of the classes that it watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # threads of a rank may send and receive at the same time
        self._wrapped: set[type] = set()
        self._forget()

    def _forget(self) -> None:
        self._n_messages = 0
        self._totals: dict[tuple[str, str, int], tuple[int, int]] = {}  # by group, kind, peer: how many, sum of tags
        self._messages: dict[tuple[str, str, int, int], _Messages] = {}  # by group, kind, peer, tag
        # A GPU takes messages with a peer in order, so the last of those it waits for will do.
        self._gpu_waits: dict[tuple[str, int], tuple[_Messages, Any]] = {}
        self._of_work: weakref.WeakKeyDictionary[Any, _Messages] = weakref.WeakKeyDictionary()
        self._backends: dict[str, tuple[type, bool]] = {}  # of the default group, by kind of device
        self._uncounted: Counter[type] = Counter()  # by kind of backend: torch hands out a new object each time
        self._started: dict[type, int] = {}  # what a start of coalescing counted, until a message is among it

    def begin(self, kind: type) -> None:
        """Log from now on what begins in process groups of this class; the default one is new."""
        self.watch(kind)
        self._forget()

    def watch(self, kind: type) -> None:
        """Log the messages of process groups of this class, and which of them are waited for."""
        if self._is_new(kind):
            for name in vars(kind).keys() & _MESSAGES:
                setattr(kind, name, self._noting_message(name, getattr(kind, name)))
            for name in vars(kind).keys() & _COALESCING:
                setattr(kind, name, self._noting_coalescing(name, getattr(kind, name)))
        self._watch_waits(dist.Work)
        self._watch_waits(torch._C.Future)

    def _watch_waits(self, kind: type) -> None:
        """Note which works of this class are waited for."""
        for each in kind.__mro__:
            if self._is_new(each) and "wait" in vars(each):
                each.wait = self._noting_wait(each.wait)  # type: ignore[attr-defined]

    def _is_new(self, kind: type) -> bool:
        with self._lock:
            is_new = kind not in self._wrapped
            self._wrapped.add(kind)
        return is_new

    # --- what torch's methods do on their way -----------------------------------------------------

    def _noting_message(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, tensors: Any, *args: Any, **options: Any) -> Any:
            peer, tag = args if len(args) == 2 else (ANY, *args)
            messages = self._begun(group, name, peer, tag, tensors[0])
            work = method(group, tensors, *args, **options)
            if work is not None:  # of one of NCCL's coalesced messages nothing is known
                if type(work) not in self._wrapped:
                    self._watch_waits(type(work))
                self._of_work[work] = messages
            return work

        return call

    def _begun(self, group: Any, name: str, peer: int, tag: int, tensor: Any) -> _Messages:
        """Note a message that is about to begin, in the caller's caller."""
        found = readers_frame(sys._getframe(2))
        place = Place(found.f_code.co_filename, found.f_lineno) if found else NOWHERE
        group_name = getattr(group, "group_name", "")
        key = (group_name, name, peer, tag)
        with self._lock:
            self._n_messages += 1
            if (messages := self._messages.pop(key, None)) is None:
                messages = _Messages(group_name, peer, _ranks_of(group))
                self._forget_oldest()
            self._messages[key] = messages  # the last of all
            messages.number += 1
            number, tags = self._totals.get(key[:3], (0, 0))
            self._totals[key[:3]] = number + 1, tags + tag
            messages.shape, messages.dtype = tensor.shape, tensor.dtype
            messages.is_on_gpu = tensor.device.type == "cuda"
            messages.place, messages.at_ns = place, time.time_ns()
            if group is dist.GroupMember.WORLD:
                backend, coalesces = self._backend_of(group, tensor.device)
                self._uncounted[backend] += self._started.pop(backend, 0) if coalesces else 1
        return messages

    def _forget_oldest(self) -> None:
        """Forget the kind of messages that was used least recently and that nothing waits for."""
        if len(self._messages) >= MAX_MESSAGES:
            done = (key for key, each in self._messages.items() if not each.waits)
            self._messages.pop(next(done, None), None)  # type: ignore[arg-type]

    def _backend_of(self, group: Any, device: torch.device) -> tuple[type, bool]:
        """Return the kind of backend that the default group has for a device; does it coalesce?"""
        if device.type not in self._backends:
            backend = group._get_backend(device)
            self._backends[device.type] = type(backend), backend.supports_coalescing
        return self._backends[device.type]

    def _noting_coalescing(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, device: Any, *args: Any, **options: Any) -> Any:
            world: Any = dist.GroupMember.WORLD
            if group is not world:
                return method(group, device, *args, **options)
            (kind, _), backend = self._backend_of(group, device), group._get_backend(device)
            before = _n_begun(backend)
            result = method(group, device, *args, **options)
            with self._lock:
                self._started.pop(kind, None)
                if name == "_start_coalescing":
                    self._started[kind] = _n_begun(backend) - before
            return result

        return call

    def _noting_wait(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **options: Any) -> Any:  # thread_wait knows it by its name
            messages = self._of_work.get(work)
            if messages is None:
                return method(work, *args, **options)
            with self._lock:
                messages.waits += 1
            try:
                return method(work, *args, **options)
            finally:
                with self._lock:
                    messages.waits -= 1
                    if messages.is_on_gpu:  # wait() has left the waiting to the GPU
                        self._gpu_waits[messages.group, messages.peer] = messages, work

        return wait

    # --- what is known ----------------------------------------------------------------------------

    def begun(self, left_s: float = math.inf) -> tuple[list[Begun], str]:
        """Return what has been begun, and why the collectives are not known, if they are not.

        ``left_s`` is how long the rank had until its time is up when it began to stand still.
        Of messages there is the last of each kind, peer and tag: its number is how many there were.
        One for which nothing waits counts as done, as it keeps nothing from going on.
        """
        begun, unknown = _recorded_collectives(left_s)
        limited = {name for group, name in _names_of_groups().items() if is_limit(_limit_of(group), left_s)}
        for pair, (_, work) in list(self._gpu_waits.items()):
            if _is_completed(work):
                self._gpu_waits.pop(pair, None)
        on_gpu = [messages for messages, _ in self._gpu_waits.values()]
        for (group, name, peer, tag), last in list(self._messages.items()):
            shape, dtype = tuple(last.shape), str(last.dtype).removeprefix("torch.")
            done = not (last.waits or any(last is each for each in on_gpu))
            what = (name, (shape,), (dtype,), done, last.place, peer, tag, last.at_ns)
            begun.append(Begun(group, tuple(last.ranks), last.number, *what, is_limited=group in limited))
        return begun, unknown

    def n_collectives(self) -> tuple[int, ...]:
        """Return how many collectives each backend of the default group has begun.

        Equal on all ranks that a function left in step. Each backend numbers its collectives, and
        more: gloo also each send and receive, of which the ranks in the middle of a pipeline have
        more than the others. NCCL may number each start of coalescing, in which
        ``batch_isend_irecv`` sends (torch 2.11 on an H100 does not). This log knows how many those
        were.
        """
        group: Any = dist.GroupMember.WORLD
        backends = {type(each): each for each in map(group._get_backend, group._device_types)}
        return tuple(_n_begun(each) - self._uncounted[kind] for kind, each in backends.items())

    def group_state(self) -> GroupState:
        """Return what this rank has begun in all groups, to be compared with the others."""
        others, messages = {}, []
        for group, name in _names_of_groups().items():
            sent = {key: totals for key, totals in self._totals.items() if key[0] == name}
            if group is not dist.GroupMember.WORLD:  # gloo counts messages as well
                others[name] = _n_begun_in(group) - sum(number for number, _ in sent.values())
            for (_, kind, peer), totals in sent.items():
                ends = (group.rank(), peer) if kind == "send" else (peer, group.rank())
                messages.append((name, kind == "send", *ends, *totals))
        return GroupState(self.n_collectives(), others, messages)

    def n_begun(self) -> int:
        """Return how much has been begun in all groups: what grows as this rank gets on."""
        return self._n_messages + sum(map(_n_begun_in, _names_of_groups()))


WORK_LOG = WorkLog()  # one for this process, as torch's classes are wrapped for good


def _is_completed(work: Any) -> bool:
    try:
        return work.is_completed()
    except Exception:  # a work of a group that is gone
        return True


def _n_begun(backend: Any) -> int:
    return backend._get_sequence_number_for_group()


def _names_of_groups() -> dict[Any, str]:
    """Return the groups of torch, with their names; none where torch keeps them elsewhere."""
    return dict(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_names", {}))


def _n_begun_in(group: Any) -> int:
    try:
        return sum(_n_begun(group._get_backend(device)) for device in group._device_types)
    except Exception:  # a group that is just being made, or going
        return 0


def _limit_of(group: Any) -> timedelta | None:
    """Return how long a collective of a group may take; None if torch does not say."""
    try:
        return group._get_backend(group._device_types[0]).options._timeout
    except Exception:  # such as a backend in Python
        return None


def _ranks_of(group: Any) -> list[int]:
    try:
        return dist.get_process_group_ranks(group)
    except Exception:  # a group that torch no longer knows
        return []


# --- collectives ----------------------------------------------------------------------------------


def _recorded_collectives(left_s: float) -> tuple[list[Begun], str]:
    """Return the last collectives of torch's flight recorder, and why they are not known, if so."""
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace", None)
    if dump is None:
        return [], "this torch has no flight recorder"
    try:
        with _without_inductor():
            entries = pickle.loads(dump(True, True))["entries"]
        # The name of a group that has begun nothing was another one's in what is recorded.
        groups = [(group, name) for group, name in _names_of_groups().items() if _n_begun_in(group)]
        names = {str(name): tuple(_ranks_of(group)) for group, name in groups}
        last = {each["process_group"][0]: each["pg_id"] for each in entries}  # one after the other had the name
        ours = [each for each in entries if each["process_group"][0] in names and not each["is_p2p"]]
        ours = [each for each in ours if each["pg_id"] == last[each["process_group"][0]]]
        return [_recorded(each, names, left_s) for each in ours[-MAX_COLLECTIVES:]], ""
    except Exception as error:  # of another version
        return [], f"torch's flight recorder cannot be read ({type(error).__name__})"


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep torch from importing torch._inductor, which takes a second of CPU, to read a stack.

    It asks that package for the source of code that was compiled. Without it there is none.
    """
    if "torch._inductor" in sys.modules:
        yield
        return
    stand_in: Any = object()
    torch._inductor = stand_in
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stand_in:  # else it was imported meanwhile
            del torch._inductor


def _recorded(entry: dict[str, Any], names: dict[str, tuple[int, ...]], left_s: float) -> Begun:
    group = entry["process_group"][0]
    name = entry["profiling_name"].partition(":")[2]
    of = "output" if name == "scatter" else "input"
    shapes = tuple(tuple(each) for each in entry[f"{of}_sizes"])
    dtypes = tuple(str(each).lower() for each in entry[f"{of}_dtypes"])
    done = entry["retired"] or entry["state"] == "completed"
    lines = ((each["filename"], each["line"]) for each in entry["frames"])
    place = next((Place(*each) for each in lines if is_readers(each[0])), NOWHERE)
    number, at = entry["collective_seq_id"], entry["time_created_ns"]
    limited = is_limit(timedelta(milliseconds=entry.get("timeout_ms", 0)), left_s)
    return Begun(group, names[group], number, name, shapes, dtypes, done, place, at_ns=at, is_limited=limited)
