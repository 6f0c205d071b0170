"""shard.3: an MLP over two ranks, three, and two of three, compared with the plain one.

Looked at are the parts that a rank keeps, outputs, gradients, and what is sent and kept.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Finding, Task

FREE_S = 2.0  # until memory that a message was sent from is free; only wrong answers wait so long
_waited_in_vain = False  # in this rank
TASK = Task(
    writes="ColumnParallelLinear, RowParallelLinear",
    minutes=30,
    points=10,
    notebooks="07",
    hints=(
        """Write down the MLP for one row and two ranks. Which numbers does a rank need for its part of the hidden
layer, and which for its part of the output? What does it have of the gradient of the input?""",
        """An output of the first layer needs a row of its matrix, and so does its bias. The second layer's output
is a sum over all inputs, so a rank that has some inputs has one part of that sum. Going back, the same
holds the other way round: the gradient of the input is a sum over all outputs of the first layer.""",
        """Nothing travels between the two layers. Forward adds up at the end, in SumOverRanks, and backward adds
up at the beginning, in CopyToRanks; the other direction of each hands on what it gets. Each rank has
the whole bias of the second layer, and adds it once the sum is there, or the sum would hold it N times.""",
    ),
)


@dataclass(eq=False)
class Mlp:
    """Two linear layers with a gelu in between, of these widths.

    If ``split``, rank 0 is a process group by itself, and the others are another one.
    """

    widths: tuple[int, int, int]
    bias: bool = True
    world_size: int = 2
    split: bool = False
    frozen: tuple[str, ...] = ()  # names of parameters

    def __str__(self) -> str:
        biases = "" if self.bias else ", without biases"
        frozen = f", of which {listed([*self.frozen])} are frozen" if self.frozen else ""
        ranks = f", on {self.world_size} ranks" if self.world_size > 2 else ""
        groups = ", of which rank 0 is a process group by itself" if self.split else ""
        return f"with widths {listed([*self.widths])}{biases}{frozen}{ranks}{groups}"

    @property
    def together(self) -> list[int]:
        """The ranks of the larger group."""
        return [*range(int(self.split), self.world_size)]

    def part(self, rank: int) -> tuple[int, int]:
        """Return which part of the layers a rank has, and of how many."""
        return (self.together.index(rank), len(self.together)) if rank in self.together else (0, 1)

    @contextmanager
    def group(self) -> Iterator[Any]:
        """Give this rank's process group, None for all ranks."""
        if not self.split:
            yield None
            return
        first, others = dist.new_group([0]), dist.new_group(self.together)
        group = others if dist.get_rank() else first
        yield group
        dist.destroy_process_group(group)

    @torch.random.fork_rng(devices=[])
    def layers(self) -> nn.ModuleDict:
        torch.manual_seed(11)
        inputs, hidden, outputs = self.widths
        sizes = {"first": (inputs, hidden, self.bias), "second": (hidden, outputs, self.bias)}
        layers = nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes.items()}).double()
        for name, parameter in layers.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        return layers

    def given(self) -> nn.ModuleDict:
        """Return the layers to share out, in a rank: the numbers of a group's first rank count."""
        layers = self.layers()
        if self.part(dist.get_rank())[0]:
            for parameter in layers.parameters():
                nn.init.zeros_(parameter)
        return layers

    def rows(self) -> torch.Tensor:
        return torch.linspace(-1, 1, 6 * self.widths[0], dtype=torch.float64).view(2, 3, -1).requires_grad_()

    def run(self, first: Any, second: Any) -> dict[str, Any]:
        """Return the output of two layers, and gradients: of the input, and of their parameters."""
        x = self.rows()
        y = second(nn.functional.gelu(first(x)))
        kept = _kept(y)
        ((y - 1) ** 3).mean().backward()
        found = {"output": y.detach().clone(), "the input": x.grad}
        for name, layer in (("first", first), ("second", second)):
            parts = {"weight": layer.weight, "bias": layer.bias}
            found |= {f"{name}.{each}": p.grad for each, p in parts.items() if p is not None}
        return {"found": found, "kept": kept, "memory": StorageWeakRef(y.untyped_storage())}

    def observe(self) -> dict[str, Any]:
        with self.group() as group:
            first, second = _shared_out(self.given(), group).values()
            with recorded() as calls:
                x = self.rows().detach()
                second(nn.functional.gelu(first(x)))
                n_forward = len(calls)
                found = self.run(first, second)
            spoilt = self.spoilt(group)
        holds = not _is_free(found.pop("memory"))
        return found | {"calls": calls, "in forward": n_forward, "holds its output": holds, "spoilt": spoilt}

    def spoilt(self, group: Any) -> list[str]:
        """Return which functions change what they are given, by name."""
        from labkit import shard

        x = self.rows()
        given = {"SumOverRanks' forward": x.detach().clone(), "CopyToRanks' backward": torch.ones_like(x).detach()}
        before = {name: each.clone() for name, each in given.items()}
        total, gradient = given.values()
        shard.SumOverRanks.apply(total, group)
        shard.CopyToRanks.apply(x, group).backward(gradient)
        return [name for name, each in given.items() if not each.equal(before[name])]

    def parts(self, whole: dict[str, Any], rank: int) -> dict[str, Any]:
        """Return a rank's parts of the layers' parameters, or of their gradients."""
        number, count = self.part(rank)
        dims = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
        return {
            name: each if each is None or name not in dims else each.tensor_split(count, dims[name])[number]
            for name, each in whole.items()
        }

    def right(self, rank: int) -> dict[str, Any]:
        """Return what a rank should find: of the plain layers its parts."""
        return self.parts(self.run(*self.layers().values())["found"], rank)


