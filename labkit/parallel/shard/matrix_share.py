"""Given code under ColumnParallelLinear and RowParallelLinear: one matrix on several ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from labkit.base.texts import listed
from labkit.parallel.guard import PIECE_OF
from labkit.trace import span


def sum_over_ranks(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the sum over the ranks of ``group`` as a new tensor: an all_reduce, on all of them."""
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    with span("all_reduce", "comm", device=total.device, bytes=total.nbytes):
        dist.all_reduce(total, group=group)
    return total


class CollectiveFunction(torch.autograd.Function):
    """An autograd function that sends: it has no second derivative."""

    def __init_subclass__(cls) -> None:
        cls.backward = _once(cls.backward)  # type: ignore[method-assign]


_PLAIN = "cannot differentiate through column- and row-parallel layers: call backward(), or take the plain layers"


def _once(backward: Any) -> Any:
    """Return ``backward`` that refuses to be differentiated again, on every rank."""

    @functools.wraps(backward)
    def first_derivative(ctx: Any, *gradients: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(f"create_graph=True {_PLAIN} for second derivatives")
        return backward(ctx, *gradients)

    return staticmethod(first_derivative)


def check_input(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ValueError for another width than this rank's part of a matrix takes, RuntimeError
    where torch.func would differentiate."""
    if x.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"x is {tuple(x.shape)}, and this rank's part of the weight takes {weight.shape[1]} inputs: give a "
            "ColumnParallelLinear all inputs, and a RowParallelLinear what a ColumnParallelLinear returns, this rank's alone"
        )
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise RuntimeError(f"torch.func {_PLAIN}")


def keep_frozen(layer: torch.nn.Module, linear: torch.nn.Linear) -> None:
    """Have a layer's parameters train only where the same ones of ``linear`` do."""
    for name, parameter in linear.named_parameters():
        getattr(layer, name).requires_grad_(parameter.requires_grad)


def check_linear(linear: Any, group: Any = None) -> None:
    """Raise TypeError for anything but an nn.Linear that computes as such, ValueError where ranks
    have different ones: on every rank of ``group``."""
    refused = _not_plain(linear)
    forms: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(forms, (refused, "" if refused else f"{linear!r} of {linear.weight.dtype}"), group=group)
    for rank, (wrong, form) in enumerate(forms):
        if wrong:
            raise TypeError(f"expected an nn.Linear, whose matrix is to be shared out, and got {wrong} (rank {rank})")
        if form != forms[0][1]:
            raise ValueError(f"rank {rank} has {form} and rank 0 {forms[0][1]}: build the same layer on every rank")


_HOOKS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"


def _not_plain(linear: Any) -> str:
    """Return what would be lost of a layer whose matrix alone is kept, if it is one."""
    if not isinstance(linear, torch.nn.Linear):
        return f"{linear!r:.80}"
    name = type(linear).__name__
    others = {name for name, _ in [*linear.named_parameters(), *linear.named_buffers()]} - {"weight", "bias"}
    if others or type(linear).forward is not torch.nn.Linear.forward or "forward" in vars(linear):
        what = f" with {listed(sorted(others))}" if others else ""
        return f"a {name}{what}, which computes more than a Linear does: cut its plain layer, and add the rest to that"
    if any(getattr(linear, hooks) for hooks in _HOOKS):
        return f"a {name} with hooks, which would be lost: register them on the parallel layer"
    if hasattr(linear.weight, PIECE_OF):
        return "a layer of a ShardedModel, which is sharded already"
    return ""
