"""What a thread waits for is told where that is certain; any other thread is alive."""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import sysconfig
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from labkit.ranks import frames, thread_wait
from labkit.ranks.thread_wait import what_it_waits_for
from labkit.ranks.work_log import WorkLog

TORCH = os.path.dirname(torch.__file__)


class Holder:
    """A lock that is taken, and a queue that is empty, as attributes of another object."""

    def __init__(self, lock):
        self.lock, self.results = lock, queue.SimpleQueue()


@pytest.fixture
def lock():
    lock = threading.Lock()
    lock.acquire()
    return lock


@pytest.fixture
def waiting():
    """waiting(wait): a thread that has come to its wait: its frame, and its number in Linux."""

    def start(wait):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        calls = [["one"], ["another"]]
        while calls[-1] != calls[-2] or not calls[-1][0].isdigit():  # until it is in the same call twice
            time.sleep(0.05)
            calls.append(thread_wait._system_call(thread.native_id))
        return sys._current_frames()[thread.ident], thread.native_id

    return start


def takes(lock):
    def take():
        lock.acquire()

    return take


def enters(lock):
    def enter():
        with lock:
            pass

    return enter


def takes_that_of(holder):
    def take():
        with holder.lock:
            pass

    return take


def gets_from(holder):
    def get():
        return [holder.results.get(True) for _ in range(2)]

    return get


def waits_for_condition():
    condition = threading.Condition()
    with condition:
        condition.wait()


@pytest.mark.skipif(not thread_wait._FUTEX, reason="no Linux whose system calls are known")
def test_a_lock_a_queue_and_an_event_are_waits_for_another_thread(waiting, lock):
    holder, another = Holder(lock), threading.Thread(target=takes(lock), daemon=True)
    another.start()
    waits = [takes(lock), enters(lock), takes_that_of(holder), gets_from(holder), waits_for_condition]
    for wait in [*waits, queue.Queue().get, threading.Event().wait, another.join]:
        assert what_it_waits_for(*waiting(wait)) == "thread", wait


@pytest.mark.skipif(not thread_wait._FUTEX, reason="no Linux whose system calls are known")
def test_a_wait_with_a_time_limit_or_for_another_process_is_alive(waiting, lock):
    shared = multiprocessing.get_context("fork").Lock()
    shared.acquire()
    read, _ = os.pipe()
    results = queue.SimpleQueue()
    waits = [
        lambda: lock.acquire(timeout=100),
        lambda: results.get(timeout=100),
        lambda: threading.Event().wait(100),
        takes(shared),
        enters(shared),
        shared.acquire,
        lambda: os.read(read, 1),
        lambda: time.sleep(100),
    ]
    for wait in waits:
        assert what_it_waits_for(*waiting(wait)) == "", wait


def test_where_the_kernel_says_nothing_a_lock_is_not_believed(waiting, lock, monkeypatch):
    frame, native_id = waiting(takes(lock))
    monkeypatch.setattr(thread_wait, "_system_call", lambda native_id: [])
    assert what_it_waits_for(frame, native_id) == ""


def test_to_find_a_lock_by_its_name_runs_no_code_of_the_readers(waiting, lock):
    class Careful:
        @property
        def lock(self):
            asked.append(threading.get_ident())
            return lock

    asked = []
    frame, native_id = waiting(takes_that_of(Careful()))
    what_it_waits_for(frame, native_id)
    assert threading.get_ident() not in asked


# --- work -----------------------------------------------------------------------------------------


class Work:
    """Work in whose wait() a thread stays."""

    def wait(self, timeout=timedelta(0)):
        threading.Event().wait()


def wait_of(*args, **options):
    """Return the frame of the lab's own around wait(), in a thread that is in it."""
    work_class = type("Work", (Work,), dict(vars(Work)))
    WorkLog()._watch_waits(work_class)
    thread = threading.Thread(target=lambda: work_class().wait(*args, **options), daemon=True)
    thread.start()
    while True:
        stack = list(frames.outwards(sys._current_frames()[thread.ident]))
        ours = [each for each in stack if each.f_code.co_filename.endswith("ranks/work_log.py")]
        if ours:
            return ours[0]
        time.sleep(0.01)


