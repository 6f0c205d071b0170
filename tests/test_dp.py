"""Shards lose and repeat nothing, processes start and end together, and each way to agree on
gradients gives the whole batch's. What check claims of dp.1 to dp.5 is not claimed again here."""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from itertools import chain
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from small_modules import gradients
from to_do import task
from torch import nn

from labkit import dp

ROOT = Path(__file__).parents[1]
ROWS = 24  # of the whole batch
IMPORTS_THIS = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # for processes that do as these tests do


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def printed_lines(output: str) -> list[str]:
    """Return the lines, without those that torch 2.9's gloo prints of every group."""
    return [line for line in output.splitlines() if not line.startswith("[Gloo] ")]


@pytest.fixture
def launch():
    """labkit.launch.launch, not imported above: the processes of dp.8 import this file and have no
    use for it."""
    from labkit.launch import launch

    return launch


# --- dp.1: shards ---------------------------------------------------------------------------------


def shards(data: list, sizes: list[float], **seed: int) -> list[list]:
    partitioner = dp.DataPartitioner(data, sizes, **seed)
    return [[shard[i] for i in range(len(shard))] for shard in map(partitioner.use, range(len(sizes)))]


@task("dp.1")
@given(count=st.integers(1, 500), weights=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any))
@settings(max_examples=200, deadline=None)
def test_unequal_shards_have_every_sample_once_and_are_within_one_of_their_fraction(count, weights):
    sizes = [weight / sum(weights) for weight in weights]
    cut = shards(list(range(count)), sizes)
    assert sorted(chain(*cut)) == list(range(count))
    assert all(abs(len(shard) - size * count) <= 1 + 1e-9 for shard, size in zip(cut, sizes, strict=True))


