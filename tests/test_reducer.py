"""BucketedDataParallel: torch's DistributedDataParallel step for step, on its way while backward
runs, clear when wrong. What check claims of dp.7 is not claimed again here."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from to_do import task
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from labkit import dp
from labkit.parallel.dp.bucket import Bucket
from labkit.trace import span

MIB = 2**20

reducer_task = task("dp.6", "dp.7")

Gradients = dict[str, torch.Tensor]
Loss = Callable[[nn.Module], torch.Tensor]
Step = Callable[[nn.Module, int], torch.Tensor]


# --- small models and what to do with them --------------------------------------------------------


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Eight parameters; with several_buckets, and in float64, four buckets."""
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2)]
    return nn.Sequential(*layers).to(dtype)


def several_buckets(model: nn.Module, **options: Any) -> dp.BucketedDataParallel:
    return dp.BucketedDataParallel(model, bucket_cap_mb=100 / MIB, **options)


def batch(step: int, rank: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Four rows of six numbers, different in each step and on each rank."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator, dtype=torch.float64).to(dtype)


def loss_of(model: nn.Module, step: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return model(batch(step, dist.get_rank(), dtype)).square().mean()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def step(reducer: dp.BucketedDataParallel, loss: Loss = loss_of) -> dp.BucketedDataParallel:
    """One step without an optimizer: a backward pass, and gradients that are means over ranks."""
    loss(reducer).backward()
    reducer.finish_gradient_synchronization()
    return reducer


def local_gradients(model: nn.Module, loss: Loss = loss_of) -> Gradients:
    """What this rank alone gets for the model as it is now, with which no other rank has to do;
    zero where unused."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss(alone).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in alone.named_parameters()}


def mean(of_ranks: Iterable[Gradients]) -> Gradients:
    """The oracle: the mean of all ranks' own gradients, formed where there are no ranks."""
    each = list(of_ranks)
    return {name: sum(tensors[name] for tensors in each) / len(each) for name in each[0]}


def assert_averaged(pairs: list[tuple[Gradients, Gradients]]) -> None:
    """Of each rank its gradients after a step, and its own."""
    for found, _ in pairs:
        torch.testing.assert_close(found, mean(own for _, own in pairs))


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def collectives_begun() -> int:
    group: Any = dist.distributed_c10d._get_default_group()
    return group._get_sequence_number_for_group()


# --- ranks that differ ----------------------------------------------------------------------------


def model_of_three_layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1))


OTHER_MODELS: dict[str, tuple[Callable[[nn.Sequential], object], list[str]]] = {  # and what an error says of each
    "shape": (lambda model: setattr(model, "0", nn.Conv2d(2, 4, 5)), ["0.weight", "(4, 2, 5, 5)", "(4, 2, 3, 3)"]),
    "a parameter less": (lambda model: setattr(model, "0", nn.Conv2d(2, 4, 3, bias=False)), ["0.bias", "(4,)"]),
    "a parameter more": (lambda model: model.append(nn.Linear(2, 2, bias=False)), ["3.weight", "(2, 2)"]),
    "dtype": (lambda model: model[2].double(), ["2.weight", "torch.float64", "torch.float32"]),
    "frozen": (lambda model: model[2].bias.requires_grad_(False), ["2.bias", "trained"]),
    "buffer": (lambda model: setattr(model[1], "running_mean", torch.zeros(7)), ["1.running_mean", "(7,)", "(4,)"]),
    "a buffer less": (lambda model: setattr(model[1], "num_batches_tracked", None), ["1.num_batches_tracked"]),
    "order": (lambda model: setattr(model[2], "weight", model[2]._parameters.pop("weight")), ["2.bias", "2.weight"]),
    "strides": (lambda model: model.to(memory_format=torch.channels_last), ["0.weight", "strid"]),
}


@task("dp.6")
def test_a_rank_with_another_model_or_capacity_is_named_on_every_rank_with_what_differs(ranks):
    def in_rank() -> list[str]:
        odd, errors = dist.get_rank() == 1, []
        for change, _ in OTHER_MODELS.values():
            model = model_of_three_layers()
            if odd:
                change(model)
            errors.append(error_of(lambda model=model: dp.BucketedDataParallel(model)))
        return [*errors, error_of(lambda: dp.BucketedDataParallel(net(), bucket_cap_mb=1 / MIB if odd else 25))]

    values = ranks(3).run(in_rank).values
    assert values == [values[0]] * 3
    *models, buckets = values[0]
    for error, (how, (_, parts)) in zip(models, OTHER_MODELS.items(), strict=True):
        assert error.startswith("ValueError: rank 1 has a different model from rank 0: "), how
        assert all(part in error for part in parts), error
    assert (
        buckets.startswith("ValueError: rank 1 has different buckets from rank 0: of [") and "bucket_cap_mb" in buckets
    )


