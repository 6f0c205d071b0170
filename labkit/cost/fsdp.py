"""Predict a step of fully sharded training, and when it takes longer than a data-parallel one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.base.checks import check_seconds, check_whole_bytes
from labkit.cost.ddp import ddp_step
from labkit.cost.links import Link, collective_s
from labkit.trace import event_table

if TYPE_CHECKING:
    import pandas as pd


class UnitCost(NamedTuple):
    """A unit of layers: how long a rank computes it, and the bytes of all its numbers.

    ``weight_bytes`` is as they travel: 4 per parameter, or 2 with compute_dtype=torch.bfloat16.
    """

    forward_s: float
    backward_s: float
    weight_bytes: int
    gradient_bytes: int

    def times(self, tokens: float) -> UnitCost:
        """Return the cost of ``tokens`` tokens; ``self`` has the seconds of one."""
        return self._replace(forward_s=tokens * self.forward_s, backward_s=tokens * self.backward_s)


def fsdp_step(
    units: Sequence[UnitCost], world_size: int, link: Link, optimizer_s: float = 0.0, prefetch: bool = False
) -> pd.DataFrame:
    """Return a step of rank 0 with a ShardedModel as it should be: an event table, from its start.

    Each unit is gathered before its forward and before its backward pass, and its gradients leave
    by a reduce_scatter after it, once the last but one has arrived. All go over one channel. With
    ``prefetch`` the next unit's all_gather is handed over when this one begins to compute, but not
    where that is the same unit: where forward turns into backward. ``bucket`` is the unit's number.

    ========  ==============  ===================================================================
    lane      name
    ========  ==============  ===================================================================
    compute   forward         a unit
    compute   backward        a unit
    compute   wait            for a unit, or at the end for the gradients: exposed communication
    compute   optimizer
    comm      all_gather      all of a unit's weights
    comm      reduce_scatter  all of a unit's gradients
    ========  ==============  ===================================================================

    Raises ValueError for no units, and for seconds, bytes or a world size that cannot be.
    """
    _check_units(units)
    check_seconds("optimizer_s", optimizer_s)
    rows: list[tuple[Any, ...]] = []
    now_s = free_s = 0.0  # of the rank, and of its channel

    def send(name: str, number: int, n_bytes: int) -> float:
        nonlocal free_s
        start_s = max(now_s, free_s)
        free_s = start_s + collective_s(name, n_bytes, world_size, link)
        rows.append(("comm", name, number, n_bytes, start_s, free_s))
        return free_s

    def compute(name: str, number: int | None, end_s: float) -> None:
        nonlocal now_s
        if end_s > now_s or name != "wait":
            rows.append(("compute", name, number, None, now_s, end_s))
            now_s = end_s

    numbers = [*range(len(units))]
    passes = [("forward", k) for k in numbers] + [("backward", k) for k in reversed(numbers)]
    scattered_s: list[float] = []  # when gradients have arrived
    ahead_s: float | None = None  # when the unit is there that was gathered ahead
    for (name, k), following in zip(passes, [*(k for _, k in passes[1:]), None], strict=True):
        arrives_s = send("all_gather", k, units[k].weight_bytes) if ahead_s is None else ahead_s
        compute("wait", k, max(now_s, arrives_s))
        ahead_s = None
        if prefetch and following is not None and following != k:
            ahead_s = send("all_gather", following, units[following].weight_bytes)
        compute(name, k, now_s + (units[k].forward_s if name == "forward" else units[k].backward_s))
        if name == "backward":
            compute("wait", k, max(now_s, *scattered_s[-2:-1], 0.0))
            scattered_s.append(send("reduce_scatter", k, units[k].gradient_bytes))
    compute("wait", None, max(now_s, free_s))
    compute("optimizer", None, now_s + optimizer_s)
    return event_table((0, lane, name, 0, None, None, *rest) for lane, name, *rest in rows)


def ddp_step_of_units(units: Sequence[UnitCost], world_size: int, link: Link, optimizer_s: float = 0.0) -> pd.DataFrame:
    """Return a data-parallel step of the same model as :func:`labkit.cost.ddp_step` has it.

    Each unit's gradients are one bucket, ready once its backward pass is over.
    """
    _check_units(units)
    backwards = units[::-1]
    ready_s = [*accumulate(unit.backward_s for unit in backwards)]
    sizes, buckets = [unit.gradient_bytes for unit in backwards], [[k] for k in range(len(units))]
    forward_s = sum(unit.forward_s for unit in units)
    return ddp_step(forward_s, ready_s, optimizer_s, sizes, buckets, world_size, link.latency_s, link.bytes_per_s)


def hiding_tokens(units: Sequence[UnitCost], world_size: int, link: Link) -> float:
    """Return from how many tokens a step on FSDP with prefetch computes longer than it sends.

    The seconds of ``units`` are those of one token. Forward has to outlast an all_gather of each
    unit, and backward another and a reduce_scatter. With fewer tokens the link sets the pace. What
    is before the first computation, between forward and backward, and after the last stays exposed.
    """
    _check_units(units)
    gather_s = sum(collective_s("all_gather", unit.weight_bytes, world_size, link) for unit in units)
    scatter_s = sum(collective_s("reduce_scatter", unit.gradient_bytes, world_size, link) for unit in units)
    forward_s, backward_s = sum(unit.forward_s for unit in units), sum(unit.backward_s for unit in units)
    return max(gather_s / forward_s, (gather_s + scatter_s) / backward_s)


def _check_units(units: Sequence[UnitCost]) -> None:
    if not units:
        raise ValueError("units is empty, expected at least one: what is there to gather?")
    for number, unit in enumerate(units):
        for name in ("forward_s", "backward_s"):
            check_seconds(f"{name} of unit {number}", getattr(unit, name))
        for name in ("weight_bytes", "gradient_bytes"):
            check_whole_bytes(f"{name} of unit {number}", getattr(unit, name))


# --- one layer: its weights travel, or its activations --------------------------------------------


class LayerCost(NamedTuple):
    """What a layer sends in a step, forward and backward: a rank's bytes, and the seconds."""

    sent_bytes: float
    seconds: float


def fsdp_layer(
    n_weights: int, world_size: int, link: Link, weight_bytes: int = 4, gradient_bytes: int = 4
) -> LayerCost:
    """Return the cost of a layer on FSDP: two all_gathers and one reduce_scatter."""
    gather, scatter = n_weights * weight_bytes, n_weights * gradient_bytes
    seconds = 2 * collective_s("all_gather", gather, world_size, link)
    seconds += collective_s("reduce_scatter", scatter, world_size, link)
    return LayerCost((2 * gather + scatter) * (world_size - 1) / world_size, seconds)


def tensor_parallel_layer(rows: int, width: int, world_size: int, link: Link, number_bytes: int = 4) -> LayerCost:
    """Return the cost of an MLP, or of attention, over ranks: 2 all_reduce of (rows, width).

    ``rows`` are those that all ranks work on together.
    """
    n_bytes = rows * width * number_bytes
    seconds = 2 * collective_s("all_reduce", n_bytes, world_size, link)
    return LayerCost(2 * 2 * n_bytes * (world_size - 1) / world_size, seconds)
