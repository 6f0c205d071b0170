"""Let processes find each other: by a store at an address that all of them know."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import random
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from labkit.base.texts import listed

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
    """Return the name of the interface through which this machine reaches ``address``, if known.

    Nothing is sent: connecting a UDP socket only chooses the route. Raises MeetingError where there
    is none.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise MeetingError(
                f"this machine has no route to {address} ({error.strerror}): give all ranks (--master-ip) an address of "
                "rank 0's machine"
            ) from None
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


# --- ports ----------------------------------------------------------------------------------------

PORT = 11868  # where ranks of several machines meet, and those of dp.setup
_OWN_CHOICE = range(12_000, 20_000)  # of free_port


def own_port() -> int:
    """Return the port where ranks that are started by hand on one machine meet.

    Each user has another, so that nobody's rank 1 finds somebody else's rank 0.
    """
    return 20_000 + os.getuid() % 10_000


def free_port() -> int:
    """Return a port that is free on all interfaces, as torch's store wants it.

    It is none of those that a machine hands out itself (from 32768 on), or a connection could have
    it before the caller does.
    """
    for port in random.SystemRandom().sample(_OWN_CHOICE, len(_OWN_CHOICE)):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise MeetingError(f"none of the ports {_OWN_CHOICE[0]} to {_OWN_CHOICE[-1]} of this machine is free")


def check_free(port: int) -> None:
    """Raise MeetingError if rank 0 cannot listen at a port of this machine's loopback interface."""
    os.close(listen("127.0.0.1", port))


def listen(host: str, port: int) -> int:
    """Return a socket that listens at ``host:port`` only, as a descriptor that the caller owns.

    Raises MeetingError where that cannot be.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family).detach()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise MeetingError(
                f"rank 0 cannot listen at {host}:{port}, an address that this machine does not have: start rank 0 on the "
                "machine with that address, or give all ranks another one (--master-ip)"
            ) from None
        raise MeetingError(
            f"rank 0 cannot listen at {host}:{port} ({os.strerror(error.errno or 0)}). {taken(port)}Perhaps another process is "
            "rank 0 too, or another run is still using the port: end it, or give all ranks another port (--master-port)"
        ) from None


def taken(port: int, tables: Sequence[Path] = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))) -> str:
    """Return a sentence that names the users whose processes listen at a port of this machine.

    ``""`` where there are none, or the system does not tell.
    """
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = {int(row[7]) for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    users = listed(_user_name(uid) for uid in sorted(listening))
    return f"A process of {users} listens at that port. " if listening else ""


_LISTENS = "0A"  # TCP_LISTEN in Linux's include/net/tcp_states.h


def _user_name(uid: int) -> str:
    import pwd  # here, because Windows has none

    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # of another container
        return f"the user with the number {uid}"
    return "your own" if uid == os.getuid() else f"the user {name}"