# --- calls in the wrong order ---------------------------------------------------------------------


@reducer_task
@pytest.mark.parametrize("before", ["nothing", "a whole step", "only no_sync"])
def test_there_is_nothing_to_finish_without_a_backward_pass(before, ranks):
    def in_rank() -> tuple[str, tuple[Gradients, Gradients]]:
        model = net()
        reducer = several_buckets(model)
        if before == "a whole step":
            step(reducer)
        if before == "only no_sync":
            with reducer.no_sync():
                loss_of(reducer).backward()
        error = error_of(reducer.finish_gradient_synchronization)
        reducer.zero_grad()
        return error, (gradients(step(reducer).module), local_gradients(model))

    values = ranks(2).run(in_rank).values
    assert all(error.startswith("RuntimeError: there is no gradient to average") for error, _ in values)
    assert "no_sync()" in values[0][0]
    assert_averaged([pair for _, pair in values])  # the next step is none the worse for it


@reducer_task
def test_a_pass_before_the_last_gradients_are_averaged_is_refused_and_finishing_late_is_fine(ranks):
    def in_rank() -> list[str]:
        reducer, other = several_buckets(net()), several_buckets(net())
        loss_of(reducer).backward()  # its buckets are on their way, and whatever is added to them now is added too late
        errors = [error_of(lambda: loss_of(reducer))]
        with reducer.no_sync():
            errors.append(error_of(lambda: loss_of(reducer)))
        reducer.finish_gradient_synchronization()
        step(reducer)
        loss = loss_of(other)
        loss.backward(retain_graph=True)
        return [*errors, error_of(loss.backward)]

    for *forward, backward in ranks(2).run(in_rank).values:
        assert all("RuntimeError: the gradients of the last backward pass are not averaged yet" in e for e in forward)
        assert backward.startswith("RuntimeError: the gradient of 5.")
        assert "ready twice" in backward and "no_sync()" in backward


# --- faults ---------------------------------------------------------------------------------------


@reducer_task
def test_infinity_on_one_rank_arrives_on_every_rank(ranks):
    def in_rank() -> list[str]:
        reducer = several_buckets(net())
        if dist.get_rank() == 1:
            reducer.module[3].bias.register_hook(lambda gradient: gradient * torch.inf)
        return [name for name, each in gradients(step(reducer).module).items() if not each.isfinite().all()]

    assert ranks(3).run(in_rank).values == [["3.bias"]] * 3


@reducer_task
def test_a_sparse_gradient_is_refused_by_the_parameters_name(ranks):
    def in_rank() -> str:
        reducer = dp.BucketedDataParallel(nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Linear(3, 1)))
        return error_of(lambda: reducer(torch.tensor([1, 2])).sum().backward())

    for error in ranks(2).run(in_rank).values:
        assert "0.weight" in error and "sparse" in error and "sparse=False" in error


def cable_is_out(buffer: torch.Tensor) -> Any:
    raise ConnectionError("the cable is out")


def cable_goes_out(buffer: torch.Tensor) -> Any:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_exception(ConnectionError("the cable is out"))
    return future


@reducer_task
@pytest.mark.parametrize(
    ("comm_hook", "says"),
    [
        (cable_is_out, "ConnectionError: the cable is out"),
        (cable_goes_out, "the cable is out"),
        (lambda buffer: None, "TypeError: comm_hook returned None, expected a torch.futures.Future"),
        (dp.all_reduce_hook, "the cable is out"),  # fails on its way
    ],
)
def test_an_error_in_a_communication_hook_reaches_the_caller(comm_hook, says, ranks):
    def in_rank() -> str:
        reducer = several_buckets(net(), comm_hook=comm_hook)
        work = mock.Mock(**{"get_future.return_value": cable_goes_out(torch.empty(0))})
        with mock.patch.object(dist, "all_reduce", return_value=work):
            return error_of(lambda: step(reducer))

    for error in ranks(2).run(in_rank).values:
        assert says in error and ("TypeError" not in says or "async_op=True" in error)


