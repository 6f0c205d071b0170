"""The training loop: forward, backward, averaging of gradients, optimizer, each in a span.

Every rank of a process group runs it on its own shard. Without a process group it is plain training
on one device, or on several if the model is spread over them. Each step leaves a row in the record.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple, TextIO

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import dp, launch, models
from labkit.data.sources import source_in_words
from labkit.parallel.devices import training_device
from labkit.trace import pause, span

LossFunction = Callable[[torch.nn.Module, Any], torch.Tensor]
RAMP_STEPS = 20  # in which the learning rate rises


# --- all ranks together ---------------------------------------------------------------------------


class World(NamedTuple):
    """This process among those that train."""

    rank: int
    size: int


def world() -> World:
    """Return rank and world size; 0 and 1 without a process group."""
    return World(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else World(0, 1)


def device() -> torch.device:
    """Return where this rank trains."""
    return training_device(launch.device())


def sum_over_ranks(*values: float) -> list[float]:
    """Return each value's sum over all ranks, in float64."""
    return start_sum_over_ranks(torch.tensor(values, dtype=torch.float64))()


def start_sum_over_ranks(values: torch.Tensor) -> Callable[[], list[float]]:
    """Start adding ``values`` (n,) up over all ranks. Return what waits for the sums."""
    total = values.detach().to(device(), torch.float64, copy=True)
    work = dist.all_reduce(total, async_op=True) if world().size > 1 else None

    def wait() -> list[float]:
        if work is not None:
            work.wait()
        return total.tolist()

    return wait


def targets_per_step(batches: Sequence[Any]) -> list[int]:
    """Return how many targets all ranks have together in each step, a list as long on all ranks.

    Shards may differ in length by one sample, so a rank may have one batch fewer than another: it
    counts none there.
    """
    own = [batch.n_targets for batch in batches]
    if world().size == 1:
        return own
    of_ranks: list[Any] = [None] * world().size
    dist.all_gather_object(of_ranks, own)
    return [sum(targets) for targets in zip_longest(*of_ranks, fillvalue=0)]


def check_loss(loss: float, step: int, name: str = "the loss") -> None:
    """Raise FloatingPointError, with the step, unless the loss is a finite number.

    Steps count from 1, through all epochs. The ``loss`` is that of all ranks together, so that all
    of them stop.
    """
    if not math.isfinite(loss):
        where = f"{name} is {loss} from step {step} on"
        raise FloatingPointError(f"the learning rate may be too high: {where}")


# --- the ways to agree on gradients, in one form --------------------------------------------------


class SyncMethod(NamedTuple):
    """One way to make every rank's gradients their mean over ranks.

    ``wrap(module)`` is called once, on every rank, and gives the model to train. ``finish(model)``
    is called after each backward pass; None where nothing is left to do then. ``tasks`` are the
    students' that it needs. ``name`` is that of its span.
    """

    name: str
    finish: Callable[[Any], None] | None = None
    tasks: tuple[str, ...] = ()
    wrap: Callable[[nn.Module], nn.Module] = lambda module: module


SYNC_METHODS = {
    method.name: method
    for method in (
        SyncMethod("none"),
        SyncMethod("gather_scatter", lambda model: dp.gather_scatter_gradients(model), ("dp.3",)),
        SyncMethod("all_reduce", lambda model: dp.average_gradients(model), ("dp.4",)),
        SyncMethod(
            "bucketed",
            lambda model: model.finish_gradient_synchronization(),
            ("dp.6", "dp.7"),
            lambda module: dp.BucketedDataParallel(module),
        ),
        SyncMethod("ddp", wrap=DistributedDataParallel),
    )
}


# --- the training loop ----------------------------------------------------------------------------


