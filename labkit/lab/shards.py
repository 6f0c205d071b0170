"""Hold the gradients of shards and of the whole batch, and show how they differ: notebook 01."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import pandas as pd
import torch

from labkit.base.formats import loss
from labkit.base.measurement_html import Lines


class Gradients(NamedTuple):
    """Three gradients, each as one tensor: a rank's, the mean over ranks, the whole batch's."""

    shard: torch.Tensor
    mean: torch.Tensor
    whole: torch.Tensor

    @property
    def error(self) -> float:
        """How far the mean is from the whole batch's gradient, relative to that."""
        return float((self.mean - self.whole).norm() / self.whole.norm())


def gradient(model: torch.nn.Module) -> torch.Tensor:
    """Return a copy of all gradients of a model, flat and one after the other."""
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def as_fractions(found: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Return what a sample counts, by factor and rank, as fractions that are easy to read: 1/12."""
    rows = {
        name: {column: str(Fraction(number).limit_denominator(1000)) for column, number in row.items()}
        for name, row in found.items()
    }
    return pd.DataFrame(rows).T.rename_axis("a sample counts")


def as_losses(numbers: Mapping[str, float] | pd.DataFrame) -> Lines | pd.DataFrame:
    """Return numbers that depend on a device's arithmetic as a notebook shows losses."""
    if isinstance(numbers, pd.DataFrame):
        return numbers.map(loss)
    return Lines("\n".join(f"{name}: {loss(float(number))}" for name, number in numbers.items()))
