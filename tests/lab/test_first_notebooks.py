"""What notebook 01 reads off its runs is what the numbers say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from labkit.lab import shards


def test_the_mean_of_two_gradients_is_off_by_its_relative_distance():
    right = torch.tensor([3.0, 4.0])
    assert shards.Gradients(right, mean=right + torch.tensor([0.0, 0.5]), whole=right).error == pytest.approx(0.1)
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    assert shards.gradient(model).tolist() == [1.0, 1.0, 1.0]
    assert shards.as_fractions({"a": {"x": 1 / 12}}).loc["a", "x"] == "1/12"
