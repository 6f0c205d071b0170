"""Check whether this machine is ready for the lab: each thing ok, a warning or a fault, and advice.

In a cell everything that differs from machine to machine stands in ``[~ ]``, so the first cell of
notebook 00 can be compared.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import psutil

from labkit.base import chromium, formats, hub, machine
from labkit.base.course import FILE, CourseError, course
from labkit.base.lab import check_own
from labkit.base.units import GIB

OK, WARNING, FAULT = "ok", "warning", "fault"
MIN_PYTHON, MIN_TORCH = (3, 11), (2, 9)
NCCL_S = 20.0  # for an all_reduce of two ranks, their start included


@dataclass(frozen=True)
class Fact:
    """One thing the lab needs: what was found, its status, and what to do.

    Its status is ``"ok"`` where there is nothing to do, else a ``"warning"`` or a ``"fault"``.
    """

    name: str
    found: str
    advice: str = ""
    is_fault: bool = False

    @property
    def status(self) -> str:
        return OK if not self.advice else FAULT if self.is_fault else WARNING

    def __str__(self) -> str:
        return f"{self.status:<8} {self.found}" + (f". To do: {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`doctor` found, one fact a line; ``healthy`` if none of them is a fault."""

    facts: tuple[Fact, ...]

    @property
    def healthy(self) -> bool:
        return FAULT not in [fact.status for fact in self.facts]

    @property
    def summary(self) -> str:
        counts = Counter(fact.status for fact in self.facts)
        faults, warnings = (f"{counts[s]} {s}{'s' * (counts[s] != 1)}" for s in (FAULT, WARNING))
        return f"{'ready' if self.healthy else 'not ready'}, {faults}, {warnings}"

    def __repr__(self) -> str:
        lines = [*((fact.name, str(fact)) for fact in self.facts), ("this machine", self.summary)]
        return "\n".join(f"{name:<14}{formats.fact(text)}" for name, text in lines)

    def _repr_html_(self) -> str:
        return formats.Lines(repr(self), aligned=True)._repr_html_()


def doctor() -> Diagnosis:
    """Look at this machine: Python, torch, GPUs, cores, memory, Jupyter and what else is needed.

    It takes a few seconds. Where there are two GPUs, two ranks try NCCL on them.
    """
    python, torch, gpus, nccl, cores, memory = machine_facts()
    rest = _shared_memory(), _jupyter(), _chromium(), _hub(), *_other_labkit(), *_course()
    return Diagnosis((python, torch, gpus, _nccl_tried(nccl), cores, memory, *rest))


def machine_facts() -> tuple[Fact, ...]:
    """Return what a measurement depends on: Python, torch, GPUs, NCCL, cores and memory.

    Nothing is started for that, and no GPU is touched.
    """
    return _python(), _torch(), _gpus(), _nccl(), _cores(), _memory()


# --- software -------------------------------------------------------------------------------------


def _python() -> Fact:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    old = f"install Python {_dotted(MIN_PYTHON)} or newer, then run make setup"
    return Fact("Python", found, old if sys.version_info < MIN_PYTHON else "", is_fault=True)


def _torch() -> Fact:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return Fact("torch", f"cannot be imported ({error})", "run make setup", is_fault=True)
    found, advice = f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}", ""
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < MIN_TORCH:
        advice = f"the lab needs {_dotted(MIN_TORCH)} or newer: run make setup"
    elif not (dist.is_available() and dist.is_gloo_available()):
        advice = "install a torch that is built with torch.distributed and gloo"
    return Fact("torch", found, advice, is_fault=True)


def _gpus() -> Fact:
    """Look at the GPUs: those that torch can use, and the modes that their driver is in.

    The driver's own command is asked, as CUDA stays untouched in this process.
    """
    count, (gpus, in_use) = machine.usable_gpus(), _ask_driver()
    if not count and not machine.has_gpu_driver():
        return Fact("GPUs", "none: everything runs on the CPU, with gloo")
    if not count:
        there = "; ".join(gpus) or "nvidia-smi shows none"
        advice = "compare nvidia-smi with torch's CUDA version above, and look at CUDA_VISIBLE_DEVICES"
        return Fact("GPUs", f"there is a driver, but torch cannot use any GPU: {there}", advice)
    shared = all(", Default" in gpu for gpu in gpus)
    mode = "one takes one process or none, so no share_gpu=True: set mode Default (nvidia-smi -c 0)"
    now = f"; memory in use now: {', '.join(in_use)}" if in_use else ""
    return Fact("GPUs", f"{count}: {'; '.join(gpus)}{now}", "" if shared else mode)


