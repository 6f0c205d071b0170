"""Ranks of one machine meet where nobody else can reach them."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from types import SimpleNamespace

import psutil
import pytest

from labkit.base.network import LOOPBACK_INTERFACE, is_loopback
from labkit.base.rendezvous import loopback_store, without_name_server
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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_this_machines_own_addresses_are_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "node-7", "example.org"])
def test_other_addresses_are_not(host):
    assert not is_loopback(host)


def test_the_store_listens_on_the_loopback_interface_only():
    port = free_port()
    before = listening()
    store = loopback_store(0, 1, "127.0.0.1", port)
    assert listening() - before == {("127.0.0.1", port)}
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == LOOPBACK_INTERFACE
    del store


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
    assert loopback_store(0, 1, "127.0.0.1", free_port()) is not store
    store.set("there", "yes")
    assert store.get("there") == b"yes"


def test_port_and_descriptor_are_free_again_after_the_store():
    port = free_port()
    loopback_store(0, 1, "127.0.0.1", port)
    before = psutil.Process().num_fds()
    for _ in range(5):
        loopback_store(0, 1, "127.0.0.1", port)
    assert psutil.Process().num_fds() <= before


def test_what_the_user_has_set_for_gloo_stays(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    loopback_store(0, 1, "127.0.0.1", free_port())
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


def test_a_taken_port_is_an_error_that_says_what_to_do():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(
            OSError, match="another run is still using the port: end it, or give all ranks another master_port"
        ),
    ):
        loopback_store(0, 1, "127.0.0.1", server.getsockname()[1])


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused_before_anything_waits(rank):
    with pytest.raises(ValueError, match=f"rank is {rank}, expected 0 to 1"):
        loopback_store(rank, 2, "127.0.0.1", free_port())


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


@glibc_only
def test_a_rank_asks_no_name_server(monkeypatch):
    monkeypatch.setattr("torch.distributed.TCPStore", lambda *_, **__: lookup())
    place = SimpleNamespace(rank=1, world_size=2, master_port=4711)
    assert Rank(None, place, listener=-1)._meet() == socket.EAI_NONAME
