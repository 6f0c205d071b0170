"""Loops around a step give every way its own times, and the span of a step its own number."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.lab import cuts, overlap
from labkit.trace import span


def step(model, tokens, optimizer, sync):
    with span("forward"):
        loss = nn.functional.cross_entropy(model(tokens).logits.mT, tokens)
    with span("backward"):
        loss.backward()
    with span("wait"):
        sync()
    with span("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def trained():
    in_one = overlap.after_backward(overlap.average_buckets, [range(52)])
    return overlap.in_turns(step, {"no sync": overlap.no_sync, "flat": in_one}, rounds=3)


def test_each_way_has_a_time_a_round_without_the_first_and_its_parts_are_within_it(trained):
    assert trained.step_s.shape == (2, 2) and [*trained.step_s.columns] == ["no sync", "flat"]
    assert (trained.part_s("backward") < trained.step_s).all(axis=None)
    assert [*trained.parts.columns] == ["forward", "elapsed in backward", "wait", "optimizer"]


def test_the_typical_step_is_one_of_its_way_and_has_its_all_reduce(trained):
    found = trained.typical_step("flat")
    assert set(found.name) == {"backward", "wait", "all_reduce"}
    (number,) = found.step.dropna().unique()
    assert number % 2 == 1


def run_pipeline(stage, micro_batches):
    rank, sent = dist.get_rank(), []
    for i, x in enumerate(micro_batches):
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        with span("forward", stage=rank, micro_batch=i):
            x = stage(x)
        if rank < dist.get_world_size() - 1:
            sent.append((x, dist.isend(x, rank + 1)))
    return sent


def test_each_cut_has_a_time_a_round_and_a_typical_run_with_all_micro_batches_on_both_ranks():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    both = {at: [layers[:at], layers[at:]] for at in (1, 2)}
    run = cuts.in_turns(run_pipeline, both, layers, [torch.ones(2, 4)] * 3, rounds=3)
    assert run.step_s.shape == (2, 2) and len(run.module_s) == 3
    typical = run.typical(2)
    assert sorted(zip(typical["rank"], typical.micro_batch, strict=True)) == [(r, i) for r in (0, 1) for i in range(3)]
    assert set(typical.step % 2) == {1}
