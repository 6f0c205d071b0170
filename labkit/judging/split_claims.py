"""What must hold of pipe.1, the partitions. Each claim is a function: its docstring says what must hold, and it gives None
where that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from labkit.judging import split_probes as probes
from labkit.judging.evidence import Evidence, NotTried, holds
from labkit.judging.in_ranks import try_in_ranks
from labkit.judging.split_probes import Case, Cut

META = "the meta device counts as a device like any other"


def gather() -> Evidence:
    """For each case how the answer cut the model."""
    (found,) = try_in_ranks(probes.probe_split, world_size=1, init=False)
    return Evidence(found)


def each_module_is_in_one_partition(evidence: Evidence) -> str | None:
    """Every module is in exactly one partition."""
    if no_partitions := next(
        (found for found in map(evidence.__getitem__, probes.PLAIN) if isinstance(found, str)), None
    ):
        return no_partitions
    for case, cut in _plain(evidence):
        numbers = list(chain(*cut.partitions))
        wanted = range(len(case.modules))
        if None not in numbers and (lost := [number for number in wanted if number not in numbers]):
            return (
                f"{_gave(case, cut)}: module {lost[0]} is in no partition. Do not forget the partition that is open when the "
                "modules end"
            )
        if twice := [number for number in wanted if numbers.count(number) > 1]:
            return f"{_gave(case, cut)}: module {twice[0]} is there twice"
    return None


def modules_are_not_copied(evidence: Evidence) -> str | None:
    """The partitions hold the model's own modules, not copies."""
    for case, cut in _plain(evidence):
        if None in chain(*cut.partitions):
            return (
                f"{_gave(case, cut)}, where None is a module that is not the model's. An optimizer has the parameters of the "
                "model, so put the modules themselves into the partitions"
            )
    return None


def modules_stay_in_order(evidence: Evidence) -> str | None:
    """The modules keep their order."""
    for case, cut in _own(evidence):
        numbers = [number for number in chain(*cut.partitions) if number is not None]
        if numbers != sorted(numbers):
            return f"{_gave(case, cut)}: the partitions one after the other have to compute what the model computes"
    return None


def partitions_are_sequential(evidence: Evidence) -> str | None:
    """Each partition is an nn.Sequential, so that it can be called."""
    for case, cut in _plain(evidence):
        if other := next((kind for kind in cut.kinds if kind != "Sequential"), None):
            return f"{case} gave a {other} as a partition. Make an nn.Sequential of the modules of each partition"
    return None


def modules_keep_their_names(evidence: Evidence) -> str | None:
    """The modules keep the names that they have in the model."""
    if not holds(partitions_are_sequential, evidence):
        raise NotTried("not tried, because partitions are no nn.Sequential yet")
    for case, cut in _cut_right(evidence):
        expected = [[case.names[number] for number in numbers] for numbers in case.partitions]
        if cut.names != expected:
            return (
                f"{case}, where they are named {_list(case.names)}, gave partitions with the names {cut.names}. "
                "add_module(name, module) keeps a name, nn.Sequential(*modules) gives new ones"
            )
    return None


def a_partition_begins_where_the_device_changes(evidence: Evidence) -> str | None:
    """A partition begins where the device changes, and nowhere else."""
    for case, cut in _own(evidence):
        if list(map(len, cut.partitions)) != list(map(len, case.partitions)):
            return (
                f"{_gave(case, cut)}, expected {case.partitions}: modules that follow each other on the same device are one "
                f"partition. A module is where its parameters are, and {META}"
            )
    return None


def with_device_decides(evidence: Evidence) -> str | None:
    """WithDevice decides where its module is."""
    return _cut_otherwise(
        evidence,
        "with device",
        "parameters are on plain cpu wherever a module is to run; ask WithDevice for its .device, or see placed(modules)",
    )


def modules_stay_in_their_with_device(evidence: Evidence) -> str | None:
    """A module that is in a WithDevice goes into its partition as it is, with the WithDevice around it."""
    if not holds(with_device_decides, evidence):
        raise NotTried("not tried, because WithDevice does not decide yet")
    case, cut = _tried(evidence, "with device")
    if cut.unwrapped:
        return (
            f"{case}: module {cut.unwrapped[0]} was taken out of its WithDevice. Put the module in as placed gives it: the names "
            "of its parameters contain the WithDevice, and are to be those that they have in the model"
        )
    return None


