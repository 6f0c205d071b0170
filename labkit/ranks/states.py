"""What the system says of processes that do not answer."""

from __future__ import annotations

import contextlib

import psutil


def is_stopped(pid: int) -> bool:
    """Return whether a process is held by a signal such as SIGSTOP."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:  # it has ended
        return False


def stopped_servers() -> list[int]:
    """Return which of the processes that ranks come from are held by a signal."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("fork_server.serve_packages" in word for word in process.cmdline()) and is_stopped(process.pid):
                found.append(process.pid)
    return found
