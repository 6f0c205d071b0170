"""Find out how this machine is reached: its addresses, and the interface towards another one."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

import psutil

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


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
