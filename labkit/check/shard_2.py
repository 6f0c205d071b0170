"""shard.2: a ShardedModel takes two steps on two ranks, or three; noted is what has memory when."""

from __future__ import annotations

import functools
import gc
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.closeness import times_off
from labkit.check.harness import Finding, Task

GROWS = 1.25  # times which weights of units are larger in a second step
LAYERS = "first", "middle", "last"  # each a unit, 0 to 2; middle is used twice
REDUCES = "reduce_scatter", "reduce_scatter_tensor"
GATHERS = "all_gather", "all_gather_into_tensor"
TASK = Task(
    writes="ShardedModel",
    minutes=45,
    points=20,
    notebooks="07",
    given=["__init__", "_send", "forward"],
    known={
        "out of bounds for storage of size 0": "Weights were used whose memory is gone: full's storage has memory before it "
        "is gathered, and the parameters show the shard before it goes",
        "allgather: invalid tensor size": "unit.full has another size than all shards have: what changes is the size of its "
        "storage, and the tensor stays as it is",
        "attempting to assign a gradient of size": "A parameter showed unit.full where its shard is due",
    },
    hints=(
        """A unit has two forms. Which of them do its parameters show before a pass, and which after it, when the
memory of the other should be gone? And what does a rank need of a sum of gradients, if it steps one
N-th of the parameters?""",
        """Gathering takes two steps: give full its memory, and have every rank's shard begin to arrive in it.
Letting go is the way back, after the parameters show the shard again. A reduce_scatter is begun in
backward and waited for only in finish; until then OnItsWay keeps what belongs together.""",
        """The shard is cast to full's dtype before it is sent, and gradients leave in the shard's. What has
arrived is a sum: divide it by the world size before add_gradient, and each replicated gradient after
its all_reduce. Wait for no all_gather either: given code waits for what _gather returns, and
where it prefetches, the layer before computes meanwhile.""",
    ),
)


