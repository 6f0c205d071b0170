"""Look whether this machine is ready for the lab: each thing ok, a warning or a fault, and advice.

Everything that differs from machine to machine stands in ``[~ ]``, so the first cell of notebook 00
can be compared.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from labkit.base import formats, hub, machine
from labkit.course import chromium

OK, WARNING, FAULT = "ok", "warning", "fault"
GIB = 1 << 30
MIN_PYTHON, MIN_TORCH = (3, 11), (2, 9)
NCCL_S = 20.0  # for an all_reduce of two ranks, their start included
P2P_DRIVER = (550, 40, 7)  # GeForce RTX 40xx with an older one claim a peer-to-peer that they do not have


@dataclass(frozen=True)
class Fact:
    """One thing the lab needs: what was found, its status, and what to do.

    The status is ``"ok"``, a ``"warning"`` or a ``"fault"``.
    """

    name: str
    status: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.status:<8} {self.found}" + (f". To do: {self.advice}" if self.advice else "")
        return text.replace("]", ")")  # it ends what the notebook test hides


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`doctor` found, one fact a line; ``healthy`` if none of them is a fault."""

    facts: tuple[Fact, ...]

    @property
    def healthy(self) -> bool:
        return not any(fact.status == FAULT for fact in self.facts)

    @property
    def summary(self) -> str:
        found = [fact.status for fact in self.facts]
        counts = [f"{n} {status}{'s' * (n != 1)}" for status in (FAULT, WARNING) for n in [found.count(status)]]
        return ", ".join(["ready" if self.healthy else "not ready", *counts])

    def __repr__(self) -> str:
        lines = [f"{fact.name:<14}{formats.fact(fact)}" for fact in self.facts]
        return "\n".join([*lines, f"{'this machine':<14}{formats.fact(self.summary)}"])

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = [("", "", "found here", "to do")]
        rows += [(fact.name, *map(formats.fact, (fact.status, fact.found, fact.advice))) for fact in self.facts]
        rows += [("this machine", *map(formats.fact, (self.summary, "", "")))]
        lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        return f"<table>{lines}</table>"


def _cell(text: str) -> str:
    return f'<td style="text-align: left">{formats.as_html(text)}</td>'


def doctor() -> Diagnosis:
    """Look at this machine: Python, torch, GPUs, cores, memory, Jupyter and what else is needed.

    It takes a few seconds. Where there are two GPUs, two ranks try NCCL on them.
    """
    python, torch, gpus, nccl, cores, memory = machine_facts()
    rest = (look() for look in (_shared_memory, _jupyter, _chromium, _hub))
    return Diagnosis((python, torch, gpus, _nccl_tried(nccl), cores, memory, *rest))


def machine_facts() -> tuple[Fact, ...]:
    """Return what a measurement depends on: Python, torch, GPUs, NCCL, cores and memory.

    Nothing is started for that, and no GPU is touched.
    """
    return _python(), _torch(), _gpus(), _nccl(), _cores(), _memory()


# --- software -------------------------------------------------------------------------------------


def _python() -> Fact:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < MIN_PYTHON:
        return Fact("Python", FAULT, found, f"install Python {_dotted(MIN_PYTHON)} or newer, then run make setup")
    return Fact("Python", OK, found)


def _torch() -> Fact:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return Fact("torch", FAULT, f"cannot be imported ({error})", "run make setup")
    found = str(torch.__version__)
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit()) < MIN_TORCH:
        return Fact("torch", FAULT, found, f"the lab needs {_dotted(MIN_TORCH)} or newer: run make setup")
    if not (dist.is_available() and dist.is_gloo_available()):
        advice = "install a torch that is built with torch.distributed and gloo"
        return Fact("torch", FAULT, f"{found} without gloo", advice)
    return Fact("torch", OK, f"{found}, CUDA {torch.version.cuda or 'not built in'}")


def _gpus() -> Fact:
    """Look at the GPUs: those that torch can use, and the modes that their driver is in.

    The driver's own command is asked, as CUDA stays untouched in this process.
    """
    count = machine.usable_gpus()
    gpus = _ask_driver("name", "memory.total", "driver_version", "compute_mode", "persistence_mode")
    kind = "{}, {}, driver {}, compute mode {}, persistence mode {}"
    found = "; ".join(sorted({kind.format(*gpu) for gpu in gpus}))
    if not count and machine.has_gpu_driver():
        found = f"there is a driver, but torch can use no GPU: {found or 'nvidia-smi shows none'}"
        advice = "compare nvidia-smi with the CUDA version of torch above, and look at CUDA_VISIBLE_DEVICES"
        return Fact("GPUs", WARNING, found, advice)
    if not count:
        return Fact("GPUs", OK, "none: everything runs on the CPU, with gloo")
    advice = " ".join(
        dict.fromkeys(each for name, _, driver, mode, _ in gpus for each in _gpu_advice(name, driver, mode))
    )
    return Fact("GPUs", WARNING if advice else OK, f"{count}: {found}", advice)


def _gpu_advice(name: str, driver: str, mode: str) -> Iterator[str]:
    if mode == "Exclusive_Process":
        yield "each GPU takes one process: no share_gpu=True, and close other kernels that use it."
    if mode == "Prohibited":
        yield "no process may use it: ask for compute mode Default (nvidia-smi -c 0)."
    if " 40" in name and tuple(map(int, driver.split("."))) < P2P_DRIVER:
        yield "Accelerate stops there until NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1 are set."


