"""What a first step may trip over, whether a seed says all, and what CUDA's sanitizer finds."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
from stage_steps import check_steps, scheduled_steps
from torch import nn

from labkit import dp, models, pipe
from labkit.launch import RankError, device
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


# --- the same seed twice --------------------------------------------------------------------------


def small_gpt2():
    return models.gpt2("nano", seed=2, vocab_size=40, n_layer=4, n_positions=32)


def loss_of(logits, tokens):
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 40, (8, 16), generator=generator).to(device())


def through_buckets(steps):
    model = dp.BucketedDataParallel(small_gpt2().to(device()), 0.1)
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for step in range(steps):
        tokens = batch(step, dist.get_rank())
        loss = loss_of(model(tokens, use_cache=False).logits, tokens)
        loss.backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def through_stages(steps):
    stage = models.stages(small_gpt2(), 2)[dist.get_rank()].to(device())
    pipeline = pipe.ScheduledPipeline([stage], one_f_one_b(2, 4), loss_of)
    optimizer, losses = torch.optim.AdamW(stage.parameters()), []
    for step in range(steps):
        tokens = batch(step, 0)
        loss = pipeline.step(tokens, tokens)
        optimizer.step()
        optimizer.zero_grad()
        losses += [] if loss is None else [loss.item()]
    return losses


def losses_twice(train, in_bf16, steps=8):
    with torch.autocast(device().type, torch.bfloat16, enabled=in_bf16):
        return [train(steps) for _ in range(2)]


def test_the_same_seed_gives_the_same_losses_and_it_is_noted_how_far(rig, noted):
    with rig.workers() as ranks:
        for train in (through_buckets, through_stages):
            for in_bf16 in (False, True):
                first, second = ranks.run(losses_twice, train, in_bf16).values[1]  # the last stage's rank
                equal = sum(a == b for a, b in zip(first, second, strict=True))
                what = f"{train.__name__.replace('_', ' ')}, {'bf16' if in_bf16 else 'fp32'}"
                noted(f"the same seed twice, {what}", f"{equal} of {len(first)} losses agree to the bit")
                assert len(first) == 8 and first == pytest.approx(second, rel=1e-2)


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


def race():
    """Two streams write to a tensor, and neither waits."""
    x = torch.zeros(1000, device=device())
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    x.mul_(2)


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


def test_the_sanitizer_finds_a_race_that_is_there(rig):
    if not rig.on_gpu:
        pytest.skip("needs a CUDA GPU")
    with pytest.raises(RankError) as caught:
        rig.launch(under_the_sanitizer, race, world_size=1)
    assert caught.value.error_type == "CUDASanitizerErrors"
