"""Through rank 0, around a ring, in buckets: each way to agree on gradients gives the whole
batch's, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from small_modules import gradients
from to_do import task
from torch import nn
from torch.profiler import ProfilerActivity, profile

from labkit import dp

ROWS = 24  # of the whole batch


# --- a small model and its shards -----------------------------------------------------------------


def small_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).to(dtype)


def loss_of(model: nn.Module, rank: int = 0, world_size: int = 1) -> torch.Tensor:
    """The mean loss over one rank's shard, or over the whole batch."""
    inputs = torch.linspace(-1, 1, ROWS * 5, dtype=torch.float64).reshape(ROWS, 5)
    shard = inputs[rank * ROWS // world_size : (rank + 1) * ROWS // world_size]
    return model(shard.to(next(model.parameters()).dtype)).square().mean()


def shard_gradients(model: nn.Module) -> None:
    """Give ``model`` the gradients of this rank's shard."""
    loss_of(model, dist.get_rank(), dist.get_world_size()).backward()


def messages(call: Callable[[], object]) -> list[tuple[str, Any]]:
    """What ``call`` has the process group do: (operation, shapes of its tensors), by torch's own
    profiler."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        call()
    return [
        (event.name.removeprefix("gloo:"), event.input_shapes)
        for event in profiled.events()
        if event.name.startswith("gloo:")
    ]


# --- all ways -------------------------------------------------------------------------------------


def around_the_ring(model: nn.Module) -> None:
    for parameter in model.parameters():
        dp.ring_all_reduce(parameter.grad.div_(dist.get_world_size()))


def averaged(way: str, model: nn.Module) -> tuple[list, list]:
    """The gradients of this rank's shard, and what ``way`` makes of them."""
    finish = {"ring": around_the_ring}.get(way) or getattr(dp, way, None)
    if way == "buckets":
        reducer = dp.BucketedDataParallel(model, bucket_cap_mb=100 / dp.MIB)
        finish = lambda _: reducer.finish_gradient_synchronization()  # noqa: E731
    loss_of(reducer if way == "buckets" else model, dist.get_rank(), dist.get_world_size()).backward()
    own = gradients(model)
    finish(model)
    return own, gradients(model)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("gather_scatter_gradients", marks=task("dp.3")),
        pytest.param("average_gradients", marks=task("dp.4")),
        pytest.param("ring", marks=task("dp.5")),
        pytest.param("buckets", marks=task("dp.6", "dp.7")),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_mean_of_the_shards_gradients_is_the_gradient_of_the_whole_batch(world_size, dtype, tolerance, way, ranks):
    whole = small_model(dtype).double()
    loss_of(whole).backward()
    expected = gradients(whole)
    largest = max(gradient.abs().max().item() for gradient in expected)
    for own, found in ranks(world_size).run(lambda: averaged(way, small_model(dtype))).values:
        assert world_size == 1 or way == "buckets" or not torch.allclose(own[0], found[0])
        found_in_double = [gradient.double() for gradient in found]
        torch.testing.assert_close(found_in_double, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize(
    ("way", "world_size"),
    [
        pytest.param("gather_scatter_gradients", 2, marks=task("dp.3")),
        pytest.param("ring_all_reduce", 3, marks=task("dp.5")),
    ],
)
def test_a_way_that_one_rank_does_not_go_times_out_with_the_stacks(way, world_size, hang):
    def in_rank() -> None:
        model = nn.Linear(2, 2)
        if dist.get_rank() != 1:
            model(torch.ones(1, 2)).sum().backward()  # without a gradient there is nothing to gather
        if way == "gather_scatter_gradients":
            dp.gather_scatter_gradients(model)
        elif dist.get_rank() != 1:
            dp.ring_all_reduce(torch.ones(6))

    stacks = hang(in_rank, world_size=world_size, backend="gloo")
    assert stacks.pop(1) == "finished"
    assert all(way in stack for stack in stacks.values())


# --- dp.3 through rank 0, dp.4 by all_reduce ------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("gather_scatter_gradients", marks=task("dp.3")),
        pytest.param("average_gradients", marks=task("dp.4")),
    ],
)
def test_frozen_and_unused_parameters_are_left_without_a_gradient(way, ranks):
    def in_rank() -> list[bool]:
        model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
        model["used"].bias.requires_grad_(False)
        model["used"](torch.ones(1, 2)).sum().backward()
        getattr(dp, way)(model)
        return [parameter.grad is None for parameter in model.parameters()]

    assert ranks(2).run(in_rank).values == [[False, True, True, True]] * 2


