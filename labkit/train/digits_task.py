"""The digits task: a ConvNet learns handwritten digits, with all that torch has for several ranks.

The lecture's demonstration: torch's DistributedSampler shares out the pictures, and its
DistributedDataParallel averages the gradients. labkit's own versions of both are in labkit/dp.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from labkit import models
from labkit.data import Digits, digits
from labkit.parallel.bucket import take_from_rank_0
from labkit.train.joining import process
from labkit.train.options import check_losses, check_options
from labkit.train.reading import read_on_rank_0
from labkit.train.starting import check_shares
from labkit.train.trainer import device, sum_over_ranks, world

LINES_PER_EPOCH = 3


@dataclass(frozen=True)
class DigitsConfig:
    """Describe one run of the digits task.

    - ``source``: as :func:`labkit.data.digits` takes it.
    - ``batch_size``: pictures in a step, of all ranks together; a multiple of their number.
    - ``seed``: of the first weights, and of the order of the pictures.

    Raises ValueError for a value that cannot be.
    """

    source: str = "auto"
    epochs: int = 2
    batch_size: int = 100
    learning_rate: float = 0.05
    seed: int = 0

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
    devices: Sequence[torch.device] = (),
    every_rank_prints: bool = False,
) -> DigitsResult:
    """Train the ConvNet, on this rank with the others: the function to give to ``launch``.

    It needs a process group, of one rank at least. Without ``data``, rank 0 loads it and sends it
    to the others. ``devices`` are those that this rank drives, by default its own; over several
    the model is spread. Rank 0 prints the losses, or every rank in a terminal of its own. Raises
    FloatingPointError on all ranks, with the step, once the loss is no finite number.

    Notes: batch norm normalises each rank's share of a batch by itself, so two ranks do not train
    exactly what one does, but what one would that takes the shares one after the other and adds up
    the gradients. The statistics for testing are rank 0's. torch.nn.SyncBatchNorm shares them, on
    GPUs alone.
    """
    rank, world_size = world()
    check_shares(config.batch_size, world_size)
    devices = list(devices) or [device()]
    where = " and ".join(map(str, devices))
    print(f"Hello from rank {rank} of {world_size}: {dist.get_backend()}, {where}, {process()}", flush=True)
    train: Any  # a data set by its methods, as torch's loader wants it
    test: Digits
    train, test = data or read_on_rank_0(lambda: load_digits(config))
    model = _parallel(models.convnet(train.images.shape[-1], seed=config.seed), devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)
    sampler: DistributedSampler[Any] = DistributedSampler(train, world_size, rank, seed=config.seed)
    loader: DataLoader[Any] = DataLoader(train, batch_size=config.batch_size // world_size, sampler=sampler)
    every = max(1, len(loader) // LINES_PER_EPOCH)
    losses: list[float] = []
    model.train()
    for epoch in range(1, config.epochs + 1):
        sampler.set_epoch(epoch)  # else every epoch had the order of the first
        for step, (images, labels) in enumerate(loader, start=1):
            logits = model(images.to(devices[0]))
            loss = F.cross_entropy(logits, labels.to(logits.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(sum_over_ranks(loss.item())[0] / world_size)
            check_losses(losses[-1:], len(losses))
            if step % every == 0 and (every_rank_prints or rank == 0):
                print(
                    f"Epoch [{epoch}/{config.epochs}], Step [{step}/{len(loader)}], Loss: {losses[-1]:.4f}", flush=True
                )
    accuracy = _accuracy(model.module, test, devices[0])
    if every_rank_prints or rank == 0:
        print(f"Accuracy on {len(test):,} test pictures: {accuracy:.4f}", flush=True)
    return DigitsResult(rank, world_size, where, losses, accuracy)


def _parallel(model: nn.Sequential, devices: Sequence[torch.device]) -> DistributedDataParallel:
    """Return the model on its devices, with the gradients averaged over ranks.

    DistributedDataParallel takes ``device_ids`` where the model is on one GPU; where it is on
    several, or on the CPU, it must get none.
    """
    if len(devices) > 1:
        return DistributedDataParallel(Spread(model, devices))
    device_ids = [devices[0]] if devices[0].type == "cuda" else None
    return DistributedDataParallel(model.to(devices[0]), device_ids=device_ids)


class Spread(nn.Module):
    """A chain of layers in as many parts as there are devices, each on a device of its own.

    The parts have the same number of layers, or one more. What a part makes is copied to the
    device of the next one: the output is on the last.

    Raises ValueError for more devices than layers.
    """

    def __init__(self, layers: nn.Sequential, devices: Sequence[torch.device]):
        super().__init__()
        if len(devices) > len(layers):
            raise ValueError(
                f"the model has {len(layers)} layers, and a rank has {len(devices)} devices for them: start more ranks"
            )
        self.devices = list(devices)
        cuts = [round(i * len(layers) / len(devices)) for i in range(len(devices) + 1)]
        self.parts = nn.ModuleList(layers[cuts[i] : cuts[i + 1]].to(each) for i, each in enumerate(devices))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, each in zip(self.parts, self.devices, strict=True):
            x = part(x.to(each))
        return x


@torch.no_grad()
def _accuracy(model: nn.Module, test: Digits, first: torch.device) -> float:
    """Return the fraction of the test pictures that are recognised; each rank takes its share."""
    for buffer in model.buffers():
        take_from_rank_0(buffer)  # statistics of batch norm are each rank's own
    model.eval()
    rank, world_size = world()
    correct = 0
    for start in range(rank, len(test), world_size * 1000):
        part = slice(start, start + world_size * 1000, world_size)
        guesses = model(test.images[part].to(first)).argmax(dim=1).cpu()
        correct += int((guesses == test.labels[part]).sum())
    return sum_over_ranks(correct)[0] / len(test)
