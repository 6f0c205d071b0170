"""Count the collectives that a rank has begun: equal on all ranks that a function left in step."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch.distributed as dist

_MESSAGES = ("send", "recv", "recv_anysource")


class CollectiveCount:
    """Counts what a process group's backends have begun, less what is no collective.

    Each backend numbers its collectives, and more: gloo also each send and receive, of which the
    ranks in the middle of a pipeline have more than the others, and NCCL each start of coalescing,
    in which ``batch_isend_irecv`` sends. Python's calls tell how many those were.
    """

    def __init__(self, group: Any):
        self._lock = threading.Lock()  # threads of a rank may send and receive at the same time
        self._others: Counter[type] = Counter()  # by kind of backend: torch hands out a new object each time
        backends = {device.type: group._get_backend(device) for device in group._device_types}
        self._kinds = {device: (type(each), each.supports_coalescing) for device, each in backends.items()}
        self._coalescing: dict[type, bool] = {}  # those that coalesce now, and whether a message was among it
        kind = type(group)  # an emulated link has a class of its own
        for name in (*_MESSAGES, "_start_coalescing", "_end_coalescing"):
            setattr(kind, name, self._noting(name, getattr(kind, name)))

    def __call__(self) -> tuple[int, ...]:
        """Return how many collectives each backend of the process group has begun."""
        group: Any = dist.GroupMember.WORLD
        backends = {type(each): each for each in map(group._get_backend, group._device_types)}
        return tuple(each._get_sequence_number_for_group() - self._others[kind] for kind, each in backends.items())

    def _noting(self, name: str, method: Any) -> Any:
        def call(group: Any, *args: Any, **options: Any) -> Any:
            result = method(group, *args, **options)
            if group is dist.GroupMember.WORLD:
                self._note(name, args[0])
            return result

        return call

    def _note(self, name: str, what: Any) -> None:
        """Note a call with ``what``: a message's tensors, or the device on which to coalesce."""
        device = what[0].device if name in _MESSAGES else what
        kind, coalesces = self._kinds[device.type]
        with self._lock:
            if name == "_start_coalescing":
                self._coalescing[kind] = False
            elif name == "_end_coalescing":
                self._coalescing.pop(kind, None)
            elif not coalesces:
                self._others[kind] += 1
            elif self._coalescing.get(kind) is False:
                self._others[kind], self._coalescing[kind] = self._others[kind] + 1, True
