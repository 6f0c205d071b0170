"""Shut the sockets of a rank's process groups, so that its collectives raise at once.

A collective that waits for other ranks is in C++, which no signal ends. gloo raises from it as soon
as one of its connections is shut. Which those are, torch does not say. So the open sockets are
compared before and after torch forms a group: the new ones are the group's. Without /proc (macOS)
none is known. NCCL has no such wait on sockets, but an ``abort()``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist


class _Socket(NamedTuple):
    fd: int
    inode: int  # a closed socket's number is given to the next file, its inode is not


class GroupSockets:
    """The sockets that torch's process groups have opened in this process since ``watch()``."""

    def __init__(self) -> None:
        self._sockets: set[_Socket] = set()
        self._stores: set[int] = set()
        self.store_is_shut = False

    def watch(self, store_port: int) -> None:
        """Note from now on what each new group opens, but for connections to the ranks' store."""
        if not self._stores:
            c10d: Any = dist.distributed_c10d
            # Every way to a group goes through one of these.
            c10d._new_process_group_helper = self._noting(c10d._new_process_group_helper)
            c10d.split_group = dist.split_group = self._noting(c10d.split_group)
        self._stores.add(store_port)

    def _noting(self, form_group: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(form_group)
        def call(*args: Any, **options: Any) -> Any:
            before = _open_sockets()
            try:
                return form_group(*args, **options)
            finally:
                now = _open_sockets()
                self._sockets = (self._sockets & now) | (now - before)

        return call

    def shut(self) -> None:
        """End what this process's groups wait for: no group works after that."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError), _duplicate(each) as connection:  # one that only listens has no peer
                if not {_port(connection.getsockname()), _port(connection.getpeername())} & self._stores:
                    connection.shutdown(socket.SHUT_RDWR)
        for backend in _backends_with_abort():
            with contextlib.suppress(Exception):  # it has no communicator yet
                backend.abort()

    def shut_store(self) -> None:
        """End a wait for the store, as in the forming of a group that others leave out.

        The store itself stays, for those that connect to it anew.
        """
        self.store_is_shut = True
        for each in _open_sockets():
            with contextlib.suppress(OSError), _duplicate(each) as connection:
                if _port(connection.getpeername()) in self._stores:
                    connection.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> set[_Socket]:
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/self/fd/{name}")
                if stat.S_ISSOCK(status.st_mode):
                    found.add(_Socket(int(name), status.st_ino))
    return found


def _port(address: Any) -> int:
    """Return the port of an address; 0 for that of a local socket."""
    return address[1] if isinstance(address, tuple) else 0


def _duplicate(each: _Socket) -> socket.socket:
    """Return a socket of the same connection. OSError if it has been closed meanwhile."""
    fd = os.dup(each.fd)
    if os.fstat(fd).st_ino != each.inode:
        os.close(fd)
        raise OSError
    return socket.socket(fileno=fd)


def _backends_with_abort() -> list[Any]:
    """Return the NCCL backends of all groups. gloo's ``abort()`` would free nobody."""
    groups = list(getattr(dist.distributed_c10d._world, "pg_map", {}))
    nccl = getattr(dist, "ProcessGroupNCCL", ())
    found = []
    for group in groups:
        for device in group._device_types:
            with contextlib.suppress(Exception):
                if nccl and isinstance(backend := group._get_backend(device), nccl):
                    found.append(backend)
    return found
