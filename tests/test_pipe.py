"""split_module, clock_cycles and Pipe: the plain module's output and gradients, at the same time,
clear when wrong."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import itertools
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_modules import Do, Fail, output_and_gradients, rows
from to_do import task
from torch import nn

from labkit import pipe, schedule
from labkit.parallel import worker
from labkit.pipe import Pipe, WithDevice, clock_cycles, split_module
from labkit.trace import record

SECONDS = 20.0  # more than anything here takes; waiting that long is a failure
split_task = task("pipe.1")
clock_task = task("pipe.2")
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


# --- split_module: what is refused ----------------------------------------------------------------


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)]), [nn.Linear(2, 2)]], ids=str)
@pytest.mark.parametrize("use", [split_module, Pipe])
def test_what_is_no_sequential_is_refused(use, model):
    with pytest.raises(TypeError, match=rf"the model is a {type(model).__name__}, expected an nn.Sequential"):
        use(model)


@pytest.mark.parametrize("use", [split_module, Pipe])
def test_an_empty_sequential_is_refused(use):
    with pytest.raises(ValueError, match=r"the nn\.Sequential is empty, expected at least one module"):
        use(nn.Sequential())


def over_two_devices() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize(
    "wrap", [lambda module: module, lambda module: WithDevice(module, "cpu:1")], ids=["", "WithDevice"]
)
def test_a_module_whose_parameters_are_on_two_devices_is_named(wrap):
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 2))
    model.add_module("middle", wrap(over_two_devices()))
    with pytest.raises(
        ValueError, match=r"^module 'middle', a Sequential, has parameters or buffers on cpu and meta, expected"
    ):
        split_module(model)


def test_buffers_count_too():
    norm = nn.BatchNorm1d(2, affine=False)
    norm.running_mean = norm.running_mean.to("meta")
    with pytest.raises(ValueError, match="module '0', a BatchNorm1d, has parameters or buffers on cpu and meta"):
        split_module(nn.Sequential(norm))


def test_a_module_that_is_not_where_its_with_device_says_is_named():
    wrapped = WithDevice(nn.Linear(2, 2, device="meta"), "cpu:1")
    with pytest.raises(ValueError, match=r"module '0', a Linear, is on meta, but its WithDevice says cpu:1"):
        split_module(nn.Sequential(wrapped))


# --- split_module: where it cuts ------------------------------------------------------------------


def made(kind: str) -> nn.Module:
    """ "meta", "cpu": a Linear there; "-": a module without parameters; "-@cpu:0" and "cpu@cpu:0":
    such modules with a device."""
    kind, _, device = kind.partition("@")
    module = nn.ReLU() if kind == "-" else nn.Linear(2, 2, device=kind)
    return WithDevice(module, device) if device else module


def cut(*kinds: str) -> tuple[list[list[str]], list[str]]:
    """The names in each partition, and the devices."""
    partitions, devices = split_module(nn.Sequential(*map(made, kinds)))
    assert all(type(partition) is nn.Sequential for partition in partitions)
    assert all(isinstance(device, torch.device) for device in devices)
    return [list(partition._modules) for partition in partitions], [str(device) for device in devices]


@split_task
@pytest.mark.parametrize(
    ("kinds", "partitions", "devices"),
    [
        (["cpu", "cpu"], ["01"], ["cpu"]),
        (["cpu", "meta", "meta"], ["0", "12"], ["cpu", "meta"]),
        (["cpu@cpu:0", "cpu@cpu:1", "cpu@cpu:0"], ["0", "1", "2"], ["cpu:0", "cpu:1", "cpu:0"]),
        (["cpu@cpu:0", "-@cpu:0", "-@cpu:1", "cpu@cpu:1"], ["01", "23"], ["cpu:0", "cpu:1"]),
        # those that name none stay with the one before, and at the front with the first that does
        (["-"], ["0"], ["cpu"]),
        (["-", "cpu"], ["01"], ["cpu"]),
        (["-", "-", "meta", "-"], ["0123"], ["meta"]),
        (["-", "cpu@cpu:1", "-", "cpu@cpu:0"], ["012", "3"], ["cpu:1", "cpu:0"]),
        # plain cpu beside virtual devices, and beside another one
        (["cpu", "cpu@cpu:0", "cpu", "cpu@cpu:1", "cpu"], ["012", "34"], ["cpu:0", "cpu:1"]),
        (["-", "cpu", "meta", "cpu"], ["01", "2", "3"], ["cpu", "meta", "cpu"]),
        (["cpu@cpu:0", "meta", "cpu"], ["0", "1", "2"], ["cpu:0", "meta", "cpu"]),
    ],
    ids=str,
)
def test_a_cut_is_where_the_device_changes(kinds, partitions, devices):
    assert cut(*kinds) == ([list(names) for names in partitions], devices)


@split_task
@given(st.lists(st.sampled_from(["cpu@cpu:0", "cpu@cpu:1", "-@cpu:2", "-", "cpu"]), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_partitions_are_the_model_in_order_and_neighbours_differ(kinds):
    partitions, devices = cut(*kinds)
    assert list(itertools.chain(*partitions)) == [str(number) for number in range(len(kinds))] and all(partitions)
    assert len(devices) == len(partitions)
    assert all(one != next_one for one, next_one in itertools.pairwise(devices))
    for names, device in zip(partitions, devices, strict=True):
        assert {kinds[int(name)].partition("@")[2] for name in names} <= {device, ""}


@split_task
def test_modules_keep_their_names_and_one_that_stands_there_twice_stays_twice():
    twice = nn.ReLU()
    model = nn.Sequential()
    for name, module in {
        "a": nn.Linear(2, 2),
        "b": twice,
        "c": WithDevice(nn.Linear(2, 2), "cpu:1"),
        "d": twice,
    }.items():
        model.add_module(name, module)
    partitions, _ = split_module(model)
    found = {name: module for partition in partitions for name, module in partition._modules.items()}
    assert list(found) == ["a", "b", "c", "d"] and all(found[name] is model._modules[name] for name in found)


def test_with_device_is_its_module_with_a_device():
    inner = nn.Linear(3, 2)
    wrapped = WithDevice(inner, "cpu:1")
    assert wrapped.module is inner and wrapped.device == torch.device("cpu", 1)
    assert wrapped(torch.ones(1, 3)).equal(inner(torch.ones(1, 3)))
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"] and "device='cpu:1'" in repr(wrapped)
    other = WithDevice(nn.Linear(3, 2), torch.device("cpu:0"))
    other.load_state_dict(wrapped.state_dict())
    assert other.module.weight.equal(inner.weight)


def test_with_device_moves_its_module_to_a_real_device():
    assert WithDevice(nn.Linear(3, 2), "meta").module.weight.is_meta


# --- clock_cycles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (-1, 2), (3, -2)])
def test_counts_below_1_are_refused_at_the_call(counts):
    with pytest.raises(ValueError, match=r"^num_(batches|partitions) is (0|-1|-2), expected a whole number, 1 or more"):
        clock_cycles(*counts)


@pytest.mark.parametrize("counts", [(1.0, 1), (1, "2"), (None, 1), (True, 1)])
def test_counts_that_are_no_int_are_refused_at_the_call(counts):
    with pytest.raises(TypeError, match=r"^num_(batches|partitions) is (1.0|'2'|None|True), expected a whole number"):
        clock_cycles(*counts)


@clock_task
def test_the_clocks_are_the_columns_of_the_table_in_its_docstring():
    table = [line[16:] for line in inspect.getdoc(clock_cycles).splitlines() if line.strip().startswith("partition ")]
    columns = [[row[start : start + 7].strip() for row in table] for start in range(0, 42, 7)]
    drawn = [[eval(cell) for cell in column if cell] for column in columns]
    assert list(clock_cycles(4, 3)) == drawn


@clock_task
@given(st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_every_task_runs_once_as_early_as_it_can_and_alone_on_its_partition(m, n):
    clocks = list(clock_cycles(m, n))
    assert len(clocks) == m + n - 1
    assert sorted(pair for clock in clocks for pair in clock) == [(i, j) for i in range(m) for j in range(n)]
    done: set[tuple[int, int]] = set()
    for clock in clocks:
        assert clock and [j for _, j in clock] == sorted({j for _, j in clock})
        # what could run now: the stage before has done it, and the stage is through with the one
        # before
        able = {(i, j) for i in range(m) for j in range(n) if (i, j) not in done}
        able = {(i, j) for i, j in able if (not j or (i, j - 1) in done) and (not i or (i - 1, j) in done)}
        assert set(clock) == able
        done |= set(clock)


@clock_task
def test_each_partition_sees_the_micro_batches_in_the_order_of_a_forward_only_schedule():
    clocks = list(clock_cycles(5, 3))
    for rank, ops in enumerate(schedule.forward_only(3, 5).ops):
        assert [i for clock in clocks for i, j in clock if j == rank] == [op.micro_batch for op in ops]


@clock_task
def test_the_clocks_come_one_by_one_from_an_iterator():
    clocks = clock_cycles(10**9, 3)
    assert iter(clocks) is clocks and next(clocks) == [(0, 0)] and next(clocks) == [(1, 0), (0, 1)]


# --- Pipe: what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split_size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (None, TypeError)]
)
def test_a_split_size_below_1_or_no_int_is_refused(split_size, error):
    with pytest.raises(error, match=f"^split_size is {split_size}, expected "):
        Pipe(layers(), split_size)


@made_task
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([1.0], TypeError, "the input is a list, expected one tensor"),
        (torch.tensor(1.0), ValueError, r"the input has shape \(\), expected at least one row"),
        (torch.ones(0, 4), ValueError, r"the input has shape \(0, 4\), expected at least one row"),
    ],
)
def test_an_input_without_rows_is_refused(x, error, message):
    with Pipe(layers(), 2) as piped, pytest.raises(error, match=message):
        piped(x)


@made_task
def test_a_closed_pipe_says_so():
    with Pipe(layers()) as piped:
        pass
    for use in (lambda: piped(rows(2)), lambda: piped.compute([rows(1)], [(0, 0)])):
        with pytest.raises(RuntimeError, match="this Pipe is closed, its worker threads have ended: build a new one"):
            use()
    piped.close()  # again does no harm


def stage_that(function: Callable[[torch.Tensor], Any]) -> nn.Sequential:
    """Three stages, the middle one of which does ``function``."""
    first, _, last = layers()
    return nn.Sequential(first, WithDevice(Do(function), "cpu:1"), last)


def fails_at(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that raises in its call ``number``."""
    calls = iter(range(10**6))

    def function(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == number:
            raise LookupError("nothing here")
        return x

    return function


@pipe_task
def test_what_a_stage_raises_in_forward_is_raised_with_its_traceback_stage_and_micro_batch_and_the_workers_survive():
    model = stage_that(fails_at(2))
    with Pipe(model, 2) as piped:
        threads = stage_threads()
        with pytest.raises(LookupError, match="nothing here") as caught:
            piped(rows(8))
        assert caught.value.__notes__ == ["in the forward of stage 1, micro-batch 2"]
        lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "piped(rows(8))" in lines and lines[-1] == 'raise LookupError("nothing here")'
        torch.testing.assert_close(piped(rows(8)), torch.cat([model(part) for part in rows(8).split(2)]))
        assert stage_threads() == threads


@pipe_task
def test_what_a_stage_raises_in_backward_names_stage_and_micro_batch_and_the_workers_survive():
    def fail_third(x: torch.Tensor) -> torch.Tensor:
        return Fail.apply(x) if next(calls) == 2 else x

    calls = iter(range(10**6))
    with Pipe(stage_that(fail_third), 2) as piped:
        output = piped(rows(8))
        with pytest.raises(ArithmeticError, match="in the backward of Fail") as caught:
            output.sum().backward()
        assert caught.value.__notes__ == ["in the backward of stage 1, micro-batch 2"]
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert "output.sum().backward()" in [frame.line for frame in frames]
        assert frames[-1].line == inspect.getsource(Fail.backward).splitlines()[-1].strip()
        piped(rows(8)).sum().backward()


@pipe_task
def test_the_other_tasks_of_a_clock_are_done_before_its_error_is_raised():
    failed, done = threading.Event(), []

    def fail(_: torch.Tensor) -> Any:
        failed.set()
        raise LookupError

    def finish_later(x: torch.Tensor) -> torch.Tensor:
        failed.wait(SECONDS)
        time.sleep(0.05)
        done.append(x)
        return x

    with Pipe(placed(Do(fail), Do(finish_later)), 1) as piped, pytest.raises(LookupError):
        try:
            piped.compute([rows(1), rows(1)], [(1, 0), (0, 1)])
        finally:
            assert len(done) == 1


@pipe_task
def test_of_several_errors_in_a_clock_the_first_one_is_raised():
    with Pipe(placed(Do(lambda x: 1 / 0), Do(lambda x: {}[0])), 1) as piped:
        for first, other, error in (((1, 0), (0, 1), ZeroDivisionError), ((0, 1), (1, 0), KeyError)):
            with pytest.raises(error):
                piped.compute([rows(1), rows(1)], [first, other])


@pipe_task
def test_a_stage_that_returns_a_tuple_is_named():
    with (
        Pipe(stage_that(lambda x: (x, x)), 2) as piped,
        pytest.raises(TypeError, match="stage 1 returned a tuple for micro-batch 0, expected one tensor"),
    ):
        piped(rows(6))


@pipe_task
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: x[:, : len(x)],
            r"\(1, 1\) torch.float64 for micro-batch 2 and \(2, 2\) torch.float64 for micro-batch 0",
        ),
        (
            lambda x: x if len(x) > 1 else x.float(),
            r"\(1, 4\) torch.float32 for micro-batch 2 and \(2, 4\) torch.float64",
        ),
        (torch.sum, "a tensor without dimensions for micro-batch 0"),
    ],
    ids=["shape", "dtype", "no rows"],
)
def test_outputs_that_do_not_fit_together_are_named(function, message):
    with Pipe(placed(nn.Identity(), Do(function)), 2) as piped, pytest.raises(ValueError, match=message):
        piped(rows(5))


