"""What a thread waits for inside torch is told where that is certain, and whose lines they are.

That locks, queues and events are waits, and other waits are not, test_hangs and test_correct_runs
show in ranks."""

from __future__ import annotations

import os
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


def test_to_find_a_lock_by_its_name_runs_no_code_of_the_readers():
    lock, asked = threading.Lock(), []
    lock.acquire()

    class Careful:
        @property
        def lock(self):
            asked.append(threading.get_ident())
            return lock

    def take(holder):
        with holder.lock:
            pass

    thread = threading.Thread(target=take, args=(Careful(),), daemon=True)
    thread.start()
    calls = [["one"], ["another"]]
    while calls[-1] != calls[-2] or not calls[-1][0].isdigit():  # until it is in the same call twice
        time.sleep(0.05)
        calls.append(thread_wait._system_call(thread.native_id))
    what_it_waits_for(sys._current_frames()[thread.ident], thread.native_id)
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
        *(
            (os.path.join(os.path.dirname(os.path.dirname(frames.__file__)), name), True)
            for name in ("dp.py", "shard.py")
        ),
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
