"""The ways that are compared, each as what a rank does in a step: the lab's and torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from labkit.parity.training import Cut, Training
from labkit.schedule import Schedule

Tensors = dict[str, torch.Tensor]


class RankTraining(NamedTuple):
    """A training on a rank: a ``step`` up to the optimizer's, and how to read whole tensors.

    ``step(inputs, target)`` returns the loss, None where this rank does not know it.
    """

    step: Callable[[Any, Any], torch.Tensor | None]
    optimizer: torch.optim.Optimizer | None
    parameters: Callable[[], Tensors]
    gradients: Callable[[], Tensors]


class Kind(NamedTuple):
    """A way by its ``name``: how it starts on a rank, and the options it takes.

    ``torchs_own`` names the one of torch that does the same. ``broadcasts``: its ranks take rank
    0's weights.
    """

    name: str
    start: Callable[..., RankTraining]
    options: tuple[str, ...] = ()
    torchs_own: str = ""
    broadcasts: bool = False
    pipeline: bool = False


class Way(NamedTuple):
    """A way as it was asked for. The plain training by parts cuts a batch by ``cut``.

    ``shards``: each rank gets its shard of the batch, otherwise all of it.
    """

    kind: Kind
    label: str
    options: dict[str, Any]
    cut: Cut
    n_ranks: int
    shards: bool = False
    n_stages: int = 0


# --- data parallel --------------------------------------------------------------------------------


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _training(
    training: Training,
    named: dict[str, nn.Parameter],
    step: Callable[[Any, Any], torch.Tensor | None],
    whole: Callable[[Any], torch.Tensor] = _own,
) -> RankTraining:
    """Return a training of these parameters, of which ``whole`` makes whole tensors."""

    def parameters() -> Tensors:
        return {name: whole(parameter) for name, parameter in named.items()}

    def gradients() -> Tensors:
        return {name: whole(p.grad) for name, p in named.items() if p.grad is not None}

    return RankTraining(step, training.optimizer(named.values()), parameters, gradients)


def _parallel(
    training: Training,
    module: nn.Module,
    wrapped: nn.Module,
    finish: Callable[[], object] = lambda: None,
    whole: Callable[[Any], torch.Tensor] = _own,
) -> RankTraining:
    """Return a training whose step is a backward pass through ``wrapped``, and ``finish``."""

    def step(inputs: Any, target: Any) -> torch.Tensor:
        loss = training.backward(wrapped, inputs, target)
        finish()
        return loss

    return _training(training, dict(module.named_parameters()), step, whole)


def average_gradients(training: Training, module: nn.Module) -> RankTraining:
    from labkit import dp

    return _parallel(training, module, module, lambda: dp.average_gradients(module))


def bucketed(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from labkit.dp import BucketedDataParallel

    wrapped = BucketedDataParallel(module, **options)
    return _parallel(training, module, wrapped, wrapped.finish_gradient_synchronization)


def sharded_optimizer(training: Training, module: nn.Module) -> RankTraining:
    from labkit.shard import ShardedOptimizer

    optimizer = ShardedOptimizer(module.parameters(), training.optimizer_class, **training.options)
    return average_gradients(training, module)._replace(optimizer=optimizer)


def sharded_model(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from labkit.shard import ShardedModel

    wrapped = ShardedModel(module, **options)
    on_rank = _parallel(training, module, wrapped, wrapped.finish_gradient_synchronization)

    def gradients() -> Tensors:
        of_units = [unit.gather_gradients() for unit in wrapped.units]
        return on_rank.gradients() | {name: whole for unit in of_units for name, whole in unit.items()}

    return on_rank._replace(parameters=wrapped.full_parameters, gradients=gradients)


def ddp(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    return _parallel(training, module, nn.parallel.DistributedDataParallel(module, **options))


def zero(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(module.parameters(), training.optimizer_class, **options, **training.options)
    return ddp(training, module)._replace(optimizer=optimizer)


def fully_shard(training: Training, module: nn.Module, **options: Any) -> RankTraining:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # In one call, because layers that share a parameter have to be.
    fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)
    return _parallel(training, module, module, whole=lambda tensor: tensor.full_tensor().detach())


# --- pipelines ------------------------------------------------------------------------------------


def _piped(
    training: Training, module: nn.Module, stages: Sequence[nn.Module], step: Callable[..., torch.Tensor | None]
) -> RankTraining:
    """Return a training of these stages' parameters, by the names that they have in the module."""
    here = {parameter for stage in stages for parameter in stage.parameters()}
    return _training(training, {name: p for name, p in module.named_parameters() if p in here}, step)