# --- at the start: rank 0's model -----------------------------------------------------------------


class Mixed(nn.Module):
    """Parameters and buffers of several dtypes and strides, different on each rank."""

    def __init__(self) -> None:
        super().__init__()
        rank = dist.get_rank()
        self.turned = nn.Parameter((torch.arange(6.0) + 10 * rank).reshape(2, 3).T)
        self.scalar = nn.Parameter(torch.tensor(rank + 2.0))
        self.short = nn.Parameter(torch.full((3,), rank + 3.0, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.full((2,), rank + 4.0), requires_grad=False)
        self.register_buffer("count", torch.tensor(rank + 5))
        self.register_buffer("mask", torch.tensor([rank == 0, rank == 1]))
        self.register_buffer("strided", (torch.arange(6.0) + 10 * rank)[::2])
        self.register_buffer("hidden", torch.full((1,), rank + 7.0), persistent=False)


@task("dp.6")
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_rank_begins_with_the_parameters_and_buffers_of_rank_0(world_size, ranks):
    def in_rank() -> tuple[dict, dict]:
        torch.manual_seed(dist.get_rank())
        model = nn.ModuleList([Mixed(), net()])
        named = dict([*model.named_parameters(), *model.named_buffers()])
        before = {name: tensor.detach().clone() for name, tensor in named.items()}
        dp.BucketedDataParallel(model)
        return before, {name: tensor.detach() for name, tensor in named.items()}

    values = ranks(world_size).run(in_rank).values
    of_rank_0 = values[0][0]
    for before, after in values:
        assert len(after) == len(of_rank_0) > 10
        assert all(torch.equal(after[name], of_rank_0[name]) for name in of_rank_0)
        assert before is of_rank_0 or not torch.equal(before["1.0.weight"], of_rank_0["1.0.weight"])


@reducer_task
def test_the_wrapper_passes_everything_on_and_the_model_stays_what_it_is(ranks):
    class Talkative(nn.Linear):
        def forward(self, x, *others, scale, **more):
            return {"y": super().forward(x) * scale, "others": others, "more": more}

    def in_rank() -> None:
        model = Talkative(3, 2)
        reducer = dp.BucketedDataParallel(model)
        result, expected = (each(torch.ones(1, 3), 7, scale=2.0, flag="up") for each in (reducer, model))
        assert torch.equal(result.pop("y"), expected.pop("y")) and result == expected
        assert reducer.module is model
        assert [id(parameter) for parameter in reducer.parameters()] == [id(p) for p in model.parameters()]

    ranks(2).run(in_rank)


# --- the same as torch's DistributedDataParallel --------------------------------------------------


def history(
    wrapped: nn.Module, loss: Step, finish: Callable[[], None], clear: str, steps: int = 4
) -> list[dict[str, torch.Tensor]]:
    """Train, and give gradients, parameters and buffers after each step."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    states = []
    for step in range(steps):
        if clear != "never":
            optimizer.zero_grad(set_to_none=clear == "to None")
        loss(wrapped, step).backward()
        finish()
        optimizer.step()
        state = wrapped.module.state_dict() | {f"{k}.grad": v for k, v in gradients(wrapped.module).items()}
        states.append({name: tensor.detach().clone() for name, tensor in state.items()})
    return states


def trained_by_both(
    make: Callable[[], nn.Module], loss: Step = loss_of, clear: str = "to None", **torchs: Any
) -> tuple[list[dict], list[dict]]:
    """The same model trained on the same data by our reducer and by torch's."""
    torch.manual_seed(dist.get_rank())
    start = make()
    ours = several_buckets(copy.deepcopy(start))
    theirs = DistributedDataParallel(copy.deepcopy(start), bucket_cap_mb=100 / MIB, **torchs)
    return (
        history(ours, loss, ours.finish_gradient_synchronization, clear),
        history(theirs, loss, lambda: None, clear),
    )


def assert_the_same(values: list[tuple[list[dict], list[dict]]], **tolerance: float) -> None:
    for ours, theirs in values:
        assert len(ours) == 4
        torch.testing.assert_close(ours, theirs, **tolerance)
        assert all(not torch.equal(ours[0][name], ours[3][name]) for name in ours[0] if name.endswith("weight"))


@reducer_task
@pytest.mark.parametrize(("world_size", "clear"), [(1, "to None"), (2, "to zero"), (3, "to None"), (3, "never")])
def test_steps_with_momentum_weight_decay_and_batch_norm_are_those_of_torchs_ddp(world_size, clear, ranks):
    values = ranks(world_size).run(trained_by_both, net, clear=clear).values
    assert_the_same(values, rtol=1e-9, atol=1e-12)
    weights = [ours[-1]["0.weight"] for ours, _ in values]
    assert all(torch.equal(weight, weights[0]) for weight in weights)  # each sum is made once, and sent to all
    means = [ours[-1]["1.running_mean"] for ours, _ in values]
    assert world_size == 1 or not torch.equal(means[0], means[1])  # as it is under DDP: each saw another last batch


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4, dtype=torch.float64)
        self.middle = nn.Linear(4, 4, dtype=torch.float64)
        self.head = nn.Linear(4, 6, bias=False, dtype=torch.float64)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(x.argmax(dim=1))).tanh())


class ThreeDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        dtypes = [torch.float64, torch.bfloat16, torch.float64, torch.float32, torch.bfloat16]
        self.factors = nn.ParameterList(nn.Parameter(torch.linspace(0.5, 1, 6, dtype=dtype)) for dtype in dtypes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = (x * factor).tanh()
        return x


def partly_frozen() -> nn.Sequential:
    """Its first bias has no gradient, under torch's DDP as well."""
    model = net()
    model[0].bias.requires_grad_(False)
    return model


def channels_last() -> nn.Sequential:
    layers = [nn.Unflatten(1, (2, 1, 3)), nn.Conv2d(2, 4, (1, 3)), nn.Flatten(), nn.Linear(4, 2)]
    return nn.Sequential(*layers).double().to(memory_format=torch.channels_last)


@reducer_task
@pytest.mark.parametrize(
    ("make", "dtype", "tolerance"),
    [
        (functools.partial(net, torch.bfloat16), torch.bfloat16, 1e-2),
        (Tied, torch.float64, 1e-9),
        (ThreeDtypes, torch.float64, 1e-3),
        (channels_last, torch.float64, 1e-9),
        (partly_frozen, torch.float64, 1e-9),
    ],
    ids=["bfloat16", "a tied weight", "three dtypes", "channels last", "partly frozen"],
)
def test_a_model_of_another_kind_trains_as_under_torchs_ddp_too(make, dtype, tolerance, ranks):
    def in_rank() -> tuple[list[dict], list[dict]]:
        return trained_by_both(make, lambda model, step: loss_of(model, step, dtype))

    assert_the_same(ranks(2).run(in_rank).values, rtol=tolerance, atol=tolerance / 10)


class Branches(nn.Module):
    """Rank r uses only its own branch, and all use the trunk; the last branch is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 4, dtype=torch.float64)
        self.branches = nn.ModuleList(nn.Linear(4, 3, dtype=torch.float64) for _ in range(dist.get_world_size() + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches[dist.get_rank()](self.trunk(x).tanh())


@reducer_task
@pytest.mark.parametrize("clear", ["to None", "to zero"])
def test_parameters_that_other_ranks_do_not_use_are_averaged_with_zeros_as_by_torchs_ddp(clear, ranks):
    def in_rank() -> tuple[list[dict], list[dict]]:
        ours, theirs = trained_by_both(Branches, clear=clear, find_unused_parameters=True)
        used = [name for name in theirs[0] if ".2." not in name]  # torch leaves alone what nobody uses
        assert all(not ours[0][f"branches.2.{kind}.grad"].any() for kind in ("weight", "bias"))
        return [{k: s[k] for k in used} for s in ours], [{k: s[k] for k in used} for s in theirs]

    for ours, theirs in ranks(2).run(in_rank).values:
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def chain(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same on every rank, and without batch norm: its shards' mean gradient is the whole
    batch's."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


# --- gradient accumulation ------------------------------------------------------------------------


@reducer_task
def test_ranks_talk_in_training_alone_and_not_inside_no_sync_which_nests_and_ends_with_an_exception(ranks):
    def in_rank() -> tuple[list[int], list[int], torch.Tensor]:
        reducer = several_buckets(net())

        def talk(call: Callable[[], object]) -> int:
            before = collectives_begun()
            call()
            return collectives_begun() - before

        def forward() -> torch.Tensor:
            return loss_of(reducer)

        quiet = []
        with reducer.no_sync():
            with contextlib.suppress(KeyError), reducer.no_sync():
                quiet.append(talk(lambda: forward().backward()))
                raise KeyError
            quiet.append(talk(lambda: forward().backward()))
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                quiet.append(talk(forward))
        reducer.eval()
        quiet.append(talk(forward))
        reducer.train()
        loss = forward()
        loud = [talk(loss.backward)]
        reducer.finish_gradient_synchronization()
        loud.append(talk(forward))  # batch norm's statistics come from rank 0
        return quiet, loud, reducer.module[0].weight.grad

    (quiet, loud, gradient_0), (quiet_1, loud_1, gradient_1) = ranks(2).run(in_rank).values
    assert quiet == quiet_1 == [0] * 5 and loud == loud_1 and min(loud) > 0
    assert torch.equal(gradient_0, gradient_1)


# --- buckets --------------------------------------------------------------------------------------


def copies(work: Callable[[], object]) -> int:
    """How often ``work`` copies one tensor of at least one dimension into another, by torch's
    profiler."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        work()
    return sum(event.name == "aten::copy_" and event.input_shapes[0] != [] for event in profiled.events())


@reducer_task
@pytest.mark.parametrize("set_to_none", [True, False])
def test_no_gradient_is_copied_on_its_way_into_a_bucket_and_out_of_it(set_to_none, ranks):
    def in_rank() -> tuple[int, int]:
        plain = chain()
        reducer = several_buckets(copy.deepcopy(plain))

        def copies_in_second_step(model: nn.Module, finish: Callable[[], None]) -> int:
            loss_of(model).backward()
            finish()
            model.zero_grad(set_to_none=set_to_none)
            loss = loss_of(model)
            return copies(lambda: [loss.backward(), finish()])

        return (
            copies_in_second_step(reducer, reducer.finish_gradient_synchronization),
            copies_in_second_step(plain, lambda: None),
        )

    for in_buckets, without in ranks(2).run(in_rank).values:
        assert in_buckets == without


def buckets_in_a_running_model(widths: list[int], cap_mb: float | None) -> tuple[list, list]:
    """The buckets that torch's DDP and our reducer make of a chain of layers."""
    model = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))
    names = [name for name, _ in model.named_parameters()]
    theirs = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=cap_mb)
    for _ in range(3):  # after the first step torch draws the lines, in the third its log has them
        theirs(torch.ones(1, widths[0])).sum().backward()
    log = theirs._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    ours = dp.BucketedDataParallel(model, cap_mb).buckets
    return [[int(index) for index in bucket.split()] for bucket in log.split(",")], [
        [names.index(name) for name in bucket.names] for bucket in ours
    ]


