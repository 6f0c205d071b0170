"""What runs in a rank to judge pipe.1: the student cuts models whose modules lie on several devices.

Two devices are there on every machine: the CPU, and torch's meta device, on which tensors have a shape and no data.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from string import ascii_lowercase
from typing import Any, NamedTuple

from labkit.judging.evidence import PIPE, attempt


class Case(NamedTuple):
    """A model: for each module what it is and on which device (none for one without parameters), and how it should be cut:
    the numbers of the modules in each partition, and the partitions' devices."""

    modules: list[str]
    partitions: list[list[int]]
    devices: list[str]

    @property
    def names(self) -> list[str]:
        """The modules' names in the model."""
        return list(ascii_lowercase[: len(self.modules)])

    def __str__(self) -> str:
        modules = [f"{number} {module.replace(' ', ' on ')}" for number, module in enumerate(self.modules)]
        return f"split_module of ({', '.join(modules)})"


CASES = {
    "parameters": Case(["Linear cpu", "Linear meta", "Linear meta", "Linear meta"], [[0], [1, 2, 3]], ["cpu", "meta"]),
    "nested": Case(["Block cpu", "Block cpu", "Block cpu", "Block meta"], [[0, 1, 2], [3]], ["cpu", "meta"]),
    "one device": Case(["Linear cpu", "Linear cpu", "Linear cpu"], [[0, 1, 2]], ["cpu"]),
    "with device": Case(
        ["WithDevice cpu:0", "WithDevice cpu:0", "WithDevice cpu:1", "WithDevice cpu:2"],
        [[0, 1], [2], [3]],
        ["cpu:0", "cpu:1", "cpu:2"],
    ),
    "again": Case(["Linear cpu", "Linear meta", "Linear cpu"], [[0], [1], [2]], ["cpu", "meta", "cpu"]),
    "no parameters": Case(
        ["ReLU", "Linear meta", "ReLU", "Linear cpu", "ReLU", "ReLU", "Linear cpu"],
        [[0, 1, 2], [3, 4, 5, 6]],
        ["meta", "cpu"],
    ),
    "plain cpu": Case(
        ["WithDevice cpu:0", "Linear cpu", "WithDevice cpu:1", "Linear cpu"], [[0, 1], [2, 3]], ["cpu:0", "cpu:1"]
    ),
}
PLAIN = ("parameters", "nested", "one device")


class Cut(NamedTuple):
    """What split_module gave. ``partitions``: the numbers of the modules in each, None for a module that is not the model's."""

    partitions: list[list[int | None]]
    names: list[list[str]]  # the names of the modules in each
    kinds: list[str]  # the types of the partitions: "Sequential"
    devices: list[tuple[str, str]]  # type and text of each: ("device", "cpu:1")
    unwrapped: list[int]  # the modules that are there without their WithDevice


def probe_split() -> dict[str, Any]:
    """By case: the :class:`Cut`; the Failure of the call; or, if it gave no partitions and devices, what it gave, in words."""
    from labkit import pipe

    def cut(case: Case) -> Any:
        from torch import nn

        modules = [_module(pipe, *module.split()) for module in case.modules]
        found = pipe.split_module(nn.Sequential(OrderedDict(zip(case.names, modules, strict=True))))
        try:
            return _cut(found, modules)
        except TypeError:
            kind = "None" if found is None else f"a {_kind(found)}"
            return f"{case} gave {kind}, expected two lists: the partitions, and their devices"

    return {name: attempt(functools.partial(cut, case), PIPE) for name, case in CASES.items()}


def _module(pipe: Any, kind: str, device: str = "cpu") -> Any:
    from torch import nn

    if kind == "WithDevice":
        return pipe.WithDevice(nn.Linear(2, 2), device)
    if kind == "Block":
        return nn.Sequential(nn.ReLU(), nn.Linear(2, 2, device=device))
    return nn.ReLU() if kind == "ReLU" else nn.Linear(2, 2, device=device)


def _cut(found: Any, modules: list[Any]) -> Cut:
    """What is inside a WithDevice counts as that module, so that each mistake is said once. Raises TypeError for what is no
    pair of lists."""
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise TypeError
    partitions, devices = found
    numbers = {id(module): number for number, module in enumerate(modules)}
    inside = {id(module.module): number for number, module in enumerate(modules) if hasattr(module, "module")}
    numbers |= inside
    return Cut(
        [[numbers.get(id(module)) for module in partition] for partition in partitions],
        [list(getattr(partition, "_modules", [])) for partition in partitions],
        [_kind(partition) for partition in partitions],
        [(_kind(device), str(device)) for device in devices],
        [inside[id(module)] for partition in partitions for module in partition if id(module) in inside],
    )


def _kind(value: Any) -> str:
    return type(value).__name__
