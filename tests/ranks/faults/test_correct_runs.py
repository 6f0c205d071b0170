"""Two hundred correct runs in which every rank stands still for a while: none is ended as a hang.

In each, what the ranks have begun does not meet for SECONDS: rank 0 waits for something that is not
of this rank, and the other rank waits for rank 0. Much less than that is enough to name a hang here
(`test_hangs` shows it). Many run one after the other in a launch, beside threads that only sleep.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import inspect
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from side_by_side import Case, launched, much_runs_beside, selected
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.cost import Link
from labkit.launch import Run
from labkit.ranks.faults import thread_wait

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


# --- other things to wait for ---------------------------------------------------------------------


def reads_input():
    os.dup2(slow_pipe(), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    assert input() == "done"


def locks_a_file():
    with (
        open(__file__) as file,
        subprocess.Popen(["flock", __file__, "sh", "-c", f"echo; sleep {SECONDS}"], stdout=subprocess.PIPE) as holder,
    ):
        assert holder.stdout.readline()  # it has the lock
        fcntl.flock(file, fcntl.LOCK_EX)


def receives_from_a_socket():
    mine, theirs = socket.socketpair()
    with mine:
        later(stdin=theirs)  # which alone has it once it is closed here
        theirs.close()
        assert mine.recv(1) == b""


@contextlib.contextmanager
def signals_come():
    """Send SIGUSR2 again and again: one that comes before this thread waits goes to another."""
    signal.signal(signal.SIGUSR2, lambda *_: None)
    sender = later(f"while kill -USR2 {os.getpid()}; do sleep 0.2; done")
    yield
    sender.kill()
    sender.wait()


def pauses_until_a_signal():
    with signals_come():
        signal.pause()


def waits_for_a_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    with signals_come():
        signal.sigwait([signal.SIGUSR2])


def runs_a_loop_of_asyncio():
    asyncio.run(asyncio.to_thread(runs_a_process))


def a_pool_of_processes_runs_it():
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
        pool.submit(sleeps).result()


def multiprocessing_runs_it():
    with fork.Pool(2) as pool:
        pool.map(time.sleep, [SECONDS, 1])


def another_process_fills_a_queue():
    results = fork.Queue()
    fork.Process(target=lambda: (sleeps(), results.put(1)), daemon=True).start()
    results.get()


def a_pool_of_threads_is_waited_for():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        concurrent.futures.wait([pool.submit(runs_a_process)])


def waits_for_a_pipe():
    select.select([slow_pipe()], [], [])


def waits_for_any_child():
    later()
    os.wait()


def waits_for_a_child():
    os.waitpid(later().pid, 0)


def waits_for_an_event_with_a_limit():
    threading.Event().wait(SECONDS)


WAITS = [
    each
    for each in list(globals().values())
    if inspect.isfunction(each) and each.__module__ == __name__ and not inspect.signature(each).parameters
    if each not in (slow_pipe, slow_file)
]


# --- what rank 1 waits in meanwhile ---------------------------------------------------------------


def message(rank):
    dist.recv(x(), 0) if rank else dist.send(x(), 1)


def message_that_is_taken_late(rank):
    dist.send(x(500_000), 0) if rank else dist.recv(x(500_000), 1)


def batch_of_messages(rank):
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv if rank else dist.isend, x(), 1 - rank)]):
        work.wait()


def receive_with_a_long_limit(rank):
    work = dist.irecv(x(), 0) if rank else dist.isend(x(), 1)
    work.wait(timedelta(hours=1))


def future(rank):
    dist.all_reduce(x(), async_op=True).get_future().wait()


def object_from_rank_0(rank):
    dist.broadcast_object_list([rank], 0)


def wrapped_model(rank):
    model = DistributedDataParallel(nn.Linear(4, 4))  # or a garbage collection may free its reducer in backward
    model(torch.ones(2, 4)).sum().backward()


def new_group_with_a_limit(rank):
    dist.all_reduce(x(), group=dist.new_group(timeout=timedelta(seconds=30)))


def thread_of_its_own(rank):
    thread = threading.Thread(target=dist.broadcast, args=(x(), 0))
    thread.start()
    thread.join()


def barrier(rank):
    dist.barrier()


MEETINGS = [
    *(barrier, message, message_that_is_taken_late, batch_of_messages, receive_with_a_long_limit, future),
    *(object_from_rank_0, wrapped_model, new_group_with_a_limit, thread_of_its_own),
]
N_MEETINGS = 6  # in a launch


def and_then(wait, *meetings):
    """Return a run in which rank 1 is in one meeting after the other while rank 0 waits."""

    def run(rank):
        if len(meetings) > 1:
            much_runs_beside()
        for meeting in meetings:
            if rank == 0:
                wait()
            meeting(rank)
            dist.barrier()

    run.__name__ = wait.__name__ + f"_and_{len(meetings) - 1}_more" * (len(meetings) > 1)
    return run


def some_meetings(number):
    return [MEETINGS[(number + each) % len(MEETINGS)] for each in range(N_MEETINGS)]


# --- time limits of the reader's own --------------------------------------------------------------

LIMIT = timedelta(seconds=SECONDS)
ENDS_BY_ITSELF = {
    "a collective": lambda group, _: dist.all_reduce(x(), group=group),
    "a receive": lambda group, _: dist.recv(x(), 1, group=group),
    "a send": lambda group, _: dist.send(x(500_000), 1, group=group),
    "work": lambda group, _: dist.broadcast(x(), 0, group=group, async_op=True).wait(),
    "a message's work": lambda group, _: dist.irecv(x(), 1, group=group).wait(),
    "a future": lambda group, _: dist.all_reduce(x(), group=group, async_op=True).get_future().wait(),
    "an object": lambda group, _: dist.all_gather_object([None, None], 1, group=group),
    "a wrapped model": lambda group, _: DistributedDataParallel(nn.Linear(2, 2), process_group=group),
    "a monitored barrier": lambda _, group: dist.monitored_barrier(group, timeout=LIMIT),
    "work that is waited for": lambda _, group: dist.irecv(x(), 1, group=group).wait(LIMIT),
    "a collective that is waited for": lambda _, group: dist.barrier(group, async_op=True).wait(timeout=LIMIT),
    "a key": lambda *_: dist.distributed_c10d._get_default_store().wait(["never"], LIMIT),
}


def ends_by_itself(*names):
    """Return a run in which rank 0 expects the error of each limit, and rank 1 waits for it."""

    def run(rank):
        much_runs_beside()
        for name in names:
            groups = dist.new_group(timeout=LIMIT), dist.new_group()
            if rank == 0:
                with pytest.raises(RuntimeError):
                    ENDS_BY_ITSELF[name](*groups)
            dist.barrier()

    run.__name__ = f"ends by itself: {', '.join(names)}"
    return run


def forms_a_group_with_a_limit(rank):
    dist.init_process_group("gloo", timeout=LIMIT)
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.all_reduce(x())


def forms_a_group_alone(rank):
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.init_process_group("gloo", timeout=LIMIT)


def forms_a_further_group_alone(rank):
    if rank == 0:
        with pytest.raises(RuntimeError):
            dist.new_group(timeout=LIMIT)


# --- threads of rank 0's that still send while it is in a barrier ---------------------------------


def sends():
    dist.send(x(), 1)


def sends_later():
    sleeps()
    sends()


class Sender(threading.Thread):
    def run(self):
        while self.waits():
            pass
        self.jobs["last"]()

    def waits(self):
        sleeps()
        self.jobs = {"last": sends}


class Outbox:
    def __init__(self):
        self.letters = queue.Queue()
        threading.Thread(target=self.deliver).start()

    def fill(self):
        sleeps()
        self.letters.put(x())

    def deliver(self):
        dist.send(self.letters.get(), 1)


async def sends_from_a_loop():
    await asyncio.sleep(SECONDS)
    sends()


def waits_with_a_limit_and_sends(event):
    event.wait(SECONDS)
    sends()


def runs_a_process_and_sends():
    runs_a_process()
    sends()


STILL_SEND = [
    lambda: threading.Thread(target=sends_later).start(),
    lambda: threading.Thread(target=runs_a_process_and_sends, daemon=True).start(),
    lambda: threading.Thread(target=waits_with_a_limit_and_sends, args=(threading.Event(),)).start(),
    lambda: threading.Thread(target=functools.partial(sends_later)).start(),
    lambda: threading.Thread(target=asyncio.run, args=(sends_from_a_loop(),)).start(),
    lambda: threading.Timer(SECONDS, dist.send, (x(), 1)).start(),
    lambda: Sender(daemon=True).start(),
    lambda: threading.Thread(target=Outbox().fill).start(),
    lambda: concurrent.futures.ThreadPoolExecutor(1).submit(sends_later),
]


def threads_still_send(starts):
    """Return a run in which rank 1 waits for what a thread of rank 0's sends, again and again."""

    def run(rank):
        much_runs_beside()
        for start in starts:
            if rank == 0:
                start()
            else:
                dist.recv(x(), 0)
            dist.barrier()

    run.__name__ = f"threads_still_send_{STILL_SEND.index(starts[0])}"
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


