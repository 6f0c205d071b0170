"""Hosts of their own on one machine: network namespaces, each with an address, joined by a bridge.

A process there reaches the other hosts and nobody else, and nobody else reaches it. Linux, root,
iproute2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from warm_python import Program

PREFIX = "labkit-test"  # a namespace is labkit-test-PID-NAME: another run of the tests has another process id


ON_A_HOST = """
import ctypes, os, runpy

libc, CLONE_NEWNET = ctypes.CDLL(None, use_errno=True), 0x40000000
if libc.setns(os.open("/run/netns/{}", os.O_RDONLY), CLONE_NEWNET):
    raise OSError(ctypes.get_errno(), "setns")
runpy.run_module("{}", run_name="__main__", alter_sys=True)
"""


class CannotMakeHosts(Exception):
    """No network namespaces can be made here; the message says why."""


class Host(NamedTuple):
    """A network namespace with an address of its own."""

    namespace: str
    address: str

    def start(self, module: str, *arguments: str, **variables: str) -> Program:
        """Start ``python -m module`` on this host, with these environment variables."""
        return Program("-c", ON_A_HOST.format(self.namespace, module), *arguments, **variables)


@contextlib.contextmanager
def network(n: int) -> Iterator[list[Host]]:
    """Inside, there are ``n`` hosts, 10.77.0.1 to 10.77.0.n, on one bridge.

    Afterwards they are gone, with all processes that still run there. Raises CannotMakeHosts.
    """
    _remove_leftovers()
    hosts = [Host(f"{PREFIX}-{os.getpid()}-{i}", f"10.77.0.{i}") for i in range(1, n + 1)]
    bridge = f"{PREFIX}-{os.getpid()}-bridge"
    with contextlib.ExitStack() as stack:
        for namespace in (bridge, *(host.namespace for host in hosts)):
            _ip("netns", "add", namespace)
            stack.callback(_remove, namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for i, host in enumerate(hosts):
            port = f"port{i}"
            _ip("link", "add", "eth0", "netns", host.namespace, "type", "veth", "peer", "name", port, "netns", bridge)
            _ip("-n", bridge, "link", "set", port, "master", "br0", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
        yield hosts


def _ip(*arguments: str) -> str:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotMakeHosts("there is no command ip here: apt-get install iproute2") from None
    if done.returncode:
        raise CannotMakeHosts(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _remove(namespace: str) -> None:
    """End what runs in ``namespace``, and remove it; its end of a cable goes with it."""
    with contextlib.suppress(CannotMakeHosts):
        for process in map(psutil.Process, map(int, _ip("netns", "pids", namespace).split())):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(5)
        _ip("netns", "del", namespace)


def _remove_leftovers() -> None:
    """Remove the hosts of tests that were killed before they could."""
    for path in Path("/run/netns").glob(f"{PREFIX}-*-*"):
        if not psutil.pid_exists(int(path.name.split("-")[2])):
            _remove(path.name)