@task("dp.1")
@given(count=st.integers(1, 200), world_size=st.integers(1, 8), batch_size=st.integers(8, 64))
@settings(max_examples=100, deadline=None)
def test_loaders_share_out_every_sample_once_in_batches_of_the_global_size(count, world_size, batch_size):
    data = list(range(count))
    loaders = [list(dp.partition_dataset(r, world_size, data, batch_size, collate_fn=list)) for r in range(world_size)]
    assert sorted(chain(*chain(*loaders))) == data
    for step in range(max(map(len, loaders))):
        assert sum(len(batches[step]) for batches in loaders if step < len(batches)) <= batch_size
    assert all(len(batch) == batch_size // world_size for batches in loaders for batch in batches[:-1])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dp.DataPartitioner([], [0.5, 0.5]), "the data set is empty"),
        (lambda: dp.partition_dataset(0, 2, []), "the data set is empty"),
        (lambda: dp.DataPartitioner([1, 2], [0.5, 0.6]), r"sizes are \[0\.5, 0\.6\] with sum 1\.1, expected fractions"),
        (lambda: dp.DataPartitioner([1, 2], [1.5, -0.5]), "divide each by their sum"),
        (lambda: dp.DataPartitioner([1, 2], [float("nan"), 1.0]), "expected fractions"),
        (lambda: dp.DataPartitioner([1, 2], [0.5, 0.5]).use(2), "rank is 2, expected 0 to 1"),
        (lambda: dp.partition_dataset(-1, 2, [1, 2], 2), "rank is -1, expected 0 to 1"),
        (lambda: dp.partition_dataset(0, 3, [1, 2, 3], 2), "batch_size is 2, expected at least world_size, 3"),
        (lambda: dp.setup(2, 2, "gloo"), "rank is 2, expected 0 to 1"),
        (lambda: dp.setup(0, 1, "smoke signals"), "backend is 'smoke signals'"),
        (lambda: dp.run_processes(print, 0, "gloo"), "world_size is 0, expected at least 1"),
        (lambda: dp.run_processes(print, 2, "smoke signals"), "backend is 'smoke signals'"),
    ],
)
@task("dp.1")
def test_bad_input_is_refused_with_what_was_given_and_what_was_expected(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- dp.2 and dp.8: processes ---------------------------------------------------------------------


def add_up(port: int, folder: str, rank: int, world_size: int, backend: str) -> None:
    dp.setup(rank, world_size, backend, master_port=port)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    Path(folder, f"{rank}").write_text(f"{total.item()} {dist.get_rank()} {dist.get_world_size()} {os.getpid()}")


@task("dp.2", "dp.8")
def test_the_ranks_find_each_other_and_have_ended_when_it_returns(tmp_path):
    dp.run_processes(functools.partial(add_up, free_port(), str(tmp_path)), 2, "gloo")
    reports = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    assert [report[:3] for report in reports] == [["3.0", "0", "2"], ["3.0", "1", "2"]]
    assert not any(psutil.pid_exists(int(report[3])) for report in reports)


def wait_for_each_other(port: int, folder: str, rank: int, world_size: int, backend: str) -> None:
    """Wait for the other rank in gloo, for ever, and leave a file once this one does so."""
    dp.setup(rank, world_size, backend, master_port=port)
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


def running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system ends no process with its parent")
@task("dp.2", "dp.8")
def test_ranks_that_wait_for_each_other_end_with_a_parent_that_is_killed(tmp_path):
    program = f"""
import functools, test_dp
fn = functools.partial(test_dp.wait_for_each_other, {free_port()}, {str(tmp_path)!r})
test_dp.dp.run_processes(fn, 2, "gloo")
"""
    parent = psutil.Popen([sys.executable, "-c", program], env=IMPORTS_THIS)
    while len(list(tmp_path.iterdir())) < 2:
        assert parent.poll() is None
        time.sleep(0.01)
    processes = parent.children(recursive=True)
    parent.kill()
    parent.wait()
    for _ in range(3000):
        if not any(map(running, processes)):
            break
        time.sleep(0.01)
    left = list(filter(running, processes))
    for process in left:
        process.kill()
    assert left == []


def run_once_the_parent_has_ended() -> None:
    print("rank starts", flush=True)
    while os.getppid() == multiprocessing.parent_process().pid:
        time.sleep(0.002)
    dp._run_rank(0, print, 1, "gloo")


def test_a_rank_whose_parent_has_ended_already_runs_nothing():
    program = """
import multiprocessing, os, test_dp
multiprocessing.get_context("spawn").Process(target=test_dp.run_once_the_parent_has_ended).start()
os._exit(0)
"""
    run = subprocess.run([sys.executable, "-c", program], env=IMPORTS_THIS, capture_output=True, text=True, timeout=100)
    assert run.stdout == "rank starts\n", run.stderr  # all of it: whatever has the pipe has ended


@pytest.mark.parametrize("at_launchs_store", [True, False])
@task("dp.2")
def test_setup_works_in_a_rank_that_launch_started_without_a_group(at_launchs_store, launch):
    def in_rank(port: int) -> list:
        from labkit import dp

        port = int(os.environ["MASTER_PORT"]) if at_launchs_store else port
        dp.setup(int(os.environ["RANK"]), 2, "gloo", master_port=port)
        total = torch.tensor([10.0 ** dist.get_rank()])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.tolist()

    assert launch(in_rank, free_port(), world_size=2, init=False, timeout_s=60).values == [[11.0], [11.0]]


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a process as Linux lists them")
@pytest.mark.parametrize("module", ["labkit.dp", pytest.param("labkit.train", marks=pytest.mark.slow)])
def test_no_thread_of_an_ended_group_is_left_after_training(module):
    """Python aborts in some runs if it ends (as under torchrun, and in run_processes) while gloo's
    threads still hold tensors."""
    program = f"""
import os, tempfile, torch, torch.distributed as dist
import {module}
threads = [len(os.listdir("/proc/self/task"))]
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
threads.append(len(os.listdir("/proc/self/task")))
parameter = torch.nn.Parameter(torch.ones(3))
parameter.grad = torch.ones(3)
torch.optim.AdamW([parameter]).step()
dist.all_gather_object([None], "something")
dist.destroy_process_group()
threads.append(len(os.listdir("/proc/self/task")))
print(*threads)
"""
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    before, during, after = map(int, printed_lines(run.stdout)[-1].split())
    assert before == after < during, run.stderr


@task("dp.2")
def test_two_terminals_wait_for_each_other_and_say_so():
    port = str(free_port())
    command = [sys.executable, "-m", "labkit.dp", "-w", "2", "--master-port", port, "-nr"]
    ranks = [subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for rank in (1, 0)]
    for number, process in zip((1, 0), ranks, strict=True):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert printed_lines(output) == [
            f"rank {number} of 2: waiting until all are there",
            f"rank {number} of 2: all are there, and their ranks add up to 1",
        ]


# --- a small model and its shards -----------------------------------------------------------------


def small_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).to(dtype)


