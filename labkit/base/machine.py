"""Find out about this machine: which one it is, its cores and GPUs, and what a container grants."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil


def name(boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return a name that processes of one machine share and that no other machine has.

    A host name alone would not do: many clouds give every machine the same one. Linux draws a
    random number each time it starts.
    """
    return f"{platform.node()} {boot_id.read_text().strip() if boot_id.exists() else ''}".strip()


def visible_cores() -> int:
    """Return how many cores this process may run on, however little of their time it is granted."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Return how many cores this process can keep busy, at least 1.

    Those are the visible ones, or the container's quota if that is less.
    """
    return max(1, int(min(visible_cores(), cpu_quota())))


def cpu_quota() -> float:
    """Return how many cores' worth of time the control groups allow; infinity without a limit."""
    quotas = [math.inf]
    for text in _control_files("cpu.max"):
        limit, period = text.split()
        quotas.append(math.inf if limit == "max" else int(limit) / int(period))
    return min(quotas)


def memory_limit() -> float:
    """Return how many bytes this process's control groups allow it; infinity without a limit."""
    return min([math.inf, *(float(text) for text in _control_files("memory.max") if text != "max")])


def usable_gpus() -> int:
    """Return how many GPUs torch can use in a new process that has this one's environment.

    Another process counts them: asking CUDA here would start it here, after which forks cannot use
    it and CUDA_VISIBLE_DEVICES no longer counts. torch.cuda.device_count() alone asks the driver's
    NVML, which also counts GPUs that this torch cannot use, as with an old driver, and miscounts
    where they are partitioned by MIG (pytorch issue 131667). Counted once per environment.
    """
    return _count_gpus(tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_SAY_WHICH_GPUS))))


_SAY_WHICH_GPUS = ("CUDA_", "NVIDIA_", "LD_")
_COUNT = "import torch; print(torch.accelerator.device_count() if torch.cuda.is_available() else 0)"


@functools.cache
def _count_gpus(environment: tuple[tuple[str, str], ...]) -> int:
    if not has_gpu_driver():
        return 0
    counting = subprocess.run([sys.executable, "-W", "ignore", "-c", _COUNT], capture_output=True, text=True)
    return int(counting.stdout.split()[-1]) if counting.returncode == 0 else 0


def has_gpu_driver() -> bool:
    """Return whether NVIDIA's driver is installed, usable or not."""
    try:
        ctypes.CDLL("libcuda.so.1")  # loads it, and starts nothing
    except OSError:
        return False
    return True


def free_memory() -> float:
    """Return how many bytes new processes can have: what is free, within the control groups."""
    return min(psutil.virtual_memory().available, memory_limit())


def process_limit() -> float:
    """Return how many processes and threads there may be, by kernel, user or control groups."""
    limits = [math.inf, *(float(text) for text in _control_files("pids.max") if text != "max")]
    limits += [float(file.read_text()) for file in map(Path, _KERNEL_LIMITS) if file.exists()]
    of_user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if of_user != resource.RLIM_INFINITY and os.geteuid() != 0:  # root has none
        limits.append(of_user)
    return min(limits)


_KERNEL_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")


def open_file_limit() -> float:
    """Return how many files this process may have open at a time."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _control_files(
    name: str, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[str]:
    """Yield what file ``name`` says in this process's control group and in each one above it.

    Linux, control groups of version 2.
    """
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
