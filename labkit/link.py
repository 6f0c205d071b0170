"""Emulate a slow network on one machine: a torch.distributed backend as slow as a given link.

    launch(fn, link=ETHERNET_1G)

Every collective and every message really travels, over gloo, and is done no earlier than the α–β
model says: latency plus bytes over bandwidth, by the formulas of :func:`labkit.cost.collective_s`.
A small message takes gloo's own latency, if that is longer. A rank sleeps while it waits: its CPU
is free except for what gloo needs to move the bytes. Nothing else changes, so torch's
DistributedDataParallel and every collective run on it as they are. (The exception is
``dist.monitored_barrier``, which torch allows on gloo alone.)

A rank has one channel: what it sends goes out one message after the other. What it receives also
comes in one message after the other, at the same time, as on a full-duplex link, in the order in
which messages reach it. Times are worked out from the ranks' common clock: a message that is handed
over while another is on its way starts when that one ends, however late a thread wakes up to
notice, and in whatever order its receiver waits.

The emulation itself costs a rank several times what gloo's own call does: see
``benchmarks/bench_link.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from bisect import bisect, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from labkit.base.tensors import as_bytes
from labkit.cost import Link, collective_s
from labkit.trace import barrier

BACKEND = "link"


def register(link: Link) -> str:
    """Register ``link`` with torch.distributed as a backend, and return the backend's name."""
    dist.Backend.register_backend(BACKEND, functools.partial(LinkGroup, link), devices=["cpu"])
    _wake_on_time()
    return BACKEND


def _wake_on_time() -> None:
    """Have Linux end this thread's sleeps when they are due, not up to 50 µs later.

    So it does for threads that this one starts. On a link a rank sleeps in every call, so what
    Linux saves by waking several threads at once would count as the call's cost.
    """
    if sys.platform == "linux":
        pr_set_timerslack, min_ns = 29, 1
        ctypes.CDLL(None).prctl(pr_set_timerslack, min_ns)


# --- what it must be slower than ------------------------------------------------------------------

_TRANSPORT_BYTES, _TRANSPORT_REPEATS = 4 * 2**20, 7


def measure_transport() -> float:
    """Return the bytes per second that a rank sends in an all_reduce over gloo, in the fastest of a
    few: the others waited for a core as well."""
    tensor, n = torch.ones(_TRANSPORT_BYTES // 4), dist.get_world_size()
    seconds = []
    for _ in range(_TRANSPORT_REPEATS):
        barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - start)
    return 2 * (n - 1) / n * tensor.nbytes / min(seconds)


# --- time on the link -----------------------------------------------------------------------------

_now = time.perf_counter_ns  # one clock for all ranks of a machine


class OutgoingChannel:
    """A rank's channel to the others: one message at a time. Times are perf_counter nanoseconds."""

    def __init__(self) -> None:
        self._lock, self._free_at = threading.Lock(), 0

    def reserve(self, earliest: int, duration: int) -> int:
        """Take the channel for ``duration``, once it is free, and return the start."""
        with self._lock:
            start = max(earliest, self._free_at)
            self._free_at = start + duration
        return start

    def extend(self, until: int) -> None:
        """Keep the channel taken ``until`` then: what is on it had to wait for other ranks."""
        with self._lock:
            self._free_at = max(self._free_at, until)


class IncomingMessage:
    """A message to this rank, whose first bytes say when it arrives if nothing is in its way.

    ``buffer`` is where gloo puts it. ``duration`` is how long it takes the channel, and ``end``
    when it has come in: None as long as gloo has not brought it.
    """

    def __init__(self, payload: torch.Tensor, duration: int):
        self._payload, self.duration = payload, duration
        self.buffer = torch.empty(_HEADER_BYTES + payload.nbytes, dtype=torch.uint8)
        self._header = self.buffer[:_HEADER_BYTES].view(torch.int64)
        self._header.zero_()
        self._unpacked = False
        self.end: int | None = None

    @staticmethod
    def pack(arrival: int, payload: torch.Tensor) -> torch.Tensor:
        """Return what travels: the time of the message's ``arrival``, then ``payload``."""
        return torch.cat([torch.tensor([_HERE + arrival]).view(torch.uint8), payload])

    def begin(self) -> int | None:
        """Return when it reaches the channel; None as long as gloo has not brought it."""
        header = int(self._header)  # its highest byte is 0 until gloo has written all of it
        return header - _HERE - self.duration if header > _HERE else None

    def unpack(self) -> None:
        """Put the payload where the caller wants it, once: gloo has all of it."""
        if not self._unpacked:
            self._payload.copy_(self.buffer[_HEADER_BYTES:])
            self._unpacked = True


