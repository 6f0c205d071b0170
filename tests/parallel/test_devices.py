"""devices: which a process computes on, by what launch or torchrun gave it, its group, and what the
machine has."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from labkit.base import machine
from labkit.parallel.devices import process_device, sending_device, training_device, training_devices

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

PLACES = {
    "launch says": ("cuda:3", 0, {}, "cuda:3"),
    "no GPU": (None, 0, {}, "cpu"),
    "alone with a GPU": (None, 1, {}, "cuda:0"),
    "torchrun, a GPU a rank": (None, 2, TORCHRUN, "cuda:1"),
    "torchrun, too few GPUs": (None, 1, TORCHRUN, "cpu"),
}


@pytest.mark.parametrize(("assigned", "gpus", "environment", "expected"), PLACES.values(), ids=PLACES)
def test_a_process_has_the_device_it_was_given_or_its_own(monkeypatch, assigned, gpus, environment, expected):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "usable_gpus", lambda: gpus)
    assert process_device(assigned) == torch.device(expected)


def test_a_process_trains_where_its_group_sends_and_without_a_group_on_its_own_device():
    assert training_device(GPU) == GPU
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert sending_device() == training_device(GPU) == CPU
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("own", "gpus", "expected"),
    [
        (CPU, 8, ["cpu:0", "cpu:1", "cpu:2"]),
        (GPU, 2, ["cpu:0", "cpu:1", "cpu:2"]),
        (GPU, 3, ["cuda:0", "cuda:1", "cuda:2"]),
    ],
    ids=["on the CPU", "too few GPUs", "GPUs"],
)
def test_devices_are_gpus_if_there_are_so_many_and_else_virtual(monkeypatch, own, gpus, expected):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
    assert [str(device) for device in training_devices(own, 3)] == expected
