"""Through rank 0, around a ring, in buckets: each way to agree on gradients gives the whole
batch's, on every rank. What check claims of each way is not claimed again here."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from small_modules import gradients
from to_do import task
from torch import nn

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


# --- dp.5: around the ring ------------------------------------------------------------------------


@task("dp.5")
def test_a_tensor_larger_than_any_socket_buffer_does_not_block_the_ring_and_rings_do_not_mix_their_messages(ranks):
    def in_rank() -> None:
        tensors = [torch.ones(2**23), *(torch.full((7,), float(i)) for i in range(20))]  # 32 MiB, and small ones
        for tensor in tensors:
            dp.ring_all_reduce(tensor)
        assert [tensor.unique().tolist() for tensor in tensors] == [[3.0], *([3.0 * i] for i in range(20))]

    ranks(3).run(in_rank)


@task("dp.5")
def test_a_parameter_may_go_round_the_ring_and_stays_a_leaf(ranks):
    def in_rank() -> tuple[list[float], bool]:
        parameter = nn.Parameter(torch.ones(3))
        dp.ring_all_reduce(parameter)
        return parameter.tolist(), parameter.is_leaf and parameter.requires_grad

    assert ranks(2).run(in_rank).values == [([2.0] * 3, True)] * 2
