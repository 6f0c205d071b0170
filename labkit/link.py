"""A slow network on one machine: a torch.distributed backend that sends over gloo and takes as long as the link would.

    launch(fn, link=ETHERNET_1G)

Every collective and every message really travels, over gloo, and is done no earlier than the α–β model says: latency plus
bytes over bandwidth, by the formulas of :func:`labkit.cost.collective_s`. Meanwhile the rank's CPU is free, as it would be
with a network card: whoever waits sleeps. Nothing else changes, so torch's DistributedDataParallel and every collective
run on it as they are.

A rank has one channel: what it sends goes out one after the other. What it receives comes in one after the other as
well, at the same time, as on a full-duplex link. Times are kept in advance: a message that is handed over while another
is on its way starts when that one ends, however late anybody wakes up to see it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from labkit.cost import Link, collective_s

BACKEND = "link"


def register(link: Link) -> str:
    """Make ``link`` known to torch.distributed as a backend, in this process. Gives the backend's name."""
    dist.Backend.register_backend(BACKEND, functools.partial(LinkGroup, link), devices=["cpu"])
    return BACKEND


# --- time on the link ------------------------------------------------------------------------------------------------

_now = time.perf_counter_ns  # one clock for all ranks of a machine


class Channel:
    """One direction of a rank's link, which carries one message at a time. Times are perf_counter nanoseconds."""

    def __init__(self) -> None:
        self._lock, self._free_at = threading.Lock(), 0

    def reserve(self, earliest: int, duration: int) -> int:
        """Take the channel for ``duration`` from ``earliest`` on, or as soon as it is free. Gives the start."""
        with self._lock:
            start = max(earliest, self._free_at)
            self._free_at = start + duration
        return start

    def extend(self, until: int) -> None:
        """What is on the channel turned out to take until then, because it had to wait for other ranks."""
        with self._lock:
            self._free_at = max(self._free_at, until)


_outgoing, _incoming = Channel(), Channel()  # this rank's, whatever the process groups


class LinkWork(dist.Work):
    """Something on its way: done when gloo has done it and the link would have.

    ``parts`` are gloo's works. ``due`` gives the time at which the link is done; it is called once, when they are done,
    and may wait for news from other ranks. ``when_asked`` is called with this work if somebody wants a future of it.
    """

    def __init__(self, parts: list[Any], due: Callable[[], int], when_asked: Callable[[LinkWork], object]):
        super().__init__()
        self._parts, self._due, self._when_asked = parts, due, when_asked
        self._asking = threading.Lock()
        self._end: int | None = None
        self._future: torch.futures.Future[Any] | None = None

    def _remaining(self) -> int:
        """Nanoseconds until the link is done."""
        with self._asking:
            if self._end is None:
                self._end = self._due()
        return self._end - _now()

    def wait(self, *timeout: Any) -> bool:
        for part in self._parts:
            part.wait(*timeout)
        remaining = self._remaining()
        if remaining > 0:
            time.sleep(remaining * 1e-9)
        return True

    def is_completed(self) -> bool:
        return all(part.is_completed() for part in self._parts) and self._remaining() <= 0

    def is_success(self) -> bool:
        return self.is_completed() and all(part.is_success() for part in self._parts)

    def exception(self) -> Any:
        return next(filter(None, (part.exception() for part in self._parts)), None)

    def result(self) -> Any:
        return self._parts[0].result()

    def source_rank(self) -> int:
        return self._parts[0].source_rank()

    _source_rank = source_rank

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            self._future = torch.futures.Future()
            self._when_asked(self)
        return self._future

    def fulfil(self) -> None:
        """Wait, and then say so through the future."""
        assert self._future is not None
        try:
            self.wait()
            self._future.set_result(self._parts[0].get_future().value())
        except Exception as error:
            self._future.set_exception(error)


# --- the process group -----------------------------------------------------------------------------------------------