class Net(nn.Module):
    """Three linear layers, and one that is not sharded."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 3)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.norm(self.first(x).double())
        return self.last(self.middle(self.middle(hidden).tanh()).tanh())


@dataclass(eq=False)
class Steps:
    """Two steps of training, of a float64 model; gradients of both add up if it ``accumulates``."""

    what: str
    compute_dtype: str = "float64"
    prefetch: bool = False
    world_size: int = 2
    widths: tuple[int, int] = (3, 4)
    frozen: str = ""  # a layer
    accumulates: bool = False

    def __str__(self) -> str:
        return self.what

    @torch.random.fork_rng(devices=[])
    def net(self, step: int = 0) -> Net:
        """Return the model in one process: weights are larger in each step, as if trained."""
        torch.manual_seed(7)
        net = Net(*self.widths).double()
        for parameter in net.parameters():
            parameter.data *= math.pi / 3  # so that float32 has not the same numbers
        for name in LAYERS:
            for parameter in getattr(net, name).parameters():
                parameter.data *= GROWS**step
        if self.frozen:
            net.get_submodule(self.frozen).requires_grad_(False)
        return net

    def rows(self, step: int) -> torch.Tensor:
        """Return the rows of all ranks, one after the other."""
        n_rows, width = 4 * self.world_size, self.widths[0]
        return torch.linspace(-1, step + 1, n_rows * width, dtype=torch.float64).sin().view(n_rows, width)

    def gradient_of(self, net: Net, rows: torch.Tensor) -> list[Any]:
        """Return the gradient of each unit's row, or None, then of each replicated parameter."""
        net(rows).square().mean().backward()
        layers = ([*getattr(net, name).parameters()] for name in LAYERS)
        units = [None if p[0].grad is None else torch.cat([each.grad.flatten() for each in p]) for p in layers]
        return units + [p.grad for p in net.norm.parameters()]

    def observe(self) -> dict[str, Any]:
        from labkit import shard

        dtype = vars(torch)[self.compute_dtype]
        self.calls, self.waited_inside = list[Any](), False
        with mock.patch.object(shard.ShardedModel, "_gather", self.noting(shard.ShardedModel._gather)):
            self.model = shard.ShardedModel(self.net(), compute_dtype=dtype, prefetch=self.prefetch)
        self.seen: list[Any] = []  # what happened, and of which layer; and which units had memory
        for name in LAYERS:
            layer = getattr(self.model.module, name)
            layer.register_forward_pre_hook(lambda *_, name=name: self.note("forward", name))
            layer.register_forward_hook(lambda _, x, y, name=name: self.after_forward(name, y))
        steps = [self.take(step) for step in range(2)]
        return {"steps": steps, "waited inside": self.waited_inside, "copied": self.copied()}

    def noting(self, gather: Any) -> Any:
        """Return ``_gather`` that notes whether it waits for what it began, or at a barrier."""

        def noted(model: Any, unit: Any) -> Any:
            with mock.patch.object(dist, "barrier", wraps=dist.barrier) as barrier:
                work = gather(model, unit)
            self.waited_inside |= barrier.called or any(call.waits for call in self.calls[-1:])
            return work

        return noted

    def take(self, step: int) -> dict[str, Any]:
        self.seen, dtypes = [], []
        if not (step and self.accumulates):
            self.model.zero_grad()
        own = self.rows(step).chunk(self.world_size)[dist.get_rank()]
        for unit in self.model.units:
            unit.shard *= GROWS ** bool(step)
        shards = [unit.shard.clone() for unit in self.model.units]

        def note_dtype(call: Any, tensors: Any) -> None:
            dtypes.append((call.name, _dtype(tensors)))

        with recorded(note_dtype) as self.calls:
            loss = self.model(own).double().square().mean()
            self.note("after the forward pass")
            loss.backward()
            self.note("after the backward pass")
            reduces = [call for call in self.calls if call.name in REDUCES]
            waited = any(call.waits for call in reduces[-1:])  # given code may wait for others
            self.model.finish_gradient_synchronization()
            self.note("after finish_gradient_synchronization")
        found = {"loss": loss.item(), "seen": self.seen, "calls": self.calls, "dtypes": dtypes}
        found |= {"waited in backward": waited, "left in backward": len(reduces)}
        found["changed"] = [n for n, unit in enumerate(self.model.units) if not unit.shard.equal(shards[n])]
        return found | {"gradients": self.gradients(), "larger": self.larger()}

    def after_forward(self, name: str, y: torch.Tensor) -> None:
        self.note("after forward", name)
        y.register_hook(lambda _: self.note("backward", name))

    def note(self, what: str, layer: str = "") -> None:
        units = [unit.number for unit in self.model.units if unit.full.untyped_storage().nbytes()]
        self.seen.append([what, layer, units])

    def copied(self) -> list[str]:
        """Return the layers of which a tensor, not unit.full, has the whole matrix in memory."""
        there: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        dtype, net = self.model.units[0].full.dtype, self.net(step=1)
        matrices = {name: net.get_parameter(f"{name}.weight").detach().flatten().to(dtype) for name in LAYERS}
        return [name for name, matrix in matrices.items() if any(_has(tensor, matrix) for tensor in there)]

    def larger(self) -> list[int]:
        """Return the units of which a gradient keeps more memory than the shard has, or a graph."""
        own = {unit.number: [each.untyped_storage().nbytes() for each in unit.gradients()] for unit in self.model.units}
        graph = {unit.number for unit in self.model.units if any(each.requires_grad for each in unit.gradients())}
        return [
            u.number for u in self.model.units if u.number in graph or max(own[u.number], default=0) > u.shard.nbytes
        ]

    def gradients(self) -> list[Any]:
        """Return the gradient of each unit's pieces in one, then of each replicated parameter."""
        found: list[Any] = []
        for unit in self.model.units:
            pieces = [p.grad.detach().flatten() for p in unit.parameters if p.grad is not None]
            found.append(torch.cat(pieces) if len(pieces) == len(unit.parameters) else None)
        return found + [None if p.grad is None else p.grad.clone() for p in self.model.replicated]


@functools.cache
def loss_of(case: Steps, step: int, rank: int) -> float:
    """Return a rank's loss, in one process."""
    loss: float = case.net(step)(case.rows(step).chunk(case.world_size)[rank]).square().mean().item()
    return loss


