### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.1; test_answers.py says how they are written."""

from labkit.check import pipe_1 as claims

PLACED, PUT, NEW = "placed(modules):", "(name, module)", "device is not None and (not devices or device != devices[-1])"
NEW_DEVICE, NEW_TYPE = (
    "device is not None and device not in devices",
    NEW.replace("ce != devices[-1]", "ce.type != devices[-1].type"),
)
BEGIN, ADD = "partitions.append(nn.Sequential())", "partitions[-1].add_module(name, module)"
BODY = f"""for name, module, device in {PLACED}
        if {NEW}:
            {BEGIN}
            devices.append(device)
        {ADD}
"""
OPEN_GROUP = """group, before = nn.Sequential(), None
    for name, module, device in placed(modules):
        if len(group) and device not in (before, None):
            partitions.append(group)
            devices.append(before)
            group = nn.Sequential()
        group.add_module(name, module)
        before = device or before
    partitions, devices = [*partitions, group], [*devices, before]
"""
OPEN = "if len(group) and device"
LOSES_THE_LAST = OPEN_GROUP.replace("[*partitions, group], [*devices, before]", "partitions, devices")
BEGINS_WITH_THE_LAST = OPEN_GROUP.replace("group = nn.Sequential()\n        group", "group = group[-1:]\n        group")
PARTITIONS_ONLY = "_cut = split_module\ndef split_module(modules): return _cut(modules)[0]\n"
EACH_ALONE = "partitions = list(modules)\n    devices = [device for _, _, device in placed(modules)]\n"
UNWRAPPED = "module.module if isinstance(module, WithDevice) else module"
BY_DEVICE = """groups = {}
    for name, module, device in placed(modules):
        device = device or list(groups)[-1]
        groups.setdefault(device, nn.Sequential()).add_module(name, module)
    partitions, devices = list(groups.values()), list(groups)
"""
HALVES = "devices = [device for _, _, device in placed(modules)]\n    half = len(modules) // 2\n    "
HALVES += "partitions, devices = [modules[:half], modules[half:]], devices[::half]\n"
GROUPBY = """import itertools
    from collections import OrderedDict
    runs, last = [], None
    for name, module, device in placed(modules):
        last = device or last
        runs.append((last, (name, module)))
    runs = [(device, [named for _, named in run]) for device, run in itertools.groupby(runs, lambda each: each[0])]
    devices, groups = zip(*runs)
    partitions = nn.ModuleList([nn.Sequential(OrderedDict(group)) for group in groups])
"""


def by_parameters(device: str) -> str:
    """Where modules are, by this expression; the first is where the first that names one is."""
    return f"""
def placed(modules):
    named = [(name, module, {device}) for name, module in modules.named_children()]
    first = next(device for _, _, device in named if device)
    return [(*named[0][:2], named[0][2] or first), *named[1:]]
"""


OF_PARAMETERS = "next((parameter.device for parameter in module.parameters()), None)"
OR_WITH_DEVICE = f"module.device if isinstance(module, WithDevice) else {OF_PARAMETERS}"

