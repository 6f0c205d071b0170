"""Train a GPT-2 in stages: on several ranks by a schedule, or on several devices of one process.

The same training as on one device: same batches in the same order, and the same gradient of the
mean loss per target.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from labkit import models
from labkit.parallel.devices import is_virtual
from labkit.pipe import ScheduledPipeline
from labkit.schedule import Schedule
from labkit.trace import span
from labkit.train import modes, translation
from labkit.train.metrics import EpochMetrics
from labkit.train.trainer import RAMP_STEPS, Batch, Trainer, world
from labkit.train.translation import NO_LOSS, PAD_ID

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

# --- a process for each rank ----------------------------------------------------------------------


class PipelineTrainer(Trainer):
    """Trains ``gpt2`` with the other ranks of ``schedule``, each with its own stages and optimizer.

    Every rank is given every batch, as each of them knows by it what comes: the rank of stage 0
    reads the inputs, that of the last stage the labels. The latter counts samples and tokens, so
    that a sum over ranks has them once.

    Where the first stage and the last one are on different ranks, the weight that they share is
    there twice. The gradients of the two are added up, so both take the same steps. After
    construction ``gpt2`` is of no use here: whoever drops it keeps this rank's stages only.
    ``kept_gradients`` has the gradients of these: ``"averaged"`` is the batch's, ``"local"`` is
    before those of the shared weight are added up.

    A ScheduledPipeline wants one shape of batch. So there is one for each shape, over the same
    stages, and nothing needs to be padded: a pipeline has no parameters or activations of its own,
    only the order of its messages.
    """

    def __init__(
        self,
        gpt2: GPT2LMHeadModel,
        schedule: Schedule,
        learning_rate: float,
        total_steps: int,
        keep_gradients: bool = False,
        ramp_steps: int = RAMP_STEPS,
    ):
        rank, rank_of = world().rank, _ranks_of_stages(schedule)
        stages = enumerate(models.stages(gpt2, schedule.n_stages))
        self.local_stages = {number: stage for number, stage in stages if rank_of[number] == rank}
        super().__init__(
            nn.ModuleList(self.local_stages.values()),
            translation.target_loss,
            learning_rate,
            total_steps,
            keep_gradients=keep_gradients,
            ramp_steps=ramp_steps,
        )
        self.n_parameters = models.parameter_count(gpt2)
        self.counts_samples = schedule.n_stages - 1 in self.local_stages
        self._config, self._rank_of = gpt2.config, rank_of
        self._schedules = {True: schedule, False: modes.forward_of(schedule)}  # by whether it trains
        self._pipelines: dict[tuple[bool, torch.Size], ScheduledPipeline] = {}
        self._per_row = 1.0
        self._tied_weight: nn.Parameter | None = None  # where the other copy of it is on another rank
        self._tied_group: Any = None  # the process group of the two ranks that have it; None if there are no others
        if rank_of[0] != rank_of[-1]:
            self._find_tied_weight([rank_of[0], rank_of[-1]])

    def _find_tied_weight(self, ends: list[int]) -> None:
        for stage in self.local_stages.values():
            self._tied_weight = self._tied_weight if stage.tied_weight is None else stage.tied_weight
        if world().size > len(ends):
            self._tied_group = dist.new_group(ends)  # by all ranks, also those that are not in it

    def gradients(self, batch: Any, targets: int) -> torch.Tensor:
        """Compute the stages' gradients of the batch's mean loss per target.

        Return the loss, a sum over targets, on the rank that computes it.
        """
        self.model.zero_grad()
        loss = self._step(batch, targets, trains=True)
        self._keep("local")
        if self._tied_weight is not None and (gradient := self._tied_weight.grad) is not None:
            with span("all_reduce", lane="comm", step=self.step, bytes=gradient.nbytes):
                dist.all_reduce(gradient, group=self._tied_group)
        self._keep("averaged")
        return loss

    def train_epoch(
        self, batches: Sequence[Batch], validation: Sequence[Batch], epoch: int, skip: int = 0
    ) -> EpochMetrics:
        for trains, part in ((True, batches), (False, validation)):
            for batch in part:
                self._pipeline(batch, trains)  # made before the clock runs
        return super().train_epoch(batches, validation, epoch, skip)

    def _loss(self, batch: Batch) -> torch.Tensor:
        return self._step(batch, batch.n_targets, trains=False)

    def _step(self, batch: Batch, targets: int, trains: bool) -> torch.Tensor:
        pipeline, batch = self._pipeline(batch, trains), self._padded(batch)
        pipeline.next_step = self.step
        self._per_row = len(batch) / targets
        mean = pipeline.step(batch.inputs, batch.labels)
        return torch.zeros((), device=self.device) if mean is None else mean * targets

    def _pipeline(self, batch: Batch, trains: bool) -> ScheduledPipeline:
        key = trains, self._padded(batch).inputs.shape
        if key not in self._pipelines:
            self._pipelines[key] = ScheduledPipeline(
                list(self.local_stages.values()), self._schedules[trains], self._mean_over_rows
            )
        return self._pipelines[key]

    def _mean_over_rows(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return a loss for ScheduledPipeline: its mean over rows is the mean over targets."""
        return translation.summed_loss(logits, labels) * (self._per_row / len(labels))

    def _padded(self, batch: Batch) -> Batch:
        """Return the batch with a row for each micro-batch: padding, which counts in no loss."""
        missing = (0, 0, 0, max(0, self._schedules[True].n_micro - len(batch)))
        inputs, labels = F.pad(batch.inputs, missing, value=PAD_ID), F.pad(batch.labels, missing, value=NO_LOSS)
        return Batch(inputs, labels, batch.n_targets, batch.n_tokens)

    @torch.no_grad()
    def whole_model(self) -> GPT2LMHeadModel:
        """Return the stages of all ranks in one GPT-2, on every rank."""
        whole: Any = models.gpt2(self._config)
        whole.to(self.device)
        for number, stage in enumerate(models.stages(whole, len(self._rank_of))):
            if number in self.local_stages:
                stage.load_state_dict(self.local_stages[number].state_dict())
            for parameter in stage.parameters() if world().size > 1 else ():
                dist.broadcast(parameter, src=self._rank_of[number])
        return whole

    def close(self) -> None:
        """Give back the process group of the first rank and the last. All ranks call it."""
        if self._tied_group is not None:
            dist.destroy_process_group(self._tied_group)
            self._tied_group = None


def _ranks_of_stages(schedule: Schedule) -> list[int]:
    """Return the rank of each stage."""
    ranks = {op.stage: rank for rank, ops in enumerate(schedule.ops) for op in ops}
    return [ranks[stage] for stage in range(schedule.n_stages)]


# --- one process for all devices ------------------------------------------------------------------


@contextlib.contextmanager
def share_of_threads(devices: Sequence[torch.device]) -> Iterator[None]:
    """Compute in the block with one virtual device's share of this process's threads."""
    threads = torch.get_num_threads()
    if is_virtual(devices[0]):
        torch.set_num_threads(max(1, threads // len(devices)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
