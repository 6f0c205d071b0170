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
from pathlib import Path

import psutil

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


# --- how this machine is reached ------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is this machine's address for itself: 127.0.0.1, localhost, ::1.

    Nobody outside can reach it.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, not an address
        return host == "localhost"


def resolve(host: str) -> str:
    """Return the address of ``host``, a name or an address; of several the first, IPv4 before IPv6.

    Raises ValueError for a name that this machine does not know.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(
            f"host is {host!r}, and this machine knows no address of that name: give an address, such as 10.10.1.1"
        ) from None
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def own_addresses() -> dict[str, str]:
    """Return this machine's addresses, IPv4 and IPv6, each with the name of its interface."""
    return {
        each.address.partition("%")[0]: name  # a link-local address says its interface after %
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }


def interface_towards(address: str) -> str | None:
    """Return the name of the interface through which this machine reaches ``address``, if any.

    Nothing is sent: connecting a UDP socket only chooses the route.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:  # no route
            return None
        return own_addresses().get(probe.getsockname()[0].partition("%")[0])


def keep_on(interface: str) -> None:
    """Have gloo and NCCL listen and send on ``interface``.

    Where their environment variables say otherwise already, those count.
    """
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, interface)


# --- a store --------------------------------------------------------------------------------------


class MeetingError(ConnectionError):
    """Ranks did not meet. The message says why, and what to do."""


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


def free_port() -> int:
    """Return a port that is free on all interfaces, as torch's store wants it."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def listen(host: str, port: int) -> int:
    """Return a socket that listens at ``host:port`` only, as a descriptor that the caller owns.

    Raises MeetingError where that cannot be.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family).detach()
    except OSError as error:
        raise MeetingError(
            f"rank 0 cannot listen at {host}:{port} ({os.strerror(error.errno or 0)}). Perhaps another process is rank 0 "
            "too, or another run is still using the port: end it, or give all ranks another master_port"
        ) from None
