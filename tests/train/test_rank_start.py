"""A process that somebody started is a rank inside joined, and what it was before afterwards."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit.base import machine
from labkit.base.consequence import as_consequence
from labkit.base.rendezvous import MeetingError
from labkit.launch import launch, workers
from labkit.train import failure_watch, rank_start
from labkit.train.rank_start import INTERFACES, VARIABLES, ByHand, joined, local_place


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (*VARIABLES, *INTERFACES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "as before")


def alone() -> ByHand:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return ByHand(0, 1, "127.0.0.1", server.getsockname()[1])


def train(how: ByHand, fail: bool = False) -> tuple[object, weakref.ref]:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    if fail:
        raise KeyError(weakref.ref(model))
    return {name: os.environ.get(name) for name in VARIABLES}, weakref.ref(model)


def test_inside_the_environment_is_torchruns_and_a_group_is_up_and_afterwards_neither():
    how = alone()
    with joined(how, device=torch.device("cpu")) as device:
        assert (dist.get_backend(), device) == ("gloo", torch.device("cpu"))
        environment, _ = train(how)
    values = ["0", "0", "1", "1", "127.0.0.1", str(how.port)]
    assert environment == dict(zip(VARIABLES, values, strict=True))
    assert not dist.is_initialized()
    left = {name: os.environ[name] for name in (*VARIABLES, *INTERFACES) if name in os.environ}
    assert left == {"WORLD_SIZE": "as before"}


@pytest.mark.parametrize("fail", [False, True], ids=["returns", "raises"])
def test_the_group_ends_only_when_the_model_on_it_is_gone_however_the_function_ends(fail, monkeypatch):
    alive, end = [], dist.destroy_process_group
    models = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: (alive.append(models[0]() is not None), end()))
    try:
        with joined(how := alone(), device=torch.device("cpu")):
            try:
                models.append(train(how, fail)[1])
            except KeyError as error:
                models.append(error.args[0])
                raise
    except KeyError:
        assert fail
    assert alive == [False] and not dist.is_initialized()


def test_a_group_that_cannot_be_formed_leaves_the_environment_as_it_was():
    with pytest.raises(ValueError, match="rank is 3, expected 0 to 1"), joined(ByHand(3, 2)):
        pytest.fail("is no rank")
    assert os.environ["WORLD_SIZE"] == "as before" and "RANK" not in os.environ


def test_the_timeout_of_each_collective_is_the_one_that_was_given():
    with joined(alone(), device=torch.device("cpu"), timeout_s=77.0):
        assert (
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout.seconds == 77
        )


@pytest.mark.parametrize(
    ("machines", "places"),
    [
        (["a"], [(0, 1)]),
        (["a", "a", "a"], [(0, 3), (1, 3), (2, 3)]),
        (["a", "b", "a", "c", "b"], [(0, 2), (0, 2), (1, 2), (0, 1), (1, 2)]),
    ],
)
def test_a_local_rank_counts_the_ranks_of_its_own_machine(machines, places):
    assert [local_place(machines, rank) for rank in range(len(machines))] == places


def test_nccl_without_a_gpu_is_refused_before_a_group_is_formed():
    complaint = r"rank 0: nccl without a GPU\): expected NCCL with a GPU for each"
    with pytest.raises(MeetingError, match=complaint), joined(alone(), "nccl", device=torch.device("cpu")):
        pytest.fail("no group can be here")
    assert not dist.is_initialized()


# --- several ranks, in processes that already have torchrun's environment -------------------------


def free_port() -> int:
    return alone().port


def says(by_hand=None, **options) -> str:
    """What a rank gets that joins the others, all of them on a fake GPU 0 unless told otherwise."""
    torch.cuda.set_device = lambda device: None
    rank_start.gpu_uuid = lambda device: "GPU-f00d"
    try:
        with joined(by_hand, **options) as device:
            return f"joined on {device}"
    except MeetingError as error:
        return str(error)


def test_under_torchrun_all_ranks_learn_that_one_has_no_gpu_and_can_join_anew_afterwards():
    def one_without_a_gpu():
        return says(device=torch.device("cuda:0" if os.environ["RANK"] == "0" else "cpu"))

    with workers(init=False) as ranks:
        refusals = ranks.run(one_without_a_gpu).values
        assert ranks.run(says, backend="gloo").values == ["joined on cpu"] * 2
    assert refusals[0] == refusals[1] and "(rank 0: nccl, rank 1: gloo)" in refusals[0]


@pytest.mark.parametrize("started", ["by hand", "by torchrun"])
def test_two_ranks_that_were_given_one_gpu_are_told_so_before_nccl_starts(started):
    port = free_port()

    def on_gpu_0():
        by_hand = ByHand(int(os.environ["RANK"]), 2, port=port) if started == "by hand" else None
        return says(by_hand, device=torch.device("cuda:0"))

    refusals = launch(on_gpu_0, init=False).values
    assert refusals[0] == refusals[1] and refusals[0].startswith("rank 0 and rank 1 both have GPU GPU-f00d: over NCCL")


@pytest.mark.parametrize(
    ("masks", "device"), [(["0", "1"], "cuda:0"), (["0", "0"], "cpu"), (["0"], "cpu")], ids=["own", "shared", "alone"]
)
def test_a_gpu_that_no_other_rank_of_the_machine_sees_is_a_ranks_own(masks, device, monkeypatch):
    monkeypatch.setattr(machine, "usable_gpus", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert rank_start._own_device(masks) == torch.device(device)


def test_what_slurm_does_not_say_of_ranks_and_machines_they_tell_each_other():
    def places():
        for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            del os.environ[name]
        with joined(backend="gloo"):
            return os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]

    assert launch(places, init=False).values == [("0", "2"), ("1", "2")]


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
        "MeetingError: rank 0 failed: KeyError: 'no such luck', while this one waited for it: its own terminal says why"
    )


def test_ranks_are_told_of_the_cause_of_a_failure_and_not_of_what_followed_from_it():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    watches = [failure_watch.FailureWatch(store, rank, 2, ("127.0.0.1", store.port)) for rank in (0, 1)]
    watches[1].tell(as_consequence(RuntimeError("rank 0 could not read")))
    assert watches[0].failure() == ""
    watches[0].tell(KeyError("no such luck"))
    assert watches[1].failure() == "rank 0 failed: KeyError: 'no such luck'"
    for watch in watches:
        watch._line.close()


def test_over_nccl_a_failed_group_is_aborted_since_its_end_would_wait_for_kernels(capsys):
    def fails():
        ended = []
        torch.cuda.set_device = dist.init_process_group = lambda *_, **__: None
        rank_start.gpu_uuid = lambda device: "GPU-f00d"
        dist.destroy_process_group = lambda: ended.append("waited for")
        dist.distributed_c10d._abort_process_group = lambda: ended.append("aborted")
        try:
            with joined(device=torch.device("cuda:0")):
                raise KeyError("no such luck")
        except KeyError:
            return ended

    assert launch(fails, world_size=1, init=False).values == [["aborted"]]
    assert "rank 0 failed: KeyError: 'no such luck'" in capsys.readouterr().out  # whatever becomes of the traceback


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


def hang_where_one_fails(rank, port, fails):
    failure_watch.END_S = failure_watch.BY_ITSELF_S = 0.5
    dist.destroy_process_group = lambda: time.sleep(1000)  # as on NCCL, behind a kernel that never ends
    with joined(ByHand(rank, 2, port=port), device=torch.device("cpu")):
        if rank == fails:
            raise KeyError("no such luck")
        if fails == 0:
            time.sleep(1000)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_rank_fails_with_its_own_error_and_ends_the_others_although_no_group_ever_ends(fails, two_processes):
    ranks = two_processes(hang_where_one_fails, fails)
    assert [status for status, _ in ranks] == [1, 1]
    own, other = ranks[fails][1], ranks[1 - fails][1]
    assert own.startswith("Traceback") and own.endswith("KeyError: 'no such luck'\n")
    assert other.startswith(f"rank {1 - fails} was ended, as rank {fails} failed: KeyError: 'no such luck'")


def go_on_without_rank_0(rank, port, killed):
    form_group = dist.init_process_group

    def form_slowly(*args, store, **kwargs):
        form_group(*args, store=store, **kwargs)
        time.sleep(rank / 2)
        store.check(["its last address"])

    dist.init_process_group = form_slowly
    gone, look, watches = threading.Event(), failure_watch.FailureWatch._watch, []

    def look_once_rank_0_is_gone(watch):
        watches.append(watch)
        gone.wait()  # torch would print what a killed rank leaves half-said
        look(watch)

    if rank == 1 and killed:
        failure_watch.FailureWatch._watch = look_once_rank_0_is_gone
    with joined(ByHand(rank, 2, port=port), device=torch.device("cpu")):
        if rank == 0 and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and killed:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as line:
                line.recv(1)  # until the store is gone, with rank 0
            gone.set()
            watches[0]._thread.join()
        time.sleep(rank)


@pytest.mark.parametrize("killed", [False, True], ids=["done", "killed"])
def test_a_rank_that_goes_on_after_rank_0_has_ended_prints_nothing_of_its_store(killed, two_processes):
    assert two_processes(go_on_without_rank_0, killed) == [(-signal.SIGKILL if killed else 0, ""), (0, "")]


def test_a_rank_without_the_gpu_that_it_was_given_ends_those_that_wait_for_its_plan():
    def one_gpu_is_busy():
        from labkit.train import failure_watch

        def is_busy(device):
            raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

        def leave(last_words, status):
            told.append(last_words)

        told = []
        torch.cuda.set_device, failure_watch.leave, failure_watch.BY_ITSELF_S = is_busy, leave, 0.1
        first = os.environ["RANK"] == "0"
        try:
            with joined(device=torch.device("cuda:0" if first else "cpu"), timeout_s=3):
                pass
        except RuntimeError as error:
            return str(error) if first else told[0]

    error, told = launch(one_gpu_is_busy, init=False).values
    assert "busy or unavailable" in error and told.startswith(
        f"rank 1 was ended, as rank 0 failed: RuntimeError: {error}"
    )


def test_the_others_end_and_the_error_appears_within_ten_seconds():
    assert failure_watch.POLL_S + failure_watch.BY_ITSELF_S < 10
    assert failure_watch.END_S < 10