def sends_over_a_slow_link(rank):
    dist.all_reduce(x(500_000))
    dist.send(x(500_000), 1) if rank == 0 else dist.recv(x(500_000), 0)


IN_TURN = [Case(and_then(wait, *some_meetings(number))) for number, wait in enumerate(WAITS)]
HARDENED = [
    where_the_kernel_says_nothing(each) for each in (a_thread_waits_for_a_process, another_process_holds_a_lock)
]
LIMITS = list(ENDS_BY_ITSELF)
CASES = [
    *IN_TURN,  # the longest first
    *[Case(ends_by_itself(*LIMITS[first::3])) for first in range(3)],
    *[Case(threads_still_send(STILL_SEND[first::3])) for first in range(3)],
    *[Case(and_then(wait, *MEETINGS[:4])) for wait in HARDENED],
    *[Case(posts_a_receive_before_it(wait)) for wait in (runs_a_process, reads_a_file, a_data_loader_has_workers)],
    *[Case(and_then(wait, barrier)) for wait in (reads_a_file, a_pool_of_threads_runs_it)],
    Case(forms_a_group_with_a_limit, init=False),
    Case(forms_a_group_alone, init=False),
    Case(forms_a_further_group_alone),
    Case(sends_an_object_that_is_slow_to_pickle),
    Case(has_a_slow_hook),
    Case(asks_again_and_again_whether_it_is_done),
    Case(returns_and_leaves_a_thread_that_sends),
    Case(computes_in_a_group_without_rank_0, world_size=3),
    Case(sends_over_a_slow_link, link=Link(0.01, 1e6)),
    Case(posts_a_receive_before_it(runs_a_process), link=Link(1e-3, 10e6)),
]
QUICK = {
    *("reads_a_file", "posts_a_receive_and_runs_a_process", "has_a_slow_hook"),
    *("forms_a_group_with_a_limit", "returns_and_leaves_a_thread_that_sends"),
}


@pytest.fixture(scope="module")
def ended(request):
    with launched(selected(request)) as launches:
        yield launches


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[] if str(each) in QUICK else pytest.mark.slow, id=str(each)) for each in CASES]
)
def test_a_correct_run_is_not_ended(case, ended):
    outcome = ended[case].result()
    assert isinstance(outcome, Run), "".join([str(outcome), *getattr(outcome, "__notes__", [])])
