"""pipe.1: where split_module cuts models whose modules lie on several devices.

Two devices are there on every machine: the CPU, and torch's meta device, whose tensors have no
data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from string import ascii_lowercase
from typing import Any, NamedTuple

from labkit.check.harness import Task


class Case(NamedTuple):
    """A model, the modules of each partition by number, and what to do where it is not cut so."""

    modules: list[str]
    partitions: list[list[int]]
    advice: str = "modules that follow each other on one device are one partition, and meta is a device like any other"

    def __str__(self) -> str:
        return f"split_module of ({', '.join(f'{number} {module}' for number, module in enumerate(self.modules))})"

    def observe(self) -> Any:
        """Return what it gave, or, where that has the right form, the modules in it by number."""
        from torch import device, nn

        from labkit import pipe

        modules = list(map(_module, self.modules))
        model = nn.Sequential(OrderedDict(zip(ascii_lowercase, modules, strict=False)))
        found: Any = pipe.split_module(model)
        if isinstance(found, list | tuple):
            found = [list(x) if isinstance(x, Iterable) and not isinstance(x, nn.Sequential) else x for x in found]
        match found:
            case [[*partitions], [*devices]] if all(isinstance(each, nn.Sequential) for each in partitions):
                numbers = {id(module): number for number, module in enumerate(modules)}
                return {
                    "partitions": [[numbers.get(id(module)) for module in partition] for partition in partitions],
                    "names": [list(partition._modules) for partition in partitions],
                    "devices": [str(each) if isinstance(each, device) else f"{each!r}" for each in devices],
                    "left": len(model),
                }
        return found


def _module(text: str) -> Any:
    from torch import nn

    from labkit.pipe import WithDevice

    kind, _, device = text.partition(" on ")
    if kind == "WithDevice":
        return WithDevice(nn.Linear(2, 2), device)
    if kind == "Block":
        return nn.Sequential(nn.ReLU(), nn.Linear(2, 2, device=device))
    return nn.Linear(2, 2, device=device) if device else nn.ReLU()


PLAIN = [
    Case(["Linear on cpu", "Linear on meta", "Linear on meta", "Linear on meta"], [[0], [1, 2, 3]]),
    Case(["Block on cpu", "Block on cpu", "Block on cpu", "Block on meta"], [[0, 1, 2], [3]]),
    Case(["Linear on cpu", "Linear on cpu", "Linear on cpu"], [[0, 1, 2]]),
]
AGAIN = Case(
    ["Linear on cpu", "Linear on meta", "Linear on cpu"],
    [[0], [1], [2]],
    "compare with the device of the module before, rather than collect by device: order matters",
)
WITH_DEVICE = Case(
    ["WithDevice on cpu:0", "WithDevice on cpu:0", "WithDevice on cpu:1", "WithDevice on cpu:2"],
    [[0, 1], [2], [3]],
    "cpu:0 and cpu:1 are two devices, and parameters are on plain cpu: ask WithDevice for its .device, or see placed(modules)",
)
NO_DEVICE = Case(
    ["ReLU", "Linear on meta", "ReLU", "Linear on cpu", "ReLU", "ReLU", "Linear on cpu"],
    [[0, 1, 2], [3, 4, 5, 6]],
    "nothing says where a ReLU is, its device in placed(modules) is None, so it stays with the module whose output it "
    "takes; and the module after it is compared with the last device that is not None",
)
ON_PLAIN_CPU = Case(
    ["WithDevice on cpu:0", "Linear on cpu", "WithDevice on cpu:1", "Linear on cpu"],
    [[0, 1], [2, 3]],
    "parameters are on plain cpu wherever a module is to run, so that names none of cpu:0 and cpu:1. See placed(modules)",
)
TASK = Task(given=["check_modules"])


@TASK.claim(PLAIN)
def partitions_are_sequential(case: Case, seen: Any) -> str | bool:
    """It gives two lists: the partitions, each an nn.Sequential, and their devices."""
    return not isinstance(seen, dict) and f"it gave {seen}, expected two lists: nn.Sequentials, and their devices"


@TASK.claim([*PLAIN, WITH_DEVICE], after=[partitions_are_sequential])
def each_module_is_in_one_partition(case: Case, seen: Any) -> str | bool:
    """Every module of the model, not a copy of it, is in exactly one partition, in their order."""
    numbers, wanted = list(chain(*seen["partitions"])), list(range(len(case.modules)))
    gave, left = f"it gave {seen['partitions']}", seen["left"]
    if None in numbers:
        why = "Put in the module itself, whose parameters the optimizer has: no copy, and with the WithDevice around it"
        return f"{gave}, where None is a module that is not the model's. {why}"
    if lost := [number for number in wanted if number not in numbers]:
        return f"{gave}: module {lost[0]} is in no partition. Do not forget the partition that is open when the modules end"
    if twice := [number for number in wanted if numbers.count(number) > 1]:
        return f"{gave}: module {twice[0]} is there twice"
    if numbers != wanted:
        return f"{gave}: the partitions one after the other have to compute what the model computes"
    return left < len(wanted) and f"it left {left} modules in the model, which is the caller's: take none out of it"


@TASK.claim([*PLAIN, AGAIN, WITH_DEVICE, NO_DEVICE, ON_PLAIN_CPU], after=[each_module_is_in_one_partition])
def a_partition_begins_where_the_device_changes(case: Case, seen: Any) -> str | bool:
    """A partition begins where the device changes, which WithDevice may name, and nowhere else."""
    found, expected = seen["partitions"], case.partitions
    return found != expected and f"it gave {found}, expected {expected}: {case.advice}"


@TASK.claim([*PLAIN, AGAIN, WITH_DEVICE], after=[a_partition_begins_where_the_device_changes])
def devices_and_names_are_those_of_the_model(case: Case, seen: Any) -> str | bool:
    """There is one device for each partition, and in a partition the modules keep their names."""
    devices = [case.modules[first].partition(" on ")[2] for first, *_ in case.partitions]
    names = [[ascii_lowercase[number] for number in numbers] for numbers in case.partitions]
    if seen["devices"] != devices:
        gave = f"it gave the devices [{', '.join(seen['devices'])}], expected [{', '.join(devices)}]"
        return f"{gave}, one torch.device for each partition"
    why = "add_module(name, module) keeps a name, nn.Sequential(*modules) gives new ones"
    return seen["names"] != names and f"it gave partitions with the names {seen['names']}, expected {names}. {why}"
