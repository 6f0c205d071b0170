"""Given code under ShardedModel: its state as torch.distributed.checkpoint saves and loads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from labkit.parallel.shard.unit import Unit


def sharded_state(
    module: nn.Module, units: Sequence[Unit], optimizer: torch.optim.Optimizer | None
) -> dict[str, torch.Tensor]:
    """Return a model's state, and an optimizer's, by name; all share memory with them.

    A unit's row of numbers is one DTensor over all ranks, "head.row", and so is what the optimizer
    has for it, "head.row.exp_avg". All else is as it is.
    """
    named = dict(module.named_parameters())
    in_units = {parameter for unit in units for parameter in unit.parameters}
    state: dict[str, Any] = dict(module.named_buffers())
    state |= {name: parameter.detach() for name, parameter in named.items() if parameter not in in_units}
    state |= {_name(unit): _as_row(unit, unit.shard) for unit in units}
    if optimizer is None:
        return state
    _begin_state(optimizer)
    for unit in units:
        first = unit.parameters[0]
        for key in [key for key, value in optimizer.state[first].items() if _like(value, first)]:
            row = torch.cat([optimizer.state[parameter][key] for parameter in unit.parameters])
            pieces = row.split([len(parameter) for parameter in unit.parameters])
            for parameter, piece in zip(unit.parameters, pieces, strict=True):
                optimizer.state[parameter][key] = piece
            state[f"{_name(unit)}.{key}"] = _as_row(unit, row)
    for name, parameter in named.items():
        own = optimizer.state[parameter].items()
        in_row = parameter in in_units
        state |= {f"{name}.{key}": value for key, value in own if not (in_row and _like(value, parameter))}
    return state


def _name(unit: Unit) -> str:
    return f"{'+'.join(unit.layers)}.row"


def _like(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def _as_row(unit: Unit, own: torch.Tensor) -> DTensor:
    """Return the row, without the zeros at its end, of which this rank has ``own``."""
    from torch.distributed.tensor import DTensor, Shard  # here, since it takes half a second

    mesh = init_device_mesh(own.device.type, (dist.get_world_size(),))
    own = own[: sum(len(parameter) for parameter in unit.parameters)]
    length = torch.Size([sum(shape.numel() for shape in unit.shapes)])
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=length, stride=(1,))


@torch.no_grad()
def _begin_state(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make the state of parameters that it has not stepped yet: zeros.

    It does so in a step, which here changes nothing: its rate is 0. Where they are zeros still when
    it steps, nothing was loaded, and it begins as it would have.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients, rates = [parameter.grad for parameter in parameters], [group["lr"] for group in optimizer.param_groups]
    new = [parameter for parameter in parameters if parameter.requires_grad and not optimizer.state.get(parameter)]
    if not new:
        return
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if any(parameter is each for each in new) else None
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for value in [value for parameter in new for value in _tensors_of(optimizer.state[parameter]).values()]:
        value.zero_()
    _begin_anew(optimizer, new)


def _begin_anew(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
    """Have the optimizer make the state of these itself once it steps them, in place of zeros."""
    zeros: dict[torch.Tensor, dict[str, Any]] = {}

    def remove_zeros(*_: Any) -> None:
        for parameter in parameters:
            if not any(value.any() for value in _tensors_of(optimizer.state[parameter]).values()):
                zeros[parameter] = optimizer.state.pop(parameter)

    def put_back(*_: Any) -> None:
        parameters[:] = [each for each in zeros if not optimizer.state[each]]  # those it has not stepped
        for parameter, kept in zeros.items():
            made = optimizer.state[parameter]
            for key, value in _tensors_of(kept).items():
                made[key] = value.copy_(made[key]) if key in made else value
        zeros.clear()
        if not parameters:
            for handle in handles:
                handle.remove()

    handles = [optimizer.register_step_pre_hook(remove_zeros), optimizer.register_step_post_hook(put_back)]


def _tensors_of(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
