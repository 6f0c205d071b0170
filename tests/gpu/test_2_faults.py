"""What becomes of ranks that fail while a GPU is busy: the error comes, nobody is left, and the
memory is free again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit.base.rendezvous import free_port
from labkit.launch import LaunchTimeout, RankError, device
from labkit.trace import span

pytestmark = pytest.mark.gpu

SOON_S = 25.0  # until an error is there, on a busy machine; what waits for a kernel that never ends takes a minute
GONE_S = 10.0
FREE_MIB = 32.0  # by which the memory in use may differ


def gpu_memory_mib():
    """The memory in use on all GPUs, whosever it is."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return float(sum(map(int, subprocess.run(query, capture_output=True, text=True, check=True).stdout.split())))
    except (OSError, subprocess.CalledProcessError, ValueError):  # MIG's memory is [N/A]
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**20


def add_up():
    """An all_reduce that is over when it returns."""
    x = torch.ones(1 << 20, device=device())
    dist.all_reduce(x)
    return x.sum().item() / (1 << 20)


@pytest.fixture(autouse=True)
def nobody_is_left_and_memory_is_free(request, rig, measured, noted):
    memory = gpu_memory_mib() if rig.on_gpu else 0.0
    assert rig.launch(add_up, world_size=1).values == [1.0]  # the servers of ranks run from now on
    before = set(psutil.Process().children(recursive=True))
    yield
    until = time.monotonic() + GONE_S
    while left := [each for each in psutil.Process().children(recursive=True) if each not in before]:
        assert time.monotonic() < until, left
        time.sleep(0.1)
    what = request.node.originalname.removeprefix("test_").replace("_", " ")
    noted(f"after {what}", "no process is left")
    while rig.on_gpu and (more := gpu_memory_mib() - memory) > FREE_MIB and time.monotonic() < until:
        time.sleep(0.5)
    if rig.on_gpu:
        measured(f"after {what}: memory beyond that before", more, "MiB")
        assert more <= FREE_MIB


def seconds_until(error, run):
    """How long ``run()`` took to raise ``error``, and what it raised."""
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        run()
    return time.monotonic() - begin, caught.value


def spin():
    """Wait for an all_reduce that not every rank joins. On a GPU its kernel spins."""
    x = torch.ones(1 << 20, device=device())
    dist.all_reduce(x)
    if x.is_cuda:
        torch.cuda.synchronize()


def test_an_exception_behind_an_unjoined_all_reduce_inside_a_span_is_reported(rig, measured):
    def raises_behind():
        add_up()  # all have a communicator
        if dist.get_rank() == 1:
            with span("unjoined", lane="comm"):
                dist.all_reduce(torch.ones(1 << 20, device=device()), async_op=True)
                raise ValueError("behind an all_reduce")
        time.sleep(1000)

    with rig.workers() as ranks:
        ranks.run(add_up)
        seconds, error = seconds_until(RankError, lambda: ranks.run(raises_behind))
    measured("an exception behind an unjoined all_reduce, until it is reported", seconds, "s")
    assert (error.rank, error.error_type) == (1, "ValueError") and seconds < SOON_S


def test_a_device_side_assert_is_an_error_of_its_own_run_and_not_of_the_next(rig, measured):
    if not rig.on_gpu:
        pytest.skip("needs a CUDA GPU")

    def read_out_of_range():
        """Queue a read whose kernel asserts, and return without having waited for it."""
        torch.arange(4, device=device())[torch.tensor([9], device=device())]
        return "returned"

    with rig.workers() as ranks:
        ranks.run(add_up)
        seconds, error = seconds_until(RankError, lambda: ranks.run(read_out_of_range))
        assert ranks.run(add_up).values == [2.0, 2.0]
    measured("a device-side assert, until it is reported", seconds, "s")
    assert "device-side assert" in str(error) + error.traceback and seconds < SOON_S


