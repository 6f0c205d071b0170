"""The bytes that autograd keeps for backward are counted, with recomputation and without."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.lab.kept_memory import kept_for_backward


def kept_mb(forward, x, weights):
    with kept_for_backward(weights) as kept:
        y = forward(x)
    del y
    return kept.n_bytes / 1e6


def test_autograd_keeps_what_backward_multiplies_by_each_storage_once_and_no_weight():
    x, layer = torch.ones(1000, 100, requires_grad=True), nn.Linear(100, 100)
    assert kept_mb(layer, x, layer.parameters()) == pytest.approx(0.4)  # x itself, 100,000 numbers of 4 bytes
    assert kept_mb(lambda x: layer(x) * layer(x), x, layer.parameters()) == pytest.approx(1.2)  # x, and both factors
    assert kept_mb(lambda x: x + 1, x, []) == 0


def test_a_stage_that_is_recomputed_keeps_its_input_alone():
    x, stage = torch.randn(200, 50, requires_grad=True), nn.Sequential(*(nn.Linear(50, 50) for _ in range(4)))
    assert kept_mb(stage, x, stage.parameters()) == pytest.approx(4 * 0.04)
    again = kept_mb(lambda x: checkpoint(stage, x, use_reentrant=False), x, stage.parameters())
    assert again == pytest.approx(0.04)
