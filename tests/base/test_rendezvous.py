"""Ranks meet, those of one machine where nobody else can reach them, and say who is missing."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import threading
import time
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
from torch.distributed import HashStore, TCPStore

from labkit.base import rendezvous
from labkit.base.rendezvous import (
    LOOPBACK_INTERFACE,
    MeetingError,
    is_loopback,
    meet,
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
    rendezvous._store("127.0.0.1", 4711, None, deadline=time.monotonic() + 60)
    place = SimpleNamespace(rank=1, world_size=2, master_port=4711)
    with socket.socket() as connection:
        Rank(connection, place, listener=-1)._meet()
    assert found == [socket.EAI_NONAME] * 2


# --- ranks that somebody starts by hand -----------------------------------------------------------


class Clock:
    """Stands in for the module time: it goes on when a test says so."""

    now_s = 0.0

    def __init__(self):
        self.slept = set()  # the threads that have looked who is missing, and wait

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.add(threading.current_thread())
        time.sleep(0.002)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(rendezvous, "time", clock := Clock())
    return clock


@pytest.fixture
def signed(monkeypatch):
    """A semaphore that each rank releases once the others can see that it is here."""
    semaphore, sign = threading.Semaphore(0), rendezvous._sign

    def told(*arguments):
        wrong = sign(*arguments)
        semaphore.release()
        return wrong

    monkeypatch.setattr(rendezvous, "_sign", told)
    return semaphore


class Meeting:
    """Ranks in threads, at a port of their own; ``results`` has a store or an error for each, in
    the order in which they were started."""

    def __init__(self):
        self.port, self.threads, self.results = free_port(), [], []

    def start(self, rank: int, world_size: int, timeout_s: float = 60.0) -> None:
        number = len(self.threads)
        self.results.append(None)

        def be_rank():
            try:
                self.results[number] = meet(rank, world_size, "127.0.0.1", self.port, timeout_s)
            except MeetingError as error:
                self.results[number] = error

        self.threads.append(threading.Thread(target=be_rank, daemon=True))
        self.threads[-1].start()

    def end(self) -> list[object]:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.results


@pytest.fixture
def meeting():
    return Meeting()


def test_ranks_that_come_in_any_order_share_a_store_once_the_last_one_has_come(meeting, signed):
    for rank in (2, 0, 3):
        meeting.start(rank, 4)
    for _ in range(3):
        assert signed.acquire(timeout=30)
    assert meeting.results == [None] * 3  # they wait for rank 1
    meeting.start(1, 4)
    stores = meeting.end()
    stores[0].set("answer", "42")
    assert [store.get("answer") for store in stores] == [b"42"] * 4


def test_a_store_on_loopback_listens_there_only_and_what_the_user_has_set_for_gloo_stays(monkeypatch):
    port, before = free_port(), listening()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    store = meet(0, 1, "127.0.0.1", port)
    assert listening() - before == {("127.0.0.1", port)}
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth7", LOOPBACK_INTERFACE)
    with pytest.raises(MeetingError, match="is rank 0 too, or another run is still using the port: end it, or give"):
        meet(0, 1, "127.0.0.1", port)
    del store


def test_port_and_descriptor_are_free_again_after_the_store():
    port = free_port()
    meet(0, 1, "127.0.0.1", port)
    before = psutil.Process().num_fds()
    for _ in range(5):
        meet(0, 1, "127.0.0.1", port)
    assert psutil.Process().num_fds() <= before


def test_all_that_are_there_say_who_did_not_come(meeting, signed, clock):
    for rank in (0, 3):
        meeting.start(rank, 4)
        assert signed.acquire(timeout=30)
    assert meeting.results == [None, None]
    clock.slept.clear()
    while len(clock.slept) < 2:  # what a rank saw before the other one came, it has forgotten
        time.sleep(0.002)
    clock.now_s = 61
    told = {str(error) for error in meeting.end()}
    assert len(told) == 1 and told.pop().startswith("ranks 1 and 2 of 4 did not come within 60 s. Start one process")


def test_all_say_so_where_two_have_the_same_rank_and_nobody_waits(meeting):
    for rank in (0, 1, 1):
        meeting.start(rank, 3)
    told = {str(error) for error in meeting.end()}
    assert len(told) == 1 and told.pop().startswith("two processes have rank 1 of 3: process ")


def test_one_that_comes_after_all_were_there_is_sent_away_and_the_others_go_on(meeting):
    for rank in (0, 1):
        meeting.start(rank, 2)
    stores = meeting.end()[:2]
    meeting.start(1, 2)
    assert "two processes have rank 1 of 2" in str(meeting.end()[2])
    stores[1].set("still", "there")
    assert stores[0].get("still") == b"there"


def test_ranks_that_were_told_different_world_sizes_say_so(meeting, signed):
    meeting.start(0, 2)
    assert signed.acquire(timeout=30)
    meeting.start(1, 3)
    for error in meeting.end():
        assert re.match("the ranks were told different world sizes: process .* has 3, and an earlier one 2", str(error))


def test_a_rank_without_a_rank_0_says_what_it_tried(meeting):
    meeting.start(1, 2, timeout_s=0.05)
    (error,) = meeting.end()
    said = rf"rank 1 found no rank 0 at 127\.0\.0\.1:{meeting.port} within 0\.05 s \(.+\)\. Is rank 0 running"
    assert re.match(said, str(error))


def test_another_program_at_the_port_is_not_taken_for_rank_0(meeting):
    with socket.create_server(("127.0.0.1", meeting.port)):
        meeting.start(1, 2, timeout_s=0.5)
        (error,) = meeting.end()
    assert f"what answers at 127.0.0.1:{meeting.port} is not rank 0" in str(error)


def test_a_rank_0_that_ends_too_early_keeps_nobody_waiting(meeting):
    with socket.create_server(("127.0.0.1", meeting.port)) as server:
        store = TCPStore("127.0.0.1", meeting.port, is_master=True, master_listen_fd=os.dup(server.fileno()))
    meeting.start(1, 2)
    store.wait(["rank/1"])
    del store
    assert f"rank 0 at 127.0.0.1:{meeting.port} ended before all ranks were there" in str(meeting.end()[0])


def test_rank_0_keeps_the_store_open_until_the_others_know_why_they_did_not_meet(clock):
    store, returned = HashStore(), []
    store.add("arrived", 1)  # another rank, that finds a mistake
    store.set("verdict", "two processes have rank 1")

    def call_roll():
        returned.append(rendezvous._call_roll(store, 0, 2, timeout_s=60, deadline=60))

    (roll := threading.Thread(target=call_roll, daemon=True)).start()
    while store.add("informed", 0) < 1:  # rank 0 knows
        time.sleep(0.002)
    roll.join(0.3)
    assert roll.is_alive()
    store.add("informed", 1)
    roll.join(30)
    assert returned == ["two processes have rank 1"]


REFUSED = [
    ((-1, 2, "127.0.0.1", 4711), "rank is -1, expected 0 to 1"),
    ((2, 2, "127.0.0.1", 4711), "rank is 2, expected 0 to 1 because world_size is 2"),
    ((0, 2, "127.0.0.1", 70000), "port is 70000, expected 1 to 65535"),
    ((0, 2, "no.such.host", 4711), "host is 'no.such.host', and this machine knows no address of that name"),
]


@pytest.mark.parametrize(("arguments", "complaint"), REFUSED)
def test_what_cannot_be_met_at_is_refused_before_anything_is_opened(arguments, complaint, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", mock.Mock(side_effect=socket.gaierror))
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("opened"))
    with pytest.raises(ValueError, match=complaint):
        meet(*arguments)


def test_rank_0_is_where_the_others_look_for_it(monkeypatch):
    with pytest.raises(MeetingError, match=r"at 198\.51\.100\.7: that address is another machine's\. This one has"):
        meet(0, 2, "198.51.100.7", free_port())
    monkeypatch.setattr(rendezvous, "resolve", lambda host: "127.0.1.1")
    with pytest.raises(MeetingError, match=r"at node-0: to this machine that is 127\.0\.1\.1, where no other"):
        meet(0, 2, "node-0", free_port())


def test_an_interrupt_leaves_no_thread_behind_that_would_abort_the_end_of_python() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and never answers
        before = set(threading.enumerate())
        interrupt = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            meet(1, 2, "127.0.0.1", listener.getsockname()[1], timeout_s=60)
        interrupt.join()
        assert set(threading.enumerate()) <= before
