"""Train a stack of layers with several ways to share out its state: what notebook 07 measures.

A way takes a model, and returns the model to train, its optimizer, and a function to call after
backward; ``step`` is the notebook's:

    launch(two_steps, step, data_parallel)
    Turns(launch(in_turns, step, {"data parallel": data_parallel, "shard.2": shard_2}))
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import dp, shard
from labkit.base.formats import MeasuredTable, fact
from labkit.cost import Link, UnitCost, ddp_step_of_units, fsdp_step
from labkit.lab.living_bytes import at_peak as at_peak
from labkit.lab.living_bytes import living_bytes, plain_tensors
from labkit.lab.living_bytes import peaks_mib as peaks_mib
from labkit.launch import Run, device
from labkit.simulate import makespan
from labkit.stats import Interval, numbered, turns
from labkit.stats.repeated_times import RepeatedTimes
from labkit.trace import barrier, span, traffic

WIDTH, LAYERS, ROWS = 256, 8, 128

Training: TypeAlias = tuple[Any, torch.optim.Optimizer, Callable[[], object]]
Way: TypeAlias = Callable[[torch.nn.Module], Training]
Step: TypeAlias = Callable[..., object]
Weights: TypeAlias = dict[str, torch.Tensor]


def network() -> torch.nn.Sequential:
    """Return the model that notebook 07 trains, on this rank's device: the same on every rank."""
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    return torch.nn.Sequential(*blocks).to(device())


def mlp() -> torch.nn.Sequential:
    """Return an MLP of width 128, with 8 · width² weights: the same on every rank."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(128, 4 * 128), torch.nn.Linear(4 * 128, 128)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second).to(device())


def own_rows(n_rows: int, width: int = WIDTH) -> torch.Tensor:
    """Return this rank's rows, which no other rank has."""
    torch.manual_seed(torch.distributed.get_rank())
    return torch.randn(n_rows, width).to(device())


# --- ways -----------------------------------------------------------------------------------------


def no_sync(model: Any) -> Training:
    return model, torch.optim.AdamW(model.parameters()), lambda: None


def torch_ddp(model: Any) -> Training:
    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters()), lambda: None


def torch_zero(model: Any) -> Training:
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    return model, optimizer, lambda: dp.average_gradients(model)


def torch_fsdp(model: Any) -> Training:
    for part in (*model, model):  # each layer, then what is left
        fully_shard(part)
    return model, torch.optim.AdamW(model.parameters()), lambda: None


def tensor_parallel(mlp: Any) -> Training:
    first, relu, second = mlp
    parts = shard.ColumnParallelLinear(first), relu, shard.RowParallelLinear(second)
    model = torch.nn.Sequential(*parts)
    return model, torch.optim.AdamW(model.parameters()), lambda: None


# --- bytes ----------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """What lives at every moment of two steps, and the bytes that this rank sends in a third."""

    moments: pd.DataFrame
    sent_bytes: float


def two_steps(step: Step, way: Way, n_rows: int = ROWS) -> Counted:
    """Train two steps and count. Where the kernel does not count, ``sent_bytes`` is NaN."""
    model, optimizer, sync = way(network())
    rows = own_rows(n_rows)
    with living_bytes(model, optimizer) as counted:
        for _ in range(2):
            step(model, optimizer, sync, rows)
    return Counted(counted.moments, _sent_bytes(lambda: step(model, optimizer, sync, rows)))


def _sent_bytes(once: Callable[[], object]) -> float:
    if not traffic.available():
        return math.nan
    barrier()
    with traffic.observe() as seen:
        once()
    return seen.sent_bytes


class StorageCount(TorchDispatchMode):
    """Counts the bytes of all tensors' storages after each operation: ``peak_bytes`` is the most.

    A storage counts from the first operation that sees it until nobody keeps it, whatever it is
    for. Memory that an operation takes and gives back by itself is not seen.
    """

    def __init__(self, *trees: Any):
        super().__init__()
        self.peak_bytes = 0
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._see(trees)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self._see((args, kwargs, found))
        return found

    def _see(self, tree: Any) -> None:
        for tensor in plain_tensors(pytree.tree_leaves(tree)):
            seen = tensor.untyped_storage()
            self._living[seen._cdata] = weakref.ref(seen)
        living = [(key, storage) for key, ref in self._living.items() if (storage := ref()) is not None]
        self._living = {key: self._living[key] for key, _ in living}
        self.peak_bytes = max(self.peak_bytes, sum(storage.nbytes() for _, storage in living))