def pipe(training: Training, module: nn.Module, n_stages: int, split_size: int) -> RankTraining:
    from labkit.pipe import Pipe, WithDevice

    stages = training.stage_modules(module, n_stages)
    piped = Pipe(nn.Sequential(*(WithDevice(stage, f"cpu:{j}") for j, stage in enumerate(stages))), split_size)
    return _piped(training, module, stages, lambda inputs, target: training.backward(piped, inputs, target))


def scheduled(training: Training, module: nn.Module, schedule: Schedule) -> RankTraining:
    from labkit.pipe import ScheduledPipeline

    stages = training.stage_modules(module, schedule.n_stages)
    own = [stages[number] for number in sorted({op.stage for op in schedule.ops[dist.get_rank()]})]
    return _piped(training, module, own, ScheduledPipeline(own, schedule, training.loss_of).step)


def pipelining(training: Training, module: nn.Module, schedule: str, n_micro: int, per_rank: int) -> RankTraining:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    rank, n_ranks, device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    n_stages = per_rank * n_ranks
    numbers = [rank, n_stages - 1 - rank if schedule in V_SHAPED else n_ranks + rank][:per_rank]
    stages = training.stage_modules(module, n_stages)
    made = [PipelineStage(stages[number], number, n_stages, device) for number in numbers]
    runner: Any = get_schedule_class(schedule)
    pipeline = runner(made if per_rank > 1 else made[0], n_micro, loss_fn=training.loss_of)

    def step(inputs: Any, target: Any) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        pipeline.step(*[inputs][rank:], target=target, losses=losses)  # inputs are for rank 0
        return torch.stack(losses).mean() if losses else None

    return _piped(training, module, [stages[number] for number in numbers], step)


V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
TORCH_SCHEDULES = {"GPipe": 1, "1F1B": 1}  # stages on each rank
TORCH_SCHEDULES |= dict.fromkeys(["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", *V_SHAPED], 2)


# --- by name, and the reader's own ----------------------------------------------------------------


def of_reader(training: Training, module: nn.Module, function: Any) -> RankTraining:
    """Start the reader's ``function(module, optimizer) -> step``."""
    on_rank = _parallel(training, module, module)
    step = function(module, on_rank.optimizer)
    parameters, gradients = (getattr(step, name, getattr(on_rank, name)) for name in ("parameters", "gradients"))
    return RankTraining(step, on_rank.optimizer, parameters, gradients)


_OF_BUCKETS = ("bucket_cap_mb", "comm_hook")
_OF_DDP = ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
_OF_SHARDS = ("shard", "compute_dtype", "prefetch")
_KINDS = [
    Kind("average_gradients", average_gradients, torchs_own="DDP"),
    Kind("BucketedDataParallel", bucketed, _OF_BUCKETS, "DDP", broadcasts=True),
    Kind("ShardedOptimizer", sharded_optimizer, torchs_own="ZeroRedundancyOptimizer"),
    Kind("ShardedModel", sharded_model, _OF_SHARDS, "fully_shard", broadcasts=True),
    Kind("Pipe", pipe, ("split_size",), "pipelining", pipeline=True),
    Kind("ScheduledPipeline", scheduled, ("schedule",), "pipelining", pipeline=True),
    Kind("DDP", ddp, _OF_DDP, broadcasts=True),
    Kind("ZeroRedundancyOptimizer", zero, ("parameters_as_bucket_view",), broadcasts=True),
    Kind("fully_shard", fully_shard, ("reshard_after_forward", "mp_policy")),
    Kind("pipelining", pipelining, ("schedule", "n_micro"), pipeline=True),
]
KINDS = {kind.name: kind for kind in _KINDS}
ALIASES = {"DistributedDataParallel": "DDP", "torch.distributed.pipelining": "pipelining"}
READERS = Kind("", of_reader, ("broadcasts", "whole_batch"))