def _ask_driver(*questions: str) -> list[list[str]]:
    """Return what nvidia-smi answers, for each GPU; nothing where it is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(questions)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split(", ") for line in answer.splitlines()]


def _nccl() -> Fact:
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return Fact("NCCL", WARNING, "unknown without torch", "run make setup")
    if not machine.usable_gpus():
        return Fact("NCCL", OK, "not needed without a GPU")
    if not dist.is_nccl_available():
        advice = "install torch's CUDA build; until then ranks use gloo"
        return Fact("NCCL", WARNING, "not built into this torch", advice)
    return Fact("NCCL", OK, _dotted(torch.cuda.nccl.version()))  # type: ignore[no-untyped-call, unused-ignore]


def _nccl_tried(fact: Fact) -> Fact:
    """Return what is known of NCCL once two ranks have tried it, where there are two GPUs.

    Traffic from GPU to GPU hangs on some machines, such as those with ACS or an IOMMU on.
    """
    if fact.status != OK or machine.usable_gpus() < 2:
        return fact
    if (failure := _all_reduce_fails()) is None:
        return Fact("NCCL", OK, f"{fact.found}, an all_reduce of two ranks works")
    found = f"{fact.found}, an all_reduce of two ranks fails ({failure}), "
    if _all_reduce_fails(NCCL_P2P_DISABLE="1") is None:
        advice = "set NCCL_P2P_DISABLE=1 before you start Jupyter, or fix the machine"
        return Fact("NCCL", WARNING, found + "and works with NCCL_P2P_DISABLE=1", advice)
    advice = "set NCCL_DEBUG=INFO and run labkit doctor again, or use backend='gloo'"
    return Fact("NCCL", FAULT, found + "also with NCCL_P2P_DISABLE=1", advice)


def _all_reduce_fails(**variables: str) -> str | None:
    """Have two ranks all_reduce over NCCL; return how it failed, None if it did not."""
    from labkit.launch import LaunchTimeout, RankError, launch

    try:
        with mock.patch.dict(os.environ, variables):
            launch(_all_reduce, world_size=2, backend="nccl", timeout_s=NCCL_S)
    except (RankError, LaunchTimeout) as error:
        return f"no answer in {NCCL_S:.0f} s" if isinstance(error, LaunchTimeout) else error.error_type
    return None


def _all_reduce() -> float:
    import torch
    import torch.distributed as dist

    from labkit.launch import device

    x = torch.ones(1 << 20, device=device())
    dist.all_reduce(x)
    return x[0].item()


def _jupyter() -> Fact:
    try:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jupyterlab", "ipykernel", "ipywidgets")]
    except importlib.metadata.PackageNotFoundError as error:
        return Fact("Jupyter", FAULT, f"{error.name} is not installed", "run make setup")
    return Fact("Jupyter", OK, ", ".join(versions))


def _chromium() -> Fact:
    """Look for the browser of tests and reports: playwright's own, or an installed one."""
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ms-playwright"
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or default)
    installed = next((name for name in chromium.NAMES if shutil.which(name)), None)
    if folder.is_dir() and any(folder.glob("chromium*")):
        return Fact("Chromium", OK, "playwright's")
    if installed:
        return Fact("Chromium", OK, installed)
    advice = "only browser tests and a report's PDF need it: python -m playwright install chromium"
    return Fact("Chromium", WARNING, "not found", advice)


# --- hardware -------------------------------------------------------------------------------------


def _cores() -> Fact:
    cores, quota = machine.visible_cores(), machine.cpu_quota()
    found = f"{cores}" + (f", of which this container may use {quota:g}" if quota < cores else "")
    if min(cores, quota) < 2:
        return Fact("CPU cores", WARNING, found, "two ranks share it: everything runs, but no speed-up can show")
    return Fact("CPU cores", OK, found)


def _memory() -> Fact:
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    if (limit := machine.memory_limit()) < total:
        total, free = int(limit), min(free, int(limit))
    found = f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB of it free"
    if free < GIB:
        return Fact("memory", FAULT, found, "close other programs or kernels: two ranks need about 1 GiB")
    if free < 3 * GIB:
        return Fact("memory", WARNING, found, "close other programs or kernels before launching more than two ranks")
    return Fact("memory", OK, found)


def _shared_memory(folder: str = "/dev/shm") -> Fact:
    if not os.path.isdir(folder):
        return Fact("shared memory", OK, "no /dev/shm on this system, and none needed")
    total, _, free = shutil.disk_usage(folder)
    found = f"{total / GIB:.2f} GiB, {free / GIB:.2f} GiB of it free"
    if free < GIB // 4:
        return Fact("shared memory", WARNING, found, "NCCL and loaders use it: start the container with --shm-size=2g")
    return Fact("shared memory", OK, found)


# --- the hub --------------------------------------------------------------------------------------


def _hub() -> Fact:
    if hub.reachable():
        return Fact("hub", OK, "the Hugging Face hub answers")
    found = "switched off by the environment" if hub.offline() else "not reachable"
    return Fact("hub", WARNING, found, "go on without it: sentences ship with the lab, or set LABKIT_DATA to a folder")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
