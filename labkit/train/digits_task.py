"""The digits task: a ConvNet learns handwritten digits, with all that torch has for several ranks.

The lecture's demonstration: torch's DistributedSampler shares out the pictures, and its
DistributedDataParallel averages the gradients. labkit's own versions of both are in labkit/dp.py.
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, default_collate

from labkit import models
from labkit.base import machine
from labkit.data import Digits, digits
from labkit.parallel.bucket import take_from_rank_0
from labkit.train.rank_start import Start, process, read_on_rank_0
from labkit.train.trainer import SYNC_METHODS, Batch, Trainer, sum_over_ranks, world
from labkit.train.trainer import device as rank_device
from labkit.train.training_task import TrainingTask, check_options, check_shares, option

LINES_PER_EPOCH = 3


@dataclass(frozen=True)
class DigitsConfig:
    """Describe one run of the digits task.

    - ``source``: as :func:`labkit.data.digits` takes it.
    - ``batch_size``: pictures in a step, of all ranks together; a multiple of their number.
    - ``seed``: of the first weights, and of the order of the pictures.

    Raises ValueError for a value that cannot be.
    """

    source: str = option("auto", "auto, shipped, hub, a folder, or a data set's name on the hub")
    epochs: int = option(2, "times through the training pictures")
    batch_size: int = option(100, "pictures in a step, of all ranks together")
    learning_rate: float = option(0.05, "of SGD with momentum 0.9", "--learning-rate", "--lr")
    seed: int = option(0, "of the first weights and the order of the pictures", least=0, most=2**32 - 1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class DigitsResult:
    """The result of one rank.

    ``losses`` are the mean over all ranks in each step, the same on all of them; ``accuracy`` is
    the fraction of the test pictures that are recognised after the last epoch.
    """

    rank: int
    world_size: int
    device: str
    losses: list[float]
    accuracy: float


def load_digits(config: DigitsConfig) -> tuple[Digits, Digits]:
    """Load the pictures for training and for testing that ``config`` asks for.

    Raises ValueError, FileNotFoundError or ConnectionError where they cannot be had.
    """
    return digits("train", config.source), digits("test", config.source)


def train_digits(
    config: DigitsConfig,
    data: tuple[Digits, Digits] | None = None,
    device: torch.device | None = None,
    every_rank_prints: bool = False,
) -> DigitsResult:
    """Train the ConvNet, on this rank with the others: the function to give to ``launch``.

    It needs a process group, of one rank at least. Without ``data``, rank 0 loads it and sends it
    to the others. It trains on ``device``, by default this rank's own. Rank 0 prints the losses, or
    every rank in a terminal of its own. Raises FloatingPointError on all ranks, with the step, once
    the loss is not a finite number.

    Notes: batch norm normalises each rank's share of a batch by itself. So two ranks do not train
    exactly as one process does on the whole batch, but as one that takes the shares in turn and
    adds up the gradients. The statistics for testing are rank 0's. torch.nn.SyncBatchNorm shares
    them, on GPUs alone.
    """
    rank, world_size = world()
    check_shares(config.batch_size, world_size)
    device = device or rank_device()
    print(f"Hello from rank {rank} of {world_size}: {dist.get_backend()}, {device}, {process()}", flush=True)
    train: Any  # a data set by its methods, as torch's loader wants it
    test: Digits
    train, test = data or read_on_rank_0(lambda: load_digits(config))
    trainer = Trainer(
        models.convnet(train.images.shape[-1], seed=config.seed).to(device),
        _summed_loss,
        config.learning_rate,
        total_steps=None,
        way=SYNC_METHODS["ddp"],
        devices=[device],
        optimizer=functools.partial(torch.optim.SGD, momentum=0.9),
    )
    sampler: DistributedSampler[Any] = DistributedSampler(train, world_size, rank, seed=config.seed)
    loader: DataLoader[Any] = DataLoader(
        train, batch_size=config.batch_size // world_size, sampler=sampler, collate_fn=_collate
    )
    every = max(1, len(loader) // LINES_PER_EPOCH)
    losses: list[float] = []
    for epoch in range(1, config.epochs + 1):
        sampler.set_epoch(epoch)  # else every epoch had the order of the first
        batches = ((batch, world_size * batch.n_targets) for batch in loader)  # all shares are equal
        for number, step in enumerate(trainer.steps(batches, look=True), start=1):
            losses.append(step.mean_loss)
            if number % every == 0 and (every_rank_prints or rank == 0):
                print(
                    f"Epoch [{epoch}/{config.epochs}], Step [{number}/{len(loader)}], Loss: {losses[-1]:.4f}",
                    flush=True,
                )
    accuracy = _accuracy(trainer.module, test, device)
    if every_rank_prints or rank == 0:
        print(f"Accuracy on {len(test):,} test pictures: {accuracy:.4f}", flush=True)
    return DigitsResult(rank, world_size, str(device), losses, accuracy)


def _collate(rows: list[Any]) -> Batch:
    images, labels = default_collate(rows)
    return Batch(images, labels, len(labels))


def _summed_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch.inputs), batch.labels, reduction="sum")


@torch.no_grad()
def _accuracy(model: nn.Module, test: Digits, device: torch.device) -> float:
    """Return the fraction of the test pictures that are recognised; each rank takes its share."""
    for buffer in model.buffers():
        take_from_rank_0(buffer)  # statistics of batch norm are each rank's own
    model.eval()
    rank, world_size = world()
    correct = 0
    for start in range(rank, len(test), world_size * 1000):
        part = slice(start, start + world_size * 1000, world_size)
        guesses = model(test.images[part].to(device)).argmax(dim=1).cpu()
        correct += int((guesses == test.labels[part]).sum())
    return sum_over_ranks(correct)[0] / len(test)


# --- its command ----------------------------------------------------------------------------------


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    gpu = "the GPU of this process, -1 for the CPU; without it one of its own if it has one"
    add("-g", "--gpu", type=int, help=gpu)


def _check(config: DigitsConfig, args: argparse.Namespace, start: Start) -> None:
    """Raise ValueError for a GPU that is not there, and for one that all ranks would take."""
    check_shares(config.batch_size, start.world_size)
    n_gpus = machine.usable_gpus()
    if args.gpu is not None and not -1 <= args.gpu < n_gpus:
        raise ValueError(f"--gpu (-g) is {args.gpu}, and this machine has {n_gpus} GPUs, from 0 on; -1 is the CPU")
    if args.gpu is not None and args.gpu >= 0 and start.here:
        raise ValueError("--gpu (-g) names the GPU of one process: give its --rank (-nr) too, or leave it out")
    if args.gpu == -1 and start.here:
        args.backend = "gloo"


def _own_device(args: argparse.Namespace) -> torch.device | None:
    """Return the device that ``--gpu`` names; None stands for the rank's own."""
    gpu = args.gpu
    return None if gpu is None else torch.device("cpu") if gpu < 0 else torch.device("cuda", gpu)


def _rank_options(args: argparse.Namespace, own: torch.device) -> dict[str, Any]:
    return {"device": own, "every_rank_prints": args.rank is not None}


TASK = TrainingTask(
    name="digits",
    help="a ConvNet on digits",
    description="Train a ConvNet to read digits.",
    config=DigitsConfig,
    load=load_digits,
    train=train_digits,
    rank_flags=("-nr", "--rank"),
    add_flags=_add_flags,
    check=_check,
    device=_own_device,
    rank_options=_rank_options,
)
