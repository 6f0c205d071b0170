"""labkit.trace.traffic: a process's own bytes are counted exactly, at once, and nobody else's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time

import pytest
import torch
import torch.distributed as dist

from labkit.launch import launch
from labkit.trace import traffic
from labkit.trace.traffic import Traffic, observe

pytestmark = pytest.mark.skipif(not traffic.available(), reason="needs Linux 4.19 or newer")
MIB = 2**20
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # Linux; Python's socket module does not name them


# --- what cannot work -----------------------------------------------------------------------------


def refuse(*_):
    raise OSError("Protocol not available")


@pytest.mark.parametrize(
    ("what", "has_tcp_info", "descriptors", "getsockopt"),
    [
        ("no TCP_INFO", False, "/", None),
        ("no /proc/nowhere", True, "/proc/nowhere", None),
        ("192 bytes of TCP_INFO where 216 were expected", True, "/", lambda *_: bytes(192)),  # a kernel of 2016
        ("gives 0 bytes of TCP_INFO", True, "/", refuse),
    ],
)
def test_without_the_kernels_counters_the_block_does_not_run_and_the_error_says_what_is_missing(
    what, has_tcp_info, descriptors, getsockopt, monkeypatch
):
    if not has_tcp_info:
        monkeypatch.delattr(socket, "TCP_INFO")
    monkeypatch.setattr(traffic, "_DESCRIPTORS", descriptors)
    monkeypatch.setattr(socket.socket, "getsockopt", getsockopt)
    assert traffic.available() is False
    with pytest.raises(NotImplementedError, match=rf"(?s){what}.*Linux 4\.19.*Run this on such a machine"), observe():
        pytest.fail("the block ran")


def test_what_was_seen_cannot_be_read_before_the_block_is_over():
    with observe() as seen:
        for what in ("sent_bytes", "received_bytes", "connections", "ended"):
            with pytest.raises(RuntimeError, match="once the with block is over"):
                getattr(seen, what)


# --- plain TCP connections ------------------------------------------------------------------------


@contextlib.contextmanager
def tcp_pair(host: str = "127.0.0.1"):
    """Two connected sockets of this process."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
    with client, accepted:
        yield client, accepted


@pytest.fixture
def pair():
    with tcp_pair() as sockets:
        yield sockets


def receive(sock: socket.socket, n_bytes: int) -> None:
    while n_bytes:
        n_bytes -= len(sock.recv(min(n_bytes, MIB)))


def moved(seen: Traffic, sock: socket.socket) -> tuple[int, int]:
    """Bytes sent and received by this one socket; exactly one connection must be its own."""
    [found] = [connection for connection in seen.connections if connection.own == sock.getsockname()[:2]]
    return found.sent_bytes, found.received_bytes


def fill(sock: socket.socket) -> int:
    """Send without waiting until the kernel takes no more; how many bytes it took."""
    taken = 0
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            taken += sock.send(bytes(MIB))
    sock.setblocking(True)
    return taken


@pytest.mark.parametrize("n_bytes", [0, 1, 10 * MIB + 3])
def test_both_ends_count_exactly_the_bytes_that_passed_between_them(pair, n_bytes):
    left, right = pair
    with observe() as seen:
        sender = threading.Thread(target=left.sendall, args=(bytes(n_bytes),))
        sender.start()
        receive(right, n_bytes)
        sender.join()
        right.sendall(b"seven b")
        receive(left, 7)
    assert moved(seen, left) == (n_bytes, 7)
    assert moved(seen, right) == (7, n_bytes)
    assert (seen.sent_bytes, seen.received_bytes) == (n_bytes + 7, n_bytes + 7)


def test_sent_bytes_count_at_once_even_while_they_wait_for_a_receiver_that_does_not_read(pair):
    with observe() as seen:
        taken = fill(pair[0])
    sent, _ = moved(seen, pair[0])
    _, arrived = moved(seen, pair[1])
    assert sent == taken > arrived > 0


def test_what_was_sent_again_because_it_was_lost_counts_once(pair):
    left, right = pair
    with observe() as seen:
        drop_everything(right)
        left.sendall(bytes(5000))
        deadline = time.monotonic() + 10
        while segments_sent_again(left) == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        stop_dropping(right)
        receive(right, 5000)
    assert segments_sent_again(left) > 0
    assert moved(seen, left) == (5000, 0)
    assert moved(seen, right) == (0, 5000)


