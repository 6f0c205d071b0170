"""The ways that are compared, each as what a rank does in a step: the lab's and torch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from labkit.parity.training import Cut, Training
from labkit.schedule import Schedule

Tensors = dict[str, torch.Tensor | None]


@dataclass
class RankTraining:
    """A training on a rank: a ``step`` up to the optimizer's, and how to read whole tensors.

    ``step(inputs, target)`` returns the loss, None where this rank does not know it; ``whole``
    makes a tensor of ``named`` whole.
    """

    step: Callable[[Any, Any], torch.Tensor | None]
    optimizer: torch.optim.Optimizer | None
    named: dict[str, nn.Parameter]
    whole: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach

    def parameters(self) -> Tensors:
        return {name: self.whole(parameter.detach()) for name, parameter in self.named.items()}

    def gradients(self) -> Tensors:
        return {name: self.whole(p.grad) for name, p in self.named.items() if p.grad is not None}


class Way(NamedTuple):
    """A way: how it ``start``s on a rank, with which options, and what it does to a batch.

    ``kind`` is its name, ``beside`` that of torch's own, ``label`` its row's. The plain training by
    parts cuts a batch by ``cut``. ``broadcasts``: its ranks take rank 0's weights.
    """

    kind: str
    label: str
    start: Callable[..., RankTraining]
    options: dict[str, Any]
    cut: Cut
    n_ranks: int
    shards: bool = True  # each rank gets its shard of the batch, otherwise all of it
    broadcasts: bool = False
    n_stages: int = 0
    beside: str = ""


# --- data parallel --------------------------------------------------------------------------------


def average_gradients(training: Training, module: nn.Module) -> RankTraining:
    from labkit import dp

    def step(inputs: Any, target: Any) -> torch.Tensor:
        loss = training.backward(module, inputs, target)
        dp.average_gradients(module)
        return loss

    return RankTraining(step, training.optimizer(module.parameters()), dict(module.named_parameters()))


def bucketed(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from labkit.dp import BucketedDataParallel

    wrapped = BucketedDataParallel(module, **options)

    def step(inputs: Any, target: Any) -> torch.Tensor:
        loss = training.backward(wrapped, inputs, target)
        wrapped.finish_gradient_synchronization()
        return loss

    return RankTraining(step, training.optimizer(module.parameters()), dict(module.named_parameters()))


def sharded_optimizer(training: Training, module: nn.Module) -> RankTraining:
    from labkit.shard import ShardedOptimizer

    on_rank = average_gradients(training, module)
    on_rank.optimizer = ShardedOptimizer(module.parameters(), training.optimizer_class, **training.options)
    return on_rank


def sharded_model(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from labkit.shard import ShardedModel

    wrapped = ShardedModel(module, **options)

    def step(inputs: Any, target: Any) -> torch.Tensor:
        loss = training.backward(wrapped, inputs, target)
        wrapped.finish_gradient_synchronization()
        return loss

    class Gathered(RankTraining):
        def parameters(self) -> Tensors:
            return {**wrapped.full_parameters()}

        def gradients(self) -> Tensors:
            gradients = super().gradients()
            for unit in wrapped.units:
                gradients |= unit.gather_gradients()
            return gradients

    return Gathered(step, training.optimizer(module.parameters()), dict(module.named_parameters()))


def ddp(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    wrapped = nn.parallel.DistributedDataParallel(module, **options)

    def step(inputs: Any, target: Any) -> torch.Tensor:
        return training.backward(wrapped, inputs, target)

    return RankTraining(step, training.optimizer(module.parameters()), dict(module.named_parameters()))


def zero(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    on_rank = ddp(training, module)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), training.optimizer_class, **options, **training.options)
    on_rank.optimizer = optimizer
    return on_rank


def fully_shard(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # In one call, because layers that share a parameter have to be.
    fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)

    def step(inputs: Any, target: Any) -> torch.Tensor:
        return training.backward(module, inputs, target)

    def whole(tensor: Any) -> torch.Tensor:
        return tensor.full_tensor()

    return RankTraining(step, training.optimizer(module.parameters()), dict(module.named_parameters()), whole)


# --- pipelines ------------------------------------------------------------------------------------


def _named(module: nn.Module, stages: list[nn.Sequential]) -> dict[str, nn.Parameter]:
    """Return the parameters of stages by the names that they have in the module."""
    here = {*itertools.chain.from_iterable(stage.parameters() for stage in stages)}
    return {name: parameter for name, parameter in module.named_parameters() if parameter in here}


def pipe(training: Training, module: nn.Module, n_stages: int, split_size: int) -> RankTraining:
    from labkit.pipe import Pipe, WithDevice

    stages = training.stage_modules(module, n_stages)
    piped = Pipe(nn.Sequential(*(WithDevice(stage, f"cpu:{j}") for j, stage in enumerate(stages))), split_size)

    def step(inputs: Any, target: Any) -> torch.Tensor:
        return training.backward(piped, inputs, target)

    named = _named(module, stages)
    return RankTraining(step, training.optimizer(named.values()), named)


def scheduled(training: Training, module: nn.Module, schedule: Schedule) -> RankTraining:
    from labkit.pipe import ScheduledPipeline

    stages = training.stage_modules(module, schedule.n_stages)
    own = [stages[number] for number in sorted({op.stage for op in schedule.ops[dist.get_rank()]})]
    pipeline = ScheduledPipeline(own, schedule, training.loss_of)

    def step(inputs: Any, target: Any) -> torch.Tensor | None:
        return pipeline.step(inputs, target)

    named = _named(module, own)
    return RankTraining(step, training.optimizer(named.values()), named)


def pipelining(training: Training, module: nn.Module, schedule: str, n_micro: int, per_rank: int) -> RankTraining:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    rank, n_ranks, device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    n_stages = per_rank * n_ranks
    back = n_stages - 1 - rank if schedule in V_SHAPED else n_ranks + rank
    numbers = [rank, back][:per_rank]
    stages = training.stage_modules(module, n_stages)
    made = [PipelineStage(stages[number], number, n_stages, device) for number in numbers]
    runner: Any = get_schedule_class(schedule)
    pipeline = runner(made if per_rank > 1 else made[0], n_micro, loss_fn=training.loss_of)

    def step(inputs: Any, target: Any) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        first = (inputs,) if rank == 0 else ()
        pipeline.step(*first, target=target, losses=losses)
        return torch.stack(losses).mean() if losses else None

    named = _named(module, [stages[number] for number in numbers])
    return RankTraining(step, training.optimizer(named.values()), named)


V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
TORCH_SCHEDULES = {
    "GPipe": 1,
    "1F1B": 1,
    "Interleaved1F1B": 2,
    "LoopedBFS": 2,
    "InterleavedZeroBubble": 2,
} | dict.fromkeys(V_SHAPED, 2)  # stages on each rank


# --- the reader's own -----------------------------------------------------------------------------


def of_reader(training: Training, module: nn.Module, function: Any) -> RankTraining:
    """Start the reader's ``function(module, optimizer) -> step``."""
    optimizer = training.optimizer(module.parameters())
    step = function(module, optimizer)

    class Readers(RankTraining):
        def parameters(self) -> Tensors:
            return step.parameters() if hasattr(step, "parameters") else super().parameters()

        def gradients(self) -> Tensors:
            return step.gradients() if hasattr(step, "gradients") else super().gradients()

    return Readers(step, optimizer, dict(module.named_parameters()))
