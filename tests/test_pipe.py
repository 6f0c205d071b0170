"""split_module, clock_cycles and Pipe: the plain module's output and gradients, clear when wrong.
What check claims of pipe.1 to pipe.3 is not claimed again here."""

from __future__ import annotations

import copy
import gc
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small_modules import Do, output_and_gradients, rows
from to_do import task
from torch import nn

from labkit.parallel.pipe import worker
from labkit.pipe import Pipe, WithDevice, clock_cycles, split_module

SECONDS = 20.0  # more than anything here takes; waiting that long is a failure
pipe_task = task("pipe.1", "pipe.2", "pipe.3")
made_task = task("pipe.1")  # a Pipe can be made, if not run


def placed(*stages: nn.Module) -> nn.Sequential:
    """Each module on a virtual device of its own."""
    return nn.Sequential(*(WithDevice(stage, f"cpu:{j}") for j, stage in enumerate(stages)))


def layers(count: int = 3) -> nn.Sequential:
    """As many stages, of a Linear and a Tanh each."""
    torch.manual_seed(1)
    return placed(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double() for _ in range(count)))


def check_equal(model: nn.Sequential, split_size: int, x: torch.Tensor) -> None:
    expected = output_and_gradients(copy.deepcopy(model), x)
    with Pipe(model, split_size) as piped:
        torch.testing.assert_close(output_and_gradients(piped, x), expected, rtol=1e-10, atol=1e-14)


def stage_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, worker.Worker)]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if stage_threads():
        gc.collect()
    until = time.monotonic() + SECONDS
    while stage_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not stage_threads()


# --- what is refused ------------------------------------------------------------------------------


def on_meta() -> nn.Module:
    return nn.Linear(2, 2, device="meta")


def norm_on_two_devices() -> nn.Module:
    norm = nn.BatchNorm1d(2, affine=False)
    norm.running_mean = norm.running_mean.to("meta")
    return norm


def over_two_devices() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), on_meta())


def fed(x: Any) -> None:
    with Pipe(layers(), 2) as piped:
        piped(x)


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def hooked() -> nn.Sequential:
    model = layers()
    model.register_forward_hook(lambda *of_module: 2 * of_module[-1])
    return model


REFUSED = [
    (lambda: split_module([nn.Linear(2, 2)]), TypeError, "the model is a list, expected an nn.Sequential"),
    (lambda: Pipe(nn.Sequential()), ValueError, r"the nn\.Sequential is empty, expected at least one module"),
    (lambda: Pipe(nn.Sequential(norm_on_two_devices())), ValueError, "module '0', a BatchNorm1d, .* on cpu and meta"),
    (lambda: Pipe(nn.Sequential(nn.ReLU(), over_two_devices())), ValueError, "module '1', a Sequential, .* on cpu and"),
    (lambda: Pipe(nn.Sequential(layers(2))), ValueError, "module '0', .* has parameters or buffers on cpu:0 and cpu:1"),
    (lambda: Pipe(placed(on_meta())), ValueError, "a Linear, is on meta, but its WithDevice says cpu:0"),
    (lambda: Pipe(Residual(*layers())), ValueError, "the Residual has a forward of its own, which would be left out"),
    (lambda: Pipe(hooked()), ValueError, "the Sequential has hooks of its own, which would be left out"),
    (lambda: Pipe(layers(), 0), ValueError, "^split_size is 0, expected"),
    (lambda: clock_cycles(0, 1), ValueError, "^num_batches is 0, expected a whole number, 1 or more"),
    (lambda: WithDevice("cpu:0", nn.Linear(1, 1)), TypeError, "module is a str, expected an nn"),
]
if not torch.cuda.is_available():
    no_gpu = r"'cuda:0', and there is no GPU here: use virtual devices, cpu:0"
    REFUSED.append((lambda: WithDevice(nn.Linear(1, 1), "cuda:0"), ValueError, no_gpu))
ROWLESS = [
    (lambda: fed([1.0]), TypeError, "the input is a list, expected one tensor"),
    (lambda: fed(rows(4).to_sparse()), TypeError, "the input is a torch.sparse_coo tensor, .* expected a dense one"),
    (lambda: fed(torch.tensor(1.0)), ValueError, r"the input has shape \(\), expected at least one row"),
    (lambda: fed(torch.ones(0, 4)), ValueError, r"the input has shape \(0, 4\), expected at least one row"),
]


