"""End a process together with its parent, the one that has started it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys


def end_with_parent() -> None:
    """Have Linux kill this process as soon as its parent has ended, even if it was killed itself.

    Call it first thing in a process that was just started. torch.multiprocessing asks
    for SIGINT instead, which Python handles only once a collective has returned. Elsewhere than on
    Linux this only ends a process whose parent is gone already.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():  # it ended before this could ask
        os._exit(1)