@task("dp.3")
def test_gathered_gradients_stay_where_they_were_whatever_their_strides(ranks):
    def in_rank() -> None:
        weight = nn.Parameter(torch.zeros(2, 3))
        weight.grad = (torch.arange(6.0) * (1 + dist.get_rank())).reshape(3, 2).T  # not contiguous
        address = weight.grad.data_ptr()
        dp.gather_scatter_gradients(nn.ParameterList([weight]))
        assert weight.grad.data_ptr() == address and weight.grad.stride() == (1, 2)
        assert torch.equal(weight.grad, 2 * torch.arange(6.0).reshape(3, 2).T)

    ranks(3).run(in_rank)


@task("dp.3", "dp.4")
def test_one_gather_and_one_scatter_a_parameter_stand_against_one_all_reduce(ranks):
    def in_rank() -> tuple[list[str], list[str]]:
        model = small_model()
        shard_gradients(model)
        through_rank_0 = messages(lambda: dp.gather_scatter_gradients(model))
        return [name for name, _ in through_rank_0], [name for name, _ in messages(lambda: dp.average_gradients(model))]

    parameters = len(list(small_model().parameters()))
    assert ranks(2).run(in_rank).values == [(["gather", "scatter"] * parameters, ["all_reduce"] * parameters)] * 2


# --- dp.5: around the ring ------------------------------------------------------------------------


@task("dp.5")
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ring_sums_tensors_of_any_size_shape_and_float_dtype(world_size, ranks):
    def in_rank(shapes: list, dtypes: list) -> list[tuple[Any, ...]]:
        wrong = []
        for shape in shapes:
            for dtype in dtypes:
                # Whole numbers, small enough for every dtype to add them up without rounding.
                numbers = torch.arange(torch.Size(shape).numel()).remainder(17).reshape(shape)
                found = (numbers * (dist.get_rank() + 1)).to(dtype)
                expected = found.clone().double()
                dp.ring_all_reduce(found)
                dist.all_reduce(expected)
                if found.dtype != dtype or not torch.equal(found.double(), expected):
                    wrong.append((shape, dtype, found, expected))
        return wrong

    shapes = [(), (0,), (1,), (2,), (3,), (4,), (5,), (7,), (1000,), (3, 5), (2, 3, 4), (4, 0)]
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    assert ranks(world_size).run(in_rank, shapes, dtypes).values == [[]] * world_size


@task("dp.5")
def test_every_rank_gets_the_same_bits_though_the_numbers_round(ranks):
    def in_rank() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(dist.get_rank())
        found = torch.randn(1001, dtype=torch.float32)
        expected = found.double()
        dp.ring_all_reduce(found)
        dist.all_reduce(expected)
        return found, expected

    values = ranks(3).run(in_rank).values
    assert all(torch.equal(found, values[0][0]) for found, _ in values)
    torch.testing.assert_close(values[0][0].double(), values[0][1], rtol=1e-5, atol=1e-6)


@task("dp.5")
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_rank_sends_two_times_n_minus_1_messages_of_an_nth_of_the_tensor_and_nothing_else(world_size, ranks):
    def in_rank() -> list[tuple[str, Any]]:
        return messages(lambda: dp.ring_all_reduce(torch.ones(world_size, 10)))

    for done in ranks(world_size).run(in_rank).values:
        assert sorted(done) == sorted([("send", [[10]]), ("recv", [[10]])] * 2 * (world_size - 1))


@task("dp.5")
def test_the_sum_replaces_a_parameter_and_a_tensor_that_is_not_contiguous_and_nothing_beside_it(ranks):
    def in_rank() -> None:
        rank, parameter = dist.get_rank(), nn.Parameter(torch.ones(3))
        dp.ring_all_reduce(parameter)
        assert parameter.tolist() == [2.0] * 3 and parameter.is_leaf and parameter.requires_grad
        strided, expected = torch.full((4, 6), rank + 1.0), torch.full((4, 6), rank + 1.0)
        dp.ring_all_reduce(strided[1:3, ::2])
        expected[1:3, ::2] = 3
        assert torch.equal(strided, expected)
        turned = torch.arange(6.0).reshape(2, 3)
        dp.ring_all_reduce(turned.T)
        assert torch.equal(turned, 2 * torch.arange(6.0).reshape(2, 3))

    ranks(2).run(in_rank)


@task("dp.5")
def test_a_tensor_larger_than_any_socket_buffer_does_not_block_the_ring_and_rings_do_not_mix_their_messages(ranks):
    def in_rank() -> None:
        tensors = [torch.ones(2**23), *(torch.full((7,), float(i)) for i in range(20))]  # 32 MiB, and small ones
        for tensor in tensors:
            dp.ring_all_reduce(tensor)
        assert [tensor.unique().tolist() for tensor in tensors] == [[3.0], *([3.0 * i] for i in range(20))]

    ranks(3).run(in_rank)