def a_device_that_comes_again_is_a_partition_of_its_own(evidence: Evidence) -> str | None:
    """Modules on one device with another device between them are two partitions."""
    return _cut_otherwise(
        evidence, "again", "compare with the device of the module before, rather than collect by device: order matters"
    )


def a_module_without_parameters_stays(evidence: Evidence) -> str | None:
    """A module that names no device stays with the one before it, and in front with the first one that names one."""
    return _cut_otherwise(
        evidence,
        "no parameters",
        "nothing says where a ReLU is, its device in placed(modules) is None, so it stays with the module whose output it "
        "takes; and the module after it is compared with the last device that is not None",
    )


def plain_cpu_among_virtual_devices_stays(evidence: Evidence) -> str | None:
    """Among virtual devices, a module on plain cpu stays with the one before it."""
    if not (holds(with_device_decides, evidence) and holds(a_module_without_parameters_stays, evidence)):
        raise NotTried(
            "not tried, because WithDevice does not decide yet, or a module that names no device does not stay"
        )
    return _cut_otherwise(
        evidence,
        "plain cpu",
        "parameters are on plain cpu wherever a module is to run, so that names none of cpu:0 and cpu:1. See placed(modules)",
    )


def devices_belong_to_partitions(evidence: Evidence) -> str | None:
    """The devices are those of the partitions, one torch.device for each."""
    for case, cut in _cut_right(evidence):
        if wrong := _wrong_devices(case, cut):
            return wrong
        if other := next((kind for kind, _ in cut.devices if kind != "device"), None):
            return f"{case} gave a device as a {other}, expected a torch.device"
    return None


def _plain(evidence: Evidence) -> Iterator[tuple[Case, Cut]]:
    """The cases that say nothing special about a module."""
    return (_tried(evidence, name) for name in probes.PLAIN)


def _own(evidence: Evidence) -> Iterator[tuple[Case, Cut]]:
    """The same, as long as all modules are there."""
    for case, cut in _plain(evidence):
        if sorted(map(str, chain(*cut.partitions))) != sorted(map(str, range(len(case.modules)))):
            raise NotTried("not tried, because not every module is in one partition yet")
        yield case, cut


def _cut_right(evidence: Evidence) -> Iterator[tuple[Case, Cut]]:
    """The same, as long as each partition has the right modules."""
    for case, cut in _own(evidence):
        if cut.partitions != case.partitions:
            raise NotTried("not tried, because models in which every module has parameters are not cut right yet")
        yield case, cut


def _cut_otherwise(evidence: Evidence, name: str, advice: str) -> str | None:
    """What is wrong with the cut of one special case, or None."""
    list(_cut_right(evidence))
    case, cut = _tried(evidence, name)
    if cut.partitions != case.partitions:
        return f"{_gave(case, cut)}, expected {case.partitions}: {advice}"
    return _wrong_devices(case, cut)


def _wrong_devices(case: Case, cut: Cut) -> str | None:
    devices = [device for _, device in cut.devices]
    if devices != case.devices:
        return f"{case} gave the devices {_list(devices)}, expected {_list(case.devices)}, one for each partition"
    return None


def _tried(evidence: Evidence, name: str) -> tuple[Case, Cut]:
    cut = evidence[name]
    if isinstance(cut, str):
        raise NotTried("not tried, because split_module does not give partitions and devices yet")
    return probes.CASES[name], cut


def _gave(case: Case, cut: Cut) -> str:
    return f"{case} gave {cut.partitions}"


def _list(texts: list[str]) -> str:
    return f"[{', '.join(texts)}]"


CLAIMS = (
    each_module_is_in_one_partition,
    modules_are_not_copied,
    modules_stay_in_order,
    partitions_are_sequential,
    a_partition_begins_where_the_device_changes,
    with_device_decides,
    modules_stay_in_their_with_device,
    a_device_that_comes_again_is_a_partition_of_its_own,
    a_module_without_parameters_stays,
    plain_cpu_among_virtual_devices_stays,
    devices_belong_to_partitions,
    modules_keep_their_names,
)
