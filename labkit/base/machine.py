"""Find out about this machine: which one it is, its cores and GPUs, and what a container grants."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import subprocess
import sys
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
    for text in filter(None, (_read(group / "cpu.max") for group in control_groups())):
        limit, period = text.split()
        quotas.append(math.inf if limit == "max" else int(limit) / int(period))
    return min(quotas)


def memory_limit() -> float:
    """Return how many bytes this process's control groups allow it; infinity without a limit."""
    return min(map(_memory_limit, control_groups()), default=math.inf)


def free_memory() -> float:
    """Return how many bytes new processes can have: what is free, within the control groups.

    A control group has free what its limit leaves over, and the part of the page cache that the
    kernel drops first (inactive_file).
    """
    return min([psutil.virtual_memory().available, *map(_free_memory, control_groups())])


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


# --- control groups: what Linux (version 2 of them) grants a container ----------------------------


def control_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Return the folders of this process's control group and of each one above it."""
    for line in _read(own).splitlines():
        if line.startswith("0::"):
            group = root / line.removeprefix("0::").lstrip("/")
            return [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return []


def _memory_limit(group: Path) -> float:
    text = _read(group / "memory.max")
    return float(text) if text not in ("", "max") else math.inf


def _free_memory(group: Path) -> float:
    statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    used = int(_read(group / "memory.current") or 0) - int(statistics.get("inactive_file", 0))
    return max(0.0, _memory_limit(group) - used)


def _read(file: Path) -> str:
    """Return the text of a file, "" where it is not there."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
