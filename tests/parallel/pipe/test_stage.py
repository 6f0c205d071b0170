"""Stages, as one node of the graph and op by op: notes on what goes wrong, spans, what is kept.

Their gradients are in test_stage_gradients.
"""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from small_modules import Do, Fail, Keep, rows
from torch import nn

from labkit.parallel.pipe import streams
from labkit.parallel.pipe.scheduled_stage import Stage
from labkit.parallel.pipe.worker_stage import concatenate, run_stage
from labkit.trace import record


class Staged(nn.Module):
    """Modules, each run as a stage: what Pipe does with one micro-batch, without the threads."""

    def __init__(self, *stages: nn.Module):
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, module in enumerate(self.stages):
            x = run_stage(module, x, torch.device("cpu"), stage=number, micro_batch=7)
        return x


def linear() -> nn.Module:
    return nn.Linear(4, 4).double()


# --- what goes wrong ------------------------------------------------------------------------------


def missing(*_: Any) -> Any:
    return {}["missing"]


def with_a_failing_hook() -> nn.Module:
    module = linear()
    module.weight.register_hook(missing)
    return module


@pytest.mark.parametrize(
    ("module", "ops", "error", "where"),
    [
        (Do(missing), [], KeyError, "forward"),
        (Do(lambda x: (x, x)), [], TypeError, "forward"),
        (Do(Fail.apply), ["backward"], ArithmeticError, "backward"),
        (Do(Fail.apply), ["input_grad"], ArithmeticError, "input gradient"),
        (with_a_failing_hook(), ["input_grad", "weight_grad"], KeyError, "weight gradient"),
    ],
)
def test_what_is_raised_has_a_note_and_its_own_traceback(module, ops, error, where):
    stage = Stage(nn.Sequential(linear(), module), 2)
    with pytest.raises(error) as caught:
        y = stage.forward(5, rows().requires_grad_())
        for op in ops:
            getattr(stage, op)(5, *([] if op == "weight_grad" else [y]))
    assert caught.value.__notes__ == [f"in the {where} of stage 2, micro-batch 5"]
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert error is not KeyError or lines[-1] == 'return {}["missing"]'


@pytest.mark.parametrize("output", [(1, 2), None, 3.0], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_a_stage_that_gives_anything_but_one_tensor_is_named(output, grad):
    message = f"stage 1 returned a {type(output).__name__} for micro-batch 7, expected one tensor"
    with torch.set_grad_enabled(grad), pytest.raises(TypeError, match=message):
        Staged(linear(), Do(lambda x: output))(rows())


def test_second_derivatives_are_refused_by_name():
    x = rows().requires_grad_()
    with pytest.raises(RuntimeError, match="backward of stage 0 with create_graph=True"):
        torch.autograd.grad(Staged(nn.Tanh())(x).sum(), x, create_graph=True)


# --- from one stage to the next -------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_works_in_place_but_stage_0_leaves_the_callers_batch_alone(stage):
    given, changed = rows(), rows().relu()
    for x in (given, given.clone().requires_grad_() * 1):
        with torch.set_grad_enabled(x.requires_grad):
            run_stage(nn.ReLU(inplace=True), x, torch.device("cpu"), stage=stage, micro_batch=0)
        assert x.detach().equal(changed if stage else rows())


def test_an_output_without_a_gradient_ends_the_graph_there():
    for cut in (torch.detach, lambda x: x.argmax(dim=1)):
        assert not Staged(linear(), Do(cut))(rows()).requires_grad
    for module, wanted in ((linear(), True), (linear().requires_grad_(False), False)):
        output = Stage(module, 0).forward(0, rows())
        assert output.requires_grad == wanted and output.grad_fn is None
    assert Stage(linear().requires_grad_(False), 1).forward(0, rows().requires_grad_()).requires_grad


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept_for_backward(mode):
    keep = Keep()
    with mode():
        output = Stage(nn.Sequential(linear(), keep), 1).forward(0, rows().requires_grad_())
    assert not output.requires_grad and keep.alive() == 0


def test_what_is_kept_for_backward_is_let_go_as_backward_passes_even_while_the_loss_is_there():
    keep, counts = Keep(), []
    stages = [nn.Sequential(linear(), keep) for _ in range(3)]
    for stage in stages:
        stage[0].weight.register_hook(lambda _: counts.append(keep.alive()))
    loss = Staged(*stages)(rows()).sum()
    loss.backward()
    assert (len(keep.kept), counts, keep.alive()) == (3, [2, 1, 0], 0) and loss.grad_fn is not None


# --- spans ----------------------------------------------------------------------------------------


def test_virtual_devices_are_all_the_cpu_and_to_another_device_there_is_a_copy_which_is_a_span():
    x = rows()
    with record() as recording:
        assert streams.move(x, torch.device("cpu:3"), stage=1) is x
        assert streams.move(x, torch.device("meta"), stage=1, micro_batch=2).is_meta
    (copied,) = recording.events.itertuples()
    assert (copied.name, copied.lane, copied.bytes) == ("copy", "comm", x.nbytes)
    assert (copied.stage, copied.micro_batch) == (1, 2)


# --- the end of the pipeline ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([torch.tensor(1.0)], "gave a tensor without dimensions for micro-batch 0"),
        ([torch.ones(2, 3), torch.ones(1, 3), torch.ones(2, 4)], r"\(2, 4\) .* 2 and \(2, 3\)"),
        ([torch.ones(2, 3), torch.ones(2, 3).double()], r"\(2, 3\) torch.float64 for micro-batch 1"),
    ],
)
def test_outputs_that_do_not_fit_together_are_refused_by_number(outputs, message):
    with pytest.raises(ValueError, match=message):
        concatenate(outputs)
