"""A process that somebody started is a rank inside joined, and what it was before afterwards."""

from __future__ import annotations

import os
import socket
import threading
import weakref

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit.base import machine
from labkit.base.rendezvous import LOOPBACK_INTERFACE, MeetingError, free_port, own_addresses
from labkit.launch import launch
from labkit.train import rank_start
from labkit.train.rank_start import INTERFACES, VARIABLES, ByHand, RankFacts, joined, local_place


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (*VARIABLES, *INTERFACES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "as before")


def alone() -> ByHand:
    return ByHand(0, 1, port=free_port())


def train(how: ByHand, fail: bool = False) -> tuple[object, weakref.ref]:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    if fail:
        raise KeyError(weakref.ref(model))
    return {name: os.environ.get(name) for name in VARIABLES}, weakref.ref(model)


def listening() -> set[tuple[str, int]]:
    return {tuple(c.laddr) for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}


# --- inside ---------------------------------------------------------------------------------------


def test_inside_the_environment_is_torchruns_and_a_group_is_up_and_afterwards_neither():
    how = alone()
    with joined(how, "gloo") as device:
        assert (dist.get_backend(), device) == ("gloo", torch.device("cpu"))
        environment, _ = train(how)
    values = ["0", "0", "1", "1", "127.0.0.1", str(how.port)]
    assert environment == dict(zip(VARIABLES, values, strict=True))
    assert not dist.is_initialized()
    left = {name: os.environ[name] for name in (*VARIABLES, *INTERFACES) if name in os.environ}
    assert left == {"WORLD_SIZE": "as before"}


ADDRESSES = [each for each in own_addresses() if ":" not in each]  # loopback, and those that other hosts reach


@pytest.mark.parametrize("address", ADDRESSES[:2])
def test_among_hosts_a_rank_listens_at_its_own_address_there_and_at_no_other(address):
    before = listening()
    with joined(how := ByHand(0, 1, address, free_port()), "gloo"):
        opened = listening() - before
    assert (address, how.port) in opened and {each for each, _ in opened} == {address}


def test_what_the_user_has_set_for_gloo_stays(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    with joined(alone(), "gloo"):
        assert [os.environ[name] for name in INTERFACES] == [LOOPBACK_INTERFACE, "eth7"]


@pytest.mark.parametrize("fail", [False, True], ids=["returns", "raises"])
def test_the_group_ends_only_when_the_model_on_it_is_gone_however_the_function_ends(fail, monkeypatch):
    alive, end = [], dist.destroy_process_group
    models = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: (alive.append(models[0]() is not None), end()))
    try:
        with joined(how := alone(), "gloo"):
            try:
                models.append(train(how, fail)[1])
            except KeyError as error:
                models.append(error.args[0])
                raise
    except KeyError:
        assert fail
    assert alive == [False] and not dist.is_initialized()


def test_no_thread_and_no_descriptor_is_left_over():
    with joined(alone(), "gloo"):
        pass  # what torch opens once
    threads, descriptors = threading.active_count(), psutil.Process().num_fds()
    for _ in range(3):
        with joined(alone(), "gloo"):
            pass
    assert threading.active_count() <= threads and psutil.Process().num_fds() <= descriptors


def test_the_timeout_of_each_collective_is_the_one_that_was_given():
    with joined(alone(), "gloo", timeout_s=77.0):
        group = dist.distributed_c10d._get_default_group()
        assert group._get_backend(torch.device("cpu")).options._timeout.seconds == 77


# --- which device ---------------------------------------------------------------------------------


def facts(place: str, n_gpus: int = 0) -> RankFacts:
    return RankFacts(place, n_gpus, "auto")


