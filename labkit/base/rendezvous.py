"""Let processes find each other: by a store at an address that all of them know.

Ranks that somebody starts by hand, one by one and perhaps wrongly, meet by :func:`meet`, which says
who is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from labkit.base.interrupts import uninterrupted
from labkit.base.texts import listed

if TYPE_CHECKING:
    from torch.distributed import TCPStore

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


def _listen(host: str, port: int) -> int:
    """Return a socket that listens at ``host:port`` only, as a descriptor that the caller owns."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family).detach()
    except OSError as error:
        raise MeetingError(
            f"rank 0 cannot listen at {host}:{port} ({os.strerror(error.errno or 0)}). Perhaps another process is rank 0 "
            "too, or another run is still using the port: end it, or give all ranks another master_port"
        ) from None


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, expected 0 to {world_size - 1} because world_size is {world_size}")


# --- ranks that somebody starts by hand -----------------------------------------------------------


POLL_S = 0.02
TRY_S = 1.0  # for which torch tries to connect to a store before somebody looks whether it should go on
ALL_HERE = "all ranks are here"
GRACE_S = 5.0  # for which rank 0 keeps the store open, so that the others read why they did not meet


def meet(rank: int, world_size: int, host: str, port: int, timeout_s: float = 300.0) -> TCPStore:
    """Return a store that all ranks share, once each of them has come to ``host:port``.

    For processes that somebody starts one by one, in two terminals or on several machines. Rank 0
    opens the store, so ``host`` is an address of rank 0's machine, and all ranks are told the same
    one. On a loopback ``host`` nobody outside can connect; for another one gloo and NCCL take the
    interface on the route to it, unless GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME say otherwise.

    Raises ValueError, before anything is opened, for a rank outside the world, no port and no host.
    Raises MeetingError, on every rank that is there, after ``timeout_s`` seconds if some did not
    come, and at once if two have the same rank or were told different world sizes; also for a
    ``host`` that is not rank 0's machine, a port that is taken, and a rank 0 that is not there.
    """
    _check_rank(rank, world_size)
    if not 0 < port < 2**16:
        raise ValueError(f"port is {port}, expected 1 to 65535, such as 11868")
    deadline = time.monotonic() + timeout_s
    address = resolve(host)
    if interface := interface_towards(address):
        keep_on(LOOPBACK_INTERFACE if is_loopback(address) else interface)
    if rank == 0:
        _check_own(host, address)
        listener = _listen(address, port)
    else:
        listener = None
        _wait_for_rank_0(rank, address, port, timeout_s)
    store = _store(address, port, listener, deadline)
    try:
        verdict = _call_roll(store, rank, world_size, timeout_s, deadline)
    except RuntimeError:  # torch's DistNetworkError
        verdict = f"rank 0 at {address}:{port} ended before all ranks were there: read there why, and start all anew"
    if verdict:
        raise MeetingError(verdict)
    store.set_timeout(timedelta(seconds=timeout_s))  # until here it was what was left
    return store


def _check_own(host: str, address: str) -> None:
    """Raise MeetingError unless ``address`` is this machine's, and known to others under it."""
    own = own_addresses()
    others = ", ".join(f"{each} ({name})" for each, name in own.items() if not is_loopback(each)) or "none but loopback"
    if address not in own and not is_loopback(address):
        raise MeetingError(
            f"rank 0 cannot listen at {host}: that address is another machine's. This one has {others}. Start rank 0 on "
            "the machine that has it, or give all ranks (--master-ip) an address of this one"
        )
    if is_loopback(address) and not is_loopback(host):
        raise MeetingError(
            f"rank 0 cannot listen at {host}: to this machine that is {address}, where no other reaches it. Give all ranks "
            f"(--master-ip) the address that they reach; this machine has {others}"
        )


def _wait_for_rank_0(rank: int, address: str, port: int, timeout_s: float) -> None:
    """Wait until somebody listens at ``address:port``. torch's own waiting fills the screen."""
    deadline = time.monotonic() + timeout_s
    why: object = "no time to try"
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), timeout=left).close()
            return
        except OSError as error:
            why = error.strerror or error
        time.sleep(POLL_S)
    raise MeetingError(
        f"rank {rank} found no rank 0 at {address}:{port} within {timeout_s:g} s ({why}). Is rank 0 running, and is this an "
        "address of its machine (--master-ip)? May this port be reached there (a firewall)?"
    )