class LinkGroup(dist.ProcessGroup):
    """A process group over gloo whose collectives and messages take as long as on ``link``.

    A collective starts when the last rank has joined it. To know that, the ranks tell each other, in a group of their own
    beside the data's, when they joined; a message carries the time of its arrival in the same way.
    """

    def __init__(self, link: Link, store: Any, rank: int, world_size: int, timeout: Any):
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self._link, self._ranks = link, world_size
        self._data = _gloo_group(dist.PrefixStore("data", store), rank, world_size, timeout)
        self._times = _gloo_group(dist.PrefixStore("times", store), rank, world_size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, _backend_of(self._data))
        self._pending: deque[_Collective] = deque()  # those whose times are not known yet, in order
        self._settling = threading.Lock()
        self._asked: SimpleQueue[LinkWork | None] = SimpleQueue()
        self._waiter: threading.Thread | None = None

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        return BACKEND

    def _get_sequence_number_for_group(self) -> int:
        return self._data._get_sequence_number_for_group()

    def collective(self, method: str, cost_s: float, *arguments: Any) -> LinkWork:
        """Start gloo's ``method``, which takes ``cost_s`` on the link, counted from the moment when all ranks have joined."""
        work = getattr(self._data, method)(*arguments)
        collective = _Collective(_outgoing.reserve(_now(), _ns(cost_s)), _ns(cost_s), self._times)
        self._pending.append(collective)
        return LinkWork([work], functools.partial(self._end_of, collective), self._fulfil_in_order)

    def _end_of(self, collective: _Collective) -> int:
        with self._settling:
            while collective.end is None:
                self._pending.popleft().settle()
        return collective.end

    def _fulfil_in_order(self, work: LinkWork) -> None:
        """Collectives end in the order in which they were begun, so one thread waits for all that have a future."""
        self._asked.put(work)
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._fulfil_all, name="labkit.link", daemon=True)
            self._waiter.start()

    def _fulfil_all(self) -> None:
        while work := self._asked.get():
            work.fulfil()

    def shutdown(self) -> None:
        self._asked.put(None)  # ends the thread, once it has fulfilled what was asked before
        self._data.shutdown()
        self._times.shutdown()

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> LinkWork:
        duration = _ns(_n_bytes(tensors) / self._link.bytes_per_s)
        arrival = _outgoing.reserve(_now(), duration) + duration + _ns(self._link.latency_s)
        parts = [self._data.send(tensors, to, tag), self._times.send([torch.tensor([arrival])], to, tag)]
        return LinkWork(parts, lambda: arrival, _fulfil_in_a_thread)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> LinkWork:
        arrival = torch.empty(1, dtype=torch.int64)
        parts = [self._data.recv(tensors, source, tag), self._times.recv([arrival], source, tag)]
        return LinkWork(parts, self._arrived(tensors, lambda: int(arrival)), _fulfil_in_a_thread)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> LinkWork:
        work = self._data.recv_anysource(tensors, tag)

        def arrival() -> int:
            time_of_arrival = torch.empty(1, dtype=torch.int64)
            self._times.recv([time_of_arrival], work._source_rank(), tag).wait()
            return int(time_of_arrival)

        return LinkWork([work], self._arrived(tensors, arrival), _fulfil_in_a_thread)

    def _arrived(self, tensors: list[torch.Tensor], arrival: Callable[[], int]) -> Callable[[], int]:
        """When a message is here: as its sender says, but no two messages come in at the same time."""
        duration = _ns(_n_bytes(tensors) / self._link.bytes_per_s)
        return lambda: _incoming.reserve(arrival() - duration, duration) + duration


class _Collective:
    """When a collective ends. ``end`` is None until the other ranks have told when they joined it."""

    def __init__(self, joined: int, duration: int, times: Any):
        self._duration, self._start = duration, torch.tensor([joined])
        latest: Any = dist.AllreduceOptions()
        latest.reduceOp = dist.ReduceOp.MAX
        self._work = times.allreduce([self._start], latest)
        self.end: int | None = None

    def settle(self) -> None:
        self._work.wait()
        self.end = int(self._start) + self._duration
        _outgoing.extend(self.end)


def _fulfil_in_a_thread(work: LinkWork) -> None:
    """Messages need not end in the order in which they were begun, so each has a thread that waits."""
    threading.Thread(target=work.fulfil, name="labkit.link", daemon=True).start()


def _gloo_group(store: Any, rank: int, world_size: int, timeout: Any) -> Any:
    backend = dist.ProcessGroupGloo(store, rank, world_size, timeout)
    backend._set_sequence_number_for_group()
    group = dist.ProcessGroup(store, rank, world_size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def _backend_of(group: Any) -> Any:
    return group._get_backend(torch.device("cpu"))


# --- every collective of torch.distributed ---------------------------------------------------------------------------

# torch's method -> its name in labkit.cost, and which of its arguments, times how many, is the whole tensor
_ONCE, _EACH_RANK = False, True
_COLLECTIVES: dict[str, tuple[str, int, bool]] = {
    "allreduce": ("all_reduce", 0, _ONCE),
    "allreduce_coalesced": ("all_reduce", 0, _ONCE),
    "broadcast": ("broadcast", 0, _ONCE),
    "reduce": ("reduce", 0, _ONCE),
    "gather": ("gather", 1, _EACH_RANK),
    "scatter": ("scatter", 0, _EACH_RANK),
    "barrier": ("barrier", -1, _ONCE),
    **dict.fromkeys(("allgather", "allgather_coalesced"), ("all_gather", 0, _ONCE)),
    **dict.fromkeys(("_allgather_base", "all_gather_single"), ("all_gather", 0, _ONCE)),
    **dict.fromkeys(("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), ("all_gather", 0, _ONCE)),
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base"), ("reduce_scatter", 1, _ONCE)),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_single_coalesced"), ("reduce_scatter", 1, _ONCE)),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, _ONCE),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), ("all_to_all", 1, _ONCE)),
}


def _on_the_link(method: str, name: str, argument: int, times: bool) -> Callable[..., LinkWork]:
    def run(group: LinkGroup, *arguments: Any, **options: Any) -> LinkWork:
        n_bytes = 0 if argument < 0 else _n_bytes(arguments[argument]) * (group._ranks if times else 1)
        cost_s = collective_s(name, n_bytes, group._ranks, group._link)
        return group.collective(method, cost_s, *arguments, *options.values())

    return run


for _method, _rule in _COLLECTIVES.items():
    if hasattr(dist.ProcessGroup, _method):  # some names are those of newer or older versions of torch
        setattr(LinkGroup, _method, _on_the_link(_method, *_rule))


def _n_bytes(tensors: torch.Tensor | Iterable[Any]) -> int:
    """Bytes in a tensor, or in lists of tensors."""
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_n_bytes, tensors))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
