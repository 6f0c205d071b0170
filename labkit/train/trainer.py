"""The training loop: forward, backward, averaging of gradients, optimizer, each in a span.

Every rank of a process group runs it on its own shard. Without a process group it is plain training
on one device, or on several if the model is spread over them. :mod:`labkit.train.pipeline_trainer`
has the ranks of a pipeline run it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import dp, launch, models
from labkit.parallel.devices import training_device
from labkit.trace import pause, span
from labkit.train.metrics import EpochMetrics

LossFunction = Callable[[torch.nn.Module, Any], torch.Tensor]
RAMP_STEPS = 20  # the learning rate rises for so many steps


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
    steps = torch.tensor([len(batches)], device=device())
    if world().size > 1:
        dist.all_reduce(steps, dist.ReduceOp.MAX)
    targets = torch.zeros(int(steps), dtype=torch.int64, device=device())
    targets[: len(batches)] = torch.tensor([batch.n_targets for batch in batches], dtype=torch.int64)
    if world().size > 1:
        dist.all_reduce(targets)
    return targets.tolist()


def check_losses(losses: Collection[float], first_step: int, name: str = "the loss") -> None:
    """Raise FloatingPointError, with the step, unless every step's loss is a finite number.

    Steps count from 1, through all epochs. The ``losses`` are those of all ranks together, so that
    all of them stop.
    """
    for step, loss in enumerate(losses, start=first_step):
        if not math.isfinite(loss):
            raise FloatingPointError(f"the learning rate may be too high: {name} is {loss} from step {step} on")


# --- the ways to agree on gradients, in one form --------------------------------------------------


class SyncMethod(NamedTuple):
    """One way to make every rank's gradients their mean over ranks.

    ``wrap(module)`` is called once, on every rank, and gives the model to train. ``finish(model)``
    is called after each backward pass; None where nothing is left to do then. ``tasks`` are the
    students' that it needs. ``name`` is that of its span.
    """

    name: str
    wrap: Callable[[nn.Module], nn.Module] = lambda module: module
    finish: Callable[[Any], None] | None = None
    tasks: tuple[str, ...] = ()


SYNC_METHODS = {
    method.name: method
    for method in (
        SyncMethod("none"),
        SyncMethod("gather_scatter", finish=lambda model: dp.gather_scatter_gradients(model), tasks=("dp.3",)),
        SyncMethod("all_reduce", finish=lambda model: dp.average_gradients(model), tasks=("dp.4",)),
        SyncMethod(
            "bucketed",
            lambda module: dp.BucketedDataParallel(module),
            lambda model: model.finish_gradient_synchronization(),
            ("dp.6", "dp.7"),
        ),
        SyncMethod("ddp", DistributedDataParallel),
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
    """One step: this rank's loss, summed over its ``targets``.

    Where each step is looked at, also the mean loss over the targets of all ranks, and the seconds
    from the start of the forward pass to the end of the optimizer's step.
    """

    loss: torch.Tensor
    targets: int
    mean_loss: float = math.nan
    seconds: float = math.nan


class Trainer:
    """Trains ``model`` on this rank's device and batches, together with the other ranks.

    - ``loss_fn(model, batch)``: the loss summed over the targets of a :class:`Batch`.
    - ``learning_rate``: the highest. It rises over the first ``ramp_steps`` and falls to 0 at
      ``total_steps``, both linearly, as ``lr_scheduler`` has it. Without ``total_steps`` it stays.
    - ``optimizer(parameters, lr=...)`` makes the optimizer.
    - ``way``: how every rank's gradients become their mean over ranks. ``model`` is the wrapped
      module that it wants, ``module`` always the plain one.
    - ``clip(parameters)``: change the mean gradient before the optimizer's step, such as by
      torch.nn.utils.clip_grad_norm_. With ``clip_local`` every rank's own gradient instead, before
      they are averaged: a mistake to look at.
    - ``keep_gradients``: copy those of the first step into ``kept_gradients``: ``"local"`` (this
      rank's own) and ``"averaged"``.
    - ``devices``: those over which the model is spread already, and then it is not moved.
    - ``spans=False``: leave the spans of forward and backward to a model that has its own, such as
      one with a :class:`labkit.pipe.Pipe` in it.
    """

    counts_samples = True  # whether this rank counts its batches' samples, tokens and losses

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        learning_rate: float,
        total_steps: int | None,
        way: SyncMethod = SYNC_METHODS["all_reduce"],
        keep_gradients: bool = False,
        devices: Sequence[torch.device] | None = None,
        spans: bool = True,
        ramp_steps: int = RAMP_STEPS,
        clip: Callable[[list[torch.nn.Parameter]], Any] | None = None,
        clip_local: bool = False,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    ):
        self.devices, self.world_size = devices or [device()], world().size
        self.module = model if devices else model.to(self.devices[0])
        self.device = next(model.parameters()).device  # a virtual device is plain cpu to torch
        self.model = way.wrap(self.module) if self.world_size > 1 else self.module
        self.loss_fn, self.way, self.spans = loss_fn, way, spans
        self.clip, self.clip_local = clip, clip_local
        self.optimizer = optimizer(self.module.parameters(), lr=learning_rate)

        def share_of_rate(step: int) -> float:
            return 1 if total_steps is None else min((step + 1) / ramp_steps, 1) * (1 - step / max(total_steps, 1))

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, share_of_rate)
        self.step = 0
        self.n_parameters = models.parameter_count(model)  # of the whole model
        self.kept_gradients: dict[str, dict[str, torch.Tensor]] | None = {} if keep_gradients else None

    def gradients(self, batch: Any | None, targets: int) -> torch.Tensor:
        """Compute the gradient of the whole batch's mean loss per target.

        ``targets`` is how many the batch has on all ranks together. The local loss, a sum, is
        scaled by world size / ``targets``, so that the *mean* over ranks is that gradient however
        unevenly the batch is shared out. A rank without a ``batch`` (None) takes part with zeros:
        nobody waits for it, and no sample is left out (not where the ``way`` sends during
        backward: there every rank needs a batch). Gives the local loss, a sum over targets.
        """
        loss = self.own_gradients(batch, targets)
        self._keep("local")
        if self.clip and self.clip_local:
            self.clip(list(self.module.parameters()))
        self.agree()
        self._keep("averaged")
        if self.clip and not self.clip_local:
            self.clip(list(self.module.parameters()))
        return loss

    def own_gradients(self, batch: Any | None, targets: int) -> torch.Tensor:
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

    def agree(self) -> None:
        """Replace this rank's gradients by their mean over all ranks, where nobody has done so."""
        if self.world_size > 1 and self.way.finish:
            n_bytes = sum(p.grad.nbytes for p in self.module.parameters() if p.grad is not None)
            with span(self.way.name, lane="comm", step=self.step, bytes=n_bytes):
                self.way.finish(self.model)

    def _span(self, name: str) -> AbstractContextManager[Any]:
        return span(name, step=self.step) if self.spans else contextlib.nullcontext()

    def _keep(self, name: str) -> None:
        if self.kept_gradients is not None and self.step == 0:
            parameters = self.module.named_parameters()
            self.kept_gradients[name] = {n: p.grad.detach().cpu().clone() for n, p in parameters if p.grad is not None}

    def train_step(self, batch: Any | None, targets: int) -> torch.Tensor:
        """Do one step of all ranks. Return the local loss, summed over targets."""
        loss = self.gradients(batch, targets)
        self.update()
        return loss

    def update(self) -> None:
        """Take the step that the gradients ask for."""
        with span("optimizer", step=self.step):
            self.optimizer.step()
        self.lr_scheduler.step()
        self.step += 1

    def steps(self, batches: Iterable[tuple[Any | None, int]], look: bool = False) -> Iterator[Step]:
        """Train: take a step of all ranks for each of this rank's batches. The loop of all tasks.

        A batch comes with its targets on all ranks together. With ``look``, each step's loss is
        looked at, for which a GPU is waited for. Then this raises FloatingPointError on all ranks,
        with the step, once it is no finite number.
        """
        self.model.train()
        for batch, targets in batches:
            own_targets = 0 if batch is None else batch.n_targets
            if not look:
                yield Step(self.train_step(batch, targets), own_targets)
                continue
            began = self.now()
            loss = self.gradients(batch, targets)
            loss_of_all = start_sum_over_ranks(loss.view(1))  # now, as no rank is ahead of the others
            self.update()
            seconds = self.now() - began
            mean_loss = loss_of_all()[0] / targets
            check_losses([mean_loss], self.step)
            yield Step(loss, own_targets, mean_loss, seconds)

    def train_epoch(self, batches: Sequence[Any], validation: Sequence[Any], epoch: int, skip: int = 0) -> EpochMetrics:
        """Train on this rank's ``batches`` once, then take the validation loss.

        The first ``skip`` steps are warm-up, which the counted times leave out. Raises
        FloatingPointError on all ranks, with the step, for a loss that is no finite number.
        """
        counted = batches if self.counts_samples else []
        targets = targets_per_step(counted)
        skip = min(skip, len(targets) - 1)  # at least one step counts
        losses: list[torch.Tensor] = []
        start = counting_from = self.now()
        steps = list(zip_longest(batches, targets))
        for step in self.steps(launch.progress(steps, desc=f"epoch {epoch}")):
            losses.append(step.loss)
            if len(losses) == skip:
                counting_from = self.now()
        end = self.now()
        total, *of_steps = sum_over_ranks(
            sum(losses, torch.zeros((), device=self.device)).item(), *torch.stack(losses).tolist()
        )
        check_losses(of_steps, self.step - len(steps) + 1)
        validation_loss = self.validation_loss(validation)
        check_losses([validation_loss], self.step, "the validation loss")
        return EpochMetrics(
            epoch=epoch,
            steps=len(steps),
            samples=sum(map(len, counted)),
            tokens=sum(batch.n_tokens for batch in counted),
            seconds=end - start,
            counted_steps=len(steps) - skip,
            counted_tokens=sum(batch.n_tokens for batch in counted[skip:]),
            counted_seconds=end - counting_from,
            training_loss=total / sum(targets),
            validation_loss=validation_loss,
        )

    @torch.no_grad()
    def validation_loss(self, batches: Sequence[Any]) -> float:
        """Return the mean loss per target over all ranks' batches: each target weighs the same."""
        self.model.eval()
        with pause():
            losses = [self._loss(batch).item() for batch in batches]
        loss, targets = sum_over_ranks(
            sum(losses), sum(batch.n_targets for batch in batches) if self.counts_samples else 0
        )
        return loss / targets

    def _loss(self, batch: Any) -> torch.Tensor:
        """Return the batch's loss, summed over targets, where it is computed."""
        return self.loss_fn(self.module, batch.to(self.device))

    def facts(self, data_source: str, config: Any) -> dict[str, Any]:
        """Return what every task's result says, as :class:`labkit.train.metrics.TrainingResult`."""
        return {
            "rank": world().rank,
            "world_size": world().size,
            "backend": dist.get_backend() if dist.is_initialized() else "none",
            "device": ", ".join(map(str, self.devices)),
            "threads": torch.get_num_threads(),
            "data_source": data_source,
            "parameters": self.n_parameters,
            "config": asdict(config),
        }

    def whole_model(self) -> Any:
        """Return the trained model, all of it."""
        return self.module

    def close(self) -> None:
        """Free what training needed in addition to the model: here nothing."""

    def now(self) -> float:
        """Return the time in seconds, once the devices have done what they were given."""
        for each in self.devices:
            if each.type == "cuda":
                torch.cuda.synchronize(each)
        return time.perf_counter()