class Parts(Mlp):
    """The same layers, of which nothing is computed as yet."""

    def observe(self) -> dict[str, Any]:
        given = self.given()
        memory = {name: StorageWeakRef(p.untyped_storage()) for name, p in given.named_parameters()}
        with self.group() as group:
            layers = _shared_out(given, group)
        stays = {name: getattr(given[name.split(".")[0]], name.split(".")[1]) for name in memory}
        stays = {name: each if each is None else each.detach().clone() for name, each in stays.items()}
        del given
        held = next((name for name, each in memory.items() if not _is_free(each)), None)
        parts = {name: part.detach() for name, part in layers.named_parameters()}
        return {"parts": parts, "given": stays, "held": held}


def _shared_out(given: nn.ModuleDict, group: Any) -> nn.ModuleDict:
    from labkit import shard

    layers = nn.ModuleDict()
    first, second = given.values()
    layers["first"] = shard.ColumnParallelLinear(first, group)  # type: ignore[arg-type]
    layers["second"] = shard.RowParallelLinear(second, group)  # type: ignore[arg-type]
    return layers


def _is_free(memory: Any) -> bool:
    """Return whether nobody has this memory any more, once gloo's threads have let go of it.

    After one wait in vain the answer is wrong, and later cases wait no more.
    """
    global _waited_in_vain
    gc.collect()
    until = time.monotonic() + (0 if _waited_in_vain else FREE_S)
    while not memory.expired() and time.monotonic() < until:
        time.sleep(0.005)
    _waited_in_vain |= not memory.expired()
    return bool(memory.expired())


def _kept(y: torch.Tensor) -> list[str]:
    """Return the functions in the graph of ``y``, written in Python, that keep a tensor."""
    ahead, seen = [y.grad_fn], set[Any]()
    while ahead:
        if (node := ahead.pop()) is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    own = [node for node in seen if isinstance(node, torch.autograd.function.BackwardCFunction)]
    keeps = [
        node
        for node in own
        if any(isinstance(each, torch.Tensor) for each in (*node.saved_tensors, *vars(node).values()))
    ]
    return sorted(type(node).__name__.removesuffix("Backward") for node in keeps)


