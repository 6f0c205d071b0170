"""How a use builds, trains and notes: plainly in one process, or on a rank under a wrapper."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from labkit.dp import BucketedDataParallel, average_gradients
from labkit.parallel.pipe.worker_stage import run_stage
from labkit.pipe import Pipe, ScheduledPipeline
from labkit.shard import ColumnParallelLinear, RowParallelLinear, ShardedModel, ShardedOptimizer

HAND, BUCKETS, OPTIMIZER, MODEL = "average_gradients", "BucketedDataParallel", "ShardedOptimizer", "ShardedModel"
TENSOR, PIPE, SCHEDULED = "ColumnParallelLinear", "Pipe", "ScheduledPipeline"
DATA, WRAPPED, SHARES = (HAND, BUCKETS, OPTIMIZER, MODEL), (BUCKETS, MODEL), (OPTIMIZER, MODEL)
WRAPPERS: dict[str, tuple[Any, ...]] = {
    HAND: (average_gradients,),
    BUCKETS: (BucketedDataParallel,),
    OPTIMIZER: (ShardedOptimizer,),
    MODEL: (ShardedModel,),
    TENSOR: (ColumnParallelLinear, RowParallelLinear),
    PIPE: (Pipe, run_stage),
    SCHEDULED: (ScheduledPipeline, ScheduledPipeline.step),
}
mse = nn.functional.mse_loss


class Do(nn.Module):
    """Calls ``function(self, *inputs)``; ``layers`` are its own."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def batch(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eight rows of four numbers, and two targets each, the same wherever it is called."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)


