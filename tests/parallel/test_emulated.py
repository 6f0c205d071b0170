"""Emulated compute: a stage sleeps as long as told, lets real gradients through, and all that is
shown says so."""

import pytest
import torch
import torch.distributed as dist

from labkit.cost import Link
from labkit.parallel import emulated
from labkit.parallel.emulated import EmulatedStage, Sleep
from labkit.parallel.pipe.scheduled_stage import Stage
from labkit.trace import span

SAID = emulated.NOTE


def test_gradients_go_through():
    """Closed forms: the loss of x·w⁴ against 0 is w⁸ at w = 1, and its gradient by each w is 2."""
    stages = torch.nn.Sequential(*(EmulatedStage(0, 0, 0) for _ in range(4)))
    loss = torch.nn.functional.mse_loss(stages(torch.ones(16, 4)), torch.zeros(16, 4))
    loss.backward()
    assert [loss.item(), *(stage.weight.grad.item() for stage in stages)] == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0])


def test_a_layer_before_a_sleep_has_its_own_outputs_and_gradients():
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    y = torch.nn.Sequential(layer, Sleep(0, 0))(x)
    assert torch.equal(y, layer(x))
    y.sum().backward()
    assert layer.weight.grad == pytest.approx(x.sum(0).repeat(3, 1))


# --- how long it takes ----------------------------------------------------------------------------


class Clock:
    """Stands for the module time: asking takes 1 µs, and a sleep is 60 µs late, as on Linux."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds + 60e-6

    def of(self, function, *arguments):
        before = self.now
        function(*arguments)
        return pytest.approx(self.now - before, abs=20e-6)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(emulated, "time", clock := Clock())
    return clock


@pytest.mark.parametrize(("needs_gradient", "input_s", "weight_s"), [(True, 0.02, 0.003), (False, 0.0, 0.023)])
def test_each_pass_takes_as_long_as_told_and_the_weights_both_where_the_input_needs_no_gradient(
    clock, needs_gradient, input_s, weight_s
):
    stage = Stage(EmulatedStage(0.1, 0.02, 0.003), int(needs_gradient))
    x, dy = torch.ones(2, 2, requires_grad=needs_gradient), torch.ones(2, 2)
    assert clock.of(stage.forward, 0, x) == 0.1
    assert clock.of(stage.backward, 0, dy) == 0.023
    stage.forward(1, x)
    assert clock.of(stage.input_grad, 1, dy) == input_s
    assert clock.of(stage.weight_grad, 1) == weight_s


def test_a_sleep_takes_as_long_as_told_in_either_pass(clock):
    nap, x = Sleep(0.1, 0.02), torch.ones(2, requires_grad=True)
    assert clock.of(nap, x) == 0.1
    assert clock.of(nap(x).sum().backward) == 0.02


# --- in ranks -------------------------------------------------------------------------------------


def test_emulated_ranks_are_told_once_beside_an_emulated_link_and_not_in_the_next_run(ranks):
    def some_are_emulated():
        stage = EmulatedStage(0, 0, 0) if dist.get_rank() else torch.nn.Identity()
        with span("forward"):
            stage(torch.ones(1))

    def none_is():
        with span("forward"):
            pass

    link = Link(1e-3, 1e7, "SLOW")
    run, after = (ranks(3, link=link).run(function) for function in (some_are_emulated, none_is))
    for words in (f"emulated link: {link}", SAID):
        assert run.header.count(words) == run.timings.attrs["emulated"].count(words) == 1
    assert SAID not in after.header and after.timings.attrs["emulated"] == f"emulated link: {link}"
