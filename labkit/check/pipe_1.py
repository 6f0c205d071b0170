"""pipe.1: where split_module cuts models that lie on several devices.

These are the CPU, virtual devices, and torch's meta device, which every machine has.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from contextlib import suppress
from typing import Any, NamedTuple

from labkit.check.harness import Finding, Task


class Case(NamedTuple):
    """A model, the modules of each partition with its device, and what tells of another cut."""

    modules: str
    cut: dict[str, str]
    advice: str = "neighbours on one device are one partition, others are not; meta is a device too"

    def __str__(self) -> str:
        return f"split_module of ({self.modules})"

    def observe(self) -> Any:
        """Return what it gave, or, where that has the right form, what is in it, by name."""
        from torch import device, nn

        from labkit import pipe

        modules = {name: _module(*kind) for name, *kind in map(str.split, self.modules.split(", "))}
        model = nn.Sequential(OrderedDict(modules))
        names = {id(module): name for name, module in modules.items()}
        found: Any = pipe.split_module(model)
        with suppress(TypeError, ValueError):  # of anything but two lists
            partitions, devices = map(list, found)
            if all(isinstance(partition, nn.Sequential) for partition in partitions):
                return {
                    "partitions": ["".join(names.get(id(x), "?") for x in each) for each in partitions],
                    "names": [list(partition._modules) for partition in partitions],
                    "devices": [str(x) if isinstance(x, device) else type(x).__name__ for x in devices],
                    "left": len(model),
                }
        return found


def _module(kind: str, on: str = "on", device: str = "cpu") -> Any:
    from torch import nn

    from labkit.pipe import WithDevice

    linear = nn.Linear(2, 2, device=device)
    kinds = {"Linear": linear, "Block": nn.Sequential(linear), "WithDevice": WithDevice(linear, device)}
    return kinds.get(kind) or nn.ReLU()


def drawn(draw: random.Random) -> list[Case]:
    """Return modules on six runs of devices, some of which come again."""
    devices, kinds = ["cpu", "meta"] * 3, ("Linear", "Block", "WithDevice")
    names, cut, modules = iter("abcdefghijklmnopqr"), dict[str, str](), list[str]()
    for device in devices:
        run = [next(names) for _ in range(draw.randint(1, 3))]
        modules += [f"{name} {draw.choice(kinds)} on {device}" for name in run]
        cut["".join(run)] = device
    return [Case(", ".join(modules), cut)]


CASES: list[Any] = [
    Case("a Linear on cpu, b Linear on meta, c Linear on meta, d Linear on meta", {"a": "cpu", "bcd": "meta"}),
    Case(
        "a Linear on cpu, b Block on meta, c Linear on cpu",
        {"a": "cpu", "b": "meta", "c": "cpu"},
        "modules run in their order, whatever their devices",
    ),
    Case(
        "a ReLU, b Linear on meta, c ReLU, d Linear on cpu, e ReLU, f ReLU, g Linear on cpu",
        {"abc": "meta", "defg": "cpu"},
        "nothing says where a ReLU is, so it stays with the one before",
    ),
    Case(
        "a WithDevice on cpu:0, b Linear on cpu, c WithDevice on cpu:1, d WithDevice on cpu:2",
        {"ab": "cpu:0", "c": "cpu:1", "d": "cpu:2"},
        "cpu:0 and cpu:1 are two devices, and plain cpu is neither of them: see placed(modules)",
    ),
    drawn,
]
TASK = Task(
    writes="split_module",
    minutes=15,
    points=10,
    notebooks="08 to 10",
    hints=(
        """Read the devices of a model from the front to the back, such as 0, 0, 1, 1, 0. Where does a
partition begin, and how many are there?""",
        """The two lists grow together. For each module decide first whether a new partition begins with it;
then, in any case, put the module into the last partition, by add_module and under the name that it
has.""",
        """Compare with the device of the last partition alone: a device that comes a second time is a new
partition. A module that names no device never begins one, so ask that first. An nn.Sequential that
is made of a list of modules numbers them anew, and their names are lost.""",
    ),
)


@TASK.claim(CASES)
def each_module_is_in_one_partition(case: Case, seen: Any) -> Finding:
    """Every module of the model, not a copy, is in exactly one nn.Sequential, in their order."""
    if not isinstance(seen, dict):
        expected = "expected two lists: the partitions, each an nn.Sequential, and their devices"
        return f"it gave {seen}, {expected}"
    found, wanted = "".join(seen["partitions"]), "".join(case.cut)
    gave = f"it gave {seen['partitions']}"
    if "?" in found:
        return f"{gave}, where ? is not a module of the model. Put in each itself: no copy, no part"
    if lost := set(wanted).difference(found):
        why = "Is it the first of a partition, without a device, or after the last cut?"
        return f"{gave}: module {min(lost)} is in no partition. {why}"
    if found != wanted:
        why = "Where a device comes again, so does a partition"
        return f"{gave}: one after the other they have to be the model. {why}"
    left = f"it left {seen['left']} modules in the caller's model"
    return seen["left"] < len(wanted) and f"{left}: take none out of it"


@TASK.claim(CASES, core=True)
def a_partition_begins_where_the_device_changes(case: Case, seen: Any) -> Finding:
    """A partition begins where the device changes, which WithDevice may name, and nowhere else."""
    found, expected = seen["partitions"], [*case.cut]
    return found != expected and f"it gave {found}, expected {expected}: {case.advice}"


@TASK.claim(CASES)
def devices_and_names_are_those_of_the_model(case: Case, seen: Any) -> Finding:
    """There is one device for each partition, and in a partition the modules keep their names."""
    devices, names = [*case.cut.values()], [[*each] for each in case.cut]
    if seen["devices"] != devices:
        expected = f"expected {devices}, a torch.device for each partition"
        return f"it gave the devices {seen['devices']}, {expected}"
    why = "nn.Sequential(*modules) gives new ones"
    gave = f"it gave modules the names {seen['names']}, expected {names}"
    return seen["names"] != names and f"{gave}. {why}"
