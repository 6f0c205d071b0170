### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to pipe.1; test_answers.py says how they are written."""

from labkit.check import pipe_1 as claims

NEW, ADD = "not devices or device != devices[-1]", "partitions[-1].add_module(name, module)"
OF_PARAMETERS = "next((parameter.device for parameter in module.parameters()), device)"


def first(line: str) -> tuple[str, str]:
    return "placed(modules):", f"placed(modules):\n        {line}"


def last(line: str) -> tuple[str, str]:
    return ADD, f"{ADD}\n    {line}"


COMPLETE = {
    "gives the partitions only": ("it gave [a Sequential, a Sequential], expected two", last("return partitions")),
    "plain lists": ("it gave [[[a Linear], [a ", last("partitions = [list(each) for each in partitions]")),
    "takes modules out of WithDevice": ("['?b', '?', '?'], wh", first("module = getattr(module, 'module', module)")),
    "leaves ReLUs out": ("it gave ['b', 'dg']: module a", (ADD, f"if any(True for _ in module.parameters()): {ADD}")),
    "collects by device": ("['ac', 'b', '']: one after", ("[-1].a", "[devices.index(device or devices[-1])].a")),
    "takes them out of the model": ("it left 0 modules in the", first("del modules[0]")),
}
CUT = {
    "a partition for each module": ("it gave ['a', 'b', 'c', 'd'], expected ['a', 'bcd']: neighbours", (NEW, "True")),
    "begins one for a new device only": (
        "['a', 'bc'], expected ['a', 'b', 'c']: modules",
        (NEW, "device not in devices"),
    ),
    "takes None for a device": ("nothing says where a ReLU is", ("device is not None and ", "")),
    "plain cpu is one more device": ("it gave ['a', 'b', 'c', 'd'], exp", first(f"device = device or {OF_PARAMETERS}")),
}
AS_IN_THE_MODEL = {
    "devices as text": ("['str', 'str'], expected ['cpu', 'meta']", last("devices = list(map(str, devices))")),
    "gives new names": ("names [['0'], ['0', '1', '2']], expected [['a']", (ADD, "partitions[-1].append(module)")),
}
WRONG = {
    claims.each_module_is_in_one_partition: COMPLETE,
    claims.a_partition_begins_where_the_device_changes: CUT,
    claims.devices_and_names_are_those_of_the_model: AS_IN_THE_MODEL,
}
RIGHT = {"a ModuleList and a tuple": [last("partitions, devices = nn.ModuleList(partitions), tuple(devices)")]}
WRONG[claims.a_partition_begins_where_the_device_changes] |= {
    "four partitions at most": ("(drawn with seed=", (NEW, f"len(devices) < 4 and ({NEW})")),
}
NAMED = """    runs = []
    for name, module, device in placed(modules):
        if not runs or device not in (None, runs[-1][0]):
            runs.append((device, {}))
        runs[-1][1][name] = module
    from collections import OrderedDict
    partitions = [nn.Sequential(OrderedDict(named)) for _, named in runs]
    devices = [device for device, _ in runs]
    for name, module, device in []:
"""
RIGHT |= {"runs of named modules": [("    for name, module, device in placed(modules):\n", NAMED)]}
