"""Given code under split_module: on which device each module of a model is to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from labkit.base.texts import listed
from labkit.parallel.devices import PLAIN_CPU, check_device, is_virtual


class WithDevice(nn.Module):
    """Tie ``module`` to the ``device`` on which it is to run; if that is real, move it there.

    Without GPUs, ``cpu:0``, ``cpu:1``, … stand for devices. For torch every tensor there is on
    plain ``cpu``, so this wrapper alone tells them apart. It also gives a device to a module
    without parameters.
    """

    def __init__(self, module: nn.Module, device: str | torch.device):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"module is a {type(module).__name__}, expected an nn.Module: WithDevice(module, device)")
        self.device = check_device(device)
        self.module = module if is_virtual(self.device) else module.to(self.device)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"device={str(self.device)!r}"


class PlacedModule(NamedTuple):
    """A module of a model; ``device`` is None where it stays with the one before it."""

    name: str
    module: nn.Module
    device: torch.device | None


def check_modules(modules: nn.Sequential) -> None:
    """Raise TypeError for anything but an nn.Sequential, and ValueError for an empty one.

    Its modules run by themselves, so neither may it have a forward nor hooks of its own.
    """
    if not isinstance(modules, nn.Sequential):
        raise TypeError(
            f"the model is a {type(modules).__name__}, expected an nn.Sequential, which says in which order its modules "
            "run: put the modules into one"
        )
    if not len(modules):
        raise ValueError("the nn.Sequential is empty, expected at least one module in it")
    own = [name for name in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks") if getattr(modules, name)]
    if own or type(modules).forward is not nn.Sequential.forward:
        what = "hooks of its own" if own else "a forward of its own"
        raise ValueError(
            f"the {type(modules).__name__} has {what}, which would be left out, as its modules run by themselves: put what it "
            "does into one of them"
        )
    placed(modules)  # raises what it raises before any partition is made


def placed(modules: nn.Sequential) -> list[PlacedModule]:
    """Return each module with its name and device, in order; the first one's is never None."""
    # A module that is in it twice is here twice, unlike in named_children().
    children = [(name, module) for name, module in modules._modules.items() if module is not None]
    named = [_named_device(name, module) for name, module in children]
    current = _first_device(named)
    result: list[PlacedModule] = []
    for (name, module), device in zip(children, named, strict=True):
        if device is None or (device == PLAIN_CPU and is_virtual(current)):
            result.append(PlacedModule(name, module, None if result else current))
        else:
            current = device
            result.append(PlacedModule(name, module, device))
    return result


def _first_device(named: list[torch.device | None]) -> torch.device:
    """Return where the first module is: on the first device that a module names.

    Among virtual devices plain cpu names none.
    """
    devices = [device for device in named if device is not None]
    first_real = next((device for device in devices if device != PLAIN_CPU), PLAIN_CPU)
    return first_real if is_virtual(first_real) or not devices else devices[0]


def _named_device(name: str, module: nn.Module) -> torch.device | None:
    """Return the device that a module names, or None. Raises ValueError if it is on several."""
    given = module.device if isinstance(module, WithDevice) else None
    tensors = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    inside = set() if given else {str(device) for device in _devices_inside(module)}
    # To torch, a virtual device is plain cpu.
    found = sorted(inside | tensors - {str(PLAIN_CPU)} if inside else tensors)
    what = f"module {name!r}, a {type(module.module if given else module).__name__}"
    if len(found) > 1:
        raise ValueError(
            f"{what}, has parameters or buffers on {listed(found)}, expected one device: move it to one, or make its "
            "parts modules of the nn.Sequential"
        )
    if given and found and torch.device(found[0]) != (PLAIN_CPU if is_virtual(given) else given):
        raise ValueError(
            f"{what}, is on {found[0]}, but its WithDevice says {given}: wrap it with the device that it is on"
        )
    return given or (torch.device(found[0]) if found else None)


def _devices_inside(module: nn.Module) -> Iterator[torch.device]:
    """Yield the devices that parts of a module were given.

    A part that moves tensors itself, as a Pipe does, looks after its own parts.
    """
    for part in module.children() if not getattr(module, "moves_tensors", False) else ():
        if isinstance(part, WithDevice):
            yield part.device
        yield from _devices_inside(part)
