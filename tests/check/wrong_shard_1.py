### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to shard.1; test_answers.py says how they are written."""

from labkit.check import shard_1 as claims
from labkit.check.calls import calls_have_ended

EMPTIEST, WORLD, RANK = "held_bytes.index(min(held_bytes))", "dist.get_world_size()", "dist.get_rank()"
EARLIER, COUNT = (
    "in self.owners.items():",
    "self.owners[parameter] = owner\n            held_bytes[owner] += parameter.nbytes",
)
PART, IS_OWN = 'return group | {"params": own}', f"self.owners[parameter] == {RANK}"
STEP, SENT = (
    "loss = self.local.step(closure)",
    "Broadcast(parameter, owner) for parameter, owner in self.owners.items()",
)
WAIT, RETURN = "broadcast.wait()", "return loss"
SEND = f"""        broadcasts = [{SENT}]
        for broadcast in broadcasts:
            {WAIT}
"""
GATHER, STATE = "dist.all_gather_object(states, own)", "number: state[number] for state in states for number in state"


def instead(lines: str) -> tuple[str, str]:
    return SEND, "".join(f"        {line}\n" for line in lines.strip().splitlines())


SEND_GRADIENTS = SENT.replace("t(parameter,", "t(parameter.grad,") + " if parameter.grad is not None"
RUNS = f"owner = next(n for n, each in enumerate(parameters) if each is parameter) * {WORLD} // len(parameters)"
MEAN = f"for parameter in self.owners:\n    dist.all_reduce(parameter.data); parameter.data /= {WORLD}"
SUM_OF_ZEROS = f"""
for parameter, owner in self.owners.items():
    if owner != {RANK}: parameter.data.zero_()
    dist.all_reduce(parameter.data)
"""
ALL_FROM_ALL = f"""
for parameter, owner in self.owners.items():
    found = [torch.empty_like(parameter) for _ in range({WORLD})]
    dist.all_gather(found, parameter.data)
    parameter.data.copy_(found[owner])
"""
OBJECTS = f"""
found = [None] * {WORLD}
dist.all_gather_object(found, [parameter.data for parameter in self.owners])
for n, (parameter, owner) in enumerate(self.owners.items()): parameter.data.copy_(found[owner][n])
"""
UNDER_NO_GRAD = "loss = closure() if closure else None; self.local.step()"
ONLY_RANK_0 = f"dist.gather_object(own, states if {RANK} == 0 else None); states = [each or {{}} for each in states]"
LOCAL_NUMBERS = GATHER.replace("own", "on_cpu(self.local.state_dict()['state'])")
CLEARS_ITS_OWN = "ShardedOptimizer.zero_grad = lambda self, set_to_none=True: self.local.zero_grad(set_to_none)\n"
LOADS = "ShardedOptimizer.load_state_dict = "
LOADS_NOTHING = f"{LOADS}lambda self, state_dict: None\n"
LOADS_INTO_LOCAL = f"{LOADS}lambda self, state_dict: self.local.load_state_dict(state_dict)\n"
KEEPS_ALL = """
def _load_all(self, state_dict):
    torch.optim.Optimizer.load_state_dict(self, state_dict)
    self.local.state = self.state
ShardedOptimizer.load_state_dict = _load_all
"""

