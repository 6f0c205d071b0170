"""Ranks of one machine meet where nobody else can reach them."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest

from labkit.base.rendezvous import (
    LOOPBACK_INTERFACE,
    MeetingError,
    is_loopback,
    loopback_store,
    resolve,
    without_name_server,
)
from labkit.ranks.rank import Rank

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


def test_two_ranks_meet_and_wait_for_each_other():
    port, stores = free_port(), {}

    def join(rank: int) -> None:
        stores[rank] = loopback_store(rank, 2, "127.0.0.1", port, timeout_s=20)

    first = threading.Thread(target=join, args=(1,))
    first.start()
    first.join(0.3)
    assert first.is_alive()  # waits for rank 0
    join(0)
    first.join(20)
    stores[0].set("answer", "42")
    assert stores[1].get("answer") == b"42"


def test_a_socket_that_listens_already_is_taken_over():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        store = loopback_store(0, 1, "127.0.0.1", port, listen_fd=os.dup(server.fileno()))
    store.set("there", "yes")
    assert store.get("there") == b"yes"


def test_port_and_descriptor_are_free_again_after_the_store():
    port = free_port()
    loopback_store(0, 1, "127.0.0.1", port)
    before = psutil.Process().num_fds()
    for _ in range(5):
        loopback_store(0, 1, "127.0.0.1", port)
    assert psutil.Process().num_fds() <= before


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
@pytest.mark.parametrize(("host", "asks"), [("127.0.0.1", False), ("10.1.2.3", True)])
def test_a_store_on_this_machine_asks_no_name_server(host, asks, monkeypatch):
    usual = lookup()
    monkeypatch.setattr("torch.distributed.TCPStore", lambda *_, **__: lookup())
    assert loopback_store(1, 2, host, 4711) == (usual if asks else socket.EAI_NONAME)
    place = SimpleNamespace(rank=1, world_size=2, master_port=4711)
    with socket.socket() as connection:
        assert Rank(connection, place, listener=-1)._meet() == socket.EAI_NONAME


# --- what cannot be -------------------------------------------------------------------------------


def test_a_store_on_loopback_listens_there_only_and_what_the_user_has_set_for_gloo_stays(monkeypatch):
    port, before = free_port(), listening()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    store = loopback_store(0, 1, "127.0.0.1", port)
    assert listening() - before == {("127.0.0.1", port)}
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth7", LOOPBACK_INTERFACE)
    with pytest.raises(MeetingError, match="is rank 0 too, or another run is still using the port: end it, or give"):
        loopback_store(0, 1, "127.0.0.1", port)
    del store


def test_a_rank_outside_the_world_is_refused_before_anything_is_opened(monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("opened"))
    with pytest.raises(ValueError, match="rank is -1, expected 0 to 1"):
        loopback_store(-1, 2, "127.0.0.1", 4711)


def test_a_host_that_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", mock.Mock(side_effect=socket.gaierror))
    with pytest.raises(ValueError, match=r"host is 'no\.such\.host', and this machine knows no address of that name"):
        resolve("no.such.host")
