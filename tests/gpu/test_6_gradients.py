"""Buckets and shards over NCCL: the span of a sum, the steps of a plain optimizer, the memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from labkit import dp, shard
from labkit.lab.living_bytes import living_bytes
from labkit.launch import device, launch
from labkit.trace import span

pytestmark = pytest.mark.gpu


def small_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).double()


def gradients_of(model, rows, size):
    """The gradients of the mean loss over some rows of a batch of ``size``."""
    inputs, targets = torch.arange(size * 16).view(size, 16) % 7 / 7.0, torch.arange(size * 4).view(size, 4) % 5 / 5.0
    outputs = model(inputs[rows].to(next(model.parameters())))
    torch.nn.functional.mse_loss(outputs, targets[rows].to(outputs)).backward()


def trained_in_shares(name):
    """Weights after ten steps of ShardedOptimizer on the rank's device, and its full state."""
    model = small_model().to(device())
    optimizer = shard.ShardedOptimizer(model.parameters(), vars(torch.optim)[name], lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        gradients_of(model, slice(None), 8)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], optimizer.full_state_dict()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_sharded_optimizer_takes_the_steps_of_a_plain_one_that_loads_its_state_on_nccl(name, world_size):
    plain = vars(torch.optim)[name]((model := small_model()).parameters(), lr=0.05)
    for _ in range(10):
        plain.zero_grad()
        gradients_of(model, slice(None), 8)
        plain.step()
    for weights, full in launch(trained_in_shares, name, world_size=world_size, share_gpu=True).values:
        for found, parameter in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(found.cpu(), parameter.detach(), rtol=1e-6, atol=1e-9)
        plain.load_state_dict(full)  # it fits


def test_a_buckets_span_lasts_until_its_sum_is_there_on_the_stream():
    def step():
        model = dp.BucketedDataParallel(
            torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device()), 4
        )
        with span("step"):
            model(torch.ones(64, 1024, device=device())).mean().backward()
            model.finish_gradient_synchronization()
        return len(model.buckets)

    run = launch(step, world_size=1)
    sent = run.events[run.events.name == "all_reduce"]
    whole = run.events[run.events.name == "step"].iloc[0]
    assert sent.bucket.tolist() == list(range(run.values[0])) and (sent.end_s >= sent.start_s).all()
    assert sent.start_s.min() >= whole.start_s and sent.end_s.max() <= whole.end_s + 1e-4


def sharded_on_a_gpu(compute_dtype):
    """The memory that a ShardedModel keeps on this rank's GPU, and its parameters after two steps,
    of which the second gathers ahead and changes nothing."""
    torch.manual_seed(3)
    plain = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).to(device())
    full = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
    before = torch.cuda.memory_allocated()
    model = shard.ShardedModel(plain, compute_dtype=compute_dtype, prefetch=True)
    kept = torch.cuda.memory_allocated() - before
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 8 * 512, device=device()).view(8, 512)[dist.get_rank() :: dist.get_world_size()]
    for max_norm in (1e6, 0.0):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        model.finish_gradient_synchronization()
        model.clip_grad_norm_(max_norm)
        optimizer.step()
    for name in full:
        full[name] = full[name].cpu()
    return kept, {name: parameter.cpu() for name, parameter in model.full_parameters().items()}, full


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sharded_model_keeps_one_nth_and_takes_the_step_of_the_whole_batch_on_nccl(world_size, compute_dtype):
    runs = launch(sharded_on_a_gpu, compute_dtype, world_size=world_size, share_gpu=True).values
    full = runs[0][2]
    alone = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    alone.load_state_dict(full)
    alone(torch.linspace(-1, 1, 8 * 512).view(8, 512)).square().mean().backward()
    n_bytes = sum(parameter.nbytes for parameter in alone.parameters())
    for kept, found, _ in runs:
        assert kept <= n_bytes / world_size - n_bytes + 2**20  # the whole parameters are gone
        for name, parameter in alone.named_parameters():
            right = -0.1 * parameter.grad
            assert (found[name] - full[name] - right).norm() < (0.1 if compute_dtype else 0.01) * right.norm()


def counted_and_allocated():
    """The bytes that live after two sharded steps: as 07 counts them, and as allocated."""
    x = torch.ones(8, 256, device=device())
    (x @ x.T).sum().item()  # cuBLAS has its own memory from now on
    before = torch.cuda.memory_allocated()
    model = shard.ShardedModel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).to(device()))
    optimizer = torch.optim.AdamW(model.parameters())
    with living_bytes(model, optimizer) as counted:
        for _ in range(2):
            model(x).square().mean().backward()
            model.finish_gradient_synchronization()
            optimizer.step()
    return counted.moments.alive.iloc[-1], torch.cuda.memory_allocated() - before


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_counted_of_a_sharded_step_is_what_torch_has_allocated(world_size, measured):
    for counted, allocated in launch(counted_and_allocated, world_size=world_size, share_gpu=True).values:
        measured(f"allocated, {world_size} ranks, counted = 1", allocated / counted, "")
        assert abs(allocated - counted) < 2**16  # the allocator rounds each tensor up to 512 bytes