def test_a_rank_whose_gpu_waits_for_one_that_has_returned_is_named_with_its_line(rig, measured):
    def leaves_early():
        add_up()
        if dist.get_rank() == 0:
            spin()

    seconds, error = seconds_until(LaunchTimeout, lambda: rig.launch(leaves_early, world_size=2))
    measured("a rank that has left early, until it is named", seconds, "s")
    assert error.hang and "rank 0 waits in all_reduce of 1048576 float" in error.hang.cause
    assert "rank 1 has returned without it" in error.hang.cause and seconds < SOON_S


def test_a_gpu_that_only_takes_long_is_left_alone(rig):
    def takes_long():
        y = torch.rand(2000, 2000, device=device())
        for _ in range(2000 if y.is_cuda and dist.get_rank() == 0 else 0):
            for _ in range(20):
                y = y @ y / y.norm()
        dist.all_reduce(y)
        return y.sum().item()

    assert len(set(rig.launch(takes_long, world_size=2).values)) == 1


def test_a_rank_that_is_killed_while_it_spins_is_named(rig, measured):
    def killed_while_it_spins():
        add_up()
        if dist.get_rank() == 1:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
            spin()
        time.sleep(1000)

    with rig.workers() as ranks:
        ranks.run(add_up)
        seconds, error = seconds_until(RankError, lambda: ranks.run(killed_while_it_spins))
    measured("SIGKILL of a rank that spins, until it is reported", seconds - 1.0, "s")
    assert (error.rank, error.error_type) == (1, "SIGKILL") and seconds < SOON_S


def test_an_interrupt_ends_ranks_that_spin(rig, measured):
    def one_spins():
        spin() if dist.get_rank() == 0 else time.sleep(1000)

    with rig.workers() as ranks:
        ranks.run(add_up)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        seconds, _ = seconds_until(KeyboardInterrupt, lambda: ranks.run(one_spins))
    measured("an interrupt while a rank spins, until the notebook has it", seconds - 1.0, "s")
    assert seconds < SOON_S


def network_variables():
    """What launch sets for this rank, so that ranks may share a GPU."""
    return {name: value for name, value in os.environ.items() if name.startswith(("GLOO_", "NCCL_"))}


BY_HAND = """
import sys, torch, torch.distributed as dist
from labkit.base import machine
from labkit.train.rank_start import ByHand, joined
rank, port, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if torch.cuda.device_count() < 2:
    machine.name = lambda: f"machine {rank}"  # ranks share a GPU here
with joined(ByHand(rank, 2, port=port), backend, timeout_s=20.0) as device:  # NCCL ends the other after that
    x = torch.ones(1000, device=device)
    dist.all_reduce(x)
    assert x.sum().item() == 2000
    print("joined", flush=True)
    if rank == 1:
        raise ValueError("no such luck")
    dist.all_reduce(x)
    print(x.sum().item())
"""


def test_of_two_processes_started_by_hand_the_failing_one_says_why_and_the_other_ends(rig, measured, noted):
    port = free_port()
    environments = [os.environ | variables for variables in rig.launch(network_variables).values]
    command = [sys.executable, "-c", BY_HAND]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [
        subprocess.Popen([*command, str(rank), str(port), rig.backend], env=environment, **pipes)
        for rank, environment in enumerate(environments)
    ]
    try:
        joined = [each.stdout.readline() for each in both]
        begin = time.monotonic()
        printed = [each.communicate(timeout=2 * SOON_S)[1] for each in reversed(both)][::-1]
    finally:
        for each in both:
            each.kill()
            each.wait()
    measured("two processes by hand, one of which fails: until both have ended", time.monotonic() - begin, "s")
    noted("by hand, the one that did not fail says", printed[0].strip().splitlines()[-1])
    assert joined == ["joined\n"] * 2, printed
    assert "ValueError: no such luck" in printed[1] and all(each.returncode != 0 for each in both)