@pytest.mark.parametrize(
    ("use", "error", "says"), [*REFUSED, *(pytest.param(*row, marks=made_task) for row in ROWLESS)]
)
def test_what_cannot_be_cut_or_piped_is_refused_with_what_was_given_and_expected(use, error, says):
    with pytest.raises(error, match=says):
        use()


@made_task
@pytest.mark.parametrize("clock", [[(0, 5)], [(0, -1)], [(9, 0)], [(0, 0), (0, 1)]])
def test_a_clock_that_cannot_be_is_refused_before_anything_runs(clock):
    ran, message = [], "each micro-batch at most once in a clock"
    with Pipe(placed(Do(ran.append), nn.Identity())) as piped, pytest.raises(ValueError, match=message):
        piped.compute([rows(1), rows(1)], clock)
    assert not ran


@made_task
def test_a_closed_pipe_says_so():
    with Pipe(layers()) as piped:
        pass
    for use in (lambda: piped(rows(2)), lambda: piped.compute([rows(1)], [(0, 0)])):
        with pytest.raises(RuntimeError, match="this Pipe is closed, its worker threads have ended: build a new one"):
            use()
    piped.close()  # again does no harm


# --- Pipe: the plain module's output and gradients ------------------------------------------------


@pipe_task
@pytest.mark.filterwarnings("error")
def test_stages_in_place_frozen_or_with_a_weight_in_common_and_token_ids_give_the_plain_modules_without_a_warning():
    check_equal(layers(4), 3, rows(8))
    first, _, last = (stage.module[0] for stage in layers())
    last.weight = first.weight
    frozen = nn.Linear(4, 4).double().requires_grad_(False)
    check_equal(placed(first, nn.ReLU(inplace=True), frozen, nn.Sequential(nn.ReLU(inplace=True), last)), 2, rows(5))
    embedded = placed(nn.Embedding(9, 4), nn.ReLU(inplace=True), nn.LayerNorm(4)).double()
    check_equal(embedded, 2, torch.arange(12).view(6, 2) % 9)


@pipe_task
def test_batch_normalisation_is_of_each_micro_batch_while_training_and_the_plain_modules_in_eval():
    model, x = placed(nn.Linear(4, 4), nn.BatchNorm1d(4)).double(), rows(6)
    reference = copy.deepcopy(model)
    with Pipe(model, 2) as piped:
        output = piped(x)
        assert not torch.allclose(output, copy.deepcopy(reference)(x))
        torch.testing.assert_close(output, torch.cat([reference(part) for part in x.split(2)]))
        for expected, found in zip(reference.buffers(), model.buffers(), strict=True):
            torch.testing.assert_close(found, expected)  # the running statistics moved three times, in order
        piped.eval()
        reference.eval()
        torch.testing.assert_close(piped(x), reference(x))


# --- Pipe: what it cannot do ---------------------------------------------------------------------


def value(model: nn.Module) -> Any:
    return lambda x: model(x).square().sum()


@made_task
@pytest.mark.parametrize("through", ["grad", "jacrev", "jacfwd", "vmap", "jvp"])
def test_torch_func_is_refused_where_it_would_give_zeros(through):
    def use(model: nn.Module) -> Any:
        if through == "jvp":
            return torch.func.jvp(model, (rows(4),), (rows(4),))
        return getattr(torch.func, through)(value(model))(rows(4))

    use(layers().requires_grad_(False))  # which the plain module can do
    with (
        Pipe(layers(), 2) as piped,
        pytest.raises(RuntimeError, match=r"inside torch\.func .* does not reach its stages"),
    ):
        use(piped)


@pipe_task
def test_a_jacobian_without_torch_func_is_the_plain_modules():
    jacobian = torch.autograd.functional.jacobian(layers(), rows(3))
    with Pipe(layers(), 2) as piped:
        torch.testing.assert_close(torch.autograd.functional.jacobian(piped, rows(3)), jacobian)


