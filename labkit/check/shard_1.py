"""shard.1: a ShardedOptimizer trains on three ranks, beside a plain optimizer in one process."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Finding, TaskClaims
from labkit.check.plain import close

N = 3  # ranks
TASK = TaskClaims(given=["__init__", "add_param_group", "_parameters", "state_dict", "load_state_dict"])


def sharded(groups: Any, optimizer_class: Any, **options: Any) -> tuple[Any, Any]:
    """Return a student's optimizer, and a function that lists what this rank keeps: parameters that
    its optimizers of ``optimizer_class`` hold."""
    from labkit import shard

    made: weakref.WeakSet[Any] = weakref.WeakSet()

    class Watched(optimizer_class):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            made.add(self)

    def held() -> list[Any]:
        gc.collect()
        return [parameter for each in made for group in each.param_groups for parameter in group["params"]]

    return shard.ShardedOptimizer(groups, Watched, **options), held


# --- who owns what --------------------------------------------------------------------------------


@dataclass(eq=False)
class Shares:
    """Parameters of these sizes, in elements, in groups; the last group is added later."""

    what: str
    groups: Sequence[Sequence[int]]
    dtypes: Sequence[str] = ("float64",)  # in turns
    world_size = N

    def __str__(self) -> str:
        return f"{self.what}, of {listed([list(group) for group in self.groups])} elements"

    def parameters(self) -> list[list[nn.Parameter]]:
        dtypes = [vars(torch)[dtype] for dtype in self.dtypes]
        return [
            [nn.Parameter(torch.zeros(size, dtype=dtypes[n % len(dtypes)])) for n, size in enumerate(group)]
            for group in self.groups
        ]

    def sizes(self) -> list[int]:
        return [parameter.nbytes for group in self.parameters() for parameter in group]

    def observe(self) -> list[int]:
        groups = [{"params": group} for group in self.parameters()]
        optimizer, held = sharded(groups[:-1] or groups, torch.optim.SGD, lr=0.1)
        if groups[1:]:
            optimizer.add_param_group(groups[-1])
        numbers = {id(parameter): n for n, parameter in enumerate(p for group in groups for p in group["params"])}
        return sorted({numbers[id(parameter)] for parameter in held()})


ONE_LARGE = Shares("parameters of which every third is large", [[9, 1, 1] * 3])
SHARES = [
    ONE_LARGE,
    Shares("parameters of which the first are large", [[9] * 3 + [1] * 6]),
    Shares("float64 and bfloat16 parameters", [[9] * 9], ["float64", "bfloat16", "bfloat16"]),
    Shares("three groups, the last of which is added later", [[9, 1]] * 3),
]


@TASK.claim(SHARES)
def each_parameter_has_one_owner(case: Shares, seen: Any) -> Finding:
    """Each parameter is in the optimizer_class of one rank alone, its owner."""
    holders = [[rank for rank in range(N) if n in seen[rank]] for n in range(len(case.sizes()))]
    if all(len(ranks) == N for ranks in holders):
        return (
            "every rank's optimizer holds all parameters, so no memory is saved. It is to hold those that its rank owns"
        )
    if all(len(ranks) == N - 1 for ranks in holders):
        return "each parameter is held by all ranks but one. Keep what this rank owns, and leave out what the others do"
    for n, ranks in enumerate(holders):
        disagree = "ranks disagree about owners. Find them from order and sizes alone, which are the same on all ranks"
        if not ranks:
            return f"no rank's optimizer holds parameter {n}, so nobody would step it: {disagree}"
        if len(ranks) > 1:
            return f"ranks {listed(ranks)} hold parameter {n}: {disagree}"


@TASK.claim(SHARES)
def shares_are_even_in_bytes(case: Shares, seen: Any) -> Finding:
    """The fullest rank has at most as many bytes as the emptiest and the largest parameter."""
    sizes = case.sizes()
    held = [sum(sizes[n] for n in numbers) for numbers in seen]
    most = min(held) + max(sizes)
    if max(held) <= most:
        return None
    owners = [next(rank for rank in range(N) if n in seen[rank]) for n in range(len(sizes))]
    numels = [size for group in case.groups for size in group]
    elements = [sum(numels[n] for n in numbers) for numbers in seen]
    counts = [len(numbers) for numbers in seen]
    if max(counts) == len(sizes):
        why = f"all parameters are on rank {owners[0]}. Give the next one to the rank that has the fewest bytes so far"
    elif case.groups[1:]:
        why = "each group by itself may be shared out well. Count what ranks own of earlier groups, too"
    elif len(case.dtypes) > 1 and len(set(elements)) == 1:
        why = "ranks have as many elements, and those of one dtype are larger than of another. Count bytes"
    elif owners == [n % N for n in range(len(sizes))]:
        why = "they were given out in turns, whatever their sizes. Give each to the rank with the fewest bytes so far"
    elif len(set(counts)) == 1:
        why = "there are as many parameters on each rank, but they differ in size. Count bytes"
    else:
        why = "give each to the rank that has the fewest bytes so far"
    return f"ranks have {listed(held)} bytes, and the fullest may have {most}: {why}"


# --- training -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Training:
    """Steps of training: three, of which the second has another lr, then one with a closure."""

    optimizer: str
    options: dict[str, Any]
    world_size = N

    def __str__(self) -> str:
        return f"with {self.optimizer}"

    def model(self) -> nn.ModuleDict:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            model = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("first", "last", "unused")}).double()
        model["last"].bias.requires_grad_(False)
        return model

    def groups(self, model: Any) -> list[dict[str, Any]]:
        others = [*model["last"].parameters(), *model["unused"].parameters()]
        return [{"params": [*model["first"].parameters()]}, {"params": others, "lr": 0.05}]

    def loss(self, model: Any, step: int) -> Any:
        rows = torch.linspace(-1, step + 1, 12, dtype=torch.float64).view(4, 3)
        return (model["last"](model["first"](rows).tanh()) - 1).square().mean()

    def train(self, model: Any, optimizer: Any) -> Iterator[dict[str, Any]]:
        """Yield the weights after each of three steps."""
        for step in range(3):
            optimizer.zero_grad()
            self.loss(model, step).backward()
            optimizer.param_groups[0]["lr"] /= step + 1  # as a scheduler would
            optimizer.step()
            yield weights(model)

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
        return {"calls": calls, "loss": None if loss is None else float(loss.detach()), "weights": weights(model)}

    def observe(self) -> dict[str, Any]:
        model = self.model()
        tied, others = self.groups(model)
        tied["params"].append(tied["params"][0])
        optimizer, _ = sharded([tied, others], vars(torch.optim)[self.optimizer], **self.options)
        with recorded() as calls:
            steps = [*self.train(model, optimizer)]
        found: dict[str, Any] = {"steps": steps, "calls": calls}
        optimizer.zero_grad()
        found["uncleared"] = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()]
        found["full"] = copy.deepcopy(optimizer.full_state_dict())
        found["loaded"] = {name: self.load(name, model, optimizer) for name in ("its own share", "a full state")}
        return found | {"closure": self.go_on(model, optimizer)}

    def load(self, what: str, trained: Any, optimizer: Any) -> dict[str, Any]:
        """Return weights, and the numbers of the states, after a new optimizer has loaded one."""
        model = copy.deepcopy(trained)
        again, _ = sharded(self.groups(model), vars(torch.optim)[self.optimizer], **self.options)
        share = copy.deepcopy(optimizer.state_dict())
        again.load_state_dict(share if what == "its own share" else self.after_training()[1])
        numbers = sorted(again.state_dict()["state"])
        return {"numbers": numbers, "weights": self.go_on(model, again)["weights"]}

    def after_training(self) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        """Return weights, state, and the step with a closure, of a plain optimizer alone."""
        model = self.model()
        optimizer = vars(torch.optim)[self.optimizer](self.groups(model), **self.options)
        steps = [*self.train(model, optimizer)]
        state = copy.deepcopy(optimizer.state_dict())
        return steps, state, self.go_on(model, optimizer)


@functools.cache
def plain(case: Training) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return what :meth:`Training.after_training` does in a process that has no student's code.

    torch.optim takes a second to load here; there it mostly is.
    """
    from labkit.launch import launch

    found: tuple[Any, Any, Any] = launch(case.after_training, world_size=1, backend="gloo", init=False).values[0]
    return found