# --- Pipe: the plain module's output and gradients ------------------------------------------------


@pipe_task
@given(st.integers(1, 9), st.integers(1, 11), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_output_and_gradients_are_the_plain_modules(count, split_size, stages):
    check_equal(layers(stages), split_size, rows(count))


@pipe_task
@pytest.mark.parametrize("split_size", [1, 2, 5, 100])
def test_each_stage_gets_the_micro_batches_in_order_the_last_one_smaller(split_size):
    seen: list[list[torch.Tensor]] = [[], []]
    model = placed(*(Do(lambda x, j=j: seen[j].append(x) or x + 1) for j in range(2)))
    with Pipe(model, split_size) as piped:
        piped(rows(5))
    expected = [rows(5)[start : start + split_size] for start in range(0, 5, split_size)]
    assert [list(map(torch.Tensor.tolist, stage)) for stage in seen] == [
        [(part + j).tolist() for part in expected] for j in range(2)
    ]


@pipe_task
@pytest.mark.parametrize(
    "make",
    [
        lambda: placed(nn.Embedding(9, 4), nn.Linear(4, 3)).double(),
        lambda: placed(nn.Embedding(9, 4), nn.ReLU(inplace=True), nn.LayerNorm(4)).double(),
    ],
    ids=["embedding", "in place"],
)
def test_integers_go_in(make):
    tokens = torch.arange(12).view(6, 2) % 9
    plain = make()
    piped = Pipe(copy.deepcopy(plain), 2)
    for model in (plain, piped):
        model(tokens).square().sum().backward()
    for expected, found in zip(plain.parameters(), piped.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    piped.close()


@pipe_task
def test_in_place_stages_frozen_and_shared_parameters():
    first, _, last = (stage.module[0] for stage in layers())
    last.weight = first.weight
    frozen = nn.Linear(4, 4).double().requires_grad_(False)
    check_equal(placed(first, nn.ReLU(inplace=True), frozen, nn.Sequential(nn.ReLU(inplace=True), last)), 2, rows(5))


@pipe_task
def test_training_step_by_step_is_the_plain_modules():
    plain = layers()
    with Pipe(copy.deepcopy(plain), 2) as piped:
        for model in (plain, piped):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(4):
                optimizer.zero_grad()
                model(rows(5, seed=step)).square().mean().backward()
                optimizer.step()
        for expected, found in zip(plain.parameters(), piped.parameters(), strict=True):
            torch.testing.assert_close(found, expected)


@pipe_task
def test_a_parameters_hooks_run_once_in_a_backward_pass():
    model, seen = layers(), []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: seen.append("hook"))
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    with Pipe(model, 1) as piped:
        piped(rows(4)).sum().backward()
    assert seen.count("hook") == seen.count("accumulated") == 6


@pipe_task
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_graph(mode):
    model = layers()
    with Pipe(model, 2) as piped, mode():
        output = piped(rows(5))
    assert output.grad_fn is None and output.is_inference() == (mode is torch.inference_mode)
    torch.testing.assert_close(output, model(rows(5)).detach())


@pipe_task
def test_autocast_of_the_caller_holds_in_the_stages():
    plain = layers().float()
    with Pipe(copy.deepcopy(plain), 2) as piped:
        for model in (plain, piped):
            with torch.autocast("cpu", torch.bfloat16):
                output = model(rows(4).float())
            assert output.dtype == torch.bfloat16
            output.float().square().sum().backward()
        for expected, found in zip(plain.parameters(), piped.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=0.05, atol=0.05)  # bfloat16: other sums


@pipe_task
def test_the_names_of_parameters_say_partition_and_module():
    with Pipe(layers(2)) as piped:
        assert [name for name, _ in piped.named_parameters()] == [
            f"partitions.{j}.{j}.module.0.{kind}" for j in range(2) for kind in ("weight", "bias")
        ]
        assert [str(device) for device in piped.devices] == ["cpu:0", "cpu:1"]


# --- what differs: batch normalisation and dropout ------------------------------------------------


def normalised() -> nn.Sequential:
    return placed(nn.Linear(4, 4), nn.BatchNorm1d(4)).double()


@pipe_task
def test_batch_normalisation_is_of_each_micro_batch_while_training_and_the_plain_modules_in_eval():
    model, x = normalised(), rows(6)
    reference = copy.deepcopy(model)
    with Pipe(model, 2) as piped:
        output = piped(x)
        assert not torch.allclose(output, copy.deepcopy(reference)(x))
        torch.testing.assert_close(output, torch.cat([reference(part) for part in x.split(2)]))
        for expected, found in zip(reference.buffers(), model.buffers(), strict=True):
            torch.testing.assert_close(found, expected)  # the running statistics moved three times, in order
        assert model[1].module.num_batches_tracked == 3
        piped.eval()
        reference.eval()
        torch.testing.assert_close(piped(x), reference(x))


@pipe_task
def test_dropout_masks_differ_between_micro_batches_and_there_are_none_in_eval():
    ones = torch.ones(3, 1000)
    with Pipe(placed(nn.Dropout(0.5), nn.Identity()), 1) as piped:
        masks = piped(ones)
        assert set(masks.unique().tolist()) == {0.0, 2.0} and ((masks == 0).float().mean(dim=1) - 0.5).abs().max() < 0.1
        assert len(masks.unique(dim=0)) == 3
        piped.eval()
        assert piped(ones).equal(ones)


@pipe_task
def test_dropout_has_the_same_mask_in_backward_as_in_forward():
    x = torch.ones(4, 50, requires_grad=True)
    with Pipe(placed(nn.Dropout(0.5), nn.Dropout(0.5)), 1) as piped:
        output = piped(x)
        output.sum().backward()
    assert x.grad.equal(output)


# --- at the same time -----------------------------------------------------------------------------


@pipe_task
def test_all_stages_of_a_clock_run_at_the_same_time_each_in_a_thread_of_its_own():
    threads: list[set[threading.Thread]] = [set(), set(), set()]
    meeting = threading.Barrier(3, timeout=SECONDS)  # whoever comes alone breaks it

    def meet(j: int, x: torch.Tensor) -> torch.Tensor:
        threads[j].add(threading.current_thread())
        meeting.wait()
        return x + 1

    with Pipe(placed(*(Do(lambda x, j=j: meet(j, x)) for j in range(3))), 1) as piped:
        batches = [rows(1, seed=i) for i in range(3)]
        piped.compute(batches, [(2, 0), (1, 1), (0, 2)])
        torch.testing.assert_close(torch.cat(batches), torch.cat([rows(1, seed=i) for i in range(3)]) + 1)
        assert all(len(each) == 1 for each in threads) and len(set.union(*threads)) == 3
        assert threading.current_thread() not in set.union(*threads)


@pipe_task
def test_a_pipe_is_one_clock_after_the_other_with_all_partitions_that_can_at_once():
    m, n = 4, 3
    clocks = [[(clock - j, j) for j in range(n) if 0 <= clock - j < m] for clock in range(m + n - 1)]
    meetings = [threading.Barrier(len(clock), timeout=SECONDS) for clock in clocks]

    def meet(j: int, x: torch.Tensor) -> torch.Tensor:
        meetings[int(x[0, 0]) + j].wait()  # the row says which micro-batch it is
        return x

    with Pipe(placed(*(Do(lambda x, j=j: meet(j, x)) for j in range(n))), 1) as piped:
        x = torch.arange(float(m)).view(m, 1)
        assert piped(x).equal(x)


@pipe_task
def test_spans_say_which_stage_worked_on_which_micro_batch():
    with Pipe(layers(2), 2) as piped, record() as recording:
        piped(rows(5)).sum().backward()
    tasks = {(i, j) for i in range(3) for j in range(2)}
    for name in ("forward", "backward"):
        events = recording.events[recording.events.name == name]
        assert len(events) == 6 and set(zip(events.micro_batch, events.stage, strict=True)) == tasks


@pipe_task
def test_two_pipes_and_two_callers_of_one_at_once_forward_and_backward():
    def outcome(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        x = rows(6).requires_grad_()
        output = model(x)
        return output.detach(), torch.autograd.grad(output.square().sum(), x)[0]

    with Pipe(layers(), 1) as one, Pipe(layers(2), 2) as other:
        expected = {id(model): outcome(model) for model in (one, other)}
        wrong: list[Any] = []

        def call(model: Pipe) -> None:
            for _ in range(10):
                if not all(map(torch.allclose, outcome(model), expected[id(model)])):
                    wrong.append(model)

        callers = [threading.Thread(target=call, args=(model,)) for model in (one, other, one)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(SECONDS)
        assert not wrong and not any(caller.is_alive() for caller in callers)


@pipe_task
def test_a_pipe_in_a_pipe():
    plain = placed(layers(2), layers(1), layers(2))
    nested = placed(Pipe(layers(2), 1), layers(1), Pipe(layers(2), 3))
    with Pipe(nested, 2) as piped:
        torch.testing.assert_close(output_and_gradients(piped, rows(5)), output_and_gradients(plain, rows(5)))
    for stage in (nested[0], nested[2]):
        stage.module.close()


@pipe_task
def test_an_error_in_a_nested_pipe_names_both_places():
    inner = Pipe(placed(nn.Identity(), Do(fails_at(0))), 1)
    with Pipe(placed(nn.Identity(), inner), 2) as piped, pytest.raises(LookupError) as caught:
        piped(rows(4))
    assert caught.value.__notes__ == [f"in the forward of stage 1, micro-batch {i}" for i in (0, 0)]
    inner.close()


# --- copies ---------------------------------------------------------------------------------------


def pickled(piped: Pipe) -> Pipe:
    return pickle.loads(pickle.dumps(piped))


def saved(piped: Pipe) -> Pipe:
    file = io.BytesIO()
    torch.save(piped, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pipe_task
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled, saved])
def test_a_copy_has_threads_of_its_own_and_a_copy_of_a_closed_one_is_closed(copied):
    with Pipe(layers(), 2) as piped:
        other = copied(piped)
        expected = piped(rows(5))
    with other:
        torch.testing.assert_close(other(rows(5)), expected)
        assert other.devices == piped.devices
    with pytest.raises(RuntimeError, match="this Pipe is closed"):
        copied(piped)(rows(5))


@pipe_task
def test_weights_go_from_one_pipe_to_another():
    torch.manual_seed(2)
    other = placed(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double() for _ in range(3)))
    with Pipe(layers(), 2) as one, Pipe(other, 5) as two:
        two.load_state_dict(one.state_dict())
        torch.testing.assert_close(two(rows(5)), one(rows(5)))


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


@pipe_task
def test_threads_are_gone_when_the_pipe_is_garbage_even_before_its_output():
    piped = Pipe(layers(), 2)
    output = piped(rows(5))
    threads = stage_threads()
    del piped
    gc.collect()
    for thread in threads:
        thread.join(SECONDS)
    assert len(threads) == 3 and not stage_threads()
    output.sum().backward()  # the graph does not need them


@pytest.mark.slow
@pipe_task
def test_threads_are_gone_when_python_exits_while_a_pipe_is_there():
    code = """
import torch
from torch import nn
from labkit.pipe import Pipe, WithDevice
piped = Pipe(nn.Sequential(WithDevice(nn.Linear(4, 4), "cpu:0"), WithDevice(nn.Linear(4, 4), "cpu:1")), 2)
print(tuple(piped(torch.ones(5, 4)).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(5, 4)\n", "")


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
    inside, go, calls = threading.Event(), threading.Event(), iter(range(10**6))

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


# --- without a sound ------------------------------------------------------------------------------


@pipe_task
def test_a_pipe_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_equal(layers(), 2, rows(5))


def test_the_student_file_names_what_it_uses_from_the_given_code():
    assert {"run_stage", "concatenate", "Task"} <= set(vars(pipe))


# --- what a new user's code does ------------------------------------------------------------------


@pipe_task
@pytest.mark.parametrize("behind", [False, True], ids=["a plain batch", "a batch with a graph"])
def test_the_first_stage_may_change_its_micro_batch_in_place_and_the_batch_stays(behind):
    outer = nn.Linear(4, 4)
    plain = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Linear(4, 4))
    wrapped = nn.Sequential(*(WithDevice(copy.deepcopy(module), f"cpu:{i // 2}") for i, module in enumerate(plain)))
    x = torch.randn(6, 4)
    batch = outer(x) if behind else x
    before = batch.detach().clone()
    with Pipe(wrapped, split_size=2) as pipe:
        output = pipe(batch)
        output.square().sum().backward()
    torch.testing.assert_close(batch.detach(), before)
    expected = plain(outer(x) if behind else x.clone())
    torch.testing.assert_close(output, expected)
    outer.zero_grad()
    expected.square().sum().backward()
    for piped, parameter in zip(wrapped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(piped.grad, parameter.grad)


@pipe_task
def test_a_stage_that_calls_its_own_pipe_is_told_so_instead_of_waiting_for_itself():
    holder: dict[str, Pipe] = {}

    class Again(nn.Module):
        def forward(self, x):
            return holder["pipe"](x) if len(x) > 1 else x

    with Pipe(nn.Sequential(WithDevice(nn.Identity(), "cpu:0"), WithDevice(Again(), "cpu:1")), 2) as pipe:
        holder["pipe"] = pipe
        with pytest.raises(RuntimeError, match="calls the Pipe itself") as caught:
            pipe(torch.ones(4, 1))
    assert caught.value.__notes__ == ["in the forward of stage 1, micro-batch 0"]


@split_task
def test_virtual_devices_inside_a_module_count_as_real_ones_would():
    def labelled(*devices):
        return nn.Sequential(*(WithDevice(nn.Linear(2, 2), device) for device in devices))

    with pytest.raises(ValueError, match="module '0', a Sequential, has parameters or buffers on cpu:0 and cpu:1"):
        split_module(nn.Sequential(labelled("cpu:0", "cpu:1")))
    partitions, devices = split_module(nn.Sequential(labelled("cpu:0"), labelled("cpu:1", "cpu:1")))
    assert [str(device) for device in devices] == ["cpu:0", "cpu:1"] and list(map(len, partitions)) == [1, 1]


def test_a_with_device_that_is_no_longer_true_is_refused():
    moved = WithDevice(nn.Linear(2, 2, device="meta"), "cpu:0")
    with pytest.raises(ValueError, match="is on meta, but its WithDevice says cpu:0"):
        split_module(nn.Sequential(moved))


def test_with_device_says_what_it_wants():
    with pytest.raises(TypeError, match="module is a str, expected an nn"):
        WithDevice("cpu:0", nn.Linear(1, 1))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"'cuda:0', and there is no GPU here: use virtual devices, cpu:0"):
            WithDevice(nn.Linear(1, 1), "cuda:0")


@made_task
@pytest.mark.parametrize("clock", [[(0, 5)], [(0, -1)], [(9, 0)], [(0, 0), (0, 1)]])
def test_a_clock_that_cannot_be_is_refused_before_anything_runs(clock):
    ran = []
    model = nn.Sequential(*(WithDevice(nn.Identity(), f"cpu:{j}") for j in range(2)))
    model[0].module.register_forward_hook(lambda *_: ran.append(1))
    with Pipe(model) as pipe, pytest.raises(ValueError, match="each micro-batch at most once in a clock"):
        pipe.compute([torch.ones(1, 1), torch.ones(1, 1)], clock)
    assert not ran


@pipe_task
def test_what_a_failing_stage_made_is_freed_at_once():
    made = []

    class Fails(nn.Module):
        def forward(self, x):
            tensor = torch.ones(1000)
            made.append(weakref.ref(tensor))
            raise RuntimeError("on purpose")

    gc.collect()
    gc.disable()
    try:
        with Pipe(nn.Sequential(Fails())) as pipe:
            with pytest.raises(RuntimeError, match="on purpose"):
                pipe(torch.ones(1, 1))
            assert made and made[0]() is None
    finally:
        gc.enable()
