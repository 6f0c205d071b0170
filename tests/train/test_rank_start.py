"""A process that somebody started is a rank inside joined, and what it was before afterwards; a
rank that fails ends the others."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import weakref

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from train_commands import free_port

from labkit.base import machine
from labkit.base.consequence import as_consequence
from labkit.base.rendezvous import LOOPBACK_INTERFACE, MeetingError, own_addresses
from labkit.launch import launch
from labkit.train import failure_watch, rank_start
from labkit.train.rank_start import INTERFACES, VARIABLES, ByHand, Place, RankFacts, joined, place


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


def facts(name: str, mask: str = "all", n_gpus: int = 0) -> RankFacts:
    return RankFacts(name, mask, n_gpus, "auto")


@pytest.mark.parametrize(
    ("ranks", "places"),
    [
        ([facts("a")], [Place(0, 1, None)]),
        ([facts(name) for name in "abacb"], [Place(*each, None) for each in [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]]),
        ([facts("a", n_gpus=2)] * 2, [Place(0, 2, 0), Place(1, 2, 1)]),
        ([facts("a", n_gpus=1)] * 2, [Place(0, 2, None), Place(1, 2, None)]),
        ([facts("a", "0", 1), facts("a", "1", 1)], [Place(0, 2, 0), Place(1, 2, 0)]),
        ([facts("a", n_gpus=1), facts("b")], [Place(0, 1, 0), Place(0, 1, None)]),
    ],
    ids=["alone", "three machines", "two GPUs", "one GPU for two", "a mask for each", "one without a GPU"],
)
def test_a_place_counts_the_ranks_of_a_machine_and_a_gpu_is_a_ranks_own(ranks, places):
    assert [place(ranks, rank) for rank in range(len(ranks))] == places


@pytest.mark.parametrize(
    ("backend", "gpus", "agreed"), [("auto", [0, 1], "nccl"), ("auto", [0, None], "gloo"), ("gloo", [0, 1], "gloo")]
)
def test_nccl_is_taken_where_every_rank_has_a_gpu_and_nobody_says_otherwise(backend, gpus, agreed):
    assert rank_start._agreed_backend(backend, gpus) == agreed


def test_nccl_without_a_gpu_is_refused_before_a_group_is_formed(monkeypatch):
    monkeypatch.setattr(machine, "usable_gpus", lambda: 0)
    with pytest.raises(MeetingError, match="rank 0 has no GPU of its own, as NCCL needs"), joined(alone(), "nccl"):
        pytest.fail("no group can be here")
    assert not dist.is_initialized()


def test_what_slurm_does_not_say_of_ranks_and_machines_they_tell_each_other():
    def places():
        for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
        with joined(backend="gloo"):
            return os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]

    assert launch(places, init=False).values == [("0", "2"), ("1", "2")]


# --- ranks that do not meet -----------------------------------------------------------------------


def complaint(by_hand: ByHand, timeout_s: float) -> str:
    with pytest.raises(MeetingError) as caught, joined(by_hand, "gloo", timeout_s):
        pytest.fail("they met")
    return str(caught.value)


def test_a_rank_that_is_left_alone_says_where_it_looked_and_who_was_there():
    port = free_port()
    told = complaint(ByHand(1, 2, port=port), 0.05)
    assert told.startswith(f"rank 1 found nobody at 127.0.0.1:{port} within 0.05 s (")
    told = complaint(ByHand(0, 3, port=port), 0.05)
    assert told.startswith(f"1 of 3 ranks were at 127.0.0.1:{port} within 0.05 s, without rank 1 and 2: start a")


def test_a_port_that_somebody_else_has_is_said(capfd):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        told = [complaint(ByHand(0, 2, port=port), 60), complaint(ByHand(1, 2, port=port), 0.5)]
    assert "is rank 0 too, or another run is still using the port: end it, or give" in told[0]
    assert "is not rank 0. A process of your own listens at that port. Another program may have this port" in told[1]
    assert capfd.readouterr().err == ""  # nor does torch print its C++ stacks


def test_rank_0_is_where_the_others_look_for_it(monkeypatch):
    assert "at 198.51.100.7, which is 198.51.100.7 here: give all" in complaint(ByHand(0, 2, "198.51.100.7"), 60)
    monkeypatch.setattr(rank_start, "resolve", lambda host: "127.0.1.1")
    assert "at node-0, which is 127.0.1.1 here: give all ranks" in complaint(ByHand(0, 2, "node-0"), 60)


def test_an_interrupt_leaves_no_thread_behind_that_would_abort_the_end_of_python():
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and never answers
        before = set(threading.enumerate())
        interrupt = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt), joined(ByHand(1, 2, port=listener.getsockname()[1]), "gloo", 60):
            pytest.fail("they met")
        interrupt.join()
        assert set(threading.enumerate()) <= before


def test_two_with_the_same_rank_are_told_so():
    port = free_port()

    def meet():
        number = int(os.environ["RANK"])
        try:
            with joined(ByHand(min(number, 1), 3, port=port), "gloo", timeout_s=4):
                return "met"
        except MeetingError as error:
            return str(error)

    told = launch(meet, world_size=3, init=False, timeout_s=60).values
    assert sum(f"another process at 127.0.0.1:{port} is rank 1 of 3, too" in each for each in told) == 1
    assert "2 of 3 ranks were at" in told[0] and "without rank 2" in told[0]


# --- a rank that fails ----------------------------------------------------------------------------


def test_a_rank_that_waits_over_gloo_for_one_that_fails_says_which_it_was_and_why():
    def first_fails():
        try:
            with joined(backend="gloo"):
                if dist.get_rank() == 0:
                    raise KeyError("no such luck")
                dist.barrier()
        except (KeyError, MeetingError) as error:
            return f"{type(error).__name__}: {error}"

    own, told = launch(first_fails, init=False).values
    assert own == "KeyError: 'no such luck'"
    assert told == (
        "MeetingError: rank 0 failed: KeyError: 'no such luck', while this one waited for it: its terminal says why"
    )


def test_ranks_are_told_of_the_cause_of_a_failure_and_not_of_what_followed_from_it():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    lines = [socket.create_connection(("127.0.0.1", store.port)) for _ in range(2)]
    watches = [failure_watch.FailureWatch(store, rank, 2, line) for rank, line in enumerate(lines)]
    watches[1].tell(as_consequence(RuntimeError("rank 0 could not read")))
    assert watches[0].failure() == ""
    watches[0].tell(KeyError("no such luck"))
    assert watches[1].failure() == "rank 0 failed: KeyError: 'no such luck'"
    for watch in watches:
        watch._line.close()


@pytest.fixture
def two_processes(tmp_path):
    """two_processes(run, ...): run(rank, port, ...) in two forks of this process, which has
    imported torch. Gives each one's exit status and what it printed."""
    if sys.platform != "linux":
        pytest.skip("macOS's own libraries do not survive a fork")

    def forked(rank: int, run, *arguments):
        output = os.open(tmp_path / str(rank), os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
        run(rank, *arguments)

    def both(run, *arguments):
        gc.collect()  # a store that is forked would end the fork
        context, port = multiprocessing.get_context("fork"), free_port()
        ranks = [context.Process(target=forked, args=(rank, run, port, *arguments)) for rank in (0, 1)]
        try:
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(60)
            return [(rank.exitcode, (tmp_path / str(each)).read_text()) for each, rank in enumerate(ranks)]
        finally:
            for rank in ranks:
                rank.kill()

    return both


def hang_where_one_fails(rank, port, fails, killed=False):
    failure_watch.END_S = 0.5
    dist.destroy_process_group = lambda: time.sleep(1000)  # as on NCCL, behind a kernel that never ends
    with joined(ByHand(rank, 2, port=port), "gloo"):
        store = dist.distributed_c10d._get_default_store()
        if rank == fails:
            store.wait(["the other one is in the group"])
        if rank == fails and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == fails:
            raise KeyError("no such luck")
        store.set("the other one is in the group", "")
        time.sleep(1000)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_rank_fails_with_its_own_error_and_ends_the_others_although_no_group_ever_ends(fails, two_processes):
    ranks = two_processes(hang_where_one_fails, fails)
    assert [status for status, _ in ranks] == [1, 1]
    own, other = ranks[fails][1], ranks[1 - fails][1]
    assert own.startswith("Traceback") and own.endswith("KeyError: 'no such luck'\n")
    assert other.startswith(f"rank {1 - fails} was ended, as rank {fails} failed: KeyError: 'no such luck'")


def test_a_rank_that_waits_for_nobody_ends_too_once_rank_0_is_killed(two_processes):
    (killed, _), (status, printed) = two_processes(hang_where_one_fails, 0, True)
    assert (killed, status) == (-signal.SIGKILL, 1)
    assert printed.splitlines()[-1].startswith("rank 1 was ended, as rank 0 is gone.")


def reduce_until_one_is_killed(rank, port):
    with joined(ByHand(rank, 2, port=port), "gloo"):
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()


def test_a_rank_whose_partner_is_killed_says_so_and_ends(two_processes):
    (status, printed), (killed, _) = two_processes(reduce_until_one_is_killed)
    assert (status, killed) == (1, -signal.SIGKILL)
    assert "rank 1 ended, while this one waited for it" in printed


def end_one_after_the_other(rank, port):
    with joined(ByHand(rank, 2, port=port), "gloo"):
        time.sleep(rank / 2)


def test_a_rank_that_is_through_before_the_others_keeps_the_store_for_them(two_processes):
    assert two_processes(end_one_after_the_other) == [(0, ""), (0, "")]


def test_rank_0_keeps_the_store_for_the_living_alone(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    watch = failure_watch.FailureWatch(store, 0, 2, socket.create_connection(("127.0.0.1", store.port)))
    monkeypatch.setattr(failure_watch.time, "sleep", lambda _: store.add("alive 0", 1))
    assert watch.gone() == [1]
    slept = []
    monkeypatch.setattr(failure_watch.time, "sleep", slept.append)
    watch.stop()
    assert slept == []


def test_the_others_end_and_the_error_appears_within_ten_seconds():
    look = failure_watch.POLL_S + failure_watch.SILENT_S  # until it is known which rank is gone
    assert look + failure_watch.POLL_S + failure_watch.END_S < 10  # by the rank that looks, and by those it tells


def test_a_rank_that_fails_after_it_was_told_of_another_gets_no_more_time_than_it_had_left(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    monkeypatch.setattr(failure_watch, "leave", lambda *_: None)  # however slow this test is
    watch = failure_watch.FailureWatch(store, 0, 2, socket.create_connection(("127.0.0.1", store.port)))
    store.set("failure", "rank 1 ended")
    while watch.left_s() == math.inf:  # until its thread has read that, and waits for this rank to end
        time.sleep(0.01)
    now = watch._until - 1.0
    monkeypatch.setattr(failure_watch.time, "monotonic", lambda: now)
    watch.tell(RuntimeError("Connection closed by peer"))
    assert watch.left_s() == 1.0
    monkeypatch.setattr(failure_watch.time, "monotonic", lambda: now + 2.0)
    monkeypatch.setattr(failure_watch.time, "sleep", lambda _: pytest.fail("it waits for readers"))
    watch.stop()
