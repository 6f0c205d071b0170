### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to pipe.1, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

from labkit.judging import split_claims as claims

RIGHT_BODY = """
    partitions, devices = [], []
    for name, module, device in place(modules):
        if device is not None and devices[-1:] != [device]:
            partitions.append([])
            devices.append(device)
        partitions[-1].append((name, module))
    return [nn.Sequential(OrderedDict(partition)) for partition in partitions], devices
"""
BY_PARAMETERS = """
def place(modules):
    named = [(name, module, WHERE) for name, module in modules.named_children()]
    if named[0][2] is None:
        named[0] = (*named[0][:2], next(device for _, _, device in named if device))
    return named
"""
FIRST_PARAMETER = "next(module.parameters()).device"
FIRST_PARAMETER_IF_ANY = "next((parameter.device for parameter in module.parameters()), None)"
OR_WITH_DEVICE = f"module.device if isinstance(module, WithDevice) else {FIRST_PARAMETER_IF_ANY}"


def split(body: str = RIGHT_BODY, where: str = "") -> str:
    """split_module with this body. It asks placed where a module is, or this expression."""
    place = BY_PARAMETERS.replace("WHERE", where) if where else "place = placed"
    return f"from collections import OrderedDict\n{place}\n\ndef split_module(modules):\n    {body.strip()}\n"


OPEN_GROUP = """
    partitions, devices, group, device = [], [], [], None
    for name, module, place_of_module in place(modules):
        if group and place_of_module not in (device, None):
            partitions.append(nn.Sequential(OrderedDict(group)))
            devices.append(device)
            group = []
        group.append((name, module))
        device = place_of_module or device
    return partitions + [nn.Sequential(OrderedDict(group))], devices + [device]
"""
BY_DEVICE = """
    groups, last = {}, None
    for name, module, device in place(modules):
        last = device or last
        groups.setdefault(last, []).append((name, module))
    return [nn.Sequential(OrderedDict(group)) for group in groups.values()], list(groups)
"""
EACH_PLACED = """
    placed, last = [], None
    for name, module, device in place(modules):
        last = device or last
        placed.append((last, name, module))
"""
HALVES = f"""{EACH_PLACED}
    devices = list(dict.fromkeys(place for place, _, _ in placed))
    cuts = [len(modules) * k // len(devices) for k in range(len(devices) + 1)]
    return [modules[cuts[k] : cuts[k + 1]] for k in range(len(devices))], devices
"""
SORTED = f"""{EACH_PLACED}
    placed.sort(key=lambda each: str(each[0]))
    devices = list(dict.fromkeys(place for place, _, _ in placed))
    return [nn.Sequential(OrderedDict(m[1:] for m in placed if m[0] == device)) for device in devices], devices
"""
BY_GROUPBY = f"""{EACH_PLACED}
    import itertools
    runs = [(device, [m[1:] for m in run]) for device, run in itertools.groupby(placed, key=lambda each: each[0])]
    devices, groups = zip(*runs)
    return nn.ModuleList([nn.Sequential(OrderedDict(group)) for group in groups]), devices
"""
SLICES = f"""{EACH_PLACED}
    starts = [i for i in range(len(placed)) if i == 0 or placed[i][0] != placed[i - 1][0]]
    ends = starts[1:] + [len(placed)]
    inner = [(name, module) for _, name, module in placed]
    return [nn.Sequential(OrderedDict(inner[a:b])) for a, b in zip(starts, ends)], [placed[a][0] for a in starts]
"""
NONE_IS_THE_DEVICE_BEFORE = """
    partitions, devices, before = [], [], None
    for name, module, device in place(modules):
        if device is not None and device != before:
            partitions.append(nn.Sequential())
            devices.append(device)
        partitions[-1].add_module(name, module)
        before = device
    return partitions, devices
"""
DEVICES_OF = "in partitions], devices"

