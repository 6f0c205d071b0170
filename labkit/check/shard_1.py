"""shard.1: a ShardedOptimizer trains on three ranks, compared with a plain one in one process."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import torch
from torch import nn

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.closeness import close
from labkit.check.harness import Finding, Task
from labkit.check.shares import SHARES, N, each_parameter_has_one_owner, shares_are_even_in_bytes

GIVEN = ["__init__", "add_param_group", "_parameters", "state_dict", "load_state_dict"]
TASK = Task(
    writes="ShardedOptimizer",
    minutes=30,
    points=15,
    notebooks="07",
    given=GIVEN,
    known={"KeyError: Parameter": "That parameter has no owner: each needs one, a frozen one too"},
    hints=(
        """Adam keeps two numbers for each parameter. If every rank has every gradient, how many ranks have to
keep those two, and what do the others lack after the step?""",
        """An owner for each parameter, found on every rank by the same sum; a local optimizer for what this
rank owns; after its step one broadcast a parameter, from that owner. The full state is one dict.""",
        """Keep in mind how many bytes each rank owns, of earlier groups as well, and give the next parameter
to the emptiest. Step before you send, start all broadcasts before you wait for the first, and wait
for all. The states of all ranks have different numbers, so put together they are what one process
would have, on every rank.""",
    ),
)

TASK.claim(SHARES)(each_parameter_has_one_owner)
TASK.claim(SHARES)(shares_are_even_in_bytes)

# --- training -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Training:
    """Steps of training: three, of which the second has another lr, then one with a closure."""

    optimizer: str
    options: dict[str, Any]
    layers: tuple[str, ...] = ("first", "unused", "last")
    world_size = N

    def __str__(self) -> str:
        few = f", with {2 * len(self.layers)} parameters on {N} ranks" if 2 * len(self.layers) < N else ""
        return f"with {self.optimizer}{few}"

    def model(self) -> nn.ModuleDict:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            model = nn.ModuleDict({name: nn.Linear(3, 3) for name in self.layers}).double()
        if "last" in model:
            model["last"].bias.requires_grad_(False)
        return model

    def groups(self, model: Any) -> list[dict[str, Any]]:
        first, *others = ([*layer.parameters()] for layer in model.values())
        rest = [{"params": [*chain(*others)], "lr": 0.05}] if others else []
        return [{"params": first}, *rest]

    def sharded(self, groups: list[dict[str, Any]]) -> Any:
        """Return a student's optimizer."""
        from labkit import shard

        return shard.ShardedOptimizer(groups, vars(torch.optim)[self.optimizer], **self.options)

    def loss(self, model: Any, step: int) -> Any:
        rows = torch.linspace(-1, step + 1, 12, dtype=torch.float64).view(4, 3)
        hidden = model["first"](rows).tanh()
        return ((model["last"](hidden) if "last" in model else hidden) - 1).square().mean()

    def train(self, model: Any, optimizer: Any) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Yield after each of three steps the weights, and whose gradient the step has changed."""
        for step in range(3):
            optimizer.zero_grad()
            self.loss(model, step).backward()
            optimizer.param_groups[0]["lr"] /= step + 1  # as a scheduler would
            before = copy.deepcopy(gradients(model))
            optimizer.step()
            yield weights(model), [name for name, own in gradients(model).items() if not close(own, before[name])]

    def go_on(self, model: Any, optimizer: Any) -> dict[str, Any]:
        """Take one step with a closure. Return what became of it."""
        calls = []

        def closure() -> Any:
            calls.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            loss = self.loss(model, 3)
            with torch.enable_grad():
                (loss if loss.requires_grad else self.loss(model, 3)).backward()
            return loss

        loss = optimizer.step(closure)
        loss = None if loss is None else float(loss.detach())
        return {"calls": calls, "loss": loss, "weights": weights(model)}

    def observe(self) -> dict[str, Any]:
        model = self.model()
        tied, *others = self.groups(model)
        tied["params"].append(tied["params"][0])
        optimizer = self.sharded([tied, *others])
        places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
        with recorded() as calls:
            steps, changed = zip(*self.train(model, optimizer), strict=True)
        optimizer.zero_grad()
        full = optimizer.full_state_dict()
        state = full.get("state") if isinstance(full, dict) else None
        return {
            "steps": steps,
            "calls": calls,
            "changed": [*chain(*changed)],
            "moved": [name for name, parameter in model.named_parameters() if parameter.data_ptr() != places[name]],
            "uncleared": [name for name, grad in gradients(model).items() if grad is not None and grad.any()],
            "full": copy.deepcopy(full),
            "numbers": [type(number).__name__ for number in state] if isinstance(state, dict) else [],
            "its own share": self.load(optimizer.state_dict(), model),
            "a full state": self.load(self.plain()["state"], model),
            "closure": self.go_on(model, optimizer),
        }

    def load(self, state: dict[str, Any], trained: Any) -> dict[str, Any]:
        """Return weights, and the numbers of the states, after a new optimizer has loaded one."""
        model = copy.deepcopy(trained)
        again = self.sharded(self.groups(model))
        again.load_state_dict(copy.deepcopy(state))
        numbers = sorted(again.state_dict()["state"])
        return {"numbers": numbers, "weights": self.go_on(model, again)["weights"]}

    def plain(self) -> dict[str, Any]:
        """Return weights, state, and the step with a closure, of a plain optimizer alone."""
        model = self.model()
        optimizer = vars(torch.optim)[self.optimizer](self.groups(model), **self.options)
        steps = [each for each, _ in self.train(model, optimizer)]
        state = copy.deepcopy(optimizer.state_dict())
        return {"steps": steps, "state": state, "closure": self.go_on(model, optimizer)}


@functools.cache
def plain(case: Training) -> dict[str, Any]:
    """Return what :meth:`Training.plain` does in a process that has no student's code.

    torch.optim takes a second to load here; there it mostly is.
    """
    from labkit.launch import launch

    found: dict[str, Any] = launch(case.plain, world_size=1, backend="gloo", init=False).values[0]
    return found


def weights(model: Any) -> dict[str, Any]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(model: Any) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def alike(found: dict[str, Any], right: dict[str, Any]) -> bool:
    return all(close(found[name], each) for name, each in right.items())


TRAININGS = [
    Training("SGD", {"lr": 0.1, "momentum": 0.9}),
    Training("AdamW", {"lr": 0.1, "weight_decay": 0.2}),
    Training("SGD", {"lr": 0.1, "momentum": 0.9}, layers=("first",)),
]
TASK.claim(TRAININGS)(calls_have_ended)


@TASK.claim(TRAININGS, core=True)
def weights_are_those_of_one_process(case: Training, seen: Any) -> Finding:
    """After each step every rank has the weights that one process has."""
    for step, name, rank in product(range(3), weights(case.model()), range(N)):
        if not close(seen[rank]["steps"][step][name], plain(case)["steps"][step][name]):
            return f"step {step}: on rank {rank}, {name} {_instead(case, seen, step, name, rank)}"


def _instead(case: Training, seen: Any, step: int, name: str, rank: int) -> str:
    """Return what a weight is instead of the right one."""
    start, right, found = weights(case.model()), plain(case)["steps"], seen[rank]["steps"]
    first, ends = start[name], [each["steps"][-1] for each in seen]
    if all(alike(end, start) for end in ends):
        return "is unchanged, and so are all, as if no rank had stepped: step self.local"
    if all(close(end[name], first) for end in ends):
        return "never changes, even on its owner. Take each from its owner, not all from one rank"
    if close(found[1][name], right[0][name]):
        return "is one step behind: step first, and then send"
    if close(found[step][name], first):
        return "never arrived: after its owner has stepped, the parameter itself goes to every rank"
    if close(found[step][name], (right[step][name] + (N - 1) * first) / N):
        return "is the mean of all ranks. Take the owner's, as it is"
    return "is neither right nor what it was before. Is it stepped twice, or with other options?"


@TASK.claim(TRAININGS)
def gradients_stay(case: Training, seen: Any) -> Finding:
    """A step leaves the gradients as they are, as a plain optimizer's does."""
    for rank, found in enumerate(seen):
        for name in found["changed"]:
            return f"on rank {rank}, the step has changed the gradient of {name}. Its caller may still need it"


