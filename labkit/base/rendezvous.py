"""Let processes find each other: by a store at an address that all of them know."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is this machine's address for itself: 127.0.0.1, localhost, ::1.

    Nobody outside can reach it.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, not an address
        return host == "localhost"


def keep_on_loopback() -> None:
    """Have gloo and NCCL listen on the loopback interface too.

    Where their environment variables say otherwise already, those count.
    """
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, LOOPBACK_INTERFACE)


@contextlib.contextmanager
def without_name_server() -> Iterator[None]:
    """Inside, have this process look up hosts in /etc/hosts alone, where glibc is there to do so.

    torch's store asks for the name of each address that it connects to, 127.0.0.1 too, in a form
    that /etc/hosts does not know. A name server that does not answer takes 5 s each time.
    """
    configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)
    if configure is None:
        yield
        return
    settings = Path("/etc/nsswitch.conf")
    usual = re.search(r"^hosts:([^#\n]*)", settings.read_text() if settings.exists() else "", re.MULTILINE)
    configure(b"hosts", b"files")
    try:
        yield
    finally:
        configure(b"hosts", usual[1].encode() if usual else b"files dns")


def loopback_store(
    rank: int, world_size: int, host: str, port: int, listen_fd: int | None = None, timeout_s: float = 300.0
) -> TCPStore:
    """Return the store at ``host:port`` through which the ranks meet.

    Rank 0 opens it, and every rank waits until all are there.

    torch's own rendezvous listens on every network interface. Here, for a loopback ``host``, the
    store, gloo and NCCL listen on the loopback interface only; for another ``host`` (several
    machines) the store is the usual one. ``listen_fd`` is a listening socket that rank 0 has
    already; the store takes it over.

    Raises ValueError for a rank that is not in the world, OSError if the port is taken, and torch's
    DistStoreError if the others are not there after ``timeout_s`` seconds.
    """
    from torch.distributed import TCPStore

    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, expected 0 to {world_size - 1} because world_size is {world_size}")
    if is_loopback(host):
        keep_on_loopback()
        if rank == 0 and listen_fd is None:
            listen_fd = _listen(host, port)
    with without_name_server() if is_loopback(host) else contextlib.nullcontext():
        return TCPStore(host, port, world_size, rank == 0, timedelta(seconds=timeout_s), master_listen_fd=listen_fd)


def _listen(host: str, port: int) -> int:
    """Return a socket that listens at ``host:port`` only, as a descriptor that the caller owns."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family).detach()
    except OSError as error:
        raise OSError(
            error.errno,
            f"rank 0 cannot listen at {host}:{port} ({error.strerror}). Perhaps another run is still using the port: "
            "end it, or give all ranks another master_port",
        ) from None
