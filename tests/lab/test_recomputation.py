"""What a stage keeps for backward is counted, with recomputation and without."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from labkit.lab.recomputation import Recomputation, kept_mb, time_recomputation
from labkit.launch import launch


def test_autograd_keeps_what_backward_multiplies_by_each_storage_once_and_no_weight():
    x, layer = torch.ones(1000, 100, requires_grad=True), nn.Linear(100, 100)
    assert kept_mb(layer, x, layer.parameters()) == pytest.approx(0.4)  # x itself, 100,000 numbers of 4 bytes
    assert kept_mb(lambda x: layer(x) * layer(x), x, layer.parameters()) == pytest.approx(1.2)  # x, and both factors
    assert kept_mb(lambda x: x + 1, x, []) == 0


def test_recomputing_keeps_the_input_alone_and_runs_the_stage_once_more_inside_backward():
    stage = nn.Sequential(*(nn.Linear(50, 50) for _ in range(4)))
    run = launch(time_recomputation, stage, torch.randn(200, 50), rounds=7, world_size=1)
    assert run.values[0] == pytest.approx({"kept": 4 * 0.04, "recomputed": 0.04})
    found, of_stage = Counter(run.events["name"]), "stage in {}, {}".format
    assert found[of_stage("forward", "kept")] == found[of_stage("forward", "recomputed")] == 7
    assert found[of_stage("backward", "recomputed")] == 7 and not found[of_stage("backward", "kept")]
    read = Recomputation(run)
    assert sum(read.parts.values()) == pytest.approx(read.again.median) and read.forward > 0
