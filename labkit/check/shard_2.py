"""shard.2: a ShardedModel takes two steps on two ranks; noted is which units have memory when."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.base.texts import listed
from labkit.check.calls import calls_have_ended, recorded
from labkit.check.harness import Finding, TaskClaims

N = 2  # ranks
LAYERS = "first", "middle", "last"  # each a unit, 0 to 2; middle is used twice
REDUCES = "reduce_scatter", "reduce_scatter_tensor"
GATHERS = "all_gather", "all_gather_into_tensor"
TASK = TaskClaims(given=["__init__", "_send", "forward"])


class Net(nn.Module):
    """Three linear layers, and one that is not sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.norm(self.first(x).double())
        return self.last(self.middle(self.middle(hidden).tanh()).tanh())


@dataclass(eq=False)
class Steps:
    """Two steps of training, of a float64 model."""

    what: str
    compute_dtype: str = "float64"
    prefetch: bool = False
    world_size = N

    def __str__(self) -> str:
        return self.what

    @torch.random.fork_rng(devices=[])
    def net(self) -> Net:
        torch.manual_seed(7)
        return Net().double()

    def rows(self, step: int) -> torch.Tensor:
        """Return the rows of all ranks, one after the other."""
        return torch.linspace(-1, step + 1, 4 * N * 3, dtype=torch.float64).sin().view(4 * N, 3)

    def observe(self) -> dict[str, Any]:
        from labkit import shard

        dtype = vars(torch)[self.compute_dtype]
        self.model = shard.ShardedModel(self.net(), compute_dtype=dtype, prefetch=self.prefetch)
        self.seen: list[Any] = []  # what happened, and of which layer; and which units had memory
        for name in LAYERS:
            layer = getattr(self.model.module, name)
            layer.register_forward_pre_hook(lambda *_, name=name: self.note("forward", name))
            layer.register_forward_hook(lambda _layer, _inputs, y, name=name: self.after_forward(name, y))
        return {"steps": [self.take(step) for step in range(2)], "weights": self.model.full_parameters()}

    def take(self, step: int) -> dict[str, Any]:
        self.seen, dtypes = [], []
        self.model.zero_grad()
        own = self.rows(step).chunk(N)[dist.get_rank()]
        with recorded(lambda call, tensors: dtypes.append((call.name, _dtype(tensors)))) as self.calls:
            loss = self.model(own).double().square().mean()
            self.note("after the forward pass")
            loss.backward()
            self.note("after the backward pass")
            reduces = [call for call in self.calls if call.name in REDUCES]
            waited = any(call.waits for call in reduces[-1:])  # for those before the given code may have waited
            left = [call.name for call in reduces]
            self.model.finish_gradient_synchronization()
            self.note("after finish_gradient_synchronization")
        found = {"loss": loss.item(), "seen": self.seen, "calls": self.calls, "dtypes": dtypes}
        found |= {"waited in backward": waited, "left in backward": left}
        return found | {"gradients": self.gradients()}

    def after_forward(self, name: str, y: torch.Tensor) -> None:
        self.note("after forward", name)
        y.register_hook(lambda _: self.note("backward", name))

    def note(self, what: str, layer: str = "") -> None:
        units = [unit.number for unit in self.model.units if unit.full.untyped_storage().nbytes()]
        self.seen.append([what, layer, units])

    def gradients(self) -> list[Any]:
        """Return the gradient of each unit's pieces in one, then of each replicated parameter."""
        found: list[Any] = []
        for unit in self.model.units:
            pieces = [p.grad.detach().flatten() for p in unit.parameters if p.grad is not None]
            found.append(torch.cat(pieces) if len(pieces) == len(unit.parameters) else None)
        return found + [p.grad for p in self.model.replicated]