@functools.cache
def gradients_of(case: Steps, step: int, rank: int, own: bool = False) -> list[Any]:
    """Return a rank's gradients, in one process: of all rows, or of its own."""
    n, found = case.world_size, list[Any]()
    for each in range(step + 1) if case.accumulates else [step]:
        rows = case.rows(each)
        now = case.gradient_of(case.net(each), rows.chunk(n)[rank] if own else rows)
        found = [a if b is None else a + b for a, b in zip(now, found or [None] * len(now), strict=True)]
    units, replicated = found[: len(LAYERS)], found[len(LAYERS) :]
    lengths = [0 if row is None else -(-len(row) // n) for row in units]
    parts = [row if row is None else row[rank * k : (rank + 1) * k] for row, k in zip(units, lengths, strict=True)]
    return parts + replicated


def _has(tensor: Any, numbers: torch.Tensor) -> bool:
    """Return whether the memory of a tensor begins with these numbers."""
    if tensor.dtype != numbers.dtype or tensor.is_meta or tensor.untyped_storage().nbytes() < numbers.nbytes:
        return False
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())[: len(numbers)].allclose(numbers)


def _dtype(tensors: Any) -> str:
    while isinstance(tensors, list | tuple):
        tensors = tensors[0]
    return str(getattr(tensors, "dtype", "")).removeprefix("torch.")


AHEAD = Steps("with compute_dtype=torch.float32 and prefetch=True", "float32", prefetch=True)


def drawn(draw: random.Random) -> list[Steps]:
    """Return three ranks, so that 2 is not their number, with a frozen layer."""
    widths = draw.randint(2, 5), draw.randint(3, 5)
    what = f"on 3 ranks, with widths {widths[0]} and {widths[1]}, where middle is frozen and gradients of both steps add up"
    return [Steps(what, world_size=3, widths=widths, frozen="middle", accumulates=True)]


TWO = [Steps("in float64"), AHEAD]
CASES: list[Any] = [*TWO, drawn]


def each_step(seen: Any) -> Iterator[tuple[str, int, int, Any]]:
    for rank, found in enumerate(seen):
        for step, each in enumerate(found["steps"]):
            yield f"rank {rank}, step {step}", step, rank, each


def near(case: Steps, found: Any, right: Any) -> bool:
    """Return whether a number or a tensor is the right one, but for rounding."""
    rtol, atol = (1e-9, 1e-12) if case.compute_dtype == "float64" else (1e-4, 1e-6)
    found, right = torch.as_tensor(found).double(), torch.as_tensor(right).double()
    return found.shape == right.shape and bool(found.allclose(right, rtol, atol))


@TASK.claim(TWO)
def all_calls_have_ended(case: Steps, seen: Any) -> Finding:
    """Every call to torch.distributed has ended before the step is over."""
    calls = [[call for step in found["steps"] for call in step["calls"]] for found in seen]
    return calls_have_ended(case, [{"calls": each} for each in calls])


@TASK.claim(CASES, core=True)
def layers_compute_with_all_of_their_weights(case: Steps, seen: Any) -> Finding:
    """In the forward pass each layer has its whole weights, as in one process."""
    for where, step, rank, found in each_step(seen):
        right = loss_of(case, step, rank)
        if not near(case, found["loss"], right):
            loss = f"the loss is {found['loss']:.4g}, expected {right:.4g}"
            full = "unit.full has to hold the shards of all ranks, one after the other"
            return f"{where}: {loss}. {full}, once the work that _gather returns has ended"


@TASK.claim(CASES)
def layers_are_let_go(case: Steps, seen: Any) -> Finding:
    """Only the layer that computes has memory for all of its weights, and the next one if it is
    gathered ahead; after a pass none has."""
    for where, _, _, found in each_step(seen):
        for what, layer, units in found["seen"]:
            allowed = layer if what in ("forward", "backward") else ""
            extra = [LAYERS[unit] for unit in units if LAYERS[unit] != allowed]
            if len(extra) > (case.prefetch and bool(layer)):
                when = f"{what} of {layer}" if layer else what
                still = f"the whole weights of {listed(extra)} still take memory"
                return f"{where}, {when}: {still}. Resize unit.full's storage to 0 bytes in _let_go"
    for rank, found in enumerate(seen):
        for name in found["copied"]:
            return (
                f"rank {rank}: after two steps another tensor than unit.full has all of {name}'s weights. Keep no copy"
            )


@TASK.claim(CASES)
def weights_travel_in_the_compute_dtype(case: Steps, seen: Any) -> Finding:
    """Weights are cast before they travel; gradients travel and stay in the dtype of the shard."""
    to_compute = "the dtype of unit.full, in which fewer bytes travel"
    of_shard = "the dtype of unit.shard, as take_gradients() returns them: fewer bits lose digits"
    for where, _, _, found in each_step(seen):
        for what, names, expected, why in (
            ("weights", GATHERS, case.compute_dtype, to_compute),
            ("gradients", REDUCES, "float64", of_shard),
        ):
            if wrong := {dtype for name, dtype in found["dtypes"] if name in names} - {expected}:
                return f"{where}: {what} travel as {wrong.pop()}, expected {expected}, {why}"


@TASK.claim(CASES)
def gradients_leave_while_backward_goes_on(case: Steps, seen: Any) -> Finding:
    """A unit's gradients leave by reduce_scatter in the backward pass, which waits for none."""
    for where, _, _, found in each_step(seen):
        if (begun := found["left in backward"]) < (units := len(LAYERS) - bool(case.frozen)):
            reduced = [name for name, *_ in found["calls"] if name == "all_reduce"]
            instead = ", and all_reduce did, which moves twice the bytes" * (len(reduced) > 3)
            expected = f"expected one for each of {units} units{instead}. Start it in _scatter"
            return f"{where}: {begun} reduce_scatters began in the backward pass, {expected}"
        if found["waited in backward"]:
            to_do = "Start it with async_op=True, and wait in finish"
            return f"{where}: backward waited for a reduce_scatter. {to_do}"


NAMES = [*(f"the pieces of {name}" for name in LAYERS)]
NAMES += [f"norm.{parameter}, which is replicated" for parameter in ("weight", "bias")]


@TASK.claim(CASES)
def gradients_are_averaged(case: Steps, seen: Any) -> Finding:
    """Then the gradients of pieces, and of what is replicated, are the means over the ranks."""
    for where, step, rank, found in each_step(seen):
        right, own = (gradients_of(case, step, rank, own) for own in (False, True))
        for name, gradient, mean, alone in zip(NAMES, found["gradients"], right, own, strict=True):
            what = f"{where}: the gradient of {name},"
            if mean is None and gradient is not None:
                return f"{what} is there, and the layer is frozen: an optimizer would move it"
            if mean is None:
                continue
            if gradient is None:
                return f"{what} is None. finish_gradient_synchronization gives it what has arrived"
            if near(case, gradient, mean):
                continue
            if times := times_off(gradient, mean, case.world_size, functools.partial(near, case)):
                return f"{what} {times}"
            if near(case, gradient, alone):
                return f"{what} is still the rank's own. Average it over all ranks"
            return f"{what} is neither the mean over the ranks nor their sum nor its own"
        used_once = found["gradients"][: len(LAYERS) : 2]  # a sum of two has more digits
        if case.compute_dtype != "float64" and all(each.equal(each.float().double()) for each in used_once):
            return f"{where}: gradients have been rounded to {case.compute_dtype}. They stay in the shard's dtype"


@TASK.claim(CASES)
def weights_are_only_lent(case: Steps, seen: Any) -> Finding:
    """A pass changes no weight: what a layer is lent, in fewer bits, is not written back."""
    for where, _, _, found in each_step(seen):
        for unit in found["changed"]:
            return f"{where}: the shard of {LAYERS[unit]} has changed, and only an optimizer changes it"


@TASK.claim(CASES)
def gradients_take_the_memory_of_a_shard(case: Steps, seen: Any) -> Finding:
    """What stays of a unit's gradients takes a shard's memory, not that of the whole row."""
    for where, _, _, found in each_step(seen):
        for unit in found["larger"]:
            view = "it is a view of something larger, or has a graph"
            return f"{where}: the gradient of {LAYERS[unit]} keeps more memory than its shard has: {view}"


@TASK.remark(CASES)
def a_gather_is_only_begun(case: Steps, seen: Any) -> Finding:
    """_gather begins an all_gather, and waits neither for one nor at a barrier."""
    waits = "_gather waits for others, so where it prefetches no layer computes meanwhile"
    return any(found["waited inside"] for found in seen) and f"{waits}. The code that needs the weights waits by itself"