def tokens(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eight rows of five token ids below 9, and one target each."""
    generator = torch.Generator().manual_seed(200 + step)
    return torch.randint(9, (8, 5), generator=generator), torch.randint(9, (8,), generator=generator)


def padded(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and the next ones, of which each row has another number."""
    ids, target = tokens(step)[0], tokens(step)[0].roll(1, 1)
    for row in range(8):
        target[row, 1 + row // 2 :] = -100
    return ids, target


def by_token(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


class Note(NamedTuple):
    """What a use has noted. ``kind``: "mean" over ranks, "same" on all, "rows" of all, "owned" by
    the ranks that have it."""

    kind: str
    name: str
    value: torch.Tensor | None


class Plain:
    """One process, no wrapper: the base of the other ways."""

    name = "plain"
    own_seeds = False
    has_last = True

    def __init__(self, n_parts: int = 1):
        self.n_parts = n_parts
        self.notes: list[Note] = []
        self.modules: list[nn.Module] = []
        self.models: list[Any] = []
        self.own: list[nn.Module] = []
        self._loss: Any = None

    def make(self, module: nn.Module, **options: Any) -> Any:
        return module

    def wrap(self, module: nn.Module, **options: Any) -> Any:
        self.modules.append(module)
        self.models.append(self.make(module, **options))
        return self.models[-1]

    def forget(self) -> None:
        """Hold no module and no wrapper any longer."""
        self.modules.clear()
        self.models.clear()

    def optimizer(self, params: Any, kind: type = torch.optim.SGD, **options: Any) -> Any:
        return kind(params, **(options or {"lr": 0.1, "momentum": 0.9}))

    def column(self, linear: nn.Module) -> Any:
        return linear

    row = column

    def parts(self, *tensors: torch.Tensor) -> list[Any]:
        """Return the parts of a batch that this process computes in turn."""
        return [*zip(*(tensor.tensor_split(self.n_parts) for tensor in tensors), strict=True)]

    def rows(self, *tensors: torch.Tensor) -> Any:
        """Return this rank's rows of each tensor."""
        return tensors[0] if len(tensors) == 1 else tensors

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        self.count(loss)
        (loss / self.n_parts).backward(**options)

    def count(self, loss: torch.Tensor | None) -> None:
        if loss is not None:
            self._loss = loss.detach() / self.n_parts + (0 if self._loss is None else self._loss)

    def sync(self) -> None:
        pass

    def no_sync(self) -> Any:
        return contextlib.nullcontext()

    def step(self, optimizer: Any, *arguments: Any) -> None:
        self.note("loss", self._loss, "mean")
        self._loss = None
        self.note_all("gradient", self.gradients)
        optimizer.step(*arguments)

    def note(self, name: str, value: Any, kind: str = "same") -> None:
        self.notes.append(Note(kind, name, None if value is None else torch.as_tensor(value).detach().clone()))

    def note_all(self, what: str, named: Any) -> None:
        for number, module in enumerate(self.modules):
            for name, value in named(module).items():
                self.note(f"{what} {number}.{name}", value)

    def gradients(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for n, p in module.named_parameters()}

    def parameters(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return dict(module.named_parameters())

    def train(self, module: nn.Module, optimizer: Any = None, **options: Any) -> Any:
        """Wrap ``module`` and train it for three steps."""
        model = self.wrap(module)
        kind, settings = optimizer or (torch.optim.SGD, {})
        self.steps(model, self.optimizer(model.parameters(), kind, **settings), **options)
        return model

    def steps(
        self, model: Any, optimizer: Any = None, each=None, after=None, n=3, data=batch, loss=mse, through=None
    ) -> None:
        """Train: ``each(model, step)`` comes before a step's forward, ``after`` after its
        synchronisation; ``through(model, x, y)`` may compute the loss."""
        optimizer = optimizer or self.optimizer(model.parameters())
        through = through or (lambda model, x, y: loss(model(x), y))
        for step in range(n):
            if each:
                each(model, step)
            optimizer.zero_grad()
            for x, y in self.parts(*data(step)):
                self.backward(through(model, x, y))
            self.sync()
            if after:
                after(model, step)
            self.step(optimizer)

    def loop(self, model: Any, optimizer: Any = None) -> Iterator[Any]:
        """Yield this rank's rows of three batches; after each, synchronise and step."""
        optimizer = optimizer or self.optimizer(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            yield self.rows(*batch(step))
            self.sync()
            self.step(optimizer)

    def pipeline(self, stages: Sequence[nn.Module], schedule: Any, loss: Any) -> Any:
        """Return what has a step: here, the whole batch through all stages."""
        self.modules = self.own = [*stages]
        return _WholeStep(nn.Sequential(*stages), loss)

    def own_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer of this rank's stages."""
        own = dict.fromkeys(p for m in self.own for p in m.parameters())
        return torch.optim.SGD([*own], lr=0.1, momentum=0.9)


class _WholeStep(NamedTuple):
    """What a pipeline's step does, in one process."""

    model: nn.Module
    loss: Any

    def step(self, x: Any, target: Any) -> torch.Tensor:
        loss = self.loss(self.model(x), target)
        loss.sum().backward()
        return loss.detach().sum()


class Hand(Plain):
    name = HAND

    def parts(self, *tensors: torch.Tensor) -> list[Any]:
        return [tuple(tensor.tensor_split(dist.get_world_size())[dist.get_rank()] for tensor in tensors)]

    def rows(self, *tensors: torch.Tensor) -> Any:
        return super().rows(*self.parts(*tensors)[0])

    def sync(self) -> None:
        for module in self.modules:
            average_gradients(module)


class ZeroOne(Hand):
    name = OPTIMIZER

    def optimizer(self, params: Any, kind: type = torch.optim.SGD, **options: Any) -> Any:
        return ShardedOptimizer(params, kind, **(options or {"lr": 0.1, "momentum": 0.9}))


class Buckets(Hand):
    name, own_seeds = BUCKETS, True

    def make(self, module: nn.Module, **options: Any) -> Any:
        return BucketedDataParallel(module, bucket_cap_mb=1e-4)

    def sync(self) -> None:
        """Wait for all models that have had a backward pass; for the first where none has."""
        ready = [model for model in self.models if self.has_run(model)]
        for model in ready or self.models[:1]:
            model.finish_gradient_synchronization()

    def has_run(self, model: Any) -> bool:
        return model._has_ready_gradients()

    def no_sync(self) -> Any:
        return self.models[0].no_sync()


class Sharded(Buckets):
    name = MODEL

    def make(self, module: nn.Module, **options: Any) -> Any:
        return ShardedModel(module, **options)

    def has_run(self, model: Any) -> bool:
        return model._backward_ran

    def gradients(self, module: nn.Module) -> dict[str, torch.Tensor]:
        whole = super().gradients(module)
        for unit in self.models[self.modules.index(module)].units:
            row = torch.cat([torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters])
            row = nn.functional.pad(row, (0, len(unit.shard) - len(row)))
            rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
            dist.all_gather(rows, row)
            whole |= zip(unit.names, unit._whole(torch.cat(rows)), strict=True)
        return whole

    def parameters(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return self.models[self.modules.index(module)].full_parameters()


class Tensor(Plain):
    """Column and row layers: a rank's parts are put together again."""

    name = TENSOR

    def column(self, linear: nn.Module) -> Any:
        return ColumnParallelLinear(linear)

    def row(self, linear: nn.Module) -> Any:
        return RowParallelLinear(linear)

    def _whole(self, module: nn.Module, name: str, part: torch.Tensor) -> torch.Tensor:
        owner, _, own = name.rpartition(".")
        column = isinstance(layer := module.get_submodule(owner), ColumnParallelLinear)
        if not column and not (isinstance(layer, RowParallelLinear) and own == "weight"):
            return part
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, part.detach())
        return torch.cat(every, dim=0 if column else 1)

    def gradients(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return {name: self._whole(module, name, g) for name, g in super().gradients(module).items()}

    def parameters(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return {name: self._whole(module, name, p) for name, p in super().parameters(module).items()}


class Threads(Plain):
    """A Pipe: every rank trains the whole model on the whole batch."""

    name = PIPE

    def make(self, module: nn.Module, **options: Any) -> Any:
        return Pipe(module, 3)


class Scheduled(Plain):
    """A ScheduledPipeline: this rank's stages of the model."""

    name = SCHEDULED

    def pipeline(self, stages: Sequence[nn.Module], schedule: Any, loss: Any) -> Any:
        numbers = sorted({op.stage for op in schedule.ops[dist.get_rank()]})
        self.has_last = schedule.n_stages - 1 in numbers
        self.modules, self.own = [*stages], [stages[number] for number in numbers]
        return ScheduledPipeline(self.own, schedule, loss if self.has_last else None)

    def note(self, name: str, value: Any, kind: str = "owned") -> None:
        super().note(name, value, "owned")

    def note_all(self, what: str, named: Any) -> None:
        for number, module in enumerate(self.modules):
            owned = any(module is each for each in self.own)
            for name, value in named(module).items():
                self.note(f"{what} {number}.{name}", value if owned else None)


WAYS: dict[str, Any] = {way.name: way for way in (Hand, ZeroOne, Buckets, Sharded, Tensor, Threads, Scheduled)}