@functools.cache
def of_one_process(case: Steps, step: int, rank: int, rows_of: int | None = None) -> tuple[float, list[torch.Tensor]]:
    """Return a rank's loss, and what its gradients should be: of all rows or a rank's."""
    net, rows = case.net(), case.rows(step)
    loss = net(rows.chunk(N)[rank]).square().mean().item()
    net(rows if rows_of is None else rows.chunk(N)[rows_of]).square().mean().backward()
    parts = []
    for name in LAYERS:
        row = torch.cat([p.grad.flatten() for p in getattr(net, name).parameters()])
        length = -(-len(row) // N)
        parts.append(row[rank * length : (rank + 1) * length])
    return loss, parts + [p.grad for p in net.norm.parameters() if p.grad is not None]


def _dtype(tensors: Any) -> str:
    while isinstance(tensors, list | tuple):
        tensors = tensors[0]
    return str(getattr(tensors, "dtype", "")).removeprefix("torch.")


CASES = [
    Steps("in float64"),
    Steps("with compute_dtype=torch.float32 and prefetch=True", "float32", prefetch=True),
]


def each_step(seen: Any) -> Iterator[tuple[int, int, Any]]:
    for rank, found in enumerate(seen):
        for step, each in enumerate(found["steps"]):
            yield rank, step, each


def near(case: Steps, found: Any, right: Any, times: float = 1.0) -> bool:
    """Return whether a number or a tensor is the right one, so many times, but for rounding."""
    rtol, atol = (1e-9, 1e-12) if case.compute_dtype == "float64" else (1e-4, 1e-6)
    found, right = torch.as_tensor(found).double(), torch.as_tensor(right).double() * times
    return found.shape == right.shape and bool(found.allclose(right, rtol, atol))


@TASK.claim(CASES)
def all_calls_have_ended(case: Steps, seen: Any) -> Any:
    """Whatever it calls of torch.distributed has ended before a step is over."""
    return calls_have_ended(
        case, [{"calls": [call for step in found["steps"] for call in step["calls"]]} for found in seen]
    )


@TASK.claim(CASES)
def layers_compute_with_all_of_their_weights(case: Steps, seen: Any) -> Finding:
    """In the forward pass each layer has its whole weights, as in one process."""
    for rank, step, found in each_step(seen):
        right, _ = of_one_process(case, step, rank)
        if not near(case, found["loss"], right):
            return (
                f"rank {rank}, step {step}: the loss is {found['loss']:.4g}, expected {right:.4g}. unit.full has to hold the "
                "shards of all ranks, one after the other, once the work that _gather returns is done"
            )


@TASK.claim(CASES)
def layers_are_let_go(case: Steps, seen: Any) -> Finding:
    """Only the layer that computes has memory for all of its weights, and the next one if it is
    gathered ahead; after a pass none has."""
    for rank, step, found in each_step(seen):
        for what, layer, units in found["seen"]:
            allowed = [LAYERS.index(layer)] if what in ("forward", "backward") else []
            extra = [LAYERS[unit] for unit in units if unit not in allowed]
            if len(extra) > (case.prefetch and bool(layer)):
                when = f"{what} of {layer}" if layer else what
                return (
                    f"rank {rank}, step {step}, {when}: the whole weights of {listed(extra)} still take memory. Resize the "
                    "storage of unit.full to 0 bytes in _let_go"
                )


@TASK.claim(CASES)
def weights_travel_in_the_compute_dtype(case: Steps, seen: Any) -> Finding:
    """Weights are cast before they travel; gradients travel and stay in the dtype of the shard."""
    for rank, step, found in each_step(seen):
        of = {name: [dtype for each, dtype in found["dtypes"] if each in name] for name in (GATHERS, REDUCES)}
        if wrong := {*of[GATHERS]} - {case.compute_dtype}:
            return (
                f"rank {rank}, step {step}: weights travel as {wrong.pop()}, expected {case.compute_dtype}, the dtype of "
                "unit.full. Cast the shard first, and fewer bytes travel"
            )
        if wrong := {*of[REDUCES]} - {"float64"}:
            return (
                f"rank {rank}, step {step}: gradients travel as {wrong.pop()}, expected float64, the dtype of unit.shard, as "
                "take_gradients() returns them: added up in fewer bits they lose digits"
            )


@TASK.claim(CASES)
def gradients_leave_while_backward_goes_on(case: Steps, seen: Any) -> Finding:
    """A unit's gradients leave by reduce_scatter in the backward pass, which waits for none."""
    for rank, step, found in each_step(seen):
        where = f"rank {rank}, step {step}"
        reduced = [name for name, *_ in found["calls"] if name == "all_reduce"]
        if len(found["left in backward"]) < len(LAYERS):
            instead = ", and all_reduce did, which moves twice the bytes" if len(reduced) > 2 else ""
            return (
                f"{where}: {len(found['left in backward'])} reduce_scatters began in the backward pass, expected one for each "
                f"of {len(LAYERS)} units{instead}. Start it in _scatter"
            )
        if found["waited in backward"]:
            return f"{where}: backward waited for a reduce_scatter. Start it with async_op=True, and wait in finish"


@TASK.claim(CASES)
def gradients_are_averaged(case: Steps, seen: Any) -> Finding:
    """Then the gradients of pieces, and of what is replicated, are the means over the ranks."""
    for rank, step, found in each_step(seen):
        _, right = of_one_process(case, step, rank)
        own = of_one_process(case, step, rank, rows_of=rank)[1]
        names = [
            *(f"the pieces of {name}" for name in LAYERS),
            *(f"norm.{p}, which is replicated" for p in ("weight", "bias")),
        ]
        for k, (gradient, mean) in enumerate(zip(found["gradients"], right, strict=True)):
            what = f"rank {rank}, step {step}: the gradient of {names[k]},"
            if gradient is None:
                return f"{what} is None. Give it what has arrived, in finish_gradient_synchronization"
            if near(case, gradient, mean):
                continue
            if near(case, gradient, mean, N):
                return f"{what} is {N} times too large: it is the sum over the ranks. Divide by the world size, once"
            if near(case, gradient, mean, 1 / N):
                return f"{what} is {N} times too small: it was divided by the world size twice"
            if near(case, gradient, own[k]):
                return f"{what} is still the rank's own. Average it over all ranks"
            return f"{what} is neither the mean over the ranks nor their sum nor its own"