WRONG = {
    claims.each_parameter_has_one_owner: {
        "keeps the state of all": ("so no memory is saved", (PART, "return group")),
        "takes what others own": ("held by all ranks but one", (IS_OWN, IS_OWN.replace("==", "!="))),
        "every rank says mine": ("so no memory is saved", (EMPTIEST, RANK)),
        "counts from its own rank": (
            "ranks 0, 1 and 2 hold parameter 0: ranks disagree",
            (EMPTIEST, f"(len(self.owners) + {RANK}) % 3"),
        ),
        "draws an owner": ("ranks disagree", (EMPTIEST, f"__import__('random').Random({RANK}).randrange(3)")),
    },
    claims.shares_are_even_in_bytes: {
        "in turns": ("in turns, whatever their sizes", (EMPTIEST, f"len(self.owners) % {WORLD}")),
        "runs of as many parameters": ("as many parameters on each rank", ("owner = " + EMPTIEST, RUNS)),
        "all to the fullest": ("all parameters are on rank 0", (EMPTIEST, "held_bytes.index(max(held_bytes))")),
        "begins anew with each group": ("earlier groups", (EARLIER, "in []:")),
        "counts elements": ("elements", (COUNT, COUNT.replace("nbytes", "numel()"))),
    },
    calls_have_ended: {
        "does not wait": ("rank 0 began broadcast and never called wait()", (WAIT, "pass")),
        "waits for the last one": ("rank 0 began broadcast and never called wait()", (WAIT, "broadcasts[-1].wait()")),
    },
    claims.weights_are_those_of_one_process: {
        "sends nothing": ("never arrived", instead("pass")),
        "sends gradients": ("never arrived: after its owner", (SENT, SEND_GRADIENTS)),
        "sends before it steps": ("one step behind", (STEP, "pass"), (RETURN, f"{STEP}; {RETURN}")),
        "everything from rank 0": (
            "not all from one rank",
            (SENT, SENT.replace("parameter, owner", "parameter, 0", 1)),
        ),
        "the mean of all ranks": ("the mean of all ranks", instead(MEAN)),
        "steps twice": ("stepped twice", (STEP, f"{STEP}; self.local.step()")),
        "does not step": ("as if no rank had stepped", (STEP, "loss = None")),
    },
    claims.zero_grad_clears_all: {"clears its own": ("still has a gradient", CLEARS_ITS_OWN)},
    claims.closure_is_called_once_and_its_loss_returned: {
        "ignores the closure": ("was called 0 times", (STEP, "loss = self.local.step()")),
        "forgets the loss": ("step(closure) returned None", (RETURN, "return None")),
        "calls it twice": (
            "was called 2 times",
            (STEP, f"with torch.enable_grad(): _ = closure and closure()\n        {STEP}"),
        ),
        "under no_grad": ("gradients switched off", (STEP, UNDER_NO_GRAD)),
    },
    claims.each_parameter_travels_once: {
        "all_reduces zeros": ("all_reduce moves every number twice", instead(SUM_OF_ZEROS)),
        "everything from all ranks": ("takes every parameter from every rank", instead(ALL_FROM_ALL)),
        "all as objects": ("takes every parameter from every rank", instead(OBJECTS)),
    },
    claims.full_state_is_that_of_a_plain_optimizer: {
        "its own alone": ("rank 0 has the state of", (GATHER, "states = [own]")),
        "numbers of the local optimizer": ("numbers", (GATHER, LOCAL_NUMBERS)),
        "on rank 0 alone": ("on every rank", (GATHER, ONLY_RANK_0)),
        "without the groups": ("param_groups", ("return full | {", "return {")),
        "the states as a list": ('"state"', (f"{{{STATE}}}", "states")),
    },
    claims.loaded_states_go_on: {
        "keeps a full state": ("holds the state of", KEEPS_ALL),
        "loads nothing": ("its own share, and its next step is not", LOADS_NOTHING),
    },
    None: {"loads into the local one": ("a parameter group that doesn't match the size", LOADS_INTO_LOCAL)},
}


FLAT = f"""
for owner in range({WORLD}):
    parts = [parameter for parameter, of in self.owners.items() if of == owner]
    if parts:
        flat = torch.cat([part.data.view(-1) for part in parts])
        dist.broadcast(flat, owner)
        for part, new in zip(parts, flat.split([part.numel() for part in parts])):
            part.data.copy_(new.view_as(part))
"""
SHARES = f"""
shares = [[p for p, of in self.owners.items() if of == rank] for rank in range({WORLD})]
longest = max(sum(p.numel() for p in share) for share in shares)
mine = torch.cat([*(p.data.view(-1) for p in shares[{RANK}]), torch.zeros(longest, dtype=torch.float64)])[:longest]
found = [torch.empty_like(mine) for _ in shares]
dist.all_gather(found, mine)
for share, flat in zip(shares, found):
    for p, new in zip(share, flat.split([*(p.numel() for p in share), longest - sum(p.numel() for p in share)])):
        p.data.copy_(new.view_as(p))
"""
OWN_CLOSURE = """loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.local.step()"""
RIGHT = {
    "the largest first": [
        ("for parameter in parameters:", "for parameter in sorted(parameters, key=lambda p: -p.nbytes):")
    ],
    "one after the other": [
        instead("for parameter, owner in self.owners.items(): dist.broadcast(parameter.data, owner)")
    ],
    "one message from each owner": [instead(FLAT)],
    "all_gather of whole shares": [instead(SHARES)],
    "leaves options to the step": [(PART, 'return {"params": own}')],
    "calls the closure itself": [(STEP, OWN_CLOSURE)],
    "leaves out what is frozen": [(SENT, f"{SENT} if parameter.requires_grad")],
    "each rank tells its own": [
        (
            GATHER,
            f"for n in range({WORLD}):\n            dist.broadcast_object_list(box := [own], n); states[n] = box[0]",
        )
    ],
}
FROZEN = (
    "for parameter in parameters:\n            owner",
    "for parameter in [each for each in parameters if each.requires_grad]:\n            owner",
)
FULL, FULL_STATE = "return full | {", f"{{{STATE}}}"
ONLY_ITS_OWN = """for parameter, owner in self.owners.items():
            if owner != dist.get_rank(): parameter.grad = None
        return loss"""