GIVES = {
    "gives the partitions only": ("it gave [a Sequential, a Sequential], expected two lists", PARTITIONS_ONLY),
    "plain lists": (
        "it gave [[[a Linear], [a Linear, a Linear, a Linear]], [a device, a device]], expected two lists",
        (BEGIN, "partitions.append([])"),
        (ADD, "partitions[-1].append(module)"),
    ),
    "the modules themselves": ("it gave [[a Linear, a Linear, a Linear, a Linear], [a dev", (BODY, EACH_ALONE)),
}
COMPLETE = {
    "fills nothing in": ("it gave []: module 0 is in no partition", (BODY, "")),
    "loses the last group": ("module 1 is in no partition. Do not forget", (BODY, LOSES_THE_LAST)),
    "begins a partition with the module before": ("is there twice", (BODY, BEGINS_WITH_THE_LAST)),
    "takes them out of the model": ("it left 0 modules in the", (PLACED, f"{PLACED}\n        del modules[0]")),
    "copies": ("None is a module that is not the model's", (PUT, "(name, __import__('copy').deepcopy(module))")),
    "takes modules out of WithDevice": ("[[None, None], [None], [None]], where None is", (PUT, f"(name, {UNWRAPPED})")),
    "back to front": (
        "it gave [[0], [3, 2, 1]]: the",
        (ADD, "partitions[-1] = nn.Sequential(module, *partitions[-1])"),
    ),
}
CUT = {
    "equal parts": ("it gave [[0, 1], [2, 3]], expected [[0], [1, 2, 3]]", (BODY, HALVES)),
    "a partition for each module": ("[[0], [1], [2], [3]], expected [[0], [1, 2, 3]]", (NEW, "device is not None")),
    "an empty one at the start": ("it gave [[], [0], [1, 2, 3]], exp", (BODY, OPEN_GROUP.replace(OPEN, "if device"))),
    "collects by device": ("expected [[0], [1], [2]]: compare with the device", (BODY, BY_DEVICE)),
    "begins one for a new device only": ("it gave [[0], [1, 2]], expected [[0], [1], [2]]", (NEW, NEW_DEVICE)),
    "looks at parameters only": ("ask WithDevice for its .device, or see placed", by_parameters(OF_PARAMETERS)),
    "compares the types": ("cpu:0 and cpu:1 are two devices", (NEW, NEW_TYPE)),
    "takes None for a device": ("nothing says where a ReLU is", (NEW, "not devices or device != devices[-1]")),
    "compares with None": (
        "compared with the last device that is not None",
        (PLACED, f"{PLACED}\n        before, last = locals().get('last'), device"),
        (NEW, "device is not None and device != before"),
    ),
    "a module without parameters is on the CPU": (
        "it gave [[0], [1], [2, 3, 4, 5, 6]]",
        by_parameters(OR_WITH_DEVICE.replace("None", "torch.device('cpu')")),
    ),
    "leaves ReLUs out": ("it gave [[1], [3, 6]], exp", (ADD, f"if any(True for _ in module.parameters()): {ADD}")),
    "plain cpu is one more device": ("so that names none of cpu:0 and cpu:1", by_parameters(OR_WITH_DEVICE)),
}
NO_END = {
    "takes for granted that there are parameters": (
        "6 Linear on cpu): it raised StopIteration (labkit/pipe.py, line ",
        by_parameters(OR_WITH_DEVICE.replace(OF_PARAMETERS, "next(module.parameters()).device")),
    )
}
AS_IN_THE_MODEL = {
    "the devices of parameters": (
        "it gave the devices [cpu, cpu, cpu], expected [cpu:0, cpu:1, cpu:2]",
        (ADD, f"{ADD}\n    devices = [next(partition.parameters()).device for partition in partitions]"),
    ),
    "a device for each module": (
        "it gave the devices [cpu, meta, meta, meta], expected [cpu, meta]",
        (ADD, f"{ADD}\n    devices = [device for _, _, device in placed(modules)]"),
    ),
    "devices as text": ("['cpu', 'meta'], expected [cpu, m", (ADD, f"{ADD}\n    devices = list(map(str, devices))")),
    "gives new names": ("names [['0'], ['0', '1', '2']], expected", (ADD, "partitions[-1].append(module)")),
}
WRONG = {
    claims.partitions_are_sequential: GIVES,
    claims.each_module_is_in_one_partition: COMPLETE,
    claims.a_partition_begins_where_the_device_changes: CUT,
    claims.devices_and_names_are_those_of_the_model: AS_IN_THE_MODEL,
    None: NO_END,
}
RIGHT = {
    "a group that is closed when the device changes": [(BODY, OPEN_GROUP)],
    "groupby, a ModuleList and a tuple": [(BODY, GROUPBY)],
}
