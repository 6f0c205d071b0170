"""Choose devices: for a process, for training in one process, and for what a group sends.

A device is real, or virtual: without GPUs ``cpu:0``, ``cpu:1``, … stand for devices.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from labkit.base import machine

PLAIN_CPU = torch.device("cpu")

# --- which device ---------------------------------------------------------------------------------


def process_device(assigned: str | None = None) -> torch.device:
    """Return the device of this process: the ``assigned`` one, else its own GPU, else the CPU.

    A process has a GPU of its own where this node has one for each of its ranks, as torchrun counts
    them.
    """
    if assigned is not None:
        return torch.device(assigned)
    local_rank, n_ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return torch.device("cuda", local_rank) if local_rank < n_ranks <= machine.usable_gpus() else PLAIN_CPU


def sending_device(group: Any = None) -> torch.device:
    """Return the device whose tensors ``group`` sends: a GPU over NCCL, otherwise the CPU."""
    # Gloo takes a GPU's tensor in some collectives, and in no send.
    if dist.is_initialized() and "cuda:nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return PLAIN_CPU


def training_device(own: torch.device) -> torch.device:
    """Return where a process trains: on its ``own`` device, or where its group sends from."""
    return sending_device() if dist.is_initialized() else own


def training_devices(own: torch.device, n: int) -> list[torch.device]:
    """Return ``n`` devices for one process: GPUs if it has that many, else virtual ones."""
    on_gpus = training_device(own).type == "cuda" and torch.accelerator.device_count() >= n
    return [torch.device("cuda" if on_gpus else "cpu", number) for number in range(n)]


# --- real and virtual -----------------------------------------------------------------------------


def check_device(device: str | torch.device) -> torch.device:
    """Return ``device`` as a torch.device. Raises ValueError for a GPU where there is none."""
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {str(device)!r}, and there is no GPU here: use virtual devices, cpu:0, cpu:1, …")
    return device if is_virtual(device) else torch.empty(0, device=device).device  # "cuda" gets its number here


def is_virtual(device: torch.device) -> bool:
    """Return whether ``device`` is one of ``cpu:0``, ``cpu:1``, …, which stand for devices."""
    return device.type == "cpu" and device.index is not None


def real_device(device: torch.device) -> torch.device:
    """Return where the tensors of ``device`` really are: on the CPU if it is virtual."""
    return PLAIN_CPU if is_virtual(device) else device