def test_wait_of_work_is_a_wait_for_ranks_unless_it_has_a_time_limit():
    assert what_it_waits_for(wait_of(), None) == "work"
    assert what_it_waits_for(wait_of(timedelta(0)), None) == "work"  # as torch has it, no limit
    assert what_it_waits_for(wait_of(timedelta(seconds=9)), None) == ""
    assert what_it_waits_for(wait_of(timeout=timedelta(seconds=9)), None) == ""


def stack_of(*files):
    """Return a frame in the first of these files of torch, called from the second, and so on."""
    code = SimpleNamespace(co_filename=__file__, co_name="train", co_positions=lambda: [(1, 1, 0, 0)])
    frame = SimpleNamespace(f_code=code, f_back=None, f_lasti=0, f_lineno=1)
    for file in reversed(files):
        code = SimpleNamespace(
            co_filename=os.path.join(TORCH, *file.split("/")), co_name="f", co_positions=code.co_positions
        )
        frame = SimpleNamespace(f_code=code, f_back=frame, f_lasti=0, f_lineno=1, f_locals={}, f_globals={})
    return frame


IN_TORCH = {
    ("distributed/distributed_c10d.py", "distributed/c10d_logger.py"): "work",
    ("nn/parallel/distributed.py", "nn/modules/module.py"): "work",
    ("_ops.py", "distributed/_functional_collectives.py"): "work",
    ("autograd/graph.py", "autograd/__init__.py", "_tensor.py"): "work",
    ("distributed/checkpoint/filesystem.py", "distributed/checkpoint/state_dict_saver.py"): "",
    ("serialization.py", "distributed/checkpoint/filesystem.py"): "",
    ("serialization.py",): "",
    ("nn/modules/linear.py", "nn/modules/module.py"): "",
}


@pytest.mark.parametrize(
    ("files", "wait"), IN_TORCH.items(), ids=lambda each: each if isinstance(each, str) else each[0]
)
def test_in_torch_a_thread_waits_for_ranks_where_torch_does_so(files, wait):
    assert what_it_waits_for(stack_of(*files), None) == wait


@pytest.mark.parametrize(
    ("file", "wait"), [("_tensor.py", "gpu"), ("cuda/streams.py", "gpu"), ("serialization.py", "")]
)
def test_with_a_gpu_in_use_torch_waits_for_it_but_not_where_it_reads_files(file, wait, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert what_it_waits_for(stack_of(file), None) == wait


# --- whose lines they are -------------------------------------------------------------------------

FEDORA = {
    "stdlib": "/usr/lib64/python3.12",
    "platstdlib": "/usr/lib64/python3.12",
    "purelib": "/usr/local/lib/python3.12/site-packages",
    "platlib": "/usr/local/lib64/python3.12/site-packages",
}


@pytest.mark.parametrize(
    ("file", "is_readers"),
    [
        ("/usr/lib64/python3.12/threading.py", False),
        ("/usr/local/lib64/python3.12/site-packages/torch/nn/functional.py", False),
        ("<frozen importlib._bootstrap>", False),
        (frames.__file__, False),
        (os.path.join(os.path.dirname(os.path.dirname(frames.__file__)), "dp.py"), True),
        ("/tmp/ipykernel_17/2.py", True),
        ("/home/me/lib/python3/my-packages/train.py", True),
    ],
)
def test_lines_are_the_readers_unless_python_keeps_its_own_modules_or_packages_there(file, is_readers, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", FEDORA.get)
    monkeypatch.setattr(
        frames, "library_folders", frames.library_folders.__wrapped__
    )  # what is cached is of this machine
    assert frames.is_readers.__wrapped__(file) == is_readers
