"""shard.3: an MLP over two ranks, beside the plain one: outputs, gradients, and what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Finding, Task

N = 2  # ranks
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
    """Two linear layers with a gelu in between, of these widths, and a layer before them."""

    widths: tuple[int, int, int]
    bias: bool = True
    world_size = N

    def __str__(self) -> str:
        return f"with widths {listed([*self.widths])}{'' if self.bias else ', without biases'}"

    @torch.random.fork_rng(devices=[])
    def layers(self) -> list[nn.Linear]:
        torch.manual_seed(11)
        inputs, hidden, outputs = self.widths
        sizes = [(inputs, hidden, self.bias), (hidden, outputs, self.bias)]
        return [nn.Linear(*size).double() for size in sizes]

    def given(self) -> list[nn.Linear]:
        """Return the layers to share out, in a rank: the numbers of rank 0 count."""
        layers = self.layers()
        if dist.get_rank():
            for parameter in [*layers[0].parameters(), *layers[1].parameters()]:
                nn.init.zeros_(parameter)
        return layers

    def rows(self) -> torch.Tensor:
        return torch.linspace(-1, 1, 6 * self.widths[0], dtype=torch.float64).view(2, 3, -1).requires_grad_()

    def run(self, first: Any, second: Any) -> dict[str, Any]:
        """Return the output of two layers, and gradients: of the input, and of their parameters."""
        x = self.rows()
        y = second(nn.functional.gelu(first(x)))
        ((y - 1) ** 3).mean().backward()
        found = {"output": y.detach(), "the input": x.grad}
        for name, layer in (("first", first), ("second", second)):
            parts = {"weight": layer.weight, "bias": layer.bias}
            found |= {f"{name}.{each}": p.grad for each, p in parts.items() if p is not None}
        return found

    def observe(self) -> dict[str, Any]:
        from labkit import shard

        given = self.given()
        first, second = shard.ColumnParallelLinear(given[0]), shard.RowParallelLinear(given[1])
        with recorded() as calls:
            x = self.rows().detach()
            second(nn.functional.gelu(first(x)))
            n_forward = len(calls)
            found = self.run(first, second)
        return {"found": found, "calls": calls, "in forward": n_forward}

    def right(self, rank: int) -> dict[str, torch.Tensor]:
        """Return what a rank should find: of the plain layers its parts."""
        found = self.run(*self.layers())
        for name, dim in (("first.weight", 0), ("first.bias", 0), ("second.weight", 1)):
            if name in found:
                found[name] = found[name].tensor_split(N, dim)[rank]
        return found


class Parts(Mlp):
    """The same layers, of which nothing is computed as yet."""

    def observe(self) -> dict[str, Any]:
        from labkit import shard

        first, second = self.given()
        layers = nn.ModuleDict()
        layers["first"], layers["second"] = shard.ColumnParallelLinear(first), shard.RowParallelLinear(second)
        return {name: [*part.shape] for name, part in layers.named_parameters()}


CASES = [Mlp((4, 6, 2)), Mlp((3, 5, 4)), Mlp((4, 4, 4), bias=False)]
PARTS = {
    "first.weight": "its outputs, the rows of the matrix, as tensor_split cuts them",
    "first.bias": "that of its outputs, as tensor_split cuts them",
    "second.weight": "its inputs, the columns of the matrix, as tensor_split cuts them",
    "second.bias": "all of it, since each rank has every output",
}


@TASK.claim([Parts(case.widths, case.bias) for case in CASES])
def each_rank_keeps_its_part(case: Parts, seen: Any) -> Finding:
    """A rank keeps its part of both matrices: outputs of the first, inputs of the second."""
    for rank, kept in enumerate(seen):
        right = {name: [*part.shape] for name, part in case.right(rank).items() if "." in name}
        for name, shape in right.items():
            if (found := kept.get(name, "missing")) != shape:
                return f"rank {rank}'s {name} is {found}, expected {shape}: {PARTS[name]}"
        if extra := kept.keys() - right.keys():
            return f"rank {rank} keeps {min(extra)} as well. Copy the parts, and drop the layer"


TASK.claim(CASES)(calls_have_ended)


@TASK.claim(CASES, core=True)
def output_is_that_of_the_plain_layers(case: Mlp, seen: Any) -> Finding:
    """On every rank the output is that of the plain MLP."""
    right = case.right(0)["output"]
    bias = case.layers()[1].bias.detach() if case.bias else torch.zeros(())
    outputs = [found["found"]["output"] for found in seen]
    for rank, y in enumerate(outputs):
        what = f"rank {rank}'s output"
        if y.shape != right.shape:
            expected = f"expected {[*right.shape]}: every rank has all outputs in the end"
            return f"{what} has the shape {[*y.shape]}, {expected}"
        if y.allclose(right):
            continue
        if y.allclose(right + (N - 1) * bias):
            return f"{what} has the bias {N} times: each rank added it before the sum. Add it after"
        if y.allclose(right - bias):
            return f"{what} lacks the bias. Add it after the sum"
        if y.allclose(right / N) or y.allclose((right - bias) / N + bias):
            return f"{what} is a mean over the ranks. They have parts of a sum: add those up"
        if (sum(outputs) - (N - 1) * bias).allclose(right):
            return f"{what} is this rank's part of the sum. Add up all ranks', with SumOverRanks"
        return f"{what} is neither the plain MLP's nor a part of it"


@TASK.claim(CASES)
def gradients_are_those_of_the_plain_layers(case: Mlp, seen: Any) -> Finding:
    """The gradients of the input and of each part are those that the plain MLP has."""
    for rank, found in enumerate(seen):
        for name, right in case.right(rank).items():
            gradient, what = found["found"][name], f"rank {rank}: the gradient of {name}"
            if gradient is None:
                return f"{what} is None. The layers' parts have to be Parameters that forward uses"
            if gradient.allclose(right):
                continue
            if gradient.allclose(right * N):
                why = "SumOverRanks adds up in backward what every rank has whole already"
                return f"{what} is {N} times too large: {why}"
            if name == "the input" and gradient.allclose(right / N):
                return f"{what} is a mean. What ranks have are parts of a sum"
            if name == "the input" and sum(each["found"][name] for each in seen).allclose(right):
                to_do = "Add up all ranks', in CopyToRanks' backward"
                return f"{what} is what comes from this rank's outputs alone. {to_do}"
            return f"{what} is not that of the plain MLP"


@TASK.claim(CASES)
def one_all_reduce_a_pass(case: Mlp, seen: Any) -> Finding:
    """The pair of layers sends one all_reduce in forward, of the output, and one in backward."""
    between = "Between the layers nothing travels: an activation needs its own number alone"
    for rank, found in enumerate(seen):
        names = [name for name, *_ in found["calls"]]
        forward, backward = names[: found["in forward"]], names[2 * found["in forward"] :]
        for calls, where, why in ((forward, "forward", f". {between}"), (backward, "backward", "")):
            if len(calls) != 1:
                made = f"makes {len(calls)} calls in {where} ({listed(calls) or 'none'})"
                return f"rank {rank} {made}, expected 1{why}"