def drop_everything(sock: socket.socket) -> None:
    """Have the kernel lose what arrives for the socket, by a packet filter that keeps 0 bytes."""
    bpf_ret = 0x06
    program = ctypes.create_string_buffer(struct.pack("HBBI", bpf_ret, 0, 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def stop_dropping(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def segments_sent_again(sock: socket.socket) -> int:
    tcpi_total_retrans = 100
    return struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), tcpi_total_retrans)[0]


def test_the_end_of_a_connection_counts_as_no_byte(pair):
    left, right = pair
    with observe() as while_it_waits:
        taken = fill(left)
        left.shutdown(socket.SHUT_WR)
    assert moved(while_it_waits, left)[0] == taken
    receive(right, taken)
    with tcp_pair() as (near, far):
        with observe() as seen:
            near.sendall(b"last words")
            near.shutdown(socket.SHUT_WR)
            receive(far, 10)
            assert far.recv(1) == b""  # the end has arrived
        assert moved(seen, near) == (10, 0)
        assert moved(seen, far) == (0, 10)


def test_only_what_moved_within_the_block_counts_and_once_for_a_socket_with_two_descriptors(pair):
    left, right = pair
    left.sendall(bytes(100))
    receive(right, 100)
    with left.dup() as again, observe() as outer:
        left.sendall(bytes(20))
        with observe() as inner:
            again.sendall(bytes(3))
        receive(right, 23)
    left.sendall(bytes(4000))
    assert moved(outer, left)[0] == 23 and moved(outer, right)[1] == 23 and moved(inner, left)[0] == 3


def test_a_connection_closed_in_the_block_is_named_and_one_under_its_descriptor_is_new():
    with contextlib.ExitStack() as stack, tcp_pair() as (left, right):
        left.sendall(bytes(1000))
        peers = {right.getsockname(), left.getsockname()}
        descriptors = {left.fileno(), right.fileno()}
        with observe() as seen:
            left.close()
            right.close()
            new = stack.enter_context(tcp_pair())
            new[0].sendall(bytes(5))
            receive(new[1], 5)
        assert descriptors & {new[0].fileno(), new[1].fileno()}
        assert set(seen.ended) == peers
        assert moved(seen, new[0]) == (5, 0) and moved(seen, new[1]) == (0, 5)


def test_ipv6_counts_as_well_and_an_ipv4_peer_has_one_name_whatever_the_socket():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with tcp_pair("::1") as (left, _):
        with observe() as seen:
            left.sendall(bytes(11))
        assert moved(seen, left) == (11, 0)
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        accepted, _ = server.accept()
    with client, accepted:
        with observe() as seen:
            pass
        assert client.getsockname() in [connection.peer for connection in seen.connections]


# --- what is not counted --------------------------------------------------------------------------


def test_udp_unix_and_listening_sockets_files_and_pipes_are_not_counted(tmp_path):
    near, far = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    waiting = socket.create_connection(listening.getsockname())
    udp = socket.socket(type=socket.SOCK_DGRAM)
    udp.connect(("127.0.0.1", 9))
    reading, writing = os.pipe()
    with near, far, listening, waiting, udp, open(tmp_path / "file", "wb") as file:
        with observe() as seen:
            near.sendall(bytes(100))
            os.write(writing, bytes(100))
            file.write(bytes(100))
            with contextlib.suppress(ConnectionRefusedError):
                udp.send(bytes(100))
        addresses = [connection.own for connection in seen.connections]
        assert waiting.getsockname() in addresses  # of all these the one TCP connection
        assert udp.getsockname() not in addresses and listening.getsockname() not in addresses
    os.close(reading)
    os.close(writing)
    assert (seen.sent_bytes, seen.received_bytes) == (0, 0)


def test_the_stores_connection_is_listed_and_not_in_the_totals(pair, monkeypatch):
    store, client = pair
    monkeypatch.setenv("MASTER_PORT", str(store.getsockname()[1]))
    with tcp_pair() as (left, right):
        with observe() as seen:
            client.sendall(bytes(600))
            left.sendall(bytes(8))
            receive(right, 8)
        is_store = {connection.own: connection.store for connection in seen.connections}
        assert is_store[store.getsockname()] and is_store[client.getsockname()]
        assert not is_store[left.getsockname()] and not is_store[right.getsockname()]
    assert moved(seen, client) == (600, 0)
    assert (seen.sent_bytes, seen.received_bytes) == (8, 8)


# --- it leaves no trace ---------------------------------------------------------------------------


def test_no_descriptor_is_left_open_and_a_block_that_raises_was_seen_too(pair):
    before = sorted(os.listdir("/proc/self/fd"))
    socket.setdefaulttimeout(5)
    try:
        for _ in range(5):
            with contextlib.suppress(ZeroDivisionError), observe() as seen:
                pair[0].sendall(bytes(9))
                raise ZeroDivisionError
    finally:
        socket.setdefaulttimeout(None)
    assert sorted(os.listdir("/proc/self/fd")) == before and os.get_blocking(pair[0].fileno())
    assert moved(seen, pair[0]) == (9, 0)


# --- real ranks -----------------------------------------------------------------------------------


class Meeting:
    """The ranks wait for each other by way of the store, so nothing passes between themselves."""

    def __init__(self):
        self.store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
        self.count = 0

    def meet(self) -> None:
        self.count += 1
        if self.store.add(f"meeting {self.count}", 1) == dist.get_world_size():
            self.store.set(f"meeting {self.count} is complete", "")
        self.store.wait([f"meeting {self.count} is complete"])

    def observe(self, collective) -> Traffic:
        """Return what this rank moved for it, without a byte of what came before or after."""
        dist.barrier()  # a stream is in order: once this has arrived, so has all that came before it
        self.meet()
        with observe() as seen:
            self.meet()
            collective()
            self.meet()
        self.meet()
        return seen


def send_to_each_other():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, equal = torch.ones(12_345 + rank), torch.ones(54_321)
    requests = [dist.isend(x, peer) for peer in range(world_size) if peer != rank]
    for peer in range(world_size):
        if peer != rank:
            dist.recv(torch.empty(12_345 + peer), peer)
    for request in requests:
        request.wait()
    dist.all_reduce(equal)
    dist.barrier()  # each rank hears from each other one last, so all that was sent has arrived


COLLECTIVES = {
    4 * MIB: lambda: dist.all_reduce(torch.ones(MIB)),
    2 * MIB: lambda: dist.all_reduce(torch.ones(MIB, dtype=torch.bfloat16)),
    "broadcast": lambda: dist.broadcast(torch.zeros(MIB, dtype=torch.uint8), src=1),
    "each other": send_to_each_other,
}


def observe_each() -> dict[object, Traffic]:
    meeting = Meeting()
    return {name: meeting.observe(collective) for name, collective in COLLECTIVES.items()}


@pytest.fixture(scope="module")
def seen_by_ranks():
    """What each of three ranks saw of each of the collectives."""
    return launch(observe_each, world_size=3, backend="gloo", threads=1).values


def test_an_all_reduce_sends_what_the_ring_formula_says_and_at_most_2_percent_more(seen_by_ranks):
    for n_bytes in (4 * MIB, 2 * MIB):
        ring = 2 * (3 - 1) / 3 * n_bytes
        for seen in seen_by_ranks:
            assert ring <= seen[n_bytes].sent_bytes <= 1.02 * ring
            assert ring <= seen[n_bytes].received_bytes <= 1.02 * ring


def test_a_broadcast_is_sent_by_its_source_and_received_by_the_others(seen_by_ranks):
    first, source, last = (seen["broadcast"] for seen in seen_by_ranks)
    assert source.sent_bytes >= MIB and source.received_bytes < 0.02 * MIB
    assert all(MIB <= seen.received_bytes <= 1.02 * MIB for seen in (first, last))
    assert sum(seen.sent_bytes for seen in (first, source, last)) <= 1.02 * MIB * 2


def test_what_the_ranks_send_is_what_the_ranks_receive_connection_by_connection(seen_by_ranks):
    seen = [each["each other"] for each in seen_by_ranks]
    assert sum(one.sent_bytes for one in seen) == sum(one.received_bytes for one in seen) > 0
    ends = {(c.own, c.peer): c for one in seen for c in one.connections if not c.store}
    assert len(ends) == len(seen) * (len(seen) - 1)
    for (own, peer), connection in ends.items():
        assert connection.sent_bytes == ends[peer, own].received_bytes >= 12_345 * 4
