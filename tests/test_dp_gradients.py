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


# --- faults ---------------------------------------------------------------------------------------


@task("dp.3")
def test_gradients_gathered_from_ranks_of_which_one_has_none_time_out_with_the_stacks(hang):
    def in_rank() -> None:
        model = nn.Linear(2, 2)
        if dist.get_rank() == 0:
            model(torch.ones(1, 2)).sum().backward()
        dp.gather_scatter_gradients(model)

    stacks = hang(in_rank, backend="gloo")
    assert "gather_scatter_gradients" in stacks[0] and stacks[1] == "finished"


@task("dp.5")
def test_a_ring_that_one_rank_does_not_join_times_out_with_the_stacks(hang):
    def in_rank() -> None:
        if dist.get_rank() != 1:
            dp.ring_all_reduce(torch.ones(6))

    stacks = hang(in_rank, world_size=3, backend="gloo")
    assert "ring_all_reduce" in stacks[0] and "ring_all_reduce" in stacks[2] and stacks[1] == "finished"


# --- dp.3 through rank 0, dp.4 by all_reduce ------------------------------------------------------

both_ways = pytest.mark.parametrize(
    "way",
    [
        pytest.param("gather_scatter_gradients", marks=task("dp.3")),
        pytest.param("average_gradients", marks=task("dp.4")),
    ],
)


@both_ways
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_mean_of_the_shards_gradients_is_the_gradient_of_the_whole_batch(world_size, way, ranks):
    def in_rank() -> tuple[list, list]:
        model = small_model()
        shard_gradients(model)
        own = gradients(model)
        getattr(dp, way)(model)
        return own, gradients(model)

    whole = small_model()
    loss_of(whole).backward()
    for own, averaged in ranks(world_size).run(in_rank).values:
        torch.testing.assert_close(averaged, gradients(whole), rtol=1e-10, atol=1e-12)
        assert world_size == 1 or not torch.allclose(own[0], averaged[0])


@both_ways
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
    def in_rank() -> tuple[torch.Tensor, bool, tuple[int, ...]]:
        weight = nn.Parameter(torch.zeros(2, 3))
        weight.grad = (torch.arange(6.0) * (1 + dist.get_rank())).reshape(3, 2).T  # not contiguous
        address = weight.grad.data_ptr()
        dp.gather_scatter_gradients(nn.ParameterList([weight]))
        return weight.grad, weight.grad.data_ptr() == address, weight.grad.stride()

    for gradient, stayed, strides in ranks(3).run(in_rank).values:
        assert torch.equal(gradient, 2 * torch.arange(6.0).reshape(3, 2).T)
        assert stayed and strides == (1, 2)


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
def test_the_sum_replaces_a_tensor_that_is_not_contiguous_and_nothing_beside_it(ranks):
    def in_rank() -> tuple[torch.Tensor, ...]:
        strided = torch.full((4, 6), dist.get_rank() + 1.0)
        dp.ring_all_reduce(strided[1:3, ::2])
        turned = torch.arange(6.0).reshape(2, 3)
        dp.ring_all_reduce(turned.T)
        every_other = torch.arange(6.0)
        dp.ring_all_reduce(every_other[::2])
        return strided, turned, every_other

    for rank, (strided, turned, every_other) in enumerate(ranks(2).run(in_rank).values):
        expected = torch.full((4, 6), rank + 1.0)
        expected[1:3, ::2] = 3
        assert torch.equal(strided, expected)
        assert torch.equal(turned, 2 * torch.arange(6.0).reshape(2, 3))
        assert every_other.tolist() == [0, 1, 4, 3, 8, 5]


@task("dp.5")
def test_a_parameter_may_go_round_the_ring_and_stays_a_leaf(ranks):
    def in_rank() -> tuple[list[float], bool]:
        parameter = nn.Parameter(torch.ones(3))
        dp.ring_all_reduce(parameter)
        return parameter.tolist(), parameter.is_leaf and parameter.requires_grad

    assert ranks(2).run(in_rank).values == [([2.0] * 3, True)] * 2


@task("dp.5")
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_rank_sends_two_times_n_minus_1_messages_of_an_nth_of_the_tensor_and_nothing_else(world_size, ranks):
    def in_rank() -> list[tuple[str, Any]]:
        return messages(lambda: dp.ring_all_reduce(torch.ones(world_size, 10)))

    for done in ranks(world_size).run(in_rank).values:
        assert sorted(done) == sorted([("send", [[10]]), ("recv", [[10]])] * 2 * (world_size - 1))


@task("dp.5")
def test_a_tensor_larger_than_any_socket_buffer_does_not_block_the_ring(ranks):
    def in_rank() -> bool:
        large = torch.ones(2**23)  # 32 MiB
        dp.ring_all_reduce(large)
        return bool((large == 2).all())

    assert ranks(2).run(in_rank).values == [True, True]


@task("dp.5")
def test_one_ring_after_another_does_not_mix_their_messages(ranks):
    def in_rank() -> list[float]:
        tensors = [torch.full((7,), float(i)) for i in range(20)]
        for tensor in tensors:
            dp.ring_all_reduce(tensor)
        return [tensor.unique().item() for tensor in tensors]

    assert ranks(3).run(in_rank).values == [[3.0 * i for i in range(20)]] * 3


# --- all of them agree ----------------------------------------------------------------------------


def averaged_in_each_way(dtype: torch.dtype) -> dict[str, list[torch.Tensor]]:
    """The gradients that each way leaves on this rank, beginning from the same model and shards."""

    def ring(model: nn.Module) -> None:
        for parameter in model.parameters():
            dp.ring_all_reduce(parameter.grad.div_(dist.get_world_size()))

    found = {}
    for way in (dp.gather_scatter_gradients, dp.average_gradients, ring):
        model = small_model(dtype)
        shard_gradients(model)
        way(model)
        found[way.__name__] = gradients(model)
    model = small_model(dtype)
    reducer = dp.BucketedDataParallel(model, bucket_cap_mb=100 / dp.MIB)
    shard_gradients(reducer)
    reducer.finish_gradient_synchronization()
    return found | {"buckets": gradients(model)}


@task("dp.3", "dp.4", "dp.5", "dp.6", "dp.7")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_four_ways_give_the_gradient_of_the_whole_batch(world_size, dtype, tolerance, ranks):
    whole = small_model(dtype).double()
    loss_of(whole).backward()
    expected = gradients(whole)
    largest = max(gradient.abs().max().item() for gradient in expected)
    for ways in ranks(world_size).run(averaged_in_each_way, dtype).values:
        assert len(ways) == 4
        for found in ways.values():
            found_in_double = [gradient.double() for gradient in found]
            torch.testing.assert_close(found_in_double, expected, rtol=tolerance, atol=tolerance * largest)
