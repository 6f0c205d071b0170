"""compare on real ranks: right ways are right, ways broken on purpose are named, and one that fails
costs its own row."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from labkit.dp import average_gradients
from labkit.parity import Parity, compare
from labkit.schedule import gpipe, zero_bubble_v

X, Y = torch.linspace(-1, 1, 64).reshape(8, 8).sin(), torch.arange(8) % 4
LABS = ["average_gradients", "BucketedDataParallel", "ShardedOptimizer", "ShardedModel", "Pipe", "ScheduledPipeline"]
TORCHS = ["DDP", "fully_shard", "ZeroRedundancyOptimizer", "pipelining"]

Step = Callable[[Any, Any], torch.Tensor]


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def verdicts(
    ways: Any, build: Any = build, batch: Any = (X, Y), loss: Any = F.cross_entropy, **options: Any
) -> list[str]:
    return list(compare(build, batch, loss, ways, **{"timeout_s": 100} | options).table.verdict)


def test_every_way_of_the_lab_is_right_and_stands_beside_torchs_ddp():
    found = compare(build, (X, Y), F.cross_entropy, [*LABS, "DDP"], timeout_s=100)
    assert list(found.table.verdict) == ["right"] * 7
    assert max(found.table.difference) < float(found.table.tolerance.iloc[0]) < 1e-12
    assert found.table["torch's own"].str.startswith("DDP").tolist() == [True, True, False, False, False, False, False]


@pytest.mark.slow  # each rank imports torch's FSDP or pipelining
def test_torchs_own_ways_are_right_too():
    schedules = [("pipelining", {"schedule": name}) for name in ("Interleaved1F1B", "ZBVZeroBubble")]
    assert verdicts([*TORCHS, *schedules]) == ["right"] * 6


# --- broken on purpose ----------------------------------------------------------------------------


def by_hand(average: Callable[[nn.Module, int], None]) -> Callable[[nn.Module, Any], Step]:
    """Return a way that does ``average(module, number of the step)`` after the backward pass."""

    def way(module: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        numbers = iter(range(1, 100))

        def step(inputs: Any, target: Any) -> torch.Tensor:
            loss = F.cross_entropy(module(inputs), target)
            loss.backward()
            average(module, next(numbers))
            return loss

        return step

    return way


def add_up(module: nn.Module, number: int) -> None:
    for gradient in [parameter.grad for parameter in module.parameters()]:
        dist.all_reduce(gradient)


def nothing(module: nn.Module, number: int) -> None:
    pass


def forget_on_rank_1_at_step_2(module: nn.Module, number: int) -> None:
    average_gradients(module)
    if dist.get_rank() == 1 and number == 2:
        module.zero_grad()


def rank_1_leaves_out_step_2(module: nn.Module, number: int) -> None:
    if dist.get_rank() == 0 or number != 2:
        average_gradients(module)


MEAN = by_hand(lambda module, _: average_gradients(module))


def test_ways_that_are_broken_on_purpose_are_named_at_the_step_where_they_break():
    summed, no_broadcast, right, local, forgets = verdicts(
        [
            by_hand(add_up),
            (MEAN, {"broadcasts": True}),  # says that it takes rank 0's weights, and does not
            MEAN,
            by_hand(nothing),
            by_hand(forget_on_rank_1_at_step_2),
        ]
    )
    assert summed == "off by 1, first in the gradient of 0.weight, at step 1"
    assert no_broadcast.startswith("ranks 0 and 1 are ") and no_broadcast.endswith("first in 0.weight, at step 1")
    assert right == "right"
    assert local.startswith("ranks 0 and 1 are ") and local.endswith("first in the gradient of 0.weight, at step 1")
    assert forgets.startswith("ranks 0 and 1 are ") and forgets.endswith("first in the gradient of 0.weight, at step 2")


def test_a_sum_for_a_mean_is_seen_under_adamw_too_which_hides_it_in_the_weights():
    found = verdicts([by_hand(add_up)], optimizer=(torch.optim.AdamW, {"lr": 1e-3}), steps=1)
    assert found == ["off by 1, first in the gradient of 0.weight, at step 1"]


def test_two_stages_swapped_are_off_at_step_1_in_both_pipelines():
    def swapped(module: Any) -> list[nn.Module]:
        return [module[0], module[3], module[2], module[1], module[4]]

    found = verdicts(["Pipe", ("ScheduledPipeline", {"schedule": gpipe(2, 4)})], stages=swapped, steps=1)
    assert all(re.fullmatch("off by .* at step 1", each) for each in found), found


# --- a row of its own -----------------------------------------------------------------------------


def dies(module: nn.Module, optimizer: Any) -> Step:
    def step(inputs: Any, target: Any) -> torch.Tensor:
        if dist.get_rank() == 1:
            os._exit(3)
        return MEAN(module, optimizer)(inputs, target)

    return step


def raises(module: nn.Module, optimizer: Any) -> Step:
    raise LookupError("no such thing\nand more")


def test_a_way_that_dies_raises_hangs_or_is_refused_costs_its_row_alone():
    attention = nn.MultiheadAttention

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = attention(8, 2, batch_first=True), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[:, None, :]
            return self.head(self.attention(x, x, x)[0][:, 0])

    ways = [
        dies,
        raises,
        by_hand(rank_1_leaves_out_step_2),
        "ShardedModel",
        ("ShardedModel", {"shard": attention}),
        MEAN,
    ]
    died, raised, hung, refused, sharded, right = verdicts(ways, build=Attends)
    assert died == "raised: rank 1 ended without an answer (exit status 3)"
    assert re.fullmatch("raised: rank [01], LookupError: no such thing", raised)  # whichever is first
    assert "at step 2; then hung: collective" in hung and "rank 1 has returned without it" in hung
    assert refused.startswith("refused: attention is an nn.MultiheadAttention") and refused.endswith("as a whole")
    assert (sharded, right) == ("right", "right")


def test_a_way_that_takes_too_long_is_said_to_hang_and_where():
    def sleeps(module: nn.Module, optimizer: Any) -> Step:
        def step(inputs: Any, target: Any) -> torch.Tensor:
            time.sleep(1000)
            raise AssertionError

        return step

    compare(build, (X, Y), F.cross_entropy, [MEAN], steps=1, timeout_s=100)  # now ranks start quickly
    (found,) = verdicts([sleeps], timeout_s=6)
    assert found.startswith("hung: the ranks did not finish within") and "test_parity.py" in found


# --- right, but ----------------------------------------------------------------------------------


def test_a_batch_that_is_not_the_mean_of_its_shards_is_said_with_the_cause():
    def noisy() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4))

    def padded(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, ignore_index=0)

    but = "right, but the batch is not the mean of its shards: "
    (uneven,) = verdicts(["average_gradients"], batch=(X[:7], Y[:7]))
    assert uneven == f"{but}they have 4 or 3 rows"
    (drawn,) = verdicts(["BucketedDataParallel"], build=noisy)
    assert (
        drawn
        == f"{but}BatchNorm takes its means over a shard, and random numbers, such as dropout's, are drawn for each shard"
    )
    (tokens,) = verdicts(["average_gradients"], loss=padded, batch=(X, torch.tensor([0, 0, 0, 1, 1, 2, 3, 1])))
    assert tokens.startswith(f"{but}the loss is not a mean over rows")


def test_a_weight_tied_between_stages_on_two_ranks_is_apart_and_right_in_one_process():
    class Head(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight)

    def tied() -> nn.Module:
        first = nn.Linear(8, 8)
        return nn.Sequential(first, nn.Tanh(), Head(first.weight))

    one, two = verdicts(["Pipe", ("ScheduledPipeline", {"schedule": gpipe(2, 2)})], build=tied, batch=(X, Y), steps=2)
    assert one == "right"
    assert two.startswith("ranks 0 and 1 are ") and two.endswith("first in the gradient of 0.weight, at step 1")


# --- what goes in and what comes out --------------------------------------------------------------


def test_cells_code_reaches_the_ranks_and_the_caller_stays_as_it_was():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)
            np.random.rand(), random.random(), torch.set_default_dtype(torch.float32)

        def forward(self, rows: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
            return {"logits": self.layer(rows) * scale}

    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    torch.set_default_dtype(torch.float64)
    try:
        batch = {"rows": X, "scale": 2.0}, Y
        found = verdicts(
            ["average_gradients"],
            lambda: Model(),
            lambda _: batch,
            lambda out, y: F.cross_entropy(out, y),
            output=lambda out: out["logits"],
        )
        assert found == ["right"]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    after = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    assert after == (torch.rand(1), np.random.rand(), random.random())


@pytest.fixture(scope="module")
def shown() -> Parity:
    return compare(
        build,
        (X, Y),
        F.cross_entropy,
        [by_hand(add_up), ("ScheduledPipeline", {"schedule": zero_bubble_v(2, 4)})],
        timeout_s=100,
    )


def test_it_shows_its_verdicts_and_what_was_measured_in_brackets_in_stored_notebooks_alone(shown, monkeypatch):
    plain, page = repr(shown), shown._repr_html_()
    assert "off by 1, first in" in plain and "[~" not in plain + page
    assert "2 ranks, 3 steps of SGD, lr=0.1, momentum=0.9, on the CPU. Right is within" in plain
    assert "ScheduledPipeline(schedule=ZB-V)" in page
    monkeypatch.setenv("LABKIT_STATIC", "1")
    assert "[~" in repr(shown) and "labkit-measured" in shown._repr_html_()