# --- ways that take turns -------------------------------------------------------------------------


class Trained(NamedTuple):
    """What comes of a way: whole weights by name; of a step what lives at every moment, the most
    bytes of all tensors, and the bytes that this rank sends."""

    weights: Weights
    moments: pd.DataFrame
    peak_bytes: float
    sent_bytes: float


def in_turns(
    step: Step,
    ways: Mapping[str, Way],
    rounds: int = 10,
    n_rows: int | Sequence[int] = ROWS,
    model: Callable[[], Any] = network,
) -> dict[str, Trained]:
    """Train a model each way, a step in turn, ``rounds`` times; then count in three more.

    ``n_rows`` are this rank's rows in a step: a number, or one of each way.
    """
    trained = {name: way(model()) for name, way in ways.items()}
    for _, optimizer, _ in trained.values():
        _time_steps(optimizer)
    width = next(model().parameters()).shape[-1]
    counts = [n_rows] * len(ways) if isinstance(n_rows, int) else n_rows
    rows = {name: own_rows(count, width) for name, count in zip(ways, counts, strict=True)}
    for each in rows.values():
        each.requires_grad_(model is mlp)  # which stands for one within a model: its input has a gradient
    for number, name in enumerate([*ways] * rounds):
        barrier()
        with span("step", lane="host", step=number):
            step(*trained[name], rows[name])
    return {name: _counted(partial(step, *training, rows[name]), *training) for name, training in trained.items()}


def _time_steps(optimizer: torch.optim.Optimizer) -> None:
    """Have each step of the optimizer leave a span."""
    timings: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: timings.append(span("optimizer").begin()))
    optimizer.register_step_post_hook(lambda *_: timings.pop().end())


def _counted(once: Callable[[], object], model: Any, optimizer: torch.optim.Optimizer, _: Any) -> Trained:
    with living_bytes(model, optimizer) as living:
        once()
    barrier()
    with StorageCount([*model.parameters()], [*optimizer.state.values()]) as storages:
        once()
    return Trained(whole_weights(model), living.moments, storages.peak_bytes, _sent_bytes(once))


def whole_weights(model: Any) -> Weights:
    """Return all weights by name, on every rank; of a ShardedModel or of DTensors too."""
    if hasattr(model, "full_parameters"):
        found: Weights = model.full_parameters()
        return found
    return {name: getattr(p, "full_tensor", p.detach)().detach().clone() for name, p in model.named_parameters()}