def weights(model: Any) -> dict[str, Any]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


TRAININGS = [Training("SGD", {"lr": 0.1, "momentum": 0.9}), Training("AdamW", {"lr": 0.1, "weight_decay": 0.2})]
TASK.claim(TRAININGS)(calls_have_ended)


@TASK.claim(TRAININGS)
def weights_are_those_of_one_process(case: Training, seen: Any) -> Finding:
    """After each step every rank has the weights that one process has."""
    right, start = plain(case)[0], weights(case.model())
    for step in range(3):
        for name, expected in right[step].items():
            of_ranks = [found["steps"][step][name] for found in seen]
            wrong = [rank for rank in range(N) if not close(of_ranks[rank], expected)]
            if not wrong:
                continue
            what = f"step {step}: on rank {wrong[0]}, {name}"
            if all(close(found["steps"][2][name], start[name]) for found in seen):
                return f"{what} {_still_the_first(seen, start)}"
            if close(seen[wrong[0]]["steps"][1][name], right[0][name]):
                return f"{what} is one step behind: step first, and then send"
            if close(of_ranks[wrong[0]], start[name]):
                travels = "after its owner has stepped it, the parameter itself has to travel, to every rank"
                return f"{what} never arrived: {travels}"
            if close(of_ranks[wrong[0]], (expected + (N - 1) * start[name]) / N):
                return f"{what} is the mean of all ranks. Take the owner's, as it is"
            return f"{what} is neither the right one nor the one before. Is it stepped twice, or with other options?"


def _still_the_first(seen: Any, start: dict[str, Any]) -> str:
    """Return why a parameter has never changed, not on its owner either."""
    if all(close(found["steps"][2][name], first) for found in seen for name, first in start.items()):
        return "is what it was at first, as is everything, as if no rank had stepped. Call self.local's step"
    return "is what it was at first, on its owner as well. Take each parameter from its owner, not all from one rank"


