"""Record an answer's calls to torch.distributed, at the process group that all of them reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

# A process group's methods, by what a student calls. A barrier moves no data, so it is allowed.
_SAME = "broadcast", "gather", "reduce", "reduce_scatter", "scatter", "send"
_METHODS = {name: name for name in _SAME} | {
    "all_gather_into_tensor": "_allgather_base all_gather_single allgather_into_tensor_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_all_single alltoall_base",
    "all_gather": "allgather allgather_coalesced",
    "all_reduce": "allreduce allreduce_coalesced",
    "all_to_all": "alltoall",
    "recv": "recv recv_anysource",
}
ENDS_S = 2.0  # how long to wait for what nobody has waited for
NAMES = {method: name for name, methods in _METHODS.items() for method in methods.split()}


class GroupCall(NamedTuple):
    """One call: ``name`` as in torch.distributed, and how many ``bytes`` this rank gives.

    For scatter ``bytes`` is what it takes. ``peer`` is the rank that it sends to or receives from,
    or the root of a collective that has one. ``waits`` has an item for each time that somebody
    waited for its end.
    """

    name: str
    bytes: int
    peer: int | None
    waits: list[None]


@contextmanager
def recorded(before_call: Callable[[GroupCall, Any], None] | None = None) -> Iterator[list[GroupCall]]:
    """List every call to a process group in this process.

    Afterwards all have ended, except those that wait for a rank that takes no part.
    ``before_call(call, tensors)`` is called before each of them begins, with its tensors.
    """
    from torch.distributed import ProcessGroup

    calls: list[GroupCall] = []
    works: list[_Work] = []

    def noting(method: str) -> Any:
        original = getattr(ProcessGroup, method)

        def call(group: Any, *args: Any, **options: Any) -> Any:
            tensors = args[1] if method == "gather" else args[0] if args else []
            root = getattr(args[-1] if args else None, "rootRank", None)
            peer = args[1] if method in ("send", "recv") else root
            calls.append(GroupCall(NAMES[method], _bytes(tensors), peer, []))
            if before_call:
                before_call(calls[-1], tensors)
            works.append(_Work(calls[-1], original(group, *args, **options)))
            return works[-1]

        return call

    methods = [method for method in NAMES if hasattr(ProcessGroup, method)]
    with mock.patch.multiple(ProcessGroup, **{method: noting(method) for method in methods}):
        yield calls
        with suppress(RuntimeError):
            for work in works:
                if not work.call.waits:  # gloo would wait for a second message
                    work.work.wait(timedelta(seconds=ENDS_S))


def calls_have_ended(case: Any, seen: Any) -> Any:
    """Every call to torch.distributed has ended before the code goes on."""
    why = "Tensors may be read before the numbers are there, or changed before they have left"
    for rank, found in enumerate(seen):
        for name in sorted({name for name, _, _, waits in found["calls"] if not waits}):
            never = "never called wait() on what it returns (async_op=True, isend, irecv)"
            return f"rank {rank} began {name} and {never}. {why}"


class _Work:
    """Work that notes in ``call`` when somebody waits for it, or asks for what tells its end."""

    def __init__(self, call: GroupCall, work: Any):
        self.call, self.work = call, work

    def __getattr__(self, name: str) -> Any:
        if name in ("wait", "get_future", "is_completed", "synchronize"):
            self.call.waits.append(None)
        return getattr(self.work, name)


def _bytes(tensors: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in a list."""
    if isinstance(tensors, list | tuple):
        return sum(map(_bytes, tensors))
    return int(getattr(tensors, "nbytes", 0))