class Turns:
    """Steps of ways that took turns, by a way's name: what :func:`in_turns` returned and timed.

    ``predicted_s`` are seconds of each way, which stand in the table; ``name`` is the table's.
    """

    def __init__(self, run: Run, predicted_s: Sequence[float] = (), name: str = ""):
        self.run, self.predicted_s, self.name = run, predicted_s, name
        self.of: dict[str, Trained] = run.values[0]

    @property
    def step_s(self) -> RepeatedTimes:
        """Seconds of each step, of the slower rank: a row per round, a column per way."""
        return turns(self.run.events, self.of, "step", warm_up=2)

    @property
    def optimizer_s(self) -> pd.Series:
        """Median seconds of the optimizer in a step, by way."""
        events = numbered(self.run.events, ["optimizer"])
        return turns(events, self.of, "optimizer", warm_up=2).median()

    def apart(self, way: str, other: str) -> float:
        """Return the greatest difference between a weight of one way and of another."""
        one, two = self.of[way].weights, self.of[other].weights
        return max(float((one[name] - two[name]).abs().max()) for name in one)

    @property
    def alive(self) -> dict[str, pd.Series]:
        """By way, the bytes that live at every moment of a step."""
        return {name: found.moments.alive for name, found in self.of.items()}

    def tells(self, way: str, right: str) -> str:
        """Return what differs by more than 15 % between a way and the ``right`` one.

        That is "memory", "time", "both" or "neither": the most that lives, and what is sent, which
        sets the time on a slow link. Where the kernel does not count, it is the median step.
        """
        peak = {name: alive.max() for name, alive in self.alive.items()}
        sent = {name: found.sent_bytes for name, found in self.of.items()}
        slow: Any = self.step_s.median() if math.isnan(sent[right]) else sent
        memory, time = (abs(each[way] / each[right] - 1) > 0.15 for each in (peak, slow))
        return "both" if memory and time else "memory" if memory else "time" if time else "neither"

    @property
    def table(self) -> MeasuredTable:
        """A row per way: the most MiB that live, MiB that rank 0 sends, and ms, all of a step."""
        peak = {name: found.peak_bytes / 2**20 for name, found in self.of.items()}
        sent = {name: found.sent_bytes / 2**20 for name, found in self.of.items()}
        table = MeasuredTable({"peak, MiB": peak, "sent, MiB": sent, "a step, ms": 1000 * self.step_s.median()})
        table = table.loc[[*self.of]].rename_axis(self.name or None)
        if self.predicted_s:
            table["messages, ms"] = [f"{1000 * seconds:.1f}" for seconds in self.predicted_s]
        table.attrs = dict(self.run.events.attrs)
        return table


def predicted_s(found: Turns, link: Link, world_size: int = 2) -> dict[str, float]:
    """Return the seconds of a step of the network with DDP and with FSDP, as they should be.

    They start from the way "no sync" and from each way's optimizer: a layer has an equal part of
    what is computed, a third of it in forward, and its numbers travel in 32 bits.
    """
    optimizer_s = found.optimizer_s
    layer_s, n_bytes = (found.step_s["no sync"].median() - optimizer_s["no sync"]) / LAYERS, 4 * (WIDTH + 1) * WIDTH
    layers = [UnitCost(layer_s / 3, 2 * layer_s / 3, n_bytes, n_bytes)] * LAYERS
    steps = {
        "DDP": ddp_step_of_units(layers, world_size, link, optimizer_s["DDP"]),
        "FSDP": fsdp_step(layers, world_size, link, optimizer_s["FSDP"]),
        "prefetching": fsdp_step(layers, world_size, link, optimizer_s["prefetching"], prefetch=True),
    }
    return {way: makespan(events) for way, events in steps.items()}


class BesideDDP(NamedTuple):
    """How many times as long as with DDP each way takes, by way and then by the size of a batch.

    ``measured`` are intervals, ``predicted`` numbers.
    """

    measured: dict[str, dict[int, Interval]]
    predicted: dict[str, dict[int, float]]

    def table(self, unit: str) -> MeasuredTable:
        """Return both side by side: a column per size, which is in ``unit``.

        A prediction says where it lies: inside, below or above the measured interval.
        """
        rows = {}
        for way, of_sizes in self.measured.items():
            rows[way] = {n: fact(found.text(), 22) for n, found in of_sizes.items()}
            rows[f"{way}, predicted"] = {
                n: fact(_placed(self.predicted[way][n], found), 22) for n, found in of_sizes.items()
            }
        return MeasuredTable(rows).T.rename(columns=lambda n: f"{n} {unit}")


def _placed(number: float, measured: Interval) -> str:
    return f"{number:.3g}, {measured.side_of(number).split()[0]}"


def beside_ddp(found: Mapping[int, Turns], link: Link) -> BesideDDP:
    """Compare the ways "FSDP" and "prefetching" with "DDP", for each size of a batch."""
    ways = "FSDP", "prefetching"
    should = {n: predicted_s(steps, link) for n, steps in found.items()}
    return BesideDDP(
        {way: {n: steps.step_s.ratio(way, "DDP") for n, steps in found.items()} for way in ways},
        {way: {n: seconds[way] / seconds["DDP"] for n, seconds in should.items()} for way in ways},
    )