def _ask_driver() -> tuple[list[str], list[str]]:
    """Return what nvidia-smi says of each kind of GPU, and the memory in use of each GPU.

    Nothing where it is missing or fails. It shows all GPUs of the machine, and what all users have
    on them.
    """
    fields = "index,memory.used,name,memory.total,driver_version,compute_mode"
    query = f"nvidia-smi --query-gpu={fields} --format=csv,noheader"
    try:
        answer = subprocess.check_output(query.split(), stderr=subprocess.DEVNULL, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return [], []
    gpus = [line.split(", ", 2) for line in answer.splitlines()]
    return sorted({kind for _, _, kind in gpus}), [f"GPU {index} {used}" for index, used, _ in gpus]


def _nccl() -> Fact:
    if not machine.usable_gpus():
        return Fact("NCCL", "not needed without a GPU")
    import torch

    if not torch.distributed.is_nccl_available():
        advice = "install torch's CUDA build; until then ranks use gloo"
        return Fact("NCCL", "not built into this torch", advice)
    return Fact("NCCL", _dotted(torch.cuda.nccl.version()))  # type: ignore[no-untyped-call, unused-ignore]


def _nccl_tried(fact: Fact) -> Fact:
    """Return what is known of NCCL once two ranks have tried it, where there are two GPUs.

    Traffic from GPU to GPU hangs on some machines, such as those with ACS or an IOMMU on.
    """
    from labkit.launch import LaunchTimeout, RankError, launch

    if fact.status != OK or machine.usable_gpus() < 2:
        return fact
    tried = f"{fact.found}, an all_reduce of two ranks"
    try:
        launch(_all_reduce, world_size=2, backend="nccl", timeout_s=NCCL_S)
    except (RankError, LaunchTimeout) as error:
        failure = getattr(error, "error_type", f"no answer in {NCCL_S:.0f} s")
        advice = "set NCCL_P2P_DISABLE=1 and run labkit doctor again; if it fails still, use backend='gloo'"
        return Fact("NCCL", f"{tried} fails ({failure})", advice, is_fault=True)
    return Fact("NCCL", f"{tried} works")


def _all_reduce() -> None:
    import torch
    import torch.distributed as dist

    from labkit.launch import device

    dist.all_reduce(x := torch.ones(1 << 20, device=device()))
    x[0].item()  # waits for it


def _other_labkit() -> list[Fact]:
    """Return a fault where the lab's folder has a labkit that is not the imported one."""
    try:
        check_own()
    except ImportError as error:
        found, _, advice = str(error).partition(". ")
        return [Fact("labkit", found, advice, is_fault=True)]
    return []


def _jupyter() -> Fact:
    names = "jupyterlab", "ipykernel", "ipywidgets"
    try:
        return Fact("Jupyter", ", ".join(f"{name} {version(name)}" for name in names))
    except PackageNotFoundError as error:
        advice = "run make setup, or pip install '.[lab]'"
        return Fact("Jupyter", f"no {error.name}", advice, is_fault=True)


def _chromium() -> Fact:
    found = chromium.find_chromium()
    advice = "only a report's PDF and stored pictures of explorers need it: python -m playwright install chromium"
    return Fact("Chromium", found or "not found", "" if found else advice)


# --- hardware and network -------------------------------------------------------------------------


def _cores() -> Fact:
    cores, quota = machine.visible_cores(), machine.cpu_quota()
    found = f"{cores}" + f", of which this container may use {quota:g}" * (quota < cores)
    few = "two ranks share it: everything runs, but no speed-up can show"
    return Fact("CPU cores", found, few if min(cores, quota) < 2 else "")


def _memory() -> Fact:
    memory = psutil.virtual_memory()
    limit = machine.memory_limit()
    total, free = min(memory.total, limit) / GIB, min(memory.available, limit) / GIB
    close = "close other programs or kernels: two ranks need about 1 GiB, more than two 3 GiB"
    found = f"{total:.1f} GiB, {free:.1f} GiB of it free"
    return Fact("memory", found, close if free < 3 else "", is_fault=free < 1)


def _shared_memory(folder: str = "/dev/shm") -> Fact:
    if not os.path.isdir(folder):
        return Fact("shared memory", "no /dev/shm on this system, and none needed")
    total, _, free = (size / GIB for size in shutil.disk_usage(folder))
    advice = "NCCL and loaders use it: start the container with --shm-size=2g"
    found = f"{total:.2f} GiB, {free:.2f} GiB of it free"
    return Fact("shared memory", found, advice if free < 0.25 else "")


def _hub() -> Fact:
    if hub.reachable():
        return Fact("hub", "the Hugging Face hub answers")
    found = "switched off by the environment" if hub.offline() else "not reachable"
    advice = "go on without it: generated sentences ship with the lab, or set LABKIT_DATA to a folder"
    return Fact("hub", found, advice)


def _course() -> list[Fact]:
    """Return what the lab's course.toml says; nothing where there is none."""
    try:
        taught = course()
    except CourseError as error:
        return [Fact("course", str(error), f"mend {FILE}, or put it back as it came with the lab", is_fault=True)]
    if not taught.file:
        return []
    due = [f"{part.name} is due {part.due:%Y-%m-%d %H:%M %Z}" for part in taught.parts if part.due]
    return [Fact("course", "; ".join([f"{taught.title}, {len(taught.tasks)} tasks", *due]))]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
