"""Ranks of one machine meet where nobody else can reach them."""

from __future__ import annotations

import ctypes
import socket
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest

from labkit.base.rendezvous import (
    is_loopback,
    resolve,
    without_name_server,
)
from labkit.ranks.rank import Rank
from labkit.train import rank_start

glibc_only = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "__nss_configure_lookup"), reason="only glibc can be told where to look names up"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "restored afterwards")
        monkeypatch.delenv(name)


def listening() -> set[tuple[str, int]]:
    return {tuple(c.laddr) for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}


def test_this_machines_own_addresses_are_loopback_and_others_are_not():
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "localhost", "::1"]))
    assert not any(map(is_loopback, ["10.0.0.1", "0.0.0.0", "::", "node-7", "example.org"]))


# --- no name server -------------------------------------------------------------------------------


def lookup(host: str = "www.example.org") -> str | int:
    try:
        return socket.gethostbyname(host)
    except socket.gaierror as error:
        return error.errno


@glibc_only
def test_without_a_name_server_hosts_are_those_in_the_file():
    before = lookup()
    with without_name_server():
        assert lookup() == socket.EAI_NONAME  # offline, a name server would make it EAI_AGAIN
        assert lookup("localhost") == "127.0.0.1"
    assert lookup() == before


@glibc_only
def test_stores_are_opened_without_a_name_server(monkeypatch):
    found = []
    monkeypatch.setattr("torch.distributed.TCPStore", lambda *_, **__: found.append(lookup()) or mock.Mock())
    with socket.create_server(("127.0.0.1", 0)) as server:
        rank_start._open_store("127.0.0.1", server.getsockname()[1], None, timeout_s=60)
    place = SimpleNamespace(rank=1, world_size=2, master_port=4711)
    with socket.socket() as connection:
        Rank(connection, place, listener=-1)._meet()
    assert found == [socket.EAI_NONAME] * 2


# --- what cannot be -------------------------------------------------------------------------------


def test_a_host_that_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", mock.Mock(side_effect=socket.gaierror))
    with pytest.raises(ValueError, match=r"host is 'no\.such\.host', and this machine knows no address of that name"):
        resolve("no.such.host")
