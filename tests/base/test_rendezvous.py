"""Ranks of one machine meet where nobody else can reach them."""

import ctypes
import socket
from pathlib import Path
from unittest import mock

import pytest

from labkit import dp
from labkit.base import rendezvous
from labkit.base.rendezvous import (
    MeetingError,
    check_free,
    free_port,
    is_loopback,
    own_port,
    taken,
    without_name_server,
)
from labkit.ranks.processes.plan import decide
from labkit.ranks.processes.rank import Rank
from labkit.train import rank_start
from labkit.train.command import StartFlags

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
        rank_start._meet(rank_start.ByHand(1, 2, port=server.getsockname()[1]), 60.0)
    with socket.socket() as connection:
        Rank(connection, decide(2, "gloo"), rank=1, listener=-1, stacks=-1)._meet(4711)
    assert found == [socket.EAI_NONAME] * 2


# --- ports ----------------------------------------------------------------------------------------

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: {address}:{port:04X} {peer} {state} 00000000:00000000 00:00000000 00000000 {uid}        0 123 1 0 100 0 0 10 0\n"


def table(tmp_path, *rows):
    """Files as Linux has them: a row is (address, state, uid), all of port 11868."""
    for name, length in (("tcp", 8), ("tcp6", 32)):
        lines = [
            ROW.format(address=address, port=11868, peer=f"{'0' * length}:0000", state=state, uid=uid)
            for address, state, uid in rows
            if len(address) == length
        ]
        (tmp_path / name).write_text(HEAD + "".join(lines))
    return tmp_path / "tcp", tmp_path / "tcp6", tmp_path / "not there"


@pytest.mark.parametrize(
    ("rows", "users"),
    [
        ([("0100007F", "0A", 0)], "the user root"),
        ([("0" * 32, "0A", 987_654)], "the user with the number 987654"),
        ([("0100007F", "0A", 0), ("0" * 32, "0A", 987_654)], "the user root and the user with the number 987654"),
        ([("0100007F", "01", 0)], ""),  # a connection, nobody who listens
    ],
)
def test_a_port_that_is_taken_has_an_owner(rows, users, tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 1000)
    found = taken(11868, table(tmp_path, *rows))
    assert found == (f"A process of {users} listens at that port. " if users else "")
    assert taken(11869, table(tmp_path, *rows)) == ""


def test_rank_0_is_told_who_has_its_port_in_place_of_torchs_own_error():
    with socket.create_server(("", 0)) as server:  # on all interfaces, as torch's store
        port = server.getsockname()[1]
        with pytest.raises(SystemExit, match=rf"127.0.0.1:{port} .*A process of your own listens .*--master-port"):
            dp.main(["-nr", "0", "--master-port", str(port)])
    check_free(port)


def test_two_users_of_a_machine_meet_at_different_ports_and_machines_at_the_usual_one(monkeypatch):
    ports = {}
    for uid in (1000, 1001, 21_000, 4_294_967_294):
        monkeypatch.setattr("os.getuid", lambda uid=uid: uid)
        ports[uid] = own_port()
        assert StartFlags(local_rank=1).by_hand(2).port == ports[uid]
    assert ports == {1000: 21_000, 1001: 21_001, 21_000: 21_000, 4_294_967_294: 27_294}
    assert StartFlags(local_rank=1, master_ip="10.10.1.1").by_hand(2).port == 11868
    assert StartFlags(local_rank=1, master_port=4711).by_hand(2).port == 4711


def test_a_free_port_is_none_that_the_machine_hands_out_itself_and_none_that_is_taken():
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = {free_port() for _ in range(20)}
    assert len(found) > 10 and max(found) < handed_out
    first, second = list(found)[:2]
    with mock.patch.object(rendezvous, "_OWN_CHOICE", [first, second]), socket.create_server(("", first)):
        assert {free_port() for _ in range(5)} == {second}
        with socket.create_server(("", second)), pytest.raises(MeetingError, match="none of the ports"):
            free_port()
