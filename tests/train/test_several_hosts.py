"""Ranks on four hosts with addresses of their own find each other at rank 0's, or say what is
wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hosts import Host

pytestmark = pytest.mark.slow
PORT = 11868
RANK = """
import json, os, sys
import psutil, torch, torch.distributed as dist
from labkit.base.rendezvous import MeetingError
from labkit.train.rank_start import ByHand, joined

print("ready", flush=True)
rank, world_size, host, port, wait_s = json.loads(input())
try:
    with joined(ByHand(rank, world_size, host, port), "gloo", wait_s):
        total = torch.tensor([10.0**rank])
        dist.all_reduce(total)
        connections = psutil.Process().net_connections("inet")
        listens = sorted({each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN})
        print(json.dumps([total.item(), os.environ["GLOO_SOCKET_IFNAME"], listens]))
except MeetingError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def start():
    """start(host, rank, world_size, master_ip, wait_s): a process there that is about to meet the
    others. What it says last is its result."""
    processes = []

    def ready(host: Host, *told: object) -> subprocess.Popen:
        process = host.start([sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append((process, told))
        return process

    def results(*asked: tuple) -> list:
        for each in asked:
            ready(*each)
        for process, _ in processes:
            assert process.stdout.readline() == "ready\n"
        for process, (rank, world_size, host, wait_s) in processes:
            process.stdin.write(json.dumps([rank, world_size, host, PORT, wait_s]) + "\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=120)[0]) for process, _ in processes]

    yield results
    for process, _ in processes:
        process.kill()
        process.communicate()


def test_four_hosts_add_up_a_number_each_and_listen_at_their_own_addresses_only(four_hosts, start):
    master = four_hosts[2]  # rank 0's; to all others it is another host's
    ranks = [0 if host is master else rank for host, rank in zip(four_hosts, (1, 2, None, 3), strict=True)]
    results = start(*((host, rank, 4, master.address, 60) for host, rank in zip(four_hosts, ranks, strict=True)))
    assert results == [[1111.0, "eth0", [host.address]] for host in four_hosts]


def test_where_a_host_never_comes_rank_0_says_which_and_the_others_that_it_has_ended(four_hosts, start):
    address = four_hosts[0].address
    first, *others = start(*((four_hosts[rank], rank, 4, address, 60 if rank else 6) for rank in (0, 1, 3)))
    assert first.startswith(f"3 of 4 ranks were at {address}:{PORT} within 6 s, without rank 2: start a process")
    assert others == [f"rank 0 at {address}:{PORT} ended before all ranks were there: its terminal says why"] * 2


def test_rank_0_says_that_a_master_ip_is_not_its_own_and_which_it_has(four_hosts, start):
    (told,) = start((four_hosts[1], 0, 4, "10.77.0.1", 60))
    assert "cannot listen at 10.77.0.1, which is 10.77.0.1 here: give all ranks (--master-ip) an address of" in told
    assert "this one has 10.77.0.2 (eth0)" in told


@pytest.mark.parametrize("address", ["10.77.0.3", "10.77.0.99", "192.168.77.1"], ids=["up", "nobody's", "no route"])
def test_a_rank_with_a_wrong_master_ip_says_where_it_looked_for_rank_0(address, four_hosts, start):
    (told,) = start((four_hosts[1], 1, 4, address, 0.5))
    assert told.startswith(f"rank 1 found nobody at {address}:{PORT} within 0.5 s (")
