"""What a first step may trip over, and what CUDA's sanitizer finds."""

from __future__ import annotations

import sys

import pytest
import torch
from stage_steps import check_steps, scheduled_steps
from torch import nn

from labkit import dp, pipe
from labkit.launch import device
from labkit.schedule import interleaved, one_f_one_b, zero_bubble_v

pytestmark = pytest.mark.gpu

# --- kernels that are loaded while others wait ----------------------------------------------------

FIRST_STEPS = [one_f_one_b(4, 6), zero_bubble_v(4, 6), interleaved(4, 8, 2)]


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
@pytest.mark.parametrize("schedule", FIRST_STEPS, ids=lambda schedule: schedule.name)
def test_the_first_step_of_four_shared_ranks_ends(schedule, loading, rig, monkeypatch, measured):
    monkeypatch.setenv("CUDA_MODULE_LOADING", loading)
    run = rig.launch(scheduled_steps, schedule, None, 1, world_size=4)
    check_steps(schedule, run.values, 1)
    measured(
        f"{schedule.name}, a first step of four shared ranks, modules {loading}, with their start", run.seconds, "s"
    )


# --- CUDA's sanitizer -----------------------------------------------------------------------------


class Watched(nn.Module):
    """Runs a module under the sanitizer in any thread: it is on in the main one alone."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with sys.modules["torch.cuda._sanitizer"].cuda_sanitizer.dispatch:
            return self.module(x)


def layers():
    torch.manual_seed(4)
    return [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).to(device()) for _ in range(2)]


def watched_pipe():
    """Two partitions on one GPU, a stream each."""
    pipe.split_module = lambda modules: ([nn.Sequential(each) for each in modules], [device()] * len(modules))
    with pipe.Pipe(nn.Sequential(*map(Watched, layers())), split_size=4) as piped:
        for _ in range(2):
            piped(torch.randn(16, 64, device=device())).square().mean().backward()


def watched_buckets():
    model = dp.BucketedDataParallel(nn.Sequential(*layers()), 0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(16, 64, device=device())).square().mean().backward()
        model.finish_gradient_synchronization()
        optimizer.step()


def under_the_sanitizer(work):
    """In a rank of its own, which has it on to its end. The variable TORCH_CUDA_SANITIZER would
    start CUDA where ranks are forked from."""
    from torch.cuda._sanitizer import enable_cuda_sanitizer  # only a torch with CUDA can import it

    enable_cuda_sanitizer()
    work()
    torch.cuda.synchronize()


@pytest.mark.parametrize("work", [watched_pipe, watched_buckets], ids=lambda work: work.__name__)
def test_the_sanitizer_finds_no_race_in(work, rig):
    if not rig.on_gpu:
        pytest.skip("needs a CUDA GPU")
    rig.launch(under_the_sanitizer, work, world_size=1)