TIMES = {"send": 0, "all_reduce": 2, "all_gather": 1 - 1 / N, "all_gather_into_tensor": 1 - 1 / N}
TOO_MUCH = {
    "all_reduce": "moves every number twice, to add up what need not be added",
    "all_gather": "takes every parameter from every rank, and keeps only the owner's",
}


@TASK.claim(TRAININGS)
def each_parameter_travels_once(case: Training, seen: Any) -> Finding:
    """In a step a rank receives only what other ranks own, each parameter once."""
    sizes = [parameter.nbytes for parameter in case.model().parameters()]
    max_bytes = 3 * (N - 1) * (sum(sizes) / N + max(sizes))  # some pad all shares to one size
    for rank, found in enumerate(seen):
        received: Counter[str] = Counter()  # bytes
        for name, size, peer, _ in found["calls"]:
            times = int(peer != rank) if name == "broadcast" else TIMES.get(name, 1)
            received[name] += int(size * times)
        if received.total() > max_bytes:
            name, _ = received.most_common(1)[0]
            why = TOO_MUCH.get(name.removesuffix("_into_tensor"), "moves more than it has to")
            what = listed(f"{size} bytes by {name}" for name, size in received.items())
            of = f"in three steps of {sum(sizes)} bytes of parameters"
            return f"rank {rank} receives {what} {of}: {name} {why}"


@TASK.claim(TRAININGS)
def zero_grad_clears_all(case: Training, seen: Any) -> Finding:
    """zero_grad clears the gradient of every parameter, not of this rank's share alone."""
    for rank, found in enumerate(seen):
        for name in found["uncleared"]:
            return f"on rank {rank}, {name} still has a gradient, and the next one is added to it"


