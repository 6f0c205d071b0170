"""A stage as one node of the autograd graph: what the plain module gives, spans, and notes on what
goes wrong in it."""

from __future__ import annotations

import copy
import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_gpus import FakeGpus
from hypothesis import given, settings
from hypothesis import strategies as st
from small_modules import Do, Fail, output_and_gradients, rows
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from labkit.parallel import stage_node
from labkit.parallel.stage_node import concatenate, run_stage
from labkit.trace import Recorder, record

CPU = torch.device("cpu")


class Staged(nn.Module):
    """Modules, each run as a stage: what Pipe does with one micro-batch, without the threads."""

    def __init__(self, *stages: nn.Module):
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, module in enumerate(self.stages):
            x = run_stage(module, x, CPU, stage=number, micro_batch=7)
        return x


def layers() -> list[nn.Module]:
    torch.manual_seed(1)
    return [layer.double() for layer in (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.Softmax(dim=1))]


def check_equal(*modules: nn.Module, x: torch.Tensor | None = None) -> None:
    x = rows() if x is None else x
    alike = copy.deepcopy(modules)  # together, so that what they share is still shared
    expected, found = output_and_gradients(nn.Sequential(*modules), x), output_and_gradients(Staged(*alike), x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert any(gradient is not None for gradient in expected[1:])


# --- what goes wrong ------------------------------------------------------------------------------


def test_what_a_stage_raises_in_forward_gets_a_note_with_stage_and_micro_batch():
    model = Staged(nn.Identity(), Do(lambda x: {}["missing"]))
    with pytest.raises(KeyError, match="missing") as caught:
        model(rows())
    assert caught.value.__notes__ == ["in the forward of stage 1, micro-batch 7"]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_a_stage_raises_in_backward_gets_a_note_with_stage_and_micro_batch(failing):
    stages: list[nn.Module] = [nn.Linear(4, 4).double() for _ in range(3)]
    stages[failing] = nn.Sequential(stages[failing], Do(Fail.apply))
    output = Staged(*stages)(rows())
    with pytest.raises(ArithmeticError, match="in the backward of Fail") as caught:
        output.sum().backward()
    assert caught.value.__notes__ == [f"in the backward of stage {failing}, micro-batch 7"]
    frames = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert 'raise ArithmeticError("in the backward of Fail")' in frames


def test_what_torch_itself_raises_in_backward_gets_a_note_too():
    layer = nn.Linear(4, 4).double()
    output = Staged(layer)(rows().requires_grad_())
    with torch.no_grad():
        layer.weight.mul_(2)  # it is needed as it was
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        output.sum().backward()
    assert caught.value.__notes__ == ["in the backward of stage 0, micro-batch 7"]


@pytest.mark.parametrize("output", [(1, 2), None, [torch.ones(1)], {"x": 1}, 3.0], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_a_stage_that_gives_anything_but_one_tensor_is_named(output, grad):
    kind = type(output).__name__
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(
            TypeError, match=f"stage 1 returned a {kind} for micro-batch 7, expected one tensor: .*pack what"
        ),
    ):
        Staged(nn.Linear(4, 4).double(), Do(lambda x: output))(rows())


def test_second_derivatives_are_refused_by_name():
    x = rows().requires_grad_()
    output = Staged(nn.Tanh())(x)
    with pytest.raises(RuntimeError, match=r"backward of stage 0 with create_graph=True: .*Use the plain module"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_a_second_backward_pass_needs_retain_graph_as_ever():
    x = rows()
    plain, staged = nn.Sequential(*layers()), Staged(*layers())
    for model in (plain, staged):
        output = model(x).square().sum()
        output.backward(retain_graph=True)
        output.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.backward()
    for twice, expected in zip(staged.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(twice.grad, expected.grad)


@pytest.mark.parametrize("between", [[], [nn.Identity()], [Do(lambda x: x.view(2, 10)), nn.Identity()]], ids=len)
def test_a_value_that_backward_needs_and_a_later_stage_has_changed_is_noticed_as_ever(between):
    for model in (nn.Sequential, Staged):
        output = model(nn.Linear(4, 4).double(), nn.Tanh(), *between, nn.ReLU(inplace=True))(rows())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


# --- the plain module's output and gradients ------------------------------------------------------


def test_output_and_gradients_are_the_plain_modules():
    check_equal(*layers())


CUTS = st.lists(
    st.sampled_from(["linear", "tanh", "relu in place", "norm", "identity", "add in place", "view"]), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(CUTS, st.integers(1, 4))
def test_output_and_gradients_are_the_plain_modules_for_any_stages(kinds, count):
    made: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(4, 4),
        "tanh": nn.Tanh,
        "relu in place": lambda: nn.ReLU(inplace=True),
        "norm": lambda: nn.LayerNorm(4),
        "identity": nn.Identity,
        "add in place": lambda: Do(lambda x: x.add_(1)),
        "view": lambda: Do(lambda x: x.view(-1, 2, 2).flatten(1)),
    }
    torch.manual_seed(0)
    plain = [nn.Linear(4, 4).double(), *(made[kind]().double() for kind in kinds)]
    alike = copy.deepcopy(plain)
    try:
        expected = output_and_gradients(nn.Sequential(*plain), rows(count))
    except RuntimeError as error:  # two in-place operations in a row may destroy what backward needs
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output_and_gradients(Staged(*alike), rows(count))
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(output_and_gradients(Staged(*alike), rows(count)), expected, rtol=1e-12, atol=1e-14)


def test_a_stage_may_change_its_input_in_place_first():
    check_equal(nn.Linear(4, 4).double(), nn.ReLU(inplace=True), nn.Linear(4, 4).double())


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_changes_what_the_one_before_it_gave_in_place_but_stage_0_not_the_callers_batch(stage):
    given, changed = rows(), rows().relu()
    for x in (given, given.clone().requires_grad_() * 1):
        with torch.set_grad_enabled(x.requires_grad):
            run_stage(nn.ReLU(inplace=True), x, torch.device("cpu"), stage=stage, micro_batch=0)
        assert x.detach().equal(changed if stage else rows())


def test_integers_go_into_an_embedding_and_only_parameters_get_gradients():
    tokens = torch.tensor([[1, 2], [2, 0]])
    plain = [nn.Embedding(4, 3).double(), nn.Linear(3, 2).double()]
    alike = copy.deepcopy(plain)
    for model in (nn.Sequential(*plain), Staged(*alike)):
        model(tokens).square().sum().backward()
    for expected, found in zip(plain, alike, strict=True):
        torch.testing.assert_close(found.weight.grad, expected.weight.grad)


def test_sparse_gradients_come_through():
    embedding = nn.Embedding(100, 3, sparse=True)
    Staged(embedding, nn.Tanh())(torch.tensor([3, 4])).sum().backward()
    assert embedding.weight.grad.is_sparse and set(embedding.weight.grad.coalesce().indices()[0].tolist()) == {3, 4}


def test_frozen_unused_and_half_frozen_parameters():
    first, second, third = (nn.Linear(4, 4).double() for _ in range(3))
    second.requires_grad_(False)
    third.bias.requires_grad_(False)
    third.unused = nn.Parameter(torch.ones(3))
    check_equal(first, second, third)


def test_a_stage_in_which_all_is_frozen_passes_the_gradient_on():
    check_equal(nn.Linear(4, 4).double(), nn.Linear(4, 4).double().requires_grad_(False), nn.Tanh())


def test_parameters_that_two_stages_share_get_both_gradients():
    first, last = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    last.weight = first.weight
    check_equal(first, nn.Tanh(), last, first)


def test_a_parameter_that_the_module_uses_without_owning_it_gets_its_gradient():
    outside = nn.Parameter(torch.full((4,), 2.0, dtype=torch.float64))
    for model in (nn.Sequential, Staged):
        outside.grad = None
        model(nn.Linear(4, 4).double(), Do(lambda x: x * 0 + outside))(rows()).sum().backward()
        assert outside.grad.tolist() == [5.0] * 4


def test_a_stage_that_gives_a_parameter_itself():
    weight = nn.Parameter(rows())
    Staged(nn.Linear(4, 4).double(), Do(lambda x: weight))(rows()).sum().backward()
    assert weight.grad.equal(torch.ones(5, 4, dtype=torch.float64))


def test_parameters_computed_from_others_and_gradients_cut_off_inside():
    check_equal(parametrizations.weight_norm(nn.Linear(4, 4).double()), nn.Tanh())
    check_equal(nn.Linear(4, 4).double(), Do(lambda x: x.detach() + x))


def test_an_output_without_a_gradient_ends_the_graph_there():
    assert not Staged(nn.Linear(4, 4).double(), Do(lambda x: x.argmax(dim=1)))(rows()).requires_grad
    assert not Staged(nn.Linear(4, 4).double(), Do(torch.detach))(rows()).requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_graph(mode):
    with mode():
        output = Staged(*layers())(rows())
    assert output.grad_fn is None and output.is_inference() == (mode is torch.inference_mode)
    torch.testing.assert_close(output, nn.Sequential(*layers())(rows()))


def test_autocast_holds_in_forward_and_backward():
    torch.manual_seed(1)
    plain = [nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)]
    alike = copy.deepcopy(plain)
    for model in (nn.Sequential(*plain), Staged(*alike)):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(rows().float())
        assert output.dtype == torch.bfloat16
        output.sum().backward()
    for expected, found in zip(nn.Sequential(*plain).parameters(), nn.Sequential(*alike).parameters(), strict=True):
        # To the bit, by the same kernels on the same shapes: float32 would round otherwise.
        assert found.grad.equal(expected.grad) and found.grad.dtype == torch.float32


def test_gradients_may_be_asked_for_by_autograd_grad():
    plain, staged, x = nn.Sequential(*layers()), Staged(*layers()), rows().requires_grad_()
    for expected, found in zip(
        torch.autograd.grad(plain(x).square().sum(), [x, *plain.parameters()]),
        torch.autograd.grad(staged(x).square().sum(), [x, *staged.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def test_each_hook_on_a_parameter_runs_once_with_the_whole_gradient():
    def hooked(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
        seen: list[tuple[str, torch.Tensor]] = []
        weight = next(model.parameters())
        weight.register_hook(lambda gradient: seen.append(("hook", gradient.clone())) or gradient * 3)
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(("accumulated", p.grad.clone())))
        (model(rows(seed=1)) + model(rows(seed=2))).square().sum().backward()  # two micro-batches of one backward pass
        return seen

    expected, found = hooked(nn.Sequential(*layers())), hooked(Staged(*layers()))
    assert [name for name, _ in found] == [name for name, _ in expected] == ["hook", "accumulated"]
    torch.testing.assert_close([gradient for _, gradient in found], [gradient for _, gradient in expected])


def test_hooks_on_a_parameter_are_there_again_when_backward_has_failed():
    layer = nn.Linear(4, 4).double()
    seen = []
    layer.weight.register_hook(seen.append)
    with pytest.raises(ArithmeticError):
        Staged(nn.Sequential(layer, Do(Fail.apply)))(rows()).sum().backward()
    Staged(layer)(rows()).sum().backward()
    assert len(seen) == 1


class Checkpointed(nn.Sequential):
    use_reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.use_reentrant)


def test_a_stage_may_compute_its_activations_again_in_backward():
    check_equal(nn.Linear(4, 4).double(), Checkpointed(*layers()), nn.Tanh())


def test_the_old_kind_of_checkpoint_refuses():
    old = Checkpointed(nn.Tanh())
    old.use_reentrant = True
    output = Staged(nn.Linear(4, 4).double(), old)(rows())
    with pytest.raises(RuntimeError, match="checkpoint"):
        output.sum().backward()


def test_hooks_on_a_module_see_the_plain_modules_gradients():
    def hooked(model: nn.Module, layer: nn.Module) -> list[Any]:
        seen: list[Any] = []
        layer.register_full_backward_hook(lambda _, inner, outer: seen.append((inner, outer)))
        output_and_gradients(model, rows())
        return seen

    plain, alike = layers(), layers()
    torch.testing.assert_close(hooked(Staged(*alike), alike[2]), hooked(nn.Sequential(*plain), plain[2]))


def test_a_graph_from_outside_that_several_micro_batches_use_has_to_be_retained():
    weight = rows(1).requires_grad_()
    for retain in (True, False):
        outside = weight.exp()  # saves its result for backward, once
        model = Staged(Do(lambda x, outside=outside: x * outside))
        loss = (model(rows(seed=1)) + model(rows(seed=2))).sum()
        if retain:
            loss.backward(retain_graph=True)
            expected = ((rows(seed=1) + rows(seed=2)) * weight.exp()).sum(dim=0, keepdim=True)
            torch.testing.assert_close(weight.grad, expected.detach())
        else:
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()


# --- memory ---------------------------------------------------------------------------------------


def test_what_is_kept_for_backward_is_let_go_as_backward_passes_even_while_the_loss_is_there():
    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            kept = x.clone()
            alive.append(weakref.ref(kept.untyped_storage()))
            ctx.save_for_backward(kept)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            counts.append(sum(storage() is not None for storage in alive))
            return gradients[0] * 2

    alive: list[Any] = []
    counts: list[int] = []
    loss = Staged(*(nn.Sequential(nn.Linear(4, 4).double(), Do(Keep.apply)) for _ in range(3)))(rows()).sum()
    assert sum(storage() is not None for storage in alive) == 3
    loss.backward()
    assert counts == [3, 2, 1] and not any(storage() is not None for storage in alive)
    assert loss.grad_fn is not None


def test_a_boundary_that_no_operation_needs_is_not_kept():
    boundaries: list[Any] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        boundaries.append(weakref.ref(x.untyped_storage()))
        return x + 1

    output = Staged(Do(lambda x: x * 2), Do(note), Do(note))(rows().requires_grad_())
    gc.collect()
    assert [storage() for storage in boundaries] == [None, None]  # x + 1 keeps nothing for backward
    output.sum().backward()


def test_a_graph_that_is_dropped_is_gone_without_the_garbage_collector():
    layer = nn.Linear(4, 4).double()
    gc.collect()
    gc.disable()
    try:
        output = Staged(layer, nn.Tanh())(rows())
        kept = weakref.ref(output.grad_fn)
        del output
        assert kept() is None
    finally:
        gc.enable()


# --- spans ----------------------------------------------------------------------------------------


def test_forward_and_backward_of_each_stage_are_spans():
    with record() as recording:
        Staged(nn.Linear(4, 4).double(), nn.Tanh())(rows()).sum().backward()
    events = recording.events
    assert list(zip(events.name, events.stage, strict=True)) == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 1),
        ("backward", 0),
    ]
    assert (events.lane == "compute").all() and (events.micro_batch == 7).all()
    assert (events.end_s[:-1].to_numpy() <= events.start_s[1:].to_numpy()).all()


# --- the end of the pipeline ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "given"),
    [
        (torch.ones(2, 4), r"\(2, 4\) torch.float32"),
        (torch.ones(2, 3).double(), r"\(2, 3\) torch.float64"),
        (torch.ones(2, 3, 1), r"\(2, 3, 1\) torch.float32"),
    ],
)
def test_outputs_that_do_not_fit_together_are_refused_by_number(other, given):
    with pytest.raises(
        ValueError, match=rf"gave {given} for micro-batch 2 and \(2, 3\) torch.float32 for micro-batch 0"
    ):
        concatenate([torch.ones(2, 3), torch.ones(1, 3), other])


def test_an_output_without_rows_is_refused():
    with pytest.raises(ValueError, match="gave a tensor without dimensions for micro-batch 0"):
        concatenate([torch.tensor(1.0)])


def test_virtual_devices_are_all_the_cpu_and_another_device_is_a_copy_and_a_span():
    x = rows()
    with record() as recording:
        assert stage_node.move(x, torch.device("cpu:3"), stage=1) is x
        assert stage_node.move(x, torch.device("meta"), stage=1, micro_batch=2).is_meta
    (copied,) = recording.events.itertuples()
    assert (copied.name, copied.lane, copied.stage, copied.micro_batch, copied.bytes) == (
        "copy",
        "comm",
        1,
        2,
        x.nbytes,
    )


@pytest.mark.parametrize("device, expected", [("cuda:1", [1, 1, 1, 1]), ("cpu", []), ("cpu:1", [])])
def test_both_passes_of_a_stage_are_timed_on_its_own_device(monkeypatch, device, expected):
    gpus, recorder = FakeGpus(monkeypatch), Recorder()  # the rank's own is cuda:0
    monkeypatch.setattr(stage_node, "move", lambda x, *_, **__: x)
    recorder.start("cuda")
    before = len(gpus.events)
    run_stage(nn.Linear(4, 4).double(), rows(), torch.device(device), stage=1, micro_batch=0).sum().backward()
    assert gpus.events[before:] == expected
    assert [row[1] for row in recorder.finish()] == ["forward", "backward"]