@dataclass
class Batch:
    """B samples to compute on: ``inputs``, a row each, and their ``labels``.

    ``n_targets`` counts the labels that count in the loss, ``n_tokens`` the tokens of the samples
    without padding. ``others`` is what else the model takes, by name, as large as the inputs.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    n_targets: int
    n_tokens: int = 0
    others: dict[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Batch:
        others = {name: each.to(device) for name, each in self.others.items()}
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device), others=others)


class Step(NamedTuple):
    """A row of the record: one step of one rank. Steps and epochs count from 1.

    ``loss`` is the mean over the targets of the whole batch, ``local_loss`` that over this rank's
    ``targets`` (NaN if it has none), in nats. ``tokens`` are this rank's, without padding.
    ``seconds`` go from the start of the forward pass to the end of the optimizer's step.
    """

    rank: int
    step: int
    epoch: int
    loss: float
    local_loss: float
    targets: int
    tokens: int
    seconds: float


class Trainer:
    """Trains ``model`` on this rank's device and batches, together with the other ranks.

    - ``loss_fn(model, batch)``: the loss summed over the targets of a :class:`Batch`.
    - ``learning_rate``: the highest, of ``optimizer(parameters, lr=…)``. It rises over the first
      ``ramp_steps`` and falls to 0 at ``total_steps``, both linearly, as ``lr_scheduler`` has it.
    - ``sync``: how every rank's gradients become their mean over ranks. ``model`` is the wrapped
      module that it wants, ``module`` always the plain one.
    - ``max_grad_norm``: the norm to which the mean gradient is clipped, if any.
    - ``keep_gradients``: copy those of the first step into ``kept_gradients``: ``"local"`` (this
      rank's own) and ``"averaged"``.
    - ``devices``: those over which the model is spread already, and then it is not moved.
    - ``spans=False``: leave the spans of forward and backward to a model that has its own, such as
      one with a :class:`labkit.pipe.Pipe` in it.

    ``record`` has a :class:`Step` for each step that :meth:`train_epoch` has taken; so has
    ``steps_file``, a line each, if one is set.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        learning_rate: float,
        total_steps: int,
        sync: SyncMethod = SYNC_METHODS["all_reduce"],
        keep_gradients: bool = False,
        devices: Sequence[torch.device] | None = None,
        spans: bool = True,
        ramp_steps: int = RAMP_STEPS,
        max_grad_norm: float | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    ):
        self.devices, self.world_size = devices or [device()], world().size
        self.module = model if devices else model.to(self.devices[0])
        self.device = next(model.parameters()).device  # a virtual device is plain cpu to torch
        self.model = sync.wrap(self.module) if self.world_size > 1 else self.module
        self.loss_fn, self.sync, self.spans = loss_fn, sync, spans
        self.max_grad_norm = max_grad_norm
        self.optimizer = optimizer(self.module.parameters(), lr=learning_rate)

        def share_of_rate(step: int) -> float:
            return min((step + 1) / ramp_steps, 1) * (1 - step / max(total_steps, 1))

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share_of_rate)
        self.step = 0
        self.record: list[Step] = []
        self.steps_file: TextIO | None = None
        self.kept_gradients: dict[str, dict[str, torch.Tensor]] | None = {} if keep_gradients else None

    def gradients(self, batch: Any | None, targets: int) -> torch.Tensor:
        """Compute the gradient of the whole batch's mean loss per target.

        ``targets`` is how many the batch has on all ranks together. The local loss, a sum, is
        scaled by world size / ``targets``, so that the *mean* over ranks is that gradient however
        unevenly the batch is shared out. A rank without a ``batch`` (None) takes part with zeros:
        nobody waits for it, and no sample is left out (not where ``sync`` sends during backward:
        there every rank needs a batch). Gives the local loss, a sum over targets.
        """
        loss = self.local_gradients(batch, targets)
        self._keep("local")
        self.sync_gradients()
        self._keep("averaged")
        if self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.max_grad_norm)
        return loss

    def local_gradients(self, batch: Any | None, targets: int) -> torch.Tensor:
        """Compute this rank's gradients, of its own share of the batch. Return the local loss."""
        self.module.zero_grad()
        if batch is None:
            return self._zero_gradients()
        with self._span("forward"):
            loss = self.loss_fn(self.model, batch.to(self.device))
        with self._span("backward"):
            (loss * (self.world_size / targets)).backward()
        return loss.detach()

    def _zero_gradients(self) -> torch.Tensor:
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return torch.zeros((), device=self.device)

    def sync_gradients(self) -> None:
        """Replace this rank's gradients by their mean over all ranks, where nobody has done so."""
        if self.world_size > 1 and self.sync.finish:
            n_bytes = sum(p.grad.nbytes for p in self.module.parameters() if p.grad is not None)
            with span(self.sync.name, lane="comm", step=self.step, bytes=n_bytes):
                self.sync.finish(self.model)

    def _span(self, name: str) -> AbstractContextManager[Any]:
        return span(name, step=self.step) if self.spans else contextlib.nullcontext()

    def _keep(self, name: str) -> None:
        if self.kept_gradients is not None and self.step == 0:
            parameters = self.module.named_parameters()
            gradients = {n: p.grad for n, p in parameters if p.grad is not None}
            self.kept_gradients[name] = {n: grad.cpu().clone() for n, grad in gradients.items()}

    def update(self) -> None:
        """Take the step that the gradients ask for."""
        with span("optimizer", step=self.step):
            self.optimizer.step()
        self.lr_scheduler.step()
        self.step += 1

    def train_epoch(self, batches: Iterable[tuple[Batch | None, int]], epoch: int) -> Iterator[Step]:
        """Train on this rank's ``batches`` once; yield each step's row of the record.

        A batch comes with its targets on all ranks together. Raises FloatingPointError on all
        ranks, with the step, once the loss is not a finite number.
        """
        self.model.train()
        for batch, all_targets in batches:
            began = self.now()
            local = self.gradients(batch, all_targets)
            sums = start_sum_over_ranks(local.view(1))  # now, as no rank is ahead of the others
            self.update()
            seconds = self.now() - began
            loss = sums()[0] / all_targets
            check_loss(loss, self.step)
            targets, tokens = (0, 0) if batch is None else (batch.n_targets, batch.n_tokens)
            local_loss = local.item() / targets if targets else math.nan
            row = world().rank, self.step, epoch, loss, local_loss, targets, tokens, seconds
            self.record.append(Step(*row))
            if self.steps_file:
                self.steps_file.write(",".join(map(str, row)).replace("nan", "") + "\n")
            yield self.record[-1]

    @torch.no_grad()
    def validation_loss(self, batches: Sequence[Batch]) -> float:
        """Return the mean loss per target over all ranks' batches: each target weighs the same.

        Raises FloatingPointError on all ranks if it is not a finite number.
        """
        self.model.eval()
        with pause():
            losses = [self.loss_fn(self.module, batch.to(self.device)).item() for batch in batches]
        total, targets = sum_over_ranks(sum(losses), sum(batch.n_targets for batch in batches))
        check_loss(total / targets, self.step, "the validation loss")
        return total / targets

    def facts(self, data_source: str, config: Any) -> dict[str, Any]:
        """Return what the result of every task says: a part of :class:`TrainingResult`."""
        return {
            "rank": world().rank,
            "world_size": world().size,
            "backend": dist.get_backend() if dist.is_initialized() else "none",
            "device": ", ".join(map(str, self.devices)),
            "threads": torch.get_num_threads(),
            "data_source": source_in_words(data_source),
            "parameters": models.parameter_count(self.module),
            "config": asdict(config),
            "steps": pd.DataFrame(self.record, columns=Step._fields),
        }

    def now(self) -> float:
        """Return the time in seconds, once the devices have done what they were given."""
        for each in self.devices:
            if each.type == "cuda":
                torch.cuda.synchronize(each)
        return time.perf_counter()