@TASK.claim(TRAININGS)
def closure_is_called_once_and_its_loss_returned(case: Training, seen: Any) -> Finding:
    """step(closure) calls the closure once, with gradients switched on, and returns its loss."""
    right, give = plain(case)["closure"], "Give it to self.local's step"
    for rank, found in enumerate(seen):
        calls, loss = found["closure"]["calls"], found["closure"]["loss"]
        if len(calls) != 1:
            return f"on rank {rank}, the closure was called {len(calls)} times. {give} alone"
        if not calls[0]:
            return f"the closure was called with gradients switched off, and computes some. {give}"
        if loss is None or abs(loss - right["loss"]) > 1e-9:
            expected = f"expected what the closure returns, {right['loss']:.4g}"
            return f"on rank {rank}, step(closure) returned {loss}, {expected}"
        if not alike(found["closure"]["weights"], right["weights"]):
            return f"on rank {rank}, weights after step(closure) are not those of one process"


@TASK.claim(TRAININGS)
def full_state_is_that_of_a_plain_optimizer(case: Training, seen: Any) -> Finding:
    """full_state_dict() gives every rank what state_dict() of a plain optimizer would be."""
    right = {str(number): state for number, state in plain(case)["state"]["state"].items()}
    groups = plain(case)["state"]["param_groups"]
    for rank, found in enumerate(seen):
        full = found["full"]
        if not isinstance(full, dict) or "param_groups" not in full:
            return f'rank {rank}\'s has no param_groups. Return full, and replace only its "state"'
        if not isinstance(state := full.get("state"), dict):
            return f'rank {rank}\'s "state" is not a dict of states by the numbers of parameters'
        if others := {*found["numbers"]} - {"int"}:
            return f"rank {rank}'s states go by a {min(others)}, expected the number of the parameter, an int"
        if state.keys() != right.keys():
            there, expected = listed(sorted(state)) or "no parameter", listed(sorted(right))
            why = _other_states(seen, rank, right)
            return f"rank {rank} has the state of {there}, expected {expected}{why}"
        for number, what in ((number, what) for number, each in right.items() for what in each):
            if not _same(state[number].get(what), right[number][what]):
                return f"rank {rank}'s {what} of parameter {number} is not a plain optimizer's"
        if wrong := _other_groups(full["param_groups"], groups):
            return f"rank {rank}'s param_groups are not a plain optimizer's: {wrong}. Leave those of full as they are"


def _other_groups(found: Any, right: Any) -> str:
    """Return in what way the groups of a state are not the right ones."""
    if not isinstance(found, list) or len(found) != len(right):
        there = f"{len(found)} of them" if isinstance(found, list) else f"{found!r:.80}"
        return f"there is {there}, expected {len(right)}"
    for number, (group, expected) in enumerate(zip(found, right, strict=True)):
        for option, value in expected.items():
            own = group.get(option) if isinstance(group, dict) else None
            if own != (list(value) if isinstance(value, tuple) else value):
                return f"in group {number}, {option} is {own!r:.80}, expected {value}"
    return ""


def _other_states(seen: Any, rank: int, right: dict[str, Any]) -> str:
    """Return what to do where a rank has other states than it should."""
    numbers = [found["full"]["state"].keys() for found in seen]
    if rank and numbers[0] == right.keys():
        return ", as rank 0 has. Put them together on every rank"
    if all(each == numbers[0] for each in numbers):
        return ". Are these the local optimizer's numbers? Take own's, the same on all ranks"
    return ". Put those of all ranks together"


def _same(found: Any, expected: Any) -> bool:
    return close(found, expected) if isinstance(expected, torch.Tensor) else bool(found == expected)


@TASK.claim(TRAININGS)
def loaded_states_go_on(case: Training, seen: Any) -> Finding:
    """A rank keeps its share of a state that it loads, and training goes on as in one process."""
    right = plain(case)["closure"]["weights"]
    owned = [{*found["its own share"]["numbers"]} for found in seen]
    for rank, what in product(range(N), ("its own share", "a full state")):
        loaded, others = seen[rank][what], set().union(*owned[:rank], *owned[rank + 1 :])
        if extra := sorted(others.intersection(loaded["numbers"])):
            holds = f"holds the state of parameter {extra[0]}, which another rank owns"
            return f"rank {rank} has loaded {what}, and {holds}"
        if not alike(loaded["weights"], right):
            return f"rank {rank} has loaded {what}, and its next step is not that of one process"


@TASK.remark(TRAININGS)
def parameters_change_in_place(case: Training, seen: Any) -> Finding:
    """A parameter is changed in place, so whatever shows the same memory sees the step."""
    for rank, found in enumerate(seen):
        for name in found["moved"]:
            return f"on rank {rank}, {name} lies in other memory after a step, which is right, but a view of it misses the step"