def drawn(draw: random.Random) -> list[Mlp]:
    """Return three ranks, whose parts chunk would cut elsewhere, and two of three."""
    one, other = ((draw.randint(1, 5), 3 * draw.randint(1, 4) + 1, draw.randint(2, 5)) for _ in range(2))
    return [
        Mlp(one, world_size=3, frozen=("first.bias", "second.weight")),
        Mlp(other, world_size=3, split=True, frozen=("first.weight", "second.bias")),
    ]


def drawn_parts(draw: random.Random) -> list[Parts]:
    return [Parts(**vars(case)) for case in drawn(draw)]


CASES: list[Any] = [Mlp((4, 6, 2)), Mlp((3, 5, 4)), Mlp((4, 4, 4), bias=False), drawn]
ALL_PARTS = [*(Parts(**vars(case)) for case in CASES[:-1]), drawn_parts]
PARTS = {
    "first.weight": "what its outputs need, as tensor_split cuts them",
    "first.bias": "that of its outputs, as tensor_split cuts them",
    "second.weight": "what its inputs need, as tensor_split cuts them",
    "second.bias": "all of it, since each rank has every output",
}


@TASK.claim(ALL_PARTS)
def each_rank_keeps_its_part(case: Parts, seen: Any) -> Finding:
    """A rank keeps its part of both matrices: outputs of the first, inputs of the second."""
    for rank, found in enumerate(seen):
        kept, right = found["parts"], case.parts(dict(case.layers().named_parameters()), rank)
        for name, part in right.items():
            shape = [*kept[name].shape] if name in kept else "missing"
            if shape != [*part.shape]:
                return f"rank {rank}'s {name} is {shape}, expected {[*part.shape]}: {PARTS[name]}"
        if extra := kept.keys() - right.keys():
            return f"rank {rank} keeps {min(extra)} as well. Copy the parts, and drop the layer"


@TASK.claim(ALL_PARTS)
def a_part_is_a_copy(case: Parts, seen: Any) -> Finding:
    """A part is a copy: it has the layer's numbers, which are saved and trained, in memory of its
    own, and the layer stays as it is."""
    whole = dict(case.layers().named_parameters())
    for rank, found in enumerate(seen):
        for name, part in case.parts(whole, rank).items():
            if not found["parts"][name].equal(part):
                return f"rank {rank}'s {name} has other numbers than the layer's: {PARTS[name]}, as it is"
            if (now := found["given"][name]) is None or not now.equal(whole[name]):
                return f"on rank {rank}, {name} of the layer that was given has changed: leave it as it is"
        if name := found["held"]:
            once = "is still in memory after the layer is gone, as where a part is a view of it"
            return f"on rank {rank}, all of {name} {once}. Copy the part, and keep nothing else"


TASK.claim(CASES)(calls_have_ended)


@TASK.claim(CASES, core=True)
def output_is_that_of_the_plain_layers(case: Mlp, seen: Any) -> Finding:
    """On every rank the output is that of the plain MLP."""
    right = case.right(0)["output"]
    bias = case.layers().get_parameter("second.bias").detach() if case.bias else torch.zeros(())
    outputs = [found["found"]["output"] for found in seen]
    for rank, y in enumerate(outputs):
        what, (_, n) = f"rank {rank}'s output", case.part(rank)
        if y.shape != right.shape:
            expected = f"expected {[*right.shape]}: every rank has all outputs in the end"
            return f"{what} has the shape {[*y.shape]}, {expected}"
        if y.allclose(right):
            continue
        if y.allclose(right + (n - 1) * bias):
            return f"{what} has the bias {n} times: each rank has added it"
        if y.allclose(right - bias):
            return f"{what} lacks the bias"
        if n > 1 and (y.allclose(right / n) or y.allclose((right - bias) / n + bias)):
            return f"{what} is a mean over the ranks. They have parts of a sum"
        if (sum(outputs[each] for each in case.together) - (n - 1) * bias).allclose(right):
            return f"{what} is this rank's part of the sum, and of no other rank's"
        return f"{what} is neither the plain MLP's nor a part of it{_other_group(case)}"


