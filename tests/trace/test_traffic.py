"""labkit.trace.traffic: the bytes that a process sends are counted exactly, at once, and nobody
else's."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
import torch
import torch.distributed as dist

from labkit.launch import launch
from labkit.trace import traffic
from labkit.trace.traffic import observe

pytestmark = pytest.mark.skipif(not traffic.available(), reason="needs Linux 4.19 or newer")
MIB = 2**20


@pytest.mark.parametrize("missing", ["TCP_INFO", "of it: a kernel of 2016 gives 192 bytes"])
def test_without_the_kernels_counters_the_block_does_not_run_and_the_error_says_what_to_do(missing, monkeypatch):
    if missing == "TCP_INFO":
        monkeypatch.delattr(socket, "TCP_INFO")
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: bytes(192))
    assert traffic.available() is False
    with pytest.raises(NotImplementedError, match=r"Linux 4\.19.*Run this on such a machine"), observe():
        pytest.fail("the block ran")


@contextlib.contextmanager
def tcp_pair(host: str = "127.0.0.1"):
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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("n_bytes", [0, 1, 10 * MIB + 3])
def test_exactly_the_bytes_that_passed_either_way_count(host, n_bytes):
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with tcp_pair(host) as (left, right), observe() as seen:
        sender = threading.Thread(target=left.sendall, args=(bytes(n_bytes),))
        sender.start()
        receive(right, n_bytes)
        sender.join()
        right.sendall(b"seven b")
    assert seen.sent_bytes == n_bytes + 7


def test_only_what_was_sent_within_the_block_counts_and_once_for_a_socket_with_two_descriptors(pair):
    left, right = pair
    left.sendall(bytes(100))
    with left.dup() as again, observe() as outer:
        left.sendall(bytes(20))
        with observe() as inner:
            again.sendall(bytes(3))
        with tcp_pair() as (new, _), observe():
            new.sendall(bytes(4000))
    left.sendall(bytes(5))
    receive(right, 128)
    assert (outer.sent_bytes, inner.sent_bytes) == (23, 3)


def sent_in_each() -> list[int]:
    """In a rank: the bytes that it sends in two all_reduces, and in a broadcast from rank 1."""
    calls = [
        lambda: dist.all_reduce(torch.ones(MIB)),
        lambda: dist.all_reduce(torch.ones(MIB, dtype=torch.bfloat16)),
        lambda: dist.broadcast(torch.zeros(MIB, dtype=torch.uint8), src=1),
    ]
    sent = []
    for call in calls:
        dist.barrier()
        with observe() as seen:
            call()
        sent.append(seen.sent_bytes)
    return sent


def test_ranks_send_what_the_formulas_of_their_collectives_say_and_at_most_2_percent_more():
    first, source, last = launch(sent_in_each, world_size=3, backend="gloo", threads=1).values
    for sent in (first, source, last):
        for n_bytes, sent_bytes in zip((4 * MIB, 2 * MIB), sent[:2], strict=True):
            ring = 2 * (3 - 1) / 3 * n_bytes
            assert ring <= sent_bytes <= 1.02 * ring
    assert source[2] >= MIB  # along a tree each of the others gets it once, from whoever has it
    assert 2 * MIB <= first[2] + source[2] + last[2] <= 1.02 * 2 * MIB