@TASK.claim(TRAININGS)
def each_parameter_travels_once(case: Training, seen: Any) -> Finding:
    """In a step a rank receives at most what the others own, each of it once."""
    sizes = [parameter.nbytes for parameter in case.model().parameters()]
    most = 3 * (N - 1) * (sum(sizes) / N + max(sizes))  # some pad all shares to one size
    for rank, found in enumerate(seen):
        received: Counter[str] = Counter()
        for name, size, peer, _ in found["calls"]:
            others = 1 - 1 / N  # of what is gathered, the rest is its own
            times = {"broadcast": peer != rank, "all_reduce": 2, "all_gather": others, "all_gather_into_tensor": others}
            received[name] += int(size * times.get(name, 1))
        if sum(received.values()) > most:
            name = max(received, key=lambda name: received[name])
            why = f"{name} moves every number twice, to add up what nobody needs added"
            if name.startswith("all_gather"):
                why = "it takes every parameter from every rank, and keeps the owner's"
            return f"rank {rank} receives {listed_bytes(received)} in three steps of {sum(sizes)} bytes of parameters: {why}"


def listed_bytes(received: Counter[str]) -> str:
    return listed([f"{size} bytes by {name}" for name, size in received.items()])


@TASK.claim(TRAININGS)
def zero_grad_clears_all(case: Training, seen: Any) -> Finding:
    """zero_grad clears the gradient of every parameter, not of this rank's share alone."""
    for rank, found in enumerate(seen):
        if found["uncleared"]:
            return f"on rank {rank}, {found['uncleared'][0]} still has a gradient, to which the next backward pass adds"


@TASK.claim(TRAININGS)
def closure_is_called_once_and_its_loss_returned(case: Training, seen: Any) -> Finding:
    """step(closure) calls the closure once, with gradients switched on, and returns its loss."""
    _, _, right = plain(case)
    for rank, found in enumerate(seen):
        calls, loss = found["closure"]["calls"], found["closure"]["loss"]
        if len(calls) != 1:
            return f"on rank {rank}, the closure was called {len(calls)} times. Give it to self.local's step, and only there"
        if not calls[0]:
            return "the closure was called with gradients switched off, and computes some. Give it to self.local's step"
        if loss is None or abs(loss - right["loss"]) > 1e-9:
            return (
                f"on rank {rank}, step(closure) returned {loss}, expected what the closure returns, {right['loss']:.4g}"
            )
        if not all(close(found["closure"]["weights"][name], each) for name, each in right["weights"].items()):
            return f"on rank {rank}, weights after step(closure) are not those of one process"


@TASK.claim(TRAININGS)
def full_state_is_that_of_a_plain_optimizer(case: Training, seen: Any) -> Finding:
    """full_state_dict() gives every rank what state_dict() of a plain optimizer would be."""
    _, state_dict, _ = plain(case)
    right = {str(number): state for number, state in state_dict["state"].items()}
    for rank, found in enumerate(seen):
        full = found["full"]
        if not isinstance(full, dict) or "param_groups" not in full:
            return f'rank {rank}\'s has no param_groups. Return full, with all states in place of its own under "state"'
        if not isinstance(state := full.get("state"), dict):
            return f'rank {rank}\'s "state" is not a dict of states by the numbers of parameters'
        if state.keys() != right.keys():
            has = f"rank {rank} has the state of {listed(sorted(state)) or 'no parameter'}, expected {listed(sorted(right))}"
            if rank and seen[0]["full"]["state"].keys() == right.keys():
                return f"{has}, as rank 0 has. Put them together on every rank"
            if all(state.keys() == other["full"]["state"].keys() for other in seen):
                return f"{has}. Its numbers may be those of the local optimizer. Take own's, which are the same on all ranks"
            return f"{has}. Put those of all ranks together"
        for number, each in right.items():
            for what, value in each.items():
                if not _same(state[number].get(what), value):
                    return f"rank {rank}'s {what} of parameter {number} is not what a plain optimizer has there"


def _same(found: Any, expected: Any) -> bool:
    return close(found, expected) if isinstance(expected, torch.Tensor) else bool(found == expected)


@TASK.claim(TRAININGS)
def loaded_states_go_on(case: Training, seen: Any) -> Finding:
    """A rank keeps its share of a state that it loads, and training goes on as in one process."""
    _, _, right = plain(case)
    for rank, found in enumerate(seen):
        others = [n for other in range(N) if other != rank for n in seen[other]["loaded"]["its own share"]["numbers"]]
        for what, loaded in found["loaded"].items():
            if extra := sorted({*loaded["numbers"]} & {*others}):
                return f"rank {rank} has loaded {what}, and holds the state of parameter {extra[0]}, which another rank owns"
            if not all(close(loaded["weights"][name], each) for name, each in right["weights"].items()):
                return f"rank {rank} has loaded {what}, and its next step is another than that of one process"
