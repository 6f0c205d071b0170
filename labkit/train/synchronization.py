"""The ways to agree on gradients, in one form: wrap the model, finish each step's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import dp

Wrap = Callable[[nn.Module], nn.Module]


def _as_it_is(module: nn.Module) -> nn.Module:
    return module


class Way(NamedTuple):
    """One way to make every rank's gradients their mean over ranks.

    ``wrap(module)`` is called once, on every rank, and gives the model to train. ``finish(model)``
    is called after each backward pass; None where nothing is left to do then. ``tasks`` are the
    students' that it needs. ``name`` is that of its span.
    """

    name: str
    wrap: Wrap = _as_it_is
    finish: Callable[[Any], None] | None = None
    tasks: tuple[str, ...] = ()


def _bucketed(module: nn.Module) -> nn.Module:
    return dp.BucketedDataParallel(module)


def _finish_buckets(model: dp.BucketedDataParallel) -> None:
    model.finish_gradient_synchronization()


WAYS = {
    way.name: way
    for way in (
        Way("none"),
        Way("gather_scatter", finish=lambda model: dp.gather_scatter_gradients(model), tasks=("dp.3",)),
        Way("all_reduce", finish=lambda model: dp.average_gradients(model), tasks=("dp.4",)),
        Way("bucketed", _bucketed, _finish_buckets, ("dp.6", "dp.7")),
        Way("ddp", DistributedDataParallel),
    )
}
