"""A stage of ScheduledPipeline, micro-batch by micro-batch: F and B, or F, I and W, against
autograd over all stages at once."""

from __future__ import annotations

import copy
import gc
import itertools
import traceback
import weakref
from typing import Any

import pytest
import torch
from fake_gpus import FakeGpus
from hypothesis import given, settings
from hypothesis import strategies as st
from small_modules import Do, Fail, rows
from torch import nn

from labkit import models
from labkit.parallel.stage import Stage
from labkit.trace import Recorder, record


def layers(*widths: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    each = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*each).double()


def run(stages: list[Stage], micro_batches: list[torch.Tensor], split: list[bool], order: list[int]) -> torch.Tensor:
    """All forwards, then backwards in ``order``, in one part or two as ``split`` says of each
    stage; the Ws at the end."""
    total = torch.zeros((), dtype=torch.float64)
    for i, x in enumerate(micro_batches):
        for stage in stages:
            x = stage.forward(i, x)
        total += x.detach()
    for i in order:
        gradient = None
        for stage in reversed(stages):
            gradient = (stage.input_grad if split[stage.number] else stage.backward)(i, gradient)
    for stage in stages:
        for i in reversed(order):
            if split[stage.number]:
                stage.weight_grad(i)
    return total


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(1, 4).flatmap(lambda n: st.permutations(range(n))),
)
def test_stages_together_give_the_loss_and_the_gradients_of_the_whole_model(split, order):
    modules = [layers(4, 5, 4, seed=seed) for seed in range(len(split))]
    whole, batch = nn.Sequential(*copy.deepcopy(modules)), rows(6)
    expected = whole(batch).square().sum()
    expected.backward()
    stages = [Stage(module, number) for number, module in enumerate(modules)]
    stages[-1].loss = lambda y, i: y.square().sum()
    loss = run(stages, list(batch.tensor_split(len(order))), split, list(order))
    torch.testing.assert_close(loss, expected.detach())
    for module, alike in zip(modules, whole, strict=True):
        for found, wanted in zip(module.parameters(), alike.parameters(), strict=True):
            torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.parametrize("split", [False, True])
def test_stage_0_of_gpt2_takes_token_ids_and_has_no_gradient_to_give(split):
    gpt2 = models.gpt2("nano", vocab_size=50, n_positions=8).double()
    first, last = models.stages(gpt2, 2)
    tokens = torch.arange(28).view(4, 7)
    logits = gpt2(input_ids=tokens).logits
    expected = torch.autograd.grad(logits.square().mean(), list(gpt2.parameters()))
    stages = [Stage(first, 0), Stage(last, 1)]
    stages[1].loss = lambda y, i: y.square().mean() / 2
    run(stages, list(tokens.tensor_split(2)), [split, split], [0, 1])
    for found, wanted in zip(gpt2.parameters(), expected, strict=True):
        torch.testing.assert_close(found.grad, wanted)


@pytest.mark.parametrize("split", [False, True])
def test_stage_0_may_change_its_micro_batch_in_place_but_not_the_callers_batch(split):
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4).double())
    batch = rows(6)
    before, alike = batch.clone(), copy.deepcopy(module)
    alike(batch.clone()).sum().backward()
    stage = Stage(module, 0)
    stage.loss = lambda y, i: y.sum()
    run([stage], list(batch.tensor_split(3)), [split], [0, 1, 2])
    assert batch.equal(before)
    torch.testing.assert_close(module[1].weight.grad, alike[1].weight.grad)


def test_a_later_stage_may_change_what_it_is_given_in_place():
    module, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4).double()), rows().requires_grad_()
    stage = Stage(module, 1)
    gradient = torch.ones_like(x)
    expected = torch.autograd.grad(copy.deepcopy(module)(x * 1), x, gradient)[0]
    stage.forward(0, x)
    torch.testing.assert_close(stage.backward(0, gradient), expected)


def test_the_output_says_whether_it_wants_a_gradient_and_has_no_graph():
    for module, wanted in ((layers(4, 4), True), (layers(4, 4).requires_grad_(False), False)):
        output = Stage(module, 0).forward(0, rows())
        assert output.requires_grad == wanted and output.grad_fn is None
    assert Stage(layers(4, 4).requires_grad_(False), 1).forward(0, rows().requires_grad_()).requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept_for_backward(mode):
    alive = []
    stage = Stage(
        nn.Sequential(layers(4, 4), Do(lambda x: alive.append(weakref.ref(x.untyped_storage())) or x.exp())), 1
    )
    with mode():
        output = stage.forward(0, rows().requires_grad_())
    gc.collect()
    assert not output.requires_grad and alive[0]() is None