@task("dp.6")
@pytest.mark.parametrize(
    ("widths", "cap_mb"),
    [
        ([512, 1024, 512, 1024, 512], None),  # 2 MiB a layer: by default the first bucket is closed after one of them
        ([512, 1024, 512, 1024, 512], 25),  # the default's number, but given: then the first bucket is no smaller
        ([16, 32, 64, 128, 64, 32, 16], 16 * 32 * 4 / MIB),  # exactly the last layer
    ],
)
def test_torchs_ddp_draws_the_same_lines_in_a_running_model(widths, cap_mb, ranks):
    ((torchs, ours),) = ranks(1).run(buckets_in_a_running_model, widths, cap_mb).values
    assert ours == torchs


@reducer_task
def test_parameters_of_different_dtypes_never_share_a_bucket_and_gradients_have_their_parameters_strides(ranks):
    def in_rank() -> None:
        reducer = dp.BucketedDataParallel(ThreeDtypes())
        for bucket in reducer.buckets:
            assert {parameter.dtype for parameter in bucket.parameters} == {bucket.buffer.dtype}
        names = [bucket.names for bucket in reducer.buckets]
        assert names == [["factors.3"], ["factors.4", "factors.1"], ["factors.2", "factors.0"]]  # as they become ready
        weight = step(dp.BucketedDataParallel(channels_last())).module[1].weight
        assert weight.grad.stride() == weight.stride() == (6, 1, 6, 2)

    ranks(2).run(in_rank)


# --- order and overlap ----------------------------------------------------------------------------