_HEADER_BYTES, _HERE = 8, 2**62  # the header is an arrival plus _HERE, in nanoseconds


class IncomingChannel:
    """A rank's channel from the others: one message at a time, in the order in which they reach it.

    Only what gloo has brought is known, so the end of a message may change until then: another may
    turn out to have reached the channel before it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: weakref.WeakSet[IncomingMessage] = weakref.WeakSet()  # not in yet, and still asked for
        self._taken: list[tuple[int, int]] = []  # start and end of those that are in, in order

    def expect(self, message: IncomingMessage) -> None:
        with self._lock:
            self._settle()
            self._expected.add(message)

    def end_of(self, message: IncomingMessage) -> int:
        """Return when ``message``, which gloo has brought, is in, as far as is known now."""
        with self._lock:
            if message in self._expected:
                self._settle()
        assert message.end is not None
        return message.end

    def _settle(self) -> None:
        """Give each message that gloo has brought the first time in which the channel is free."""
        now, taken = _now(), self._taken.copy()
        here = [(begin, message) for message in self._expected if (begin := message.begin()) is not None]
        for begin, message in sorted(here, key=lambda each: each[0]):
            start = _first_free(taken, begin, message.duration)
            message.end = start + message.duration
            insort(taken, (start, message.end))
            if message.end <= now:
                insort(self._taken, (start, message.end))
                self._expected.remove(message)
        del self._taken[:-_REMEMBERED]


_REMEMBERED = 1000  # messages that have come in, since one sent long ago may be asked for only now


def _first_free(taken: list[tuple[int, int]], earliest: int, duration: int) -> int:
    """Return the first time from ``earliest`` on when nothing of ``taken`` is in the way."""
    start = earliest
    for begin, end in taken[max(bisect(taken, (earliest, earliest)) - 1, 0) :]:
        if start + duration <= begin:
            break
        start = max(start, end)
    return start


_outgoing, _incoming = OutgoingChannel(), IncomingChannel()  # this rank's, whatever the process groups


_FOR_EVER = timedelta(0)  # as torch has it


class LinkWork(dist.Work):
    """A collective or message in flight: done when gloo has done it and the link would have.

    ``work`` is gloo's. ``due(timeout)`` gives the time at which the link is done, once gloo is, as
    far as is known now, and ``is_known()`` whether it can say so without waiting for other ranks.
    ``on_future`` gets this work if someone asks for its future.
    """

    def __init__(
        self,
        work: Any,
        due: Callable[[timedelta], int],
        is_known: Callable[[], bool] = lambda: True,
        on_future: Callable[[LinkWork], object] | None = None,
    ):
        super().__init__()
        self._work, self._due, self._is_known, self._on_future = work, due, is_known, on_future
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def _end_ns(self, timeout: timedelta = _FOR_EVER) -> int:
        with self._lock:
            return self._due(timeout)

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        began, patience = _now(), timeout // timedelta(microseconds=1) * 1000
        self._work.wait(timeout)
        while (end := self._end_ns(timeout)) > _now():
            if patience and end > began + patience:
                _sleep_until(began + patience)
                raise RuntimeError(f"Timed out after {timeout}: the emulated link is not done")
            _sleep_until(end)
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed() and self._is_known() and self._end_ns() <= _now()

    def is_success(self) -> bool:
        return self.is_completed() and self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def source_rank(self) -> int:
        return self._work.source_rank()

    _source_rank = source_rank

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        if self._on_future is None:
            return self._work.get_future()  # raises: gloo's messages have none
        if self._future is None:
            self._future = torch.futures.Future()
            self._on_future(self)
        return self._future

    def fulfil(self) -> None:
        """Wait, and then complete the future."""
        assert self._future is not None
        try:
            self.wait()
            self._future.set_result(self._work.get_future().value())
        except Exception as error:
            self._future.set_exception(error)


def _sleep_until(end: int) -> None:
    if (remaining := end - _now()) > 0:
        time.sleep(remaining * 1e-9)


# --- how many bytes a collective moves ------------------------------------------------------------


def _n_bytes(tensors: torch.Tensor | Iterable[Any]) -> int:
    """Return the bytes in a tensor, or in lists of tensors."""
    if not isinstance(tensors, torch.Tensor):
        return sum(map(_n_bytes, tensors))
    return tensors._indices().nbytes + tensors._values().nbytes if tensors.is_sparse else tensors.nbytes


def _argument(position: int, on_each_rank: bool = False) -> Callable[..., int]:
    """Return what counts the bytes of an argument: the whole tensor, or each rank's part of it."""

    def n_bytes(group: LinkGroup, *arguments: Any) -> int:
        return _n_bytes(arguments[position]) * (group.size() if on_each_rank else 1)

    return n_bytes