@pytest.mark.parametrize(
    ("ranks", "places", "backend"),
    [
        ([facts("a")], [(0, 1)], "gloo"),
        ([facts(name) for name in "abacb"], [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)], "gloo"),
        ([facts("a", n_gpus=2)] * 2, [(0, 2), (1, 2)], "nccl"),
        ([facts("a", n_gpus=1)] * 2, [(0, 2), (1, 2)], "gloo"),
        ([facts("a, 0", 1), facts("a, 1", 1)], [(0, 1), (0, 1)], "nccl"),
        ([facts("a", n_gpus=1), facts("b")], [(0, 1), (0, 1)], "gloo"),
        ([facts("a", n_gpus=2)._replace(backend="gloo")] * 2, [(0, 2), (1, 2)], "gloo"),
    ],
    ids=["alone", "three machines", "two GPUs", "one GPU for two", "a mask for each", "one without a GPU", "as told"],
)
def test_ranks_of_a_machine_are_counted_and_nccl_is_taken_where_each_has_a_gpu(ranks, places, backend):
    assert [local_place(ranks, rank) for rank in range(len(ranks))] == places
    assert rank_start._agreed_backend(ranks) == backend


def test_nccl_without_a_gpu_is_refused_before_a_group_is_formed(monkeypatch):
    monkeypatch.setattr(machine, "usable_gpus", lambda: 0)
    with pytest.raises(MeetingError, match="rank 0 has no GPU of its own, as NCCL needs"), joined(alone(), "nccl"):
        pytest.fail("no group can be here")
    assert not dist.is_initialized()


# --- ranks that do not meet -----------------------------------------------------------------------


def complaint(by_hand: ByHand, timeout_s: float) -> str:
    with pytest.raises(MeetingError) as caught, joined(by_hand, "gloo", timeout_s):
        pytest.fail("they met")
    return str(caught.value)


def test_a_rank_that_is_left_alone_says_which_it_is_where_it_was_and_how_long():
    port = free_port()
    message = complaint(ByHand(1, 2, port=port), 0.05)
    assert message.startswith(f"rank 1 of 2 found nobody at 127.0.0.1:{port} within 0.05 s (Connection refused): start")
    message = complaint(ByHand(0, 3, port=port), 0.05)
    assert message.startswith(f"rank 0 of 3 waited 0.05 s at 127.0.0.1:{port}, and not all ranks came: start a process")


def test_a_port_that_somebody_else_has_is_said():
    with socket.create_server(("127.0.0.1", 0)) as other:
        message = complaint(ByHand(0, 2, port=other.getsockname()[1]), 60)
    assert "is rank 0 too, or another run is still using the port: end it, or give" in message


def test_an_address_that_leads_nowhere_is_refused_at_once():
    assert "listen at 198.51.100.7:11868, an address that this mach" in complaint(ByHand(0, 2, "198.51.100.7"), 60)
    assert "this machine has no route to 255.255.255.255 (" in complaint(ByHand(1, 2, "255.255.255.255"), 60)


def test_a_rank_whose_rank_0_ends_while_it_waits_for_the_others_says_so():
    servers = [dist.TCPStore("127.0.0.1", 0, is_master=True)]
    store = dist.TCPStore("127.0.0.1", servers[0].port, is_master=False)
    end = threading.Timer(0.2, servers.clear)
    end.start()
    with pytest.raises(MeetingError, match=r"^rank 0 at 127\.0\.0\.1:1 ended before rank 1 of 3 had met all"):
        rank_start._facts_of_all(store, ByHand(1, 3, port=1), "gloo", 60.0)
    end.join()


# --- a rank that fails ----------------------------------------------------------------------------


def test_a_rank_that_fails_raises_its_own_error_and_one_that_waits_over_gloo_hears_of_it():
    def first_fails():
        try:
            with joined(backend="gloo"):
                if dist.get_rank() == 0:
                    raise KeyError("no such luck")
                dist.barrier()
        except (KeyError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}", dist.is_initialized()

    (own, *group), (other, *other_group) = launch(first_fails, init=False).values
    assert own == "KeyError: 'no such luck'" and other.startswith("RuntimeError: ")
    assert group == other_group == [False]
