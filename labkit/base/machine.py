"""How much of this machine a process may use: its cores, and what a container grants it of their time and of memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def cores_in_sight() -> int:
    """How many cores this process may run on, however little of their time it is granted."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """How many cores this process can keep busy, at least 1: those in sight, or the container's quota if that is less."""
    return max(1, int(min(cores_in_sight(), cpu_quota())))


def cpu_quota() -> float:
    """How many cores' worth of time this process's control groups allow it; infinity without a limit."""
    quotas = [math.inf]
    for text in _control_files("cpu.max"):
        limit, period = text.split()
        quotas.append(math.inf if limit == "max" else int(limit) / int(period))
    return min(quotas)


def memory_limit() -> float:
    """How many bytes this process's control groups allow it; infinity without a limit."""
    return min([math.inf, *(float(text) for text in _control_files("memory.max") if text != "max")])


def _control_files(
    name: str, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[str]:
    """What file ``name`` says in this process's control group and in each one above it (Linux, cgroup version 2)."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            group = root / line.removeprefix("0::").lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root) and (folder / name).is_file():
                    yield (folder / name).read_text().strip()