@pytest.mark.parametrize("split", [False, True])
def test_a_stage_that_does_not_use_its_input_gives_no_gradient_for_it(split):
    weight = nn.Parameter(torch.ones(6, 4, dtype=torch.float64))
    module = Do(lambda x: weight * 2)
    module.weight = weight
    stage = Stage(module, 1)
    stage.forward(0, rows().requires_grad_())
    gradient = torch.ones_like(weight)
    assert (stage.input_grad if split else stage.backward)(0, gradient) is None
    stage.weight_grad(0)
    assert weight.grad.equal(2 * gradient)


@pytest.mark.parametrize("last", ["backward", "weight_grad"])
def test_after_the_last_op_of_a_micro_batch_nothing_of_it_is_alive(last):
    alive = []
    stage = Stage(
        nn.Sequential(layers(4, 4), Do(lambda x: alive.append(weakref.ref(x.untyped_storage())) or x.exp())), 1
    )
    gradient = rows()
    stage.forward(0, rows().requires_grad_())
    assert alive[0]() is not None  # tanh has saved it
    if last == "weight_grad":
        stage.input_grad(0, gradient)
        stage.weight_grad(0)
    else:
        stage.backward(0, gradient)
    assert alive[0]() is None


def missing(*_: Any) -> Any:
    return {}["missing"]


@pytest.mark.parametrize(
    ("module", "op", "where"),
    [
        (Do(missing), "forward", "forward"),
        (Do(lambda x: (x, x)), "forward", "forward"),
        (nn.Identity(), "loss", "loss"),
        (Do(Fail.apply), "backward", "backward"),
        (Do(Fail.apply), "input_grad", "input gradient"),
    ],
)
def test_what_is_raised_has_a_note_with_stage_and_micro_batch(module, op, where):
    stage = Stage(nn.Sequential(layers(4, 4), module), 2)
    if op == "loss":
        stage.loss = missing
    with pytest.raises((KeyError, TypeError, ArithmeticError)) as caught:
        stage.forward(5, rows().requires_grad_())
        getattr(stage, op)(5, rows())
    assert caught.value.__notes__ == [f"in the {where} of stage 2, micro-batch 5"]


def test_what_a_hook_raises_in_w_has_a_note_and_its_own_traceback():
    stage = Stage(layers(4, 4), 2)
    next(stage.module.parameters()).register_hook(missing)
    stage.forward(5, rows().requires_grad_())
    stage.input_grad(5, rows())
    with pytest.raises(KeyError) as caught:
        stage.weight_grad(5)
    assert caught.value.__notes__ == ["in the weight gradient of stage 2, micro-batch 5"]
    assert 'return {}["missing"]' in [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_each_op_is_a_span_with_step_stage_and_micro_batch():
    stage = Stage(layers(4, 4), 3)
    stage.step = 7
    with record() as recording:
        for i in range(2):
            stage.forward(i, rows().requires_grad_())
        stage.backward(1, rows())
        stage.input_grad(0, rows())
        stage.weight_grad(0)
    events = recording.events
    assert list(zip(events.name, events.micro_batch, strict=True)) == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 1),
        ("input_grad", 0),
        ("weight_grad", 0),
    ]
    assert (events.step == 7).all() and (events.stage == 3).all() and (events.lane == "compute").all()


def test_a_stage_is_on_the_device_of_its_parameters_or_buffers():
    assert Stage(nn.Linear(4, 4, device="meta"), 0).device == torch.device("meta")
    assert Stage(nn.BatchNorm1d(4, affine=False, device="meta"), 0).device == torch.device("meta")
    assert Stage(nn.Identity(), 0).device == torch.device("cpu")


def test_a_stage_on_the_cpu_is_timed_by_its_clock_though_the_rank_has_a_gpu(monkeypatch):
    gpus, recorder = FakeGpus(monkeypatch), Recorder()
    stage = Stage(layers(4, 4), 1)
    recorder.start("cuda")
    before = len(gpus.events)
    stage.backward(0, torch.ones_like(stage.forward(0, rows())))
    assert gpus.events[before:] == [] and len(recorder.finish()) == 2
