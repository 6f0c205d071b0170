"""What a thread waits for inside torch is told where that is certain.

That locks, queues and events are waits, and other waits are not, test_hangs and test_correct_runs
show in ranks."""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from labkit.ranks.faults import frames
from labkit.ranks.faults.thread_wait import what_it_waits_for
from labkit.ranks.faults.work_log import WorkLog
from labkit.ranks.messages.message import GPU, RANKS

TORCH = os.path.dirname(torch.__file__)


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
        ours = [each for each in stack if each.f_code.co_filename.endswith("faults/work_log.py")]
        if ours:
            return ours[0]
        time.sleep(0.01)


def test_wait_of_work_is_a_wait_for_ranks_unless_it_has_a_time_limit():
    assert what_it_waits_for(wait_of(), None) == RANKS
    assert what_it_waits_for(wait_of(timedelta(0)), None) == RANKS  # as torch has it, no limit
    assert what_it_waits_for(wait_of(timedelta(seconds=9)), None) == ""
    assert what_it_waits_for(wait_of(timeout=timedelta(seconds=9)), None) == ""
    assert what_it_waits_for(wait_of(timeout=timedelta(seconds=9)), None, left_s=8) == RANKS  # it is over too late


IN_DISTRIBUTED = ("distributed/distributed_c10d.py", "distributed/c10d_logger.py")


@pytest.mark.parametrize(
    ("limit", "left_s", "wait"),
    [
        (timedelta(seconds=9), 90, ""),
        (timedelta(seconds=99), 90, RANKS),  # it is over too late
        (timedelta(hours=1), 1e12, ""),
        (dist.default_pg_timeout, 1e12, RANKS),  # torch's, not the reader's
        (None, 90, RANKS),
    ],
)
def test_a_call_whose_own_time_limit_is_over_soon_enough_is_no_wait(limit, left_s, wait):
    frame = stack_of(*IN_DISTRIBUTED)
    frame.f_back.f_locals["timeout"] = limit
    assert what_it_waits_for(frame, None, left_s) == wait


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
    ("distributed/distributed_c10d.py", "distributed/c10d_logger.py"): RANKS,
    ("nn/parallel/distributed.py", "nn/modules/module.py"): RANKS,
    ("_ops.py", "distributed/_functional_collectives.py"): RANKS,
    ("autograd/graph.py", "autograd/__init__.py", "_tensor.py"): RANKS,
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


@pytest.mark.parametrize(("file", "wait"), [("_tensor.py", GPU), ("cuda/streams.py", GPU), ("serialization.py", "")])
def test_with_a_gpu_in_use_torch_waits_for_it_but_not_where_it_reads_files(file, wait, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert what_it_waits_for(stack_of(file), None) == wait
