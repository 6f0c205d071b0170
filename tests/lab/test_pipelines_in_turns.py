"""Pipelines that take turns have their own times, and what notebooks 09 and 10 read off them."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn
from torch.nn.functional import mse_loss

from labkit import schedule
from labkit.lab import schedules_in_turns, trained_pipelines, translation_ways, two_workers
from labkit.parallel.emulated import EmulatedStage
from labkit.parallel.stage_node import run_stage
from labkit.pipe import Pipe, ScheduledPipeline, WithDevice
from labkit.schedule import one_f_one_b
from labkit.simulate import makespan, simulate

pytestmark = task("pipe.1", "pipe.2", "pipe.3", "pipe.5")


def op_after_op(stages, devices, x, target):
    for i, (y, goal) in enumerate(zip(x.split(1), target.split(1), strict=True)):
        for j, stage in enumerate(stages):
            y = run_stage(stage, y, devices[j], stage=j, micro_batch=i)
        mse_loss(y, goal).backward()


def with_threads(stages, devices):
    pipe = Pipe(nn.Sequential(*map(WithDevice, stages, devices)), split_size=1)
    return lambda x, target: mse_loss(pipe(x), target).backward()


def with_processes(stages, devices):
    return ScheduledPipeline([stages[dist.get_rank()]], one_f_one_b(2, 2), mse_loss).step


@pytest.mark.parametrize(("make", "world_size"), [(with_threads, 1), (with_processes, 2)])
def test_a_pipeline_and_its_stages_op_after_op_have_a_step_a_round_and_the_same_ops(make, world_size):
    stages, (x, target) = [nn.Linear(4, 4), nn.Linear(4, 4)], torch.ones(2, 2, 4)
    run = trained_pipelines.in_turns(op_after_op, make, stages, x, target, world_size, rounds=7)
    assert run.step_s.shape == (6, 2) and (run.step_s > 0).all(axis=None)
    ops = Counter(zip(run.typical["rank"], run.typical["name"], run.typical["stage"], strict=True))
    assert ops == {(j, name, j): 2 for j in (0, 1) for name in ("forward", "backward")}
    if world_size == 2:
        ideal = simulate(one_f_one_b(2, 2), **run.op_s)
        parts, gap_s = run.parts(ideal), run.gap_ms(ideal)["total_ms"].sum() / 1000
        assert parts["computing"] / parts["bubble"] == pytest.approx(2)
        assert sum(parts.values()) == pytest.approx((makespan(ideal) + gap_s) / run.alone_s)


def sleeping(plan):
    return ScheduledPipeline([EmulatedStage(0.002, 0.002, 0.002)], plan, mse_loss)


def test_schedules_take_turns_and_none_is_quicker_than_drawn():
    plans = [schedule.gpipe(2, 8), schedule.zero_bubble_h1(2, 8)]
    run = schedules_in_turns.in_turns(sleeping, plans, rounds=2)
    assert [*run.step_s.columns] == ["GPipe", "ZB-H1"] and len(run.step_s) == 1 and "emulated" in run.step_s.attrs
    for plan in plans:
        assert run.step_s[plan.name].item() >= makespan(simulate(plan, 0.002, 0.004, 0.002, 0.002)) - 1e-9
    assert set(run.typical("ZB-H1")["name"]) == {"forward", "input_grad", "weight_grad"}


def two_ways():
    layers = nn.Sequential(nn.Linear(1, 1)), nn.Sequential(nn.Linear(1, 1))

    def alone(batch):
        y = batch
        for j, layer in enumerate(layers):
            y = run_stage(layer, y, torch.device("cpu"), stage=j, micro_batch=0)
        y.sum().backward()
        return y.sum()

    return {"model parallel": alone, "both": lambda batch: batch.sum() if dist.get_rank() else None}


def test_only_the_way_that_ranks_take_together_runs_on_both_and_its_loss_may_be_on_the_second():
    run = translation_ways.in_turns(two_ways, torch.ones(1, 1), together="both", rounds=3)
    lanes = run.run.events[run.run.events["lane"] == "host"]
    assert Counter(zip(lanes["rank"], lanes["name"], strict=True)) == {
        (0, "model parallel"): 3,
        (0, "both"): 3,
        (1, "both"): 3,
    }
    assert run.losses.index.tolist() == ["model parallel", "both"] and "1" in run.losses.loc["both"].item()
    parts_ms = run.parts_ms("model parallel")["model parallel"]
    assert [*parts_ms.index] == ["forward", "backward", "others"]
    whole_s, half_s = run.op_s("model parallel"), run.op_s("model parallel", of_batch=1 / 2)
    assert {name: [2 * each for each in seconds] for name, seconds in half_s.items()} == whole_s
    assert {name: len(seconds) for name, seconds in whole_s.items()} == {"forward": 2, "backward": 2}
    gains = run.predicted_gains(shrinks_to=1 / 2)  # what is saved, of a model-parallel step
    saved = {way: parts_ms.sum() * (1 - 1 / gain) for way, gain in gains.items()}
    both_ms = parts_ms["forward"] + parts_ms["backward"]
    in_threads_ms = both_ms if run.backend == "nccl" else parts_ms["forward"]
    assert saved == pytest.approx({"threads": in_threads_ms / 2, "processes": both_ms / 2})


def test_two_workers_are_compared_with_one_for_each_work():
    found = two_workers.times_as_fast({"none": lambda: None, "sleep": lambda: time.sleep(0.01)}, rounds=7)
    assert [*found] == ["none", "sleep"] and found["sleep"].median > 1  # two sleep at the same time