_first, _second = _argument(0), _argument(1)
_first_from_each_rank, _second_from_each_rank = _argument(0, on_each_rank=True), _argument(1, on_each_rank=True)


def _nothing(group: LinkGroup, *_: Any) -> int:
    return 0


def _exchanged(group: LinkGroup, outputs: Any, inputs: Any, *splits: Any) -> int:
    """Return what this rank sends or receives, whichever is more, as if also to itself."""
    n, max_bytes = group.size(), 0
    for i, tensors in enumerate((outputs, inputs)):
        rows = splits[i] if i < len(splits) and isinstance(splits[i], Sequence) else []
        if isinstance(tensors, torch.Tensor):
            tensors = tensors.split(rows) if rows else tensors.tensor_split(n)
        parts = [*tensors]
        max_bytes = max(max_bytes, _n_bytes(parts) - _n_bytes(parts[group.rank()]))
    return max_bytes * n // max(n - 1, 1)


def _timed(method: str, name: str, size: Callable[..., int]) -> Any:
    """Return gloo's ``method``, made to take as long as the collective ``name`` of labkit.cost.

    ``size`` gives the bytes of the whole tensor from the method's arguments.
    """

    def run(group: LinkGroup, *arguments: Any, **options: Any) -> LinkWork:
        joined = _now()  # at once: what the emulation costs a rank must not count as the link's time
        cost_s = collective_s(name, size(group, *arguments), group.size(), group._link)
        return group.collective(method, joined, cost_s, *arguments, *options.values())

    return run


# --- the process group ----------------------------------------------------------------------------


class LinkGroup(dist.ProcessGroup):
    """A process group over gloo whose collectives and messages take as long as on ``link``.

    A collective starts when the last rank has joined it. To know that, the ranks tell each other
    when they joined, in a group apart from the data's. A message brings the time of its arrival
    with it, ahead of its payload.
    """

    def __init__(self, link: Link, store: Any, rank: int, world_size: int, timeout: Any):
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self._link = link
        self._data = _gloo_group(dist.PrefixStore("data", store), rank, world_size, timeout)
        self._times = _gloo_group(dist.PrefixStore("times", store), rank, world_size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, _backend_of(self._data))
        self._pending: deque[_Collective] = deque()  # those whose times are not known yet, in order
        self._settling = threading.Lock()
        self._to_fulfil: SimpleQueue[LinkWork | None] = SimpleQueue()
        self._waiter: threading.Thread | None = None

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        return BACKEND

    def _get_sequence_number_for_group(self) -> int:
        return self._data._get_sequence_number_for_group()

    def collective(self, method: str, joined: int, cost_s: float, *arguments: Any) -> LinkWork:
        """Start gloo's ``method``, which takes ``cost_s`` on the link once all have joined.

        This rank ``joined`` when it called.
        """
        work = getattr(self._data, method)(*arguments)
        collective = _Collective(_outgoing.reserve(joined, _ns(cost_s)), _ns(cost_s), self._times)
        self._pending.append(collective)
        end, is_known = functools.partial(self._end_of, collective), functools.partial(self._knows_end_of, collective)
        return LinkWork(work, end, is_known, self._fulfil_in_order)

    # Every collective of torch, by the name of its method. No version of torch has all of them.

    allreduce = _timed("allreduce", "all_reduce", _first)
    allreduce_coalesced = _timed("allreduce_coalesced", "all_reduce", _first)
    broadcast = _timed("broadcast", "broadcast", _first)
    reduce = _timed("reduce", "reduce", _first)
    gather = _timed("gather", "gather", _second_from_each_rank)
    scatter = _timed("scatter", "scatter", _first_from_each_rank)
    allgather = _timed("allgather", "all_gather", _first)
    _allgather_base = _timed("_allgather_base", "all_gather", _first)
    all_gather_single = _timed("all_gather_single", "all_gather", _first)
    allgather_coalesced = _timed("allgather_coalesced", "all_gather", _first)
    allgather_into_tensor_coalesced = _timed("allgather_into_tensor_coalesced", "all_gather", _first)
    all_gather_single_coalesced = _timed("all_gather_single_coalesced", "all_gather", _first)
    reduce_scatter = _timed("reduce_scatter", "reduce_scatter", _second)
    _reduce_scatter_base = _timed("_reduce_scatter_base", "reduce_scatter", _second)
    reduce_scatter_single = _timed("reduce_scatter_single", "reduce_scatter", _second)
    reduce_scatter_tensor_coalesced = _timed("reduce_scatter_tensor_coalesced", "reduce_scatter", _second)
    reduce_scatter_single_coalesced = _timed("reduce_scatter_single_coalesced", "reduce_scatter", _second)
    alltoall = _timed("alltoall", "all_to_all", _exchanged)
    alltoall_base = _timed("alltoall_base", "all_to_all", _exchanged)
    all_to_all_single = _timed("all_to_all_single", "all_to_all", _exchanged)
    barrier = _timed("barrier", "barrier", _nothing)

    def _end_of(self, collective: _Collective, timeout: timedelta) -> int:
        if collective.end is None:
            with self._settling:
                while collective.end is None:
                    self._pending[0].settle(timeout)
                    self._pending.popleft()
        return collective.end

    def _knows_end_of(self, collective: _Collective) -> bool:
        """Return whether the times of this collective and of all before it have come."""
        if collective.end is None:
            self._settle_known()
        return collective.end is not None

    def _settle_known(self) -> None:
        """Settle collectives whose times have come: the channel is taken until they end."""
        if self._settling.acquire(blocking=False):
            try:
                while self._pending and self._pending[0].is_known():
                    self._pending[0].settle(_FOR_EVER)
                    self._pending.popleft()
            finally:
                self._settling.release()

    def _fulfil_in_order(self, work: LinkWork) -> None:
        """Have one thread complete the futures of all work, as collectives end in order."""
        self._to_fulfil.put(work)
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._fulfil_all, name="labkit.link", daemon=True)
            self._waiter.start()

    def _fulfil_all(self) -> None:
        while work := self._to_fulfil.get():
            work.fulfil()

    def shutdown(self) -> None:
        self._to_fulfil.put(None)  # ends the thread, once it has fulfilled what was put before
        self._data.shutdown()
        self._times.shutdown()

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> LinkWork:
        called = _now()
        self._settle_known()
        payload = as_bytes(*tensors)
        duration = self._transmission_ns(payload)
        arrival = _outgoing.reserve(called, duration) + duration + _ns(self._link.latency_s)
        return LinkWork(self._data.send([IncomingMessage.pack(arrival, payload)], to, tag), lambda _: arrival)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> LinkWork:
        return self._receive(tensors, lambda buffer: self._data.recv([buffer], source, tag))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> LinkWork:
        return self._receive(tensors, lambda buffer: self._data.recv_anysource([buffer], tag))

    def _receive(self, tensors: list[torch.Tensor], start: Callable[[torch.Tensor], Any]) -> LinkWork:
        """Receive a message: it reaches this rank's channel when its sender says so."""
        payload = as_bytes(*tensors)
        message = IncomingMessage(payload, self._transmission_ns(payload))
        work = start(message.buffer)
        _incoming.expect(message)

        def due(_: timedelta) -> int:
            message.unpack()
            return _incoming.end_of(message)

        return LinkWork(work, due)

    def _transmission_ns(self, payload: torch.Tensor) -> int:
        return _ns(payload.nbytes / self._link.bytes_per_s)


