"""What ranks do in tests. They import this file, so it imports little."""

from __future__ import annotations

import os
import subprocess
import time

import torch
import torch.distributed as dist

from labkit.trace import span


def all_reduce_works() -> float:
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def rank_and_sum() -> tuple[int, torch.Tensor]:
    x = torch.ones(3) * (dist.get_rank() + 1)
    with span("all_reduce", lane="comm", bytes=x.nbytes):
        dist.all_reduce(x)
    return dist.get_rank(), x


def a_child() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def a_child_with_a_session_of_its_own() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def a_daemon() -> int:
    """Fork twice, so that nobody is its parent any more, with a session of its own."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if (grandchild := os.fork()) == 0:
            os.closerange(1, 3)
            time.sleep(1000)
        os.write(write, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 20))


def spans_never_end() -> None:
    """As spans on a GPU behind a collective that another rank does not join."""
    from labkit import trace

    trace.Recorder.finish = lambda self: time.sleep(1000)
