"""Correct runs in which every rank stands still for a while: none is ended as a hang.

In each, what the ranks have begun does not meet for SECONDS: rank 0 waits for something that is not
of this rank, and the other rank waits for rank 0. Much less than that is enough to name a hang here
(`test_hangs` shows it).
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import inspect
import multiprocessing
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from side_by_side import Case, outcomes, selected
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.launch import Run
from labkit.ranks import thread_wait

SECONDS = 3


def x(n=3):
    return torch.ones(n)


def later(shell="", **options):
    """Start a process that waits, and then runs a line of shell."""
    return subprocess.Popen(["sh", "-c", f"sleep {SECONDS}; {shell}"], **options)


def slow_pipe():
    """Return the end of a pipe into which a process writes later."""
    read, write = os.pipe()
    later("echo done", stdout=write)
    os.close(write)
    return read


def slow_file():
    """Return a file on a filesystem that takes its time: one that another process writes later."""
    path = os.path.join(tempfile.mkdtemp(), "file")
    os.mkfifo(path)
    later(f"echo done > {path}")
    return path


# --- a receive posted early -----------------------------------------------------------------------


def posts_a_receive_before_it(wait):
    """Return a run in which rank 0 posts a receive, waits, and then sends what rank 1 waits for."""

    def run(rank):
        if rank == 0:
            work = dist.irecv(x(), 1)
            wait()
            dist.send(x(), 1)
            work.wait()
        else:
            dist.recv(x(), 0)
            dist.send(x(), 0)

    run.__name__ = f"posts_a_receive_and_{wait.__name__}"
    return run


def runs_a_process():
    subprocess.run(["sleep", str(SECONDS)], check=True)


def reads_a_file():
    with open(slow_file()) as file:
        assert file.read() == "done\n"


# --- what rank 0 waits for while rank 1 is in a barrier -------------------------------------------


def is_woken_by_an_alarm():
    done = queue.SimpleQueue()
    signal.signal(signal.SIGALRM, lambda *_: done.put(1))
    signal.alarm(SECONDS)
    done.get()


def sleeps_in_c():
    ctypes.CDLL(None).usleep(SECONDS * 1_000_000)


def computes_in_c():
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        np.linalg.inv(np.random.rand(200, 200))


def sleeps():
    time.sleep(SECONDS)


def where_the_kernel_says_nothing(wait):
    """Return the same wait in a container that does not let a process look at its threads."""

    def hardened():
        thread_wait._system_call = lambda native_id: []
        wait()

    hardened.__name__ = f"{wait.__name__}_where_the_kernel_says_nothing"
    return hardened


# --- threads of rank 0's own ----------------------------------------------------------------------


def a_thread_waits_for_a_process():
    thread = threading.Thread(target=runs_a_process)
    thread.start()
    thread.join()


def a_queue_is_fed_by_a_thread():
    results = queue.Queue()
    threading.Thread(target=lambda: results.put(os.read(slow_pipe(), 1))).start()
    results.get()


def a_lock_is_held_by_a_thread():
    lock, holds = threading.Lock(), threading.Event()

    def hold():
        with lock:
            holds.set()
            runs_a_process()

    threading.Thread(target=hold).start()
    holds.wait()
    with lock:
        pass


def a_timer_fires():
    done = threading.Event()
    threading.Timer(SECONDS, done.set).start()
    done.wait()


def a_lock_has_a_timeout():
    lock = threading.Lock()
    lock.acquire()
    assert not lock.acquire(timeout=SECONDS)


def a_pool_of_threads_runs_it():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert pool.submit(os.read, slow_pipe(), 1).result() == b"d"


# --- processes of rank 0's own --------------------------------------------------------------------

fork = multiprocessing.get_context("fork")


def another_process_holds_a_lock():
    lock, holds = fork.Lock(), fork.Event()

    def hold():
        with lock:
            holds.set()
            sleeps()

    process = fork.Process(target=hold)
    process.start()
    holds.wait()
    lock.acquire()
    process.join()


def a_data_loader_has_workers():
    loader = torch.utils.data.DataLoader(SlowData(), num_workers=2, multiprocessing_context="fork")
    assert len(list(loader)) == 2


class SlowData(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(SECONDS)
        return index


WAITS = [
    each
    for each in list(globals().values())
    if inspect.isfunction(each) and each.__module__ == __name__ and not inspect.signature(each).parameters
    if each not in (slow_pipe, slow_file)
]


def and_then_a_barrier(wait):
    """Return a run in which rank 1 is in a barrier while rank 0 waits."""

    def run(rank):
        if rank == 0:
            wait()
        dist.barrier()

    run.__name__ = wait.__name__
    return run


# --- inside torch.distributed ---------------------------------------------------------------------


class SlowToPickle:
    def __reduce__(self):
        reads_a_file()
        return int, ()


def sends_an_object_that_is_slow_to_pickle(rank):
    dist.broadcast_object_list([SlowToPickle() if rank == 0 else None], 0)


def has_a_slow_hook(rank):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), bucket_cap_mb=1e-6)
    if rank == 0:
        model.module[0].weight.register_hook(lambda gradient: reads_a_file())
    model(torch.ones(2, 4)).sum().backward()


def asks_again_and_again_whether_it_is_done(rank):
    if rank == 0:
        work = dist.all_reduce(x(), async_op=True)
        dist.send(x(), 1)
        while not work.is_completed():
            time.sleep(0.1)
    else:
        dist.recv(x(), 0)
        runs_a_process()
        dist.all_reduce(x())


def returns_and_leaves_a_thread_that_sends(rank):
    if rank == 0:
        threading.Thread(target=lambda: (runs_a_process(), dist.send(x(), 1))).start()
    else:
        dist.recv(x(), 0)


def computes_in_a_group_without_rank_0(rank):
    others = dist.new_group([1, 2])
    if rank:
        time.sleep(rank + SECONDS)
        dist.all_reduce(x(), group=others)


CASES = [
    *[Case(and_then_a_barrier(wait)) for wait in WAITS],
    *[Case(posts_a_receive_before_it(wait)) for wait in (runs_a_process, reads_a_file, a_data_loader_has_workers)],
    *[
        Case(and_then_a_barrier(where_the_kernel_says_nothing(wait)))
        for wait in (sleeps, a_thread_waits_for_a_process, another_process_holds_a_lock)
    ],
    Case(sends_an_object_that_is_slow_to_pickle),
    Case(has_a_slow_hook),
    Case(asks_again_and_again_whether_it_is_done),
    Case(returns_and_leaves_a_thread_that_sends),
    Case(computes_in_a_group_without_rank_0, world_size=3),
]


@pytest.fixture(scope="module")
def ended(request):
    return outcomes(selected(request))


QUICK = ("reads_a_file", "a_pool_of_threads_runs_it", "posts_a_receive_and_runs_a_process", "has_a_slow_hook")


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[] if str(each) in QUICK else pytest.mark.slow, id=str(each)) for each in CASES]
)
def test_a_correct_run_is_not_ended(case, ended):
    assert isinstance(ended[case], Run), "".join([str(ended[case]), *getattr(ended[case], "__notes__", [])])
