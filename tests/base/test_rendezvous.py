"""Ranks of one machine meet where nobody else can reach them."""

import ctypes
import socket
from types import SimpleNamespace
from unittest import mock

import pytest

from labkit.base.rendezvous import is_loopback, without_name_server
from labkit.ranks.rank import Rank
from labkit.train import rank_start

glibc_only = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "__nss_configure_lookup"), reason="only glibc can be told where to look names up"
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "restored afterwards")
        monkeypatch.delenv(name)


def test_this_machines_own_addresses_are_loopback_and_others_are_not():
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "localhost", "::1"]))
    assert not any(map(is_loopback, ["10.0.0.1", "0.0.0.0", "::", "node-7", "example.org"]))


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
    place = SimpleNamespace(rank=1, world_size=2, master_port=4711, cells=False, timeout_s=60.0)
    with socket.socket() as connection:
        Rank(connection, place, listener=-1)._meet()
    assert found == [socket.EAI_NONAME] * 2
