"""What all else stands on: NCCL runs, on one rank, on several that share a GPU, and where the
notebook has used CUDA; what ranks return comes back on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from labkit.base import machine
from labkit.launch import device, launch

pytestmark = pytest.mark.gpu


def all_reduce():
    x = torch.full((1000,), float(dist.get_rank() + 1), device=device())
    dist.all_reduce(x)
    return x[0].item(), x.device.type


def test_one_rank_runs_on_nccl():
    run = launch(all_reduce, world_size=1)
    assert (run.backend, run.devices, run.values) == ("nccl", ["cuda:0"], [(1.0, "cuda")])


def test_cuda_used_in_the_notebook_first_is_no_obstacle():
    assert torch.ones(3, device="cuda").sum().item() == 3
    assert launch(all_reduce, world_size=1).values == [(1.0, "cuda")]


def test_tensors_and_modules_come_back_on_the_cpu():
    def make():
        model = torch.nn.Linear(2, 2, device=device())
        return model.weight, model, {"x": torch.ones(2, device=device(), dtype=torch.bfloat16)}

    weight, model, values = launch(make, world_size=1).values[0]
    assert {weight.device.type, next(model.parameters()).device.type, values["x"].device.type} == {"cpu"}
    assert isinstance(weight, torch.nn.Parameter) and values["x"].dtype == torch.bfloat16


def test_the_gpus_that_another_process_counts_are_those_that_cuda_has_here():
    torch.cuda.init()
    assert machine.usable_gpus() == torch._C._cuda_getDeviceCount()  # device_count() asks NVML


def test_servers_of_ranks_do_not_hold_the_gpu():
    launch(all_reduce, world_size=1)
    for server in psutil.Process().children(recursive=True):
        files = [os.readlink(path) for path in Path(f"/proc/{server.pid}/fd").iterdir()]
        assert not [file for file in files if file.startswith("/dev/nvidia")], server