class _Collective:
    """The end of a collective; ``end`` is None until the other ranks have said when they joined."""

    def __init__(self, joined: int, duration: int, times: Any):
        self._duration, self._start = duration, torch.tensor([joined])
        latest: Any = dist.AllreduceOptions()
        latest.reduceOp = dist.ReduceOp.MAX
        self._work = times.allreduce([self._start], latest)
        self.end: int | None = None

    def is_known(self) -> bool:
        return self.end is not None or self._work.is_completed()

    def settle(self, timeout: timedelta) -> None:
        self._work.wait(timeout)
        self.end = int(self._start) + self._duration
        _outgoing.extend(self.end)


def _gloo_group(store: Any, rank: int, world_size: int, timeout: Any) -> Any:
    with _threads_that_give_way():
        backend = dist.ProcessGroupGloo(store, rank, world_size, timeout)
    group = dist.ProcessGroup(store, rank, world_size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


@contextlib.contextmanager
def _threads_that_give_way() -> Iterator[None]:
    """Have Linux let no thread that is started here interrupt another as it wakes up.

    gloo's event loop spins while a worker holds the lock it needs (``try_to_lock`` in
    gloo/transport/tcp/pair.cc). If it has just pushed that worker off the core, both lose the 3 ms
    that Linux gives it: on two cores, a call cost its rank 1.1 to 1.3 ms, and 0.1 to 0.3 ms so.
    """
    with contextlib.ExitStack() as back_to_usual:
        with contextlib.suppress(AttributeError, OSError):  # not Linux; a sandbox forbids it
            usual = os.sched_getscheduler(0), os.sched_param(0)
            os.sched_setscheduler(0, os.SCHED_BATCH, usual[1])  # threads start with their parent's
            back_to_usual.callback(os.sched_setscheduler, 0, *usual)
        yield


def _backend_of(group: Any) -> Any:
    return group._get_backend(torch.device("cpu"))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
