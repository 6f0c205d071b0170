"""Count the collectives that a rank has begun: equal on all ranks that a function left in step."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

_MESSAGES = ("send", "recv", "recv_anysource")


class CollectiveCount:
    """Counts what a process group's backends have begun, less what is no collective.

    Each backend numbers its collectives, and more: gloo also each send and receive, of which the
    ranks in the middle of a pipeline have more than the others. NCCL may number each start of
    coalescing, in which ``batch_isend_irecv`` sends (torch 2.11 on an H100 does not). Python's
    calls tell how many those were.
    """

    def __init__(self, group: Any):
        self._lock = threading.Lock()  # threads of a rank may send and receive at the same time
        self._others: Counter[type] = Counter()  # by kind of backend: torch hands out a new object each time
        backends = {device.type: group._get_backend(device) for device in group._device_types}
        self._kinds = {device: (type(each), each.supports_coalescing) for device, each in backends.items()}
        self._started: dict[type, int] = {}  # what a start of coalescing counted, until a message is among it
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
            world: Any = dist.GroupMember.WORLD
            if group is not world:
                return method(group, *args, **options)
            device = args[0][0].device if name in _MESSAGES else args[0]  # a message has tensors
            backend = world._get_backend(device)
            before = backend._get_sequence_number_for_group()
            result = method(group, *args, **options)
            self._note(name, device, backend._get_sequence_number_for_group() - before)
            return result

        return call

    def _note(self, name: str, device: torch.device, counted: int) -> None:
        """Note a call which ``counted`` as so many; other threads may have had a part in that."""
        kind, coalesces = self._kinds[device.type]
        with self._lock:
            if name == "_start_coalescing":
                self._started[kind] = counted
            elif name == "_end_coalescing":
                self._started.pop(kind, None)
            elif coalesces:
                self._others[kind] += self._started.pop(kind, 0)
            else:
                self._others[kind] += 1
