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
from labkit.check.harness import Finding, Task
from labkit.check.plain import times_off

N = 2  # ranks
LAYERS = "first", "middle", "last"  # each a unit, 0 to 2; middle is used twice
REDUCES = "reduce_scatter", "reduce_scatter_tensor"
GATHERS = "all_gather", "all_gather_into_tensor"
TASK = Task(
    writes="ShardedModel",
    minutes=45,
    points=20,
    notebooks="07",
    given=["__init__", "_send", "forward"],
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
            layer.register_forward_hook(lambda _, x, y, name=name: self.after_forward(name, y))
        return {"steps": [self.take(step) for step in range(2)]}

    def take(self, step: int) -> dict[str, Any]:
        self.seen, dtypes = [], []
        self.model.zero_grad()
        own = self.rows(step).chunk(N)[dist.get_rank()]

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
def loss_of(case: Steps, step: int, rank: int) -> float:
    """Return a rank's loss, in one process."""
    loss: float = case.net()(case.rows(step).chunk(N)[rank]).square().mean().item()
    return loss


@functools.cache
def gradients_of(case: Steps, step: int, rank: int, own: bool = False) -> list[torch.Tensor]:
    """Return a rank's gradients, in one process: of all rows, or of its own."""
    net, rows = case.net(), case.rows(step)
    net(rows.chunk(N)[rank] if own else rows).square().mean().backward()
    parts = []
    for name in LAYERS:
        row = torch.cat([p.grad.flatten() for p in getattr(net, name).parameters()])
        length = -(-len(row) // N)
        parts.append(row[rank * length : (rank + 1) * length])
    return parts + [p.grad for p in net.norm.parameters() if p.grad is not None]


def _dtype(tensors: Any) -> str:
    while isinstance(tensors, list | tuple):
        tensors = tensors[0]
    return str(getattr(tensors, "dtype", "")).removeprefix("torch.")


AHEAD = Steps("with compute_dtype=torch.float32 and prefetch=True", "float32", prefetch=True)
CASES = [Steps("in float64"), AHEAD]


def each_step(seen: Any) -> Iterator[tuple[str, int, int, Any]]:
    for rank, found in enumerate(seen):
        for step, each in enumerate(found["steps"]):
            yield f"rank {rank}, step {step}", step, rank, each


def near(case: Steps, found: Any, right: Any) -> bool:
    """Return whether a number or a tensor is the right one, but for rounding."""
    rtol, atol = (1e-9, 1e-12) if case.compute_dtype == "float64" else (1e-4, 1e-6)
    found, right = torch.as_tensor(found).double(), torch.as_tensor(right).double()
    return found.shape == right.shape and bool(found.allclose(right, rtol, atol))


@TASK.claim(CASES)
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


@TASK.claim(CASES)
def weights_travel_in_the_compute_dtype(case: Steps, seen: Any) -> Finding:
    """Weights are cast before they travel; gradients travel and stay in the dtype of the shard."""
    to_compute = "the dtype of unit.full: cast the shard first, and fewer bytes travel"
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
        if (begun := found["left in backward"]) < len(LAYERS):
            reduced = [name for name, *_ in found["calls"] if name == "all_reduce"]
            instead = ", and all_reduce did, which moves twice the bytes" * (len(reduced) > 3)
            expected = f"expected one for each of {len(LAYERS)} units{instead}. Start it in _scatter"
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
            if gradient is None:
                return f"{what} is None. finish_gradient_synchronization gives it what has arrived"
            if near(case, gradient, mean):
                continue
            if times := times_off(gradient, mean, N, functools.partial(near, case)):
                return f"{what} {times}"
            if near(case, gradient, alone):
                return f"{what} is still the rank's own. Average it over all ranks"
            return f"{what} is neither the mean over the ranks nor their sum nor its own"