def _other_group(case: Mlp) -> str:
    return ". Only the ranks of process_group have a part of it" if case.split else ""


@TASK.claim(CASES)
def gradients_are_those_of_the_plain_layers(case: Mlp, seen: Any) -> Finding:
    """The gradients of the input and of each part are those that the plain MLP has."""
    for rank, found in enumerate(seen):
        _, n = case.part(rank)
        for name, right in case.right(rank).items():
            gradient, what = found["found"][name], f"rank {rank}: the gradient of {name}"
            if right is None and gradient is not None:
                return f"{what} is there, and {name} is frozen. What is frozen stays so"
            if right is None:
                continue
            if gradient is None:
                return f"{what} is None. The layers' parts have to be Parameters that forward uses"
            if gradient.allclose(right):
                continue
            if gradient.allclose(right * n):
                why = "SumOverRanks adds up in backward what every rank has whole already"
                return f"{what} is {n} times too large: {why}"
            if name == "the input" and n > 1 and gradient.allclose(right / n):
                return f"{what} is a mean. What ranks have are parts of a sum"
            own = [seen[each]["found"][name] for each in case.together]
            if name == "the input" and sum(own).allclose(right):
                return f"{what} is what comes from this rank's outputs alone"
            return f"{what} is not that of the plain MLP{_other_group(case)}"


@TASK.claim(CASES)
def one_all_reduce_a_pass(case: Mlp, seen: Any) -> Finding:
    """The pair of layers forms one sum in forward, of the output, and one in backward."""
    for rank, forward, backward in _passes(seen):
        for calls, where in ((forward, "forward"), (backward, "backward")):
            again = [call for call, times in Counter(calls).items() if times > 1 and call[0] not in ("send", "recv")]
            if again or (not calls and case.part(rank)[1] > 1):
                names = listed([name for name, _ in calls]) or "none"
                return f"rank {rank} makes {len(calls)} calls in {where} ({names}), expected 1"


def _passes(seen: Any) -> Iterator[tuple[int, list[tuple[str, Any]], list[tuple[str, Any]]]]:
    """Yield for each rank what it calls in forward and in backward, and the roots."""
    for rank, found in enumerate(seen):
        calls = [(name, root) for name, _, root, _ in found["calls"]]
        yield rank, calls[: found["in forward"]], calls[2 * found["in forward"] :]


@TASK.claim(CASES)
def a_sum_is_a_new_tensor(case: Mlp, seen: Any) -> Finding:
    """A sum is a new tensor: what it is formed of, others may still need."""
    for rank, found in enumerate(seen):
        for name in found["spoilt"]:
            return f"on rank {rank}, {name} changes in place what it is given. Return a new tensor"


@TASK.claim(CASES)
def nothing_more_is_kept(case: Mlp, seen: Any) -> Finding:
    """A sum keeps no tensor for backward, and after a pass the layers keep none."""
    for rank, found in enumerate(seen):
        for name in found["kept"]:
            return f"rank {rank}: {name} keeps a tensor until backward, which needs the group alone: that costs memory"
        if found["holds its output"]:
            return f"rank {rank}: the output stays in memory when the caller has dropped it. Keep nothing of a pass"


@TASK.remark(CASES)
def an_all_reduce_does(case: Mlp, seen: Any) -> Finding:
    """One all_reduce a pass forms the sum on every rank."""
    for rank, *passes in _passes(seen):
        for names in ([name for name, _ in calls] for calls in passes):
            if names not in ([], ["all_reduce"]):
                return f"rank {rank} forms a sum by {listed(names)}, which is right. One all_reduce does both"