class Recurrent(nn.Module):
    """A GRU, which takes rows as dimension 1, or with batch_first as dimension 0."""

    def __init__(self, transpose: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer, self.transpose = nn.GRU(4, 4, **options), transpose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.transpose:
            return self.layer(x)[0]
        return self.layer(x.transpose(0, 1))[0].transpose(0, 1)


def attention(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, **options)


ALONG_TIME = [
    (attention, (6, 5, 4), "layer '0.module.self_attn' of stage 0, a MultiheadAttention with batch_first=False"),
    (attention, (6, 2, 4), r"was given \(2, 2, 4\), of which it takes dimension 0 for the sequence"),
    (lambda: attention(batch_first=True), (6, 4), r"batch_first=True, was given \(2, 4\), of which it takes dimension 0"),
    (Recurrent, (6, 4, 4), "a GRU with batch_first=False, .* make it with batch_first=True"),
    (lambda: Recurrent(True, batch_first=True), (6, 5, 4), "a GRU with batch_first=True, .* takes dimension 1 for the sequ"),
]  # fmt: skip


@made_task
@pytest.mark.parametrize(("make", "shape", "says"), ALONG_TIME)
def test_a_layer_that_takes_the_rows_for_a_sequence_is_refused_by_its_name(make, shape, says):
    with Pipe(placed(make(), nn.Linear(4, 4)), 2) as piped, pytest.raises(ValueError, match=says):
        piped(torch.ones(shape))


@pipe_task
@pytest.mark.parametrize("make", [lambda: attention(batch_first=True), lambda: Recurrent(True)])
@pytest.mark.parametrize("shape", [(6, 2, 4), (6, 5, 4)])
def test_layers_that_take_the_rows_for_their_batch_are_the_plain_modules_and_used_up_no_random_number(make, shape):
    model, x = placed(nn.Dropout(), make(), nn.Linear(4, 4)), torch.randn(shape)
    with Pipe(model, 2) as piped:
        states = []
        for _ in range(2):  # in the first call layers are checked
            torch.manual_seed(0)
            piped(x)
            states.append(torch.get_rng_state())
        assert states[0].equal(states[1])
        model.eval()
        torch.testing.assert_close(piped(x), model(x))


@made_task
def test_a_batch_of_one_micro_batch_may_have_any_layers():
    model, x = placed(attention(dropout=0.0), nn.Linear(4, 4)), torch.ones(6, 5, 4)
    with Pipe(model, 6) as piped:
        torch.testing.assert_close(piped(x), model(x))


# --- Pipe: what goes wrong in a stage -------------------------------------------------------------


@pipe_task
def test_a_stage_that_calls_its_own_pipe_is_told_so_instead_of_waiting_for_itself():
    again = Do(lambda x: piped(x))
    with Pipe(placed(nn.Identity(), again), 2) as piped, pytest.raises(RuntimeError, match="calls the Pipe") as caught:
        piped(rows(4))
    assert caught.value.__notes__ == ["in the forward of stage 1, micro-batch 0"]


# --- threads end ----------------------------------------------------------------------------------


@made_task
def test_threads_are_gone_when_close_returns_and_after_the_with_block():
    piped = Pipe(layers())
    assert [thread.name for thread in stage_threads()] == [f"stage {j} on cpu:{j}" for j in range(3)]
    piped.close()
    assert not stage_threads()
    with pytest.raises(KeyError), Pipe(layers()):
        assert len(stage_threads()) == 3
        raise KeyError
    assert not stage_threads()


@contextmanager
def interrupted_once(inside: threading.Event) -> Iterator[None]:
    """Interrupt the main thread, as Ctrl-C does, when a stage is at work."""

    def interrupt() -> None:
        inside.wait(SECONDS)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join(SECONDS)


@pipe_task
@pytest.mark.parametrize("use", ["again", "close"])
def test_a_keyboard_interrupt_while_stages_work_leaves_the_pipe_usable(use, monkeypatch):
    monkeypatch.setattr(worker, "JOIN_TIMEOUT_S", 0.2)
    inside, go, calls = threading.Event(), threading.Event(), itertools.count()

    def stuck_at_first(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == 0:
            inside.set()
            go.wait(SECONDS)
        return x * 2

    with Pipe(placed(nn.Identity(), Do(stuck_at_first)), 1) as piped:
        with interrupted_once(inside):
            piped(rows(3, seed=1))
        if use == "again":
            go.set()
            for seed in range(3):  # what was left behind is not taken for an answer
                assert piped(rows(3, seed=seed)).equal(rows(3, seed=seed) * 2)
        else:
            piped.close()  # returns, though a stage is stuck
            assert not go.is_set()
    go.set()