class WaitInBackward(torch.autograd.Function):
    """Does nothing on the way forward, and on the way back calls what it was given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], object]) -> torch.Tensor:
        ctx.call = call
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.call()
        return gradient, None


@reducer_task
def test_backward_passes_in_two_threads_send_each_bucket_once_and_in_order(ranks):
    """As where a model is on two GPUs: autograd has a thread for each."""

    def in_rank() -> tuple[Gradients, Gradients]:
        sent, is_sending = [], threading.Event()
        model = nn.ModuleList(nn.Linear(6, 4, bias=False).double() for _ in range(2))

        def hook(buffer: torch.Tensor) -> torch.futures.Future[Any]:
            sent.append(next(bucket.number for bucket in reducer.buckets if bucket.buffer is buffer))
            is_sending.set()
            time.sleep(0.05)  # gives up the GIL, as an all_reduce does
            return dp.all_reduce_hook(buffer)

        def losses(each: nn.ModuleList) -> list[torch.Tensor]:
            return [part(batch(0, dist.get_rank())).square().mean() for part in each]

        reducer = dp.BucketedDataParallel(model, bucket_cap_mb=1 / MIB, comm_hook=hook)  # a bucket a parameter
        early, late = losses(model)[1], WaitInBackward.apply(losses(model)[0], is_sending.wait)
        threads = [threading.Thread(target=loss.backward) for loss in (early, late)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reducer.finish_gradient_synchronization()
        assert sent == [0, 1]
        return gradients(model), local_gradients(model, lambda each: sum(losses(each)))

    assert_averaged(ranks(2).run(in_rank).values)


class FakeStream:
    """Stands in for a GPU's stream: knows for which others it waits."""

    def __init__(self) -> None:
        self.waits_for: set[FakeStream] = {self}

    def wait_stream(self, other: FakeStream) -> None:
        self.waits_for.add(other)


def test_a_bucket_is_sent_after_what_was_collected_on_every_stream_as_by_the_partitions_of_a_pipe(monkeypatch):
    streams, sent_after = [FakeStream() for _ in range(3)], []
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    bucket = Bucket(0, ["a", "b"], [nn.Parameter(torch.ones(3)) for _ in range(2)])

    def hook(buffer: torch.Tensor) -> torch.futures.Future[Any]:
        sent_after.append(streams[1].waits_for)
        return torch.futures.Future()

    for position, stream in enumerate(streams[:2]):
        monkeypatch.setattr("labkit.parallel.dp.bucket._current_stream", lambda tensor, stream=stream: stream)
        bucket.collect(position)
    bucket.send(hook)
    assert sent_after == [{*streams[:2]}]
    bucket.reset()
    monkeypatch.setattr("labkit.parallel.dp.bucket._current_stream", lambda tensor: streams[2])
    bucket.send(hook)
    assert streams[2].waits_for == {streams[2]}, "of the step before"


@reducer_task
def test_the_event_table_has_each_bucket_of_each_step_with_its_number_and_bytes(ranks):
    def in_rank() -> list[int]:
        reducer = several_buckets(net())
        for number in range(3):
            with span("step", step=number):
                step(reducer)
        return [bucket.buffer.nbytes for bucket in reducer.buckets]

    run = ranks(2).run(in_rank)
    assert sum(run.values[0]) == sum(parameter.nbytes for parameter in net().parameters())
    for rank, events in run.events.groupby("rank"):
        sent = events[events.name == "all_reduce"]
        assert (sent.lane == "comm").all() and (sent.end_s >= sent.start_s).all() and len(sent) == 3 * 4
        for each in events[events.name == "step"].itertuples():
            inside = sent[(sent.start_s > each.start_s) & (sent.end_s < each.end_s)]
            assert inside.bucket.tolist() == [0, 1, 2, 3]
            assert inside.bytes.tolist() == run.values[rank]


# --- one wrapper after another --------------------------------------------------------------------


@reducer_task
def test_a_wrapper_is_gone_with_its_last_reference_the_gradients_stay_and_a_new_one_averages_once(ranks):
    def in_rank() -> tuple[Gradients, Gradients]:
        model, sent = net(), []

        def hook(buffer: torch.Tensor) -> Any:
            sent.append(buffer)
            return dp.all_reduce_hook(buffer)

        reducer = step(several_buckets(model))
        kept, gone = gradients(model), [weakref.ref(reducer), weakref.ref(reducer.buckets[0])]
        del reducer
        gc.collect()
        assert all(ref() is None for ref in gone)
        torch.testing.assert_close(gradients(model), kept, rtol=0, atol=0)
        reducer = several_buckets(model, comm_hook=hook)  # cells run again do this
        reducer.zero_grad()
        step(reducer)
        assert len(sent) == len(reducer.buckets)
        return gradients(model), local_gradients(model)

    assert_averaged(ranks(2).run(in_rank).values)
