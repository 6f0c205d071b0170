"""pipe.1: where split_module cuts models whose modules lie on several devices.

Two devices are there on every machine: the CPU, and torch's meta device, on which tensors have a shape and no data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from string import ascii_lowercase
from typing import Any, NamedTuple

from labkit.check.harness import Task


class Case(NamedTuple):
    """A model, what each of its modules is and where; how it should be cut, and what to do where it is not."""

    modules: list[str]
    partitions: list[list[int]]  # the numbers of the modules in each
    devices: list[str]
    advice: str = "modules that follow each other on one device are one partition, and meta is a device like any other"

    def __str__(self) -> str:
        modules = [f"{number} {module.replace(' ', ' on ')}" for number, module in enumerate(self.modules)]
        return f"split_module of ({', '.join(modules)})"

    def observe(self) -> Any:
        """Return the numbers of the modules in each partition, what else there is to know, and the devices."""
        from torch import nn

        from labkit import pipe

        modules = [_module(*module.split()) for module in self.modules]
        model = nn.Sequential(OrderedDict(zip(ascii_lowercase, modules, strict=False)))
        found = pipe.split_module(model)
        lists = isinstance(found, list | tuple) and [isinstance(each, Iterable) for each in found] == [True, True]
        if not lists or any(isinstance(device, nn.Module) for device in found[1]):
            return found
        inside = {id(module.module): number for number, module in enumerate(modules) if hasattr(module, "module")}
        numbers = {id(module): number for number, module in enumerate(modules)} | inside
        whole = [id(each) in numbers or not isinstance(each, Iterable) for each in found[0]]
        partitions = [[each] if alone else list(each) for each, alone in zip(found[0], whole, strict=True)]
        return {
            "left": len(model),
            "partitions": [[numbers.get(id(module)) for module in partition] for partition in partitions],
            "others": [type(each).__name__ for each in found[0] if not isinstance(each, nn.Sequential)],
            "names": [list(getattr(each, "_modules", [])) for each in found[0]],
            "unwrapped": [inside[id(module)] for module in chain(*partitions) if id(module) in inside],
            "devices": [(type(device).__name__, str(device)) for device in found[1]],
        }


def _module(kind: str, device: str = "cpu") -> Any:
    from torch import nn

    from labkit import pipe

    if kind == "WithDevice":
        return pipe.WithDevice(nn.Linear(2, 2), device)
    if kind == "Block":
        return nn.Sequential(nn.ReLU(), nn.Linear(2, 2, device=device))
    return nn.ReLU() if kind == "ReLU" else nn.Linear(2, 2, device=device)


PLAIN = [
    Case(["Linear cpu", "Linear meta", "Linear meta", "Linear meta"], [[0], [1, 2, 3]], ["cpu", "meta"]),
    Case(["Block cpu", "Block cpu", "Block cpu", "Block meta"], [[0, 1, 2], [3]], ["cpu", "meta"]),
    Case(["Linear cpu", "Linear cpu", "Linear cpu"], [[0, 1, 2]], ["cpu"]),
]
AGAIN = Case(
    ["Linear cpu", "Linear meta", "Linear cpu"],
    [[0], [1], [2]],
    ["cpu", "meta", "cpu"],
    "compare with the device of the module before, rather than collect by device: order matters",
)
ON_CPU = "parameters are on plain cpu wherever a module is to run"
WITH_DEVICE = Case(
    ["WithDevice cpu:0", "WithDevice cpu:0", "WithDevice cpu:1", "WithDevice cpu:2"],
    [[0, 1], [2], [3]],
    ["cpu:0", "cpu:1", "cpu:2"],
    f"{ON_CPU}; ask WithDevice for its .device, or see placed(modules)",
)
NO_DEVICE = [
    Case(
        ["ReLU", "Linear meta", "ReLU", "Linear cpu", "ReLU", "ReLU", "Linear cpu"],
        [[0, 1, 2], [3, 4, 5, 6]],
        ["meta", "cpu"],
        "nothing says where a ReLU is, its device in placed(modules) is None, so it stays with the module whose output it "
        "takes; and the module after it is compared with the last device that is not None",
    ),
    Case(
        ["WithDevice cpu:0", "Linear cpu", "WithDevice cpu:1", "Linear cpu"],
        [[0, 1], [2, 3]],
        ["cpu:0", "cpu:1"],
        f"{ON_CPU}, so that names none of cpu:0 and cpu:1. See placed(modules)",
    ),
]
TASK = Task(given=["check_modules"])


@TASK.claim(PLAIN)
def each_module_is_in_one_partition(case: Case, seen: Any) -> str | None:
    """Every module of the model, not a copy of it, is in exactly one partition, in their order."""
    if not isinstance(seen, dict):
        return f"it gave {seen}, expected two lists: the partitions, and their devices"
    numbers, wanted = list(chain(*seen["partitions"])), list(range(len(case.modules)))
    gave = f"it gave {seen['partitions']}"
    if None in numbers:
        why = "An optimizer has the parameters of the model, so put the modules themselves into the partitions"
        return f"{gave}, where None is a module that is not the model's. {why}"
    if lost := [number for number in wanted if number not in numbers]:
        return f"{gave}: module {lost[0]} is in no partition. Do not forget the partition that is open when the modules end"
    if twice := [number for number in wanted if numbers.count(number) > 1]:
        return f"{gave}: module {twice[0]} is there twice"
    if numbers != wanted:
        return f"{gave}: the partitions one after the other have to compute what the model computes"
    if (left := seen["left"]) < len(case.modules):
        return f"it left {left} modules in the model, which is the caller's: take none out of it"
    return None


COMPLETE = [each_module_is_in_one_partition]


@TASK.claim(PLAIN, after=COMPLETE)
def partitions_are_sequential(case: Case, seen: Any) -> str | None:
    """Each partition is an nn.Sequential, so that it can be called."""
    if not seen["others"]:
        return None
    return f"it gave a {seen['others'][0]} as a partition. Make an nn.Sequential of the modules of each partition"


@TASK.claim([*PLAIN, AGAIN], after=COMPLETE)
def a_partition_begins_where_the_device_changes(case: Case, seen: Any) -> str | None:
    """A partition begins where the device changes, and nowhere else."""
    return _cut(case, seen)


@TASK.claim([WITH_DEVICE], after=[a_partition_begins_where_the_device_changes])
def with_device_decides(case: Case, seen: Any) -> str | None:
    """WithDevice decides where its module is, and goes into the partition with it."""
    if seen["unwrapped"]:
        return (
            f"module {seen['unwrapped'][0]} was taken out of its WithDevice. Put the module in as placed gives it: the names of "
            "its parameters contain the WithDevice, and are to be those that they have in the model"
        )
    if seen["partitions"] != case.partitions and ["device", "cpu:0"] in seen["devices"]:
        return f"it gave {seen['partitions']}, expected {case.partitions}: cpu:0 and cpu:1 are two devices, of one type"
    return _cut(case, seen)


@TASK.claim(NO_DEVICE, after=[with_device_decides])
def a_module_without_a_device_stays(case: Case, seen: Any) -> str | None:
    """A module that names no device stays with the one before it, and in front with the first one that names one."""
    return _cut(case, seen)


def _cut(case: Case, seen: Any) -> str | None:
    if seen["partitions"] == case.partitions:
        return None
    return f"it gave {seen['partitions']}, expected {case.partitions}: {case.advice}"


@TASK.claim([*PLAIN, AGAIN, WITH_DEVICE], after=[with_device_decides])
def devices_belong_to_partitions(case: Case, seen: Any) -> str | None:
    """The devices are those of the partitions, one torch.device for each."""
    devices = [device for _, device in seen["devices"]]
    if devices != case.devices:
        expected = ", ".join(case.devices)
        return f"it gave the devices [{', '.join(devices)}], expected [{expected}], one for each partition"
    if other := {kind for kind, _ in seen["devices"]} - {"device"}:
        return f"it gave a device as a {min(other)}, expected a torch.device"
    return None


@TASK.claim(PLAIN, after=[partitions_are_sequential, a_partition_begins_where_the_device_changes])
def modules_keep_their_names(case: Case, seen: Any) -> str | None:
    """The modules keep the names that they have in the model."""
    expected = [[ascii_lowercase[number] for number in partition] for partition in case.partitions]
    if seen["names"] == expected:
        return None
    return (
        f"it gave partitions with the names {seen['names']}, expected {expected}. add_module(name, module) keeps a name, "
        "nn.Sequential(*modules) gives new ones"
    )