WRONG = {
    "gives the partitions only": (
        claims.each_module_is_in_one_partition,
        split(RIGHT_BODY.replace(DEVICES_OF, "in partitions]")),
        "gave a list, expected two lists: the partitions, and their devices",
    ),
    "fills nothing in": (
        claims.each_module_is_in_one_partition,
        split("return [], []"),
        "gave []: module 0 is in no partition",
    ),
    "loses the last group": (
        claims.each_module_is_in_one_partition,
        split(
            OPEN_GROUP.replace(
                "partitions + [nn.Sequential(OrderedDict(group))], devices + [device]", "partitions, devices"
            )
        ),
        "gave [[0]]: module 1 is in no partition. Do not forget the partition that is open",
    ),
    "begins a partition with the module before": (
        claims.each_module_is_in_one_partition,
        split(OPEN_GROUP.replace("group = []\n", "group = group[-1:]\n")),
        "is there twice",
    ),
    "copies": (
        claims.modules_are_not_copied,
        split(RIGHT_BODY.replace("(name, module)", "(name, __import__('copy').deepcopy(module))")),
        "gave [[None], [None, None, None]], where None is a module that is not the model's",
    ),
    "from the last to the first within a partition": (
        claims.modules_stay_in_order,
        split(RIGHT_BODY.replace("append((name, module))", "insert(0, (name, module))")),
        "gave [[0], [3, 2, 1]]: the partitions one after the other have to compute what the model computes",
    ),
    "plain lists": (
        claims.partitions_are_sequential,
        split(RIGHT_BODY.replace("nn.Sequential(OrderedDict(partition))", "[module for _, module in partition]")),
        "gave a list as a partition. Make an nn.Sequential",
    ),
    "equal parts": (
        claims.a_partition_begins_where_the_device_changes,
        split(HALVES),
        "gave [[0, 1], [2, 3]], expected [[0], [1, 2, 3]]",
    ),
    "a partition for each module": (
        claims.a_partition_begins_where_the_device_changes,
        split(RIGHT_BODY.replace(" and devices[-1:] != [device]", "")),
        "gave [[0], [1], [2], [3]], expected [[0], [1, 2, 3]]",
    ),
    "an empty partition at the start": (
        claims.a_partition_begins_where_the_device_changes,
        split(OPEN_GROUP.replace("if group and place", "if place")),
        "gave [[], [0], [1, 2, 3]], expected [[0], [1, 2, 3]]",
    ),
    "looks at parameters only": (
        claims.with_device_decides,
        split(where=FIRST_PARAMETER_IF_ANY),
        "gave [[0, 1, 2, 3]], expected [[0, 1], [2], [3]]: parameters are on plain cpu wherever a module is to run",
    ),
    "the devices of parameters": (
        claims.with_device_decides,
        split(
            RIGHT_BODY.replace(DEVICES_OF, "in partitions], [next(p[-1][1].parameters()).device for p in partitions]")
        ),
        "gave the devices [cpu, cpu, cpu], expected [cpu:0, cpu:1, cpu:2]",
    ),
    "takes modules out of WithDevice": (
        claims.modules_stay_in_their_with_device,
        split(
            RIGHT_BODY.replace(
                "(name, module))", "(name, module.module if isinstance(module, WithDevice) else module))"
            )
        ),
        "module 0 was taken out of its WithDevice. Put the module in as placed gives it: the names of its parameters contain",
    ),
    "collects by device": (
        claims.a_device_that_comes_again_is_a_partition_of_its_own,
        split(BY_DEVICE),
        "gave [[0, 2], [1]], expected [[0], [1], [2]]: compare with the device of the module before",
    ),
    "begins a partition for a new device only": (
        claims.a_device_that_comes_again_is_a_partition_of_its_own,
        split(RIGHT_BODY.replace("devices[-1:] != [device]", "device not in devices")),
        "gave [[0], [1, 2]], expected [[0], [1], [2]]",
    ),
    "sorts by device": (
        claims.a_device_that_comes_again_is_a_partition_of_its_own,
        split(SORTED),
        "gave [[0, 2], [1]], expected [[0], [1], [2]]",
    ),
    "takes None for a device": (
        claims.a_module_without_parameters_stays,
        split(RIGHT_BODY.replace("device is not None and ", "")),
        "gave [[0, 1], [2], [3], [4, 5], [6]], expected [[0, 1, 2], [3, 4, 5, 6]]: nothing says where a ReLU is",
    ),
    "compares with None": (
        claims.a_module_without_parameters_stays,
        split(NONE_IS_THE_DEVICE_BEFORE),
        "and the module after it is compared with the last device that is not None",
    ),
    "a module without parameters is on the CPU": (
        claims.a_module_without_parameters_stays,
        split(where=OR_WITH_DEVICE.replace("None", "torch.device('cpu')")),
        "gave [[0], [1], [2, 3, 4, 5, 6]], expected [[0, 1, 2], [3, 4, 5, 6]]",
    ),
    "takes for granted that there are parameters": (
        claims.a_module_without_parameters_stays,
        split(where=OR_WITH_DEVICE.replace(FIRST_PARAMETER_IF_ANY, FIRST_PARAMETER)),
        "it raised StopIteration (labkit/pipe.py, line ",
    ),
    "leaves modules without parameters out": (
        claims.a_module_without_parameters_stays,
        split(
            RIGHT_BODY.replace(
                "append((name, module))", "extend([(name, module)] * any(True for _ in module.parameters()))"
            )
        ),
        "gave [[1], [3, 6]], expected [[0, 1, 2], [3, 4, 5, 6]]",
    ),
    "plain cpu is one more device": (
        claims.plain_cpu_among_virtual_devices_stays,
        split(where=OR_WITH_DEVICE),
        "gave [[0], [1], [2], [3]], expected [[0, 1], [2, 3]]: parameters are on plain cpu wherever a module is to run",
    ),
    "devices as text": (
        claims.devices_belong_to_partitions,
        split(RIGHT_BODY.replace(DEVICES_OF, "in partitions], list(map(str, devices))")),
        "gave a device as a str, expected a torch.device",
    ),
    "a device for each module": (
        claims.devices_belong_to_partitions,
        split(RIGHT_BODY.replace(DEVICES_OF, "in partitions], [device for _, _, device in place(modules)]")),
        "gave the devices [cpu, meta, meta, meta], expected [cpu, meta]",
    ),
    "gives new names": (
        claims.modules_keep_their_names,
        split(RIGHT_BODY.replace("OrderedDict(partition)", "*[module for _, module in partition]")),
        "named [a, b, c, d], gave partitions with the names [['0'], ['0', '1', '2']]. add_module(name, module) keeps a name",
    ),
}
RIGHT = {
    "a group that is closed when the device changes": split(OPEN_GROUP),
    "groupby, a ModuleList and a tuple": split(BY_GROUPBY),
    "slices": split(SLICES),
}
