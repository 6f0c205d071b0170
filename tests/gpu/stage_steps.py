"""Steps of a pipeline of processes, and one process that says what they should have given."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit import pipe
from labkit.launch import device


def some_stages(n, where):
    torch.manual_seed(5)
    stages = [torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)) for _ in range(n)]
    return [stage.double().to(where) for stage in stages]


def batch_of_32(where, rows=13):
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(rows, 32, generator=generator, dtype=torch.float64).to(where) for _ in range(2)]


def scheduled_steps(schedule, where=None, count=3):
    """Some steps with this rank's stages on ``where``, by default its device. Gives the losses, and
    each stage's gradients."""
    where = where or device()
    own = sorted({op.stage for op in schedule.ops[dist.get_rank()]})
    stages, (x, target) = [some_stages(schedule.n_stages, where)[number] for number in own], batch_of_32(where)
    pipeline = pipe.ScheduledPipeline(stages, schedule, torch.nn.functional.mse_loss)
    losses = [pipeline.step(x, target) for _ in range(count)]
    types = {parameter.grad.device.type for stage in stages for parameter in stage.parameters()}
    assert types == {torch.device(where).type}
    return losses, {number: gradients_in(stage) for number, stage in zip(own, stages, strict=True)}


def gradients_in(module):
    return [parameter.grad.cpu() for parameter in module.parameters()]


def check_steps(schedule, values, count=3):
    """Against one process on the CPU. Losses are on the rank of the last stage alone."""
    stages, (x, target) = some_stages(schedule.n_stages, "cpu"), batch_of_32("cpu")
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*stages)(x), target)
    (count * loss).backward()  # the gradients of all steps add up
    last = next(rank for rank, ops in enumerate(schedule.ops) if any(op.stage == schedule.n_stages - 1 for op in ops))
    for rank, (losses, gradients) in enumerate(values):
        expected = [loss.detach() if rank == last else None] * count
        torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-12)
        for number, found in gradients.items():
            torch.testing.assert_close(found, gradients_in(stages[number]), rtol=1e-9, atol=1e-12)