IN_FLOAT32 = """
for parameter, owner in self.owners.items():
    new = parameter.data.float(); dist.broadcast(new, owner); parameter.data.copy_(new)
"""
ZEROS = "for parameter in self.owners:\n            if parameter.grad is not None: parameter.grad.zero_()\n        return loss"
WRONG[claims.each_parameter_has_one_owner] |= {
    "frozen is nobody's": ("which is frozen and may be unfrozen", (IS_OWN, f"{IS_OWN} and parameter.requires_grad")),
    "frozen has no owner, and none is missed": (
        "which is frozen and may be",
        FROZEN,
        (IS_OWN, f"self.owners.get(parameter) == {RANK}"),
    ),
    "an empty share takes one": ("hold parameter 0", (PART, 'return group | {"params": own or group["params"][:1]}')),
    "three ranks": ("(drawn with seed=", (f"[0] * {WORLD}", "[0] * 3")),
}
WRONG[None] |= {"frozen has no owner": ("each needs one, a frozen one too", FROZEN)}
WRONG[claims.closure_is_called_once_and_its_loss_returned] |= {
    "an empty share does not step": (
        "2 parameters on 3 ranks: on rank 2, the closure was called 0 times",
        (STEP, f"loss = self.local.step(closure) if {RANK} in self.owners.values() else None"),
    ),
}
WRONG[claims.gradients_stay] = {
    "clears what it does not own": ("has changed the gradient of", (RETURN, ONLY_ITS_OWN)),
    "clears all": ("has changed the gradient of", (RETURN, ZEROS)),
}
WRONG[claims.weights_are_those_of_one_process] |= {
    "sends in float32": (
        "neither right nor what it was before",
        instead(IN_FLOAT32),
    ),
}
WRONG[claims.full_state_is_that_of_a_plain_optimizer] |= {
    "groups of the local one": (
        "params is [0], expected [0, 1]",
        (FULL, 'return full | {"param_groups": self.local.state_dict()["param_groups"]} | {'),
    ),
    "no groups": ("there is 0 of them, expected 2", (FULL, 'return full | {"param_groups": []} | {')),
    "numbered as they come": (
        "has the state of 0, 1 and 2, expected 0, 1 and 4",
        (FULL_STATE, "dict(enumerate(state[number] for state in states for number in sorted(state)))"),
    ),
    "numbers as text": ("go by a str", (FULL_STATE, FULL_STATE.replace("{number:", "{str(number):"))),
    "of others the numbers alone": (
        "of parameter 1 is not a plain",
        (
            FULL_STATE,
            f"{{number: state[number] if n == {RANK} else {{}} for n, state in enumerate(states) for number in state}}",
        ),
    ),
}
POINT_TO_POINT = f"""
for parameter, owner in self.owners.items():
    if owner == {RANK}:
        for other in range({WORLD}):
            if other != owner: dist.send(parameter.data, other)
    else:
        dist.recv(parameter.data, owner)
"""
NEW_MEMORY = """
for parameter, owner in self.owners.items():
    new = parameter.data.clone(); dist.broadcast(new, owner); parameter.data = new
"""
RIGHT |= {
    "point to point": [instead(POINT_TO_POINT)],
    "new memory for a parameter": [instead(NEW_MEMORY)],
    "only what has a gradient": [(SENT, f"{SENT} if parameter.grad is not None")],
}
REMARKS = {"new memory for a parameter": "lies in other memory after a step"}