def loss_of(model: nn.Module, rank: int = 0, world_size: int = 1) -> torch.Tensor:
    """The mean loss over one rank's shard, or over the whole batch."""
    inputs = torch.linspace(-1, 1, ROWS * 5, dtype=torch.float64).reshape(ROWS, 5)
    shard = inputs[rank * ROWS // world_size : (rank + 1) * ROWS // world_size]
    return model(shard.to(next(model.parameters()).dtype)).square().mean()


# --- all ways -------------------------------------------------------------------------------------


def around_the_ring(model: nn.Module) -> None:
    for parameter in model.parameters():
        dp.ring_all_reduce(parameter.grad.div_(dist.get_world_size()))


def averaged(way: str, model: nn.Module) -> tuple[list, list]:
    """The gradients of this rank's shard, and what ``way`` makes of them."""
    finish = {"ring": around_the_ring}.get(way) or getattr(dp, way, None)
    if way == "buckets":
        reducer = dp.BucketedDataParallel(model, bucket_cap_mb=100 / dp.MIB)
        finish = lambda _: reducer.finish_gradient_synchronization()  # noqa: E731
    loss_of(reducer if way == "buckets" else model, dist.get_rank(), dist.get_world_size()).backward()
    own = gradients(model)
    finish(model)
    return own, gradients(model)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("gather_scatter_gradients", marks=task("dp.3")),
        pytest.param("average_gradients", marks=task("dp.4")),
        pytest.param("ring", marks=task("dp.5")),
        pytest.param("buckets", marks=task("dp.6", "dp.7")),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("world_size", [1, 3])
def test_the_mean_of_the_shards_gradients_is_the_gradient_of_the_whole_batch(world_size, dtype, tolerance, way, ranks):
    whole = small_model(dtype).double()
    loss_of(whole).backward()
    expected = gradients(whole)
    largest = max(gradient.abs().max().item() for gradient in expected)
    for own, found in ranks(world_size).run(lambda: averaged(way, small_model(dtype))).values:
        assert world_size == 1 or way == "buckets" or not torch.allclose(own[0], found[0])
        found_in_double = [gradient.double() for gradient in found]
        torch.testing.assert_close(found_in_double, expected, rtol=tolerance, atol=tolerance * largest)


# --- dp.5: around the ring ------------------------------------------------------------------------


@task("dp.5")
def test_a_tensor_larger_than_any_socket_buffer_does_not_block_the_ring_and_rings_do_not_mix_their_messages(ranks):
    def in_rank() -> None:
        tensors = [torch.ones(2**23), *(torch.full((7,), float(i)) for i in range(20))]  # 32 MiB, and small ones
        for tensor in tensors:
            dp.ring_all_reduce(tensor)
        assert [tensor.unique().tolist() for tensor in tensors] == [[3.0], *([3.0 * i] for i in range(20))]

    ranks(3).run(in_rank)


@task("dp.5")
def test_a_parameter_may_go_round_the_ring_and_stays_a_leaf(ranks):
    def in_rank() -> tuple[list[float], bool]:
        parameter = nn.Parameter(torch.ones(3))
        dp.ring_all_reduce(parameter)
        return parameter.tolist(), parameter.is_leaf and parameter.requires_grad

    assert ranks(2).run(in_rank).values == [([2.0] * 3, True)] * 2