def _store(address: str, port: int, listener: int | None, deadline: float) -> TCPStore:
    """Return the store: rank 0's over its ``listener``, the others' by connecting to it.

    In a thread, because torch waits for ever if whatever listens at the port is not a store. The
    thread has ended when this returns or raises, a KeyboardInterrupt too: one that is in torch's
    code at the end of Python aborts the process.
    """
    from torch.distributed import TCPStore

    stores: list[TCPStore] = []
    options: dict[str, Any] = {"is_master": listener is not None, "wait_for_workers": False}

    def left_s() -> float:
        return max(deadline - time.monotonic(), 0.1)

    def connect() -> None:
        again = True
        while again:  # torch tries again by itself, too, but nothing ends that before its time is up
            left = timedelta(seconds=left_s() if listener is not None else min(left_s(), TRY_S))
            with without_name_server(), contextlib.suppress(RuntimeError):
                stores.append(TCPStore(address, port, timeout=left, master_listen_fd=listener, **options))
            again = not (stores or interrupts or listener is not None or time.monotonic() > deadline)

    thread = threading.Thread(target=connect, daemon=True)
    with uninterrupted() as interrupts:
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            if (interrupts and listener is None) or time.monotonic() > deadline:
                _hang_up(address, port)
    if not stores:
        raise MeetingError(
            f"what answers at {address}:{port} is not rank 0: perhaps another program has this port. Give all ranks another "
            "one (--master-port)"
        )
    stores[0].set_timeout(timedelta(seconds=left_s()))
    return stores[0]


def _hang_up(address: str, port: int) -> None:
    """End this process's connections to ``address:port``, whoever has opened them."""
    for each in psutil.Process().net_connections("tcp"):
        if each.raddr and each.raddr.port == port and each.raddr.ip.removeprefix("::ffff:") == address:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _call_roll(store: TCPStore, rank: int, world_size: int, timeout_s: float, deadline: float) -> str:
    """Say that this rank is here, and wait for the verdict, which is the same for all that come.

    Return "" if all are here, else why they cannot meet. Whoever finds a reason first says it.
    """
    store.add("arrived", 1)
    if wrong := _sign(store, rank, world_size):
        store.compare_set("verdict", "", wrong)  # it stays as it is where there is one
    while not store.check(["verdict"]):
        missing = [each for each in range(world_size) if not store.check([f"rank/{each}"])]
        if not missing:
            store.compare_set("verdict", "", ALL_HERE)
        elif time.monotonic() > deadline:
            late = (
                f"{_listed(missing)} of {world_size} did not come within {timeout_s:g} s. Start one process for each rank, "
                "with the same world size, address and port, and a rank of its own"
            )
            store.compare_set("verdict", "", late)
        else:
            time.sleep(POLL_S)
    verdict = store.get("verdict").decode()
    store.add("informed", 1)
    if rank == 0 and verdict != ALL_HERE:
        _wait_for_readers(store)
    return wrong or verdict.removeprefix(ALL_HERE)


def _sign(store: TCPStore, rank: int, world_size: int) -> str:
    """Put this rank on the list. Return "", or why it does not belong there."""
    me = f"process {os.getpid()} on {platform.node()}"
    told = int(store.compare_set("world_size", "", str(world_size)))
    if told != world_size:
        return (
            f"the ranks were told different world sizes: {me} has {world_size}, and an earlier one {told}. Give all ranks "
            "the same one"
        )
    if store.add(f"claims/{rank}", 1) > 1:
        first = store.get(f"rank/{rank}").decode()
        return (
            f"two processes have rank {rank} of {world_size}: {first} and {me}. Give each a rank of its own, from 0 to "
            f"{world_size - 1}; if one is left over from an earlier run, end it and start all anew"
        )
    store.set(f"rank/{rank}", me)
    return ""


def _wait_for_readers(store: TCPStore) -> None:
    """Keep the store open until every rank that came knows the verdict, or GRACE_S."""
    until = time.monotonic() + GRACE_S
    while store.add("informed", 0) < store.add("arrived", 0) and time.monotonic() < until:
        time.sleep(POLL_S)


def _listed(ranks: list[int]) -> str:
    """Return "rank 2", or "ranks 1, 2 and 3"."""
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {listed(ranks)}"
