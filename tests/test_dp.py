"""Bad input is refused, processes end with their parent, and large tensors go round the ring. What
check judges of the tasks dp.1 to dp.8 is not judged again here."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn

from labkit import dp
from labkit.base.rendezvous import free_port

fork = multiprocessing.get_context("fork")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process ends with its parent")


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: dp.DataPartitioner([], [0.5, 0.5]), ValueError, "the data set is empty"),
        pytest.param(lambda: dp.partition_dataset(0, 2, []), ValueError, "the data set is empty", marks=task("dp.1")),
        (lambda: dp.DataPartitioner([1], [0.5, 0.6]), ValueError, r"sizes are \[0\.5, 0\.6\] with sum 1\.1, expected"),
        (lambda: dp.DataPartitioner([1, 2], [1.5, -0.5]), ValueError, "divide each by their sum"),
        pytest.param(
            lambda: dp.DataPartitioner([1, 2], [0.5, 0.5]).use(2),
            *(ValueError, "rank is 2, expected 0 to 1"),
            marks=task("dp.1"),
        ),
        (lambda: dp.partition_dataset(-1, 2, [1, 2], 2), ValueError, "rank is -1, expected 0 to 1"),
        (lambda: dp.partition_dataset(0, 3, [1], 2), ValueError, "batch_size is 2, expected at least world_size, 3"),
        (lambda: dp.setup(2, 2, "gloo"), ValueError, "rank is 2, expected 0 to 1"),
        (lambda: dp.setup(0, 1, "smoke signals"), ValueError, "backend is 'smoke signals'"),
        (lambda: dp.run_processes(print, 0, "gloo"), ValueError, "world_size is 0, expected at least 1"),
        (lambda: dp.run_processes(print, 2, "smoke signals"), ValueError, "backend is 'smoke signals'"),
        (lambda: dp.assign_buckets([4], 0), ValueError, "^cap_bytes is 0, expected more than 0"),
        (lambda: dp.assign_buckets([4], 8, 0), ValueError, "^first_cap_bytes is 0, expected more than 0"),
        (lambda: dp.assign_buckets([4, -3], 8), ValueError, r"^sizes_bytes\[1\] is -3, expected a size in bytes, 0"),
        (lambda: dp.BucketedDataParallel(nn.Linear(2, 2), 0), ValueError, "^bucket_cap_mb is 0, expected more than 0"),
        (lambda: dp.BucketedDataParallel(nn.Tanh()), ValueError, "no parameter of the model requires .*use it as it"),
    ],
)
def test_bad_input_is_refused_with_what_was_given_and_what_was_expected(call, error, says):
    with pytest.raises(error, match=says):
        call()


# --- dp.8 ----------------------------------------------------------------------------------------


def wait_for_each_other(rank: int, world_size: int, backend: str) -> None:
    """Wait for the other rank in gloo, for ever, and leave a file once this one does so."""
    folder, port = os.environ["WAIT_FOR_EACH_OTHER"].rsplit(":", 1)
    dp.setup(rank, world_size, backend, master_port=int(port))
    main = threading.main_thread().ident

    def report() -> None:
        while sys._current_frames()[main].f_code.co_filename != dist.distributed_c10d.__file__:
            time.sleep(0.002)
        Path(folder, f"{rank}").touch()

    threading.Thread(target=report, daemon=True).start()
    if rank == 0:
        dist.barrier()
    else:
        dist.recv(torch.zeros(1), src=0)


@on_linux
@task("dp.2", "dp.8")
def test_ranks_that_wait_for_each_other_end_with_a_parent_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("WAIT_FOR_EACH_OTHER", f"{tmp_path}:{free_port()}")
    parent = fork.Process(target=dp.run_processes, args=(wait_for_each_other, 2, "gloo"))
    parent.start()
    while len(list(tmp_path.iterdir())) < 2:
        assert parent.is_alive()
        time.sleep(0.01)
    ranks = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.join()
    _, left = psutil.wait_procs(ranks, timeout=30)
    for process in left:
        process.kill()
    assert left == []


@task("dp.2")
def test_two_terminals_wait_for_each_other_and_say_so(capsys):
    from labkit.launch import launch  # not above: the processes of dp.8 import this file and have no use for it

    def terminal(port: int) -> None:
        from labkit import dp

        dp.main(["-w", "2", "--master-port", str(port), "-nr", os.environ["RANK"]])

    launch(terminal, free_port(), world_size=2, init=False, timeout_s=60)
    shown = capsys.readouterr().out.splitlines()
    for rank in ("0", "1"):
        says = f"[rank {rank}] rank {rank} of 2: "
        assert [line.removeprefix(says) for line in shown if line.startswith(says)] == [
            "waiting until all are there",
            "all are there, and their ranks add up to 1",
        ]


# --- gradients ------------------------------------------------------------------------------------


@task("dp.5")
def test_a_tensor_larger_than_any_socket_buffer_does_not_block_the_ring_and_rings_do_not_mix_their_messages(ranks):
    def in_rank() -> None:
        tensors = [torch.ones(2**23), *(torch.full((7,), float(i)) for i in range(20))]  # 32 MiB, and small ones
        for tensor in tensors:
            dp.ring_all_reduce(tensor)
        assert [tensor.unique().tolist() for tensor in tensors] == [[3.0], *([3.0 * i] for i in range(20))]

    ranks(3).run(in_rank)
